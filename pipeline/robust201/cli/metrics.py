"""`robust201 metrics`: what follows from the results of a dataset, with their uncertainty."""

from pathlib import Path
from typing import Annotated

import typer

from robust201.cli import console
from robust201.cli.monitoring import AsJson, print_json
from robust201.cli.sweeps import Datasets, Keys, split_names


def metrics(
    dataset: Annotated[
        Path,
        typer.Argument(
            metavar="DATASET", help="A folder that export wrote, its parquet folder, or the published dataset."
        ),
    ],
    datasets: Datasets = None,
    keys: Keys = None,
    reference: Annotated[
        str | None, typer.Option(help="Reference architecture of corruption errors: an index or a name.")
    ] = None,
    ties: Annotated[float, typer.Option(help="Significance level of the tests against the best network.")] = 0.05,
    bootstrap: Annotated[
        int, typer.Option(min=0, metavar="DRAWS", help="Bootstrap draws, for intervals of medians, ranks and tau.")
    ] = 0,
    weights: Annotated[
        str | None,
        typer.Option("--weights-name", help="Show this training only, if DATASET has several per architecture."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show rankings with intervals and ties with the best, and derived metrics such as robustness R."""
    from robust201.reader.dataset import RobustnessDataset

    found = RobustnessDataset(dataset, weights=weights).metrics(
        split_names(datasets),
        split_names(keys),
        reference=int(reference) if reference is not None and reference.isdecimal() else reference,
        ties=ties,
        n_draws=bootstrap,
    )
    if as_json:
        print_json(found.to_payload())
    else:
        console.show_metrics(found)
