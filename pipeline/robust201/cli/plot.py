"""`robust201 plot`: draw the figures of an exported dataset."""

from pathlib import Path
from typing import Annotated

import typer

from robust201.cli.options import DATASET_ARGUMENT, ImageDataset, WeightsName, explicit_options, split_names
from robust201.core.errors import ConfigError

ALL = "all"

ShownKeys = Annotated[
    str | None, typer.Option("--keys", help="Show only clean accuracy and these keys, at all strengths.")
]
ShownNetworks = Annotated[
    str | None,
    typer.Option(
        "--architectures",
        help="Show only these networks, separated by commas: ARCHITECTURE, or ARCHITECTURE@WEIGHTS if it has several "
        "sets of weights.",
    ),
]


def plot(
    context: typer.Context,
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Name of a figure (see --list), or all.")] = None,
    dataset: Annotated[Path | None, DATASET_ARGUMENT] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="File to write: .png, .svg, .pdf, or .csv for numbers. If NAME is all: a folder."),
    ] = None,
    image_dataset: ImageDataset = None,
    file_format: Annotated[str, typer.Option("--format", help="If NAME is all: png, svg, pdf or csv.")] = "png",
    width: Annotated[
        str,
        typer.Option(
            "--width",
            help="Width of the figure: column (3.25 in), page (6.75 in) or a number of inches. The text size is fixed.",
        ),
    ] = "page",
    weights: WeightsName = None,
    measures: Annotated[
        list[Path] | None,
        typer.Option(
            "--measures",
            metavar="FOLDER",
            help="With measure-correlations: also show the measures of this exported dataset, such as measures of "
            "random weights or on the training split. Repeatable.",
        ),
    ] = None,
    keys: ShownKeys = None,
    architectures: ShownNetworks = None,
    show_list: Annotated[
        bool, typer.Option("--list", help="List the figures and the results that each figure needs.")
    ] = False,
) -> None:
    """Draw figures of a dataset, or write the plotted numbers as CSV."""
    from robust201.figures.table import FIGURES, find_figure

    if show_list:
        for figure in FIGURES.values():
            source = f" ({figure.source} of Jung et al.)" if figure.source else ""
            typer.echo(f"{figure.name:<30}{figure.title}{source}; needs {figure.requirement}")
        return
    if name is None or dataset is None or out is None:
        required_arguments = {"NAME": name, "DATASET": dataset, "--out": out}
        missing_arguments = [argument for argument, value in required_arguments.items() if value is None]
        verb = "is" if len(missing_arguments) == 1 else "are"
        raise ConfigError(
            f"Reading the command line failed for robust201 plot: {' and '.join(missing_arguments)} {verb} missing. "
            "Write robust201 plot NAME DATASET --out FILE; robust201 plot --list lists the names of figures."
        )
    if name != ALL:
        find_figure(name)
        if "file_format" in explicit_options(context):
            raise ConfigError(
                "Reading the command line failed for --format: one figure has the format of --out. Remove --format."
            )
    from robust201.dataset.reader import Dataset
    from robust201.figures.plots import save_plot, save_plots

    reader = Dataset(dataset, weights=weights).select(split_names(architectures), split_names(keys))
    measure_datasets = [Dataset(folder) for folder in measures or ()]
    paths = (
        save_plots(reader, out, file_format=file_format, data=image_dataset, width=width)
        if name == ALL and not measures
        else [save_plot(reader, name, out, data=image_dataset, width=width, measures=measure_datasets)]
    )
    for path in paths:
        typer.echo(path)
