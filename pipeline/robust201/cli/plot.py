"""`robust201 plot`: draw the figures of an exported dataset."""

from pathlib import Path
from typing import Annotated

import typer

from robust201.cli.estimates import say_unused_estimates
from robust201.cli.options import DATASET_ARGUMENT, ImageDataset, WeightsName, split_names
from robust201.core.errors import ConfigError

ALL = "all"
MEAN_HELP = (
    "How accuracies are averaged over attacks and over corruptions: over-evaluations (each key and strength counts "
    "once) or over-keys (each key counts once)."
)


ShownKeys = Annotated[
    str | None, typer.Option("--keys", help="Show only these keys, separated by commas, and clean accuracy.")
]
ShownNetworks = Annotated[
    str | None,
    typer.Option(
        "--architectures",
        help="Show only these networks, separated by commas: ARCHITECTURE, or ARCHITECTURE@WEIGHTS for one of its "
        "weights.",
    ),
]


def plot(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Name of a figure (see --list), or all.")] = None,
    dataset: Annotated[Path | None, DATASET_ARGUMENT] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="File to write: .png, .svg, .pdf, or .csv for the numbers; with all, a folder."),
    ] = None,
    data: ImageDataset = None,
    file_format: Annotated[str, typer.Option("--format", help="With all: png, svg, pdf or csv.")] = "png",
    width: Annotated[
        str,
        typer.Option(
            "--width",
            help="Width of the figure: column (3.25 in), page (6.75 in) or inches; the text size does not change.",
        ),
    ] = "page",
    title: Annotated[bool, typer.Option("--title", help="Write a title above the figure.")] = False,
    mean: Annotated[str, typer.Option("--mean", help=MEAN_HELP)] = "over-evaluations",
    weights: WeightsName = None,
    measures: Annotated[
        list[Path] | None,
        typer.Option(
            "--measures",
            metavar="FOLDER",
            help="With measure-correlations: also show the measures of this exported folder, such as one of random "
            "weights or of the training split. Repeatable.",
        ),
    ] = None,
    shown_class: Annotated[
        int | None,
        typer.Option("--class", help="With one-class-confidence or all: number of the class to show. Default: 0."),
    ] = None,
    keys: ShownKeys = None,
    architectures: ShownNetworks = None,
    show_list: Annotated[
        bool, typer.Option("--list", help="List the figures and the results that each needs.")
    ] = False,
) -> None:
    """Draw a figure of a dataset, or all figures, as PNG, SVG or PDF, or write their numbers as CSV."""
    from robust201.figures.table import FIGURES, figure_row

    if show_list:
        for row in FIGURES.values():
            source = f" ({row.source} of the paper)" if row.source else ""
            typer.echo(f"{row.name:<30}{row.title}{source}; needs {row.requirement}")
        return
    if name is None or dataset is None or out is None:
        required = {"NAME": name, "DATASET": dataset, "--out": out}
        missing = " and ".join(f"no {argument}" for argument, value in required.items() if value is None)
        raise ConfigError(
            f"Reading the command line failed for robust201 plot: expected NAME DATASET --out FILE, got {missing}. "
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
                "Reading the command line failed for robust201 plot all: --measures applies only to the figure "
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
        measure_datasets = [RobustnessDataset(folder) for folder in measures or ()]
        path = save_plot(
            reader,
            name,
            out,
            data=data,
            width=width,
            title=title,
            mean=mean,
            measures=measure_datasets,
            shown_class=shown_class,
        )
        paths = [path]
    for path in paths:
        typer.echo(path)
