"""`robust201 plot`: figures of an exported dataset as files."""

from pathlib import Path
from typing import Annotated

import typer

from robust201.cli.estimates import say_unused_estimates
from robust201.cli.options import DATASET_ARGUMENT, WeightsName, split_names
from robust201.core.errors import ConfigError

ALL = "all"
MEAN_HELP = (
    "Weights of mean adversarial and mean corruption accuracy: over-evaluations (each pair of key and strength counts "
    "once) or over-keys (each key counts once)."
)


ShownKeys = Annotated[str | None, typer.Option("--keys", help="Keys to show, separated by commas; clean images stay.")]
ShownNetworks = Annotated[
    str | None,
    typer.Option(
        "--architectures",
        help="Networks to show, separated by commas: architectures, or trainings of them as ARCHITECTURE@WEIGHTS.",
    ),
]


def plot(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="A figure named by --list, or all.")] = None,
    dataset: Annotated[
        Path | None,
        DATASET_ARGUMENT,
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="The .png, .svg or .pdf file, or .csv for the numbers; a folder for all."),
    ] = None,
    data: Annotated[
        str | None, typer.Option("--dataset", help="Which dataset to draw, if DATASET has several.")
    ] = None,
    file_format: Annotated[str, typer.Option("--format", help="png, svg, pdf or csv, with all.")] = "png",
    width: Annotated[
        str, typer.Option("--width", help="column (3.25 in), page (6.75 in) or inches; text stays the same size.")
    ] = "page",
    title: Annotated[bool, typer.Option("--title", help="Write a title above the figure.")] = False,
    mean: Annotated[str, typer.Option("--mean", help=MEAN_HELP)] = "over-evaluations",
    weights: WeightsName = None,
    measures: Annotated[
        list[Path] | None,
        typer.Option(
            "--measures",
            metavar="<folder>",
            help="With measure-correlations: another folder that export wrote, such as one of the training split or of "
            "random weights. Its measures stand beside those of DATASET. Repeat it for more folders.",
        ),
    ] = None,
    shown_class: Annotated[
        int | None,
        typer.Option("--class", help="With one-class-confidence or all: number of the class to show; 0 by default."),
    ] = None,
    keys: ShownKeys = None,
    architectures: ShownNetworks = None,
    show_list: Annotated[bool, typer.Option("--list", help="List the figures and what each needs.")] = False,
) -> None:
    """Draw one figure of an exported dataset, or all of them, as PNG, SVG or PDF, or write their numbers as CSV."""
    from robust201.figures.table import FIGURES, figure_row

    if show_list:
        for row in FIGURES.values():
            source = f" ({row.source} of the paper)" if row.source else ""
            typer.echo(f"{row.name:<30}{row.title}{source}; needs {row.requirement}")
        return
    if name is None or dataset is None or out is None:
        given = {"NAME": name, "DATASET": dataset, "--out": out}
        lacking = " and ".join(f"no {what}" for what, value in given.items() if value is None)
        raise ConfigError(
            f"Reading the command line failed for robust201 plot: expected NAME DATASET --out FILE, got {lacking}. "
            "`robust201 plot --list` lists the figures."
        )
    if name != ALL:
        figure_row(name)
    from robust201.figures.plots import save_plot, save_plots
    from robust201.reader.dataset import RobustnessDataset

    reader = RobustnessDataset(dataset, weights=weights).select(split_names(architectures), split_names(keys))
    say_unused_estimates(reader.files, "figures show")
    if name == ALL:
        if measures:
            raise ConfigError(
                "Reading the command line failed for robust201 plot all: --measures is an option of the figure "
                "measure-correlations. Draw that figure alone."
            )
        paths = save_plots(
            reader,
            out,
            file_format=file_format,
            data=data,
            width=width,
            title=title,
            mean=mean,
            shown_class=shown_class or 0,
        )
    else:
        beside = [RobustnessDataset(folder) for folder in measures or ()]
        path = save_plot(
            reader,
            name,
            out,
            data=data,
            width=width,
            title=title,
            mean=mean,
            measures=beside,
            shown_class=shown_class,
        )
        paths = [path]
    for path in paths:
        typer.echo(path)
