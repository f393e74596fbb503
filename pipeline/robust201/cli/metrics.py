"""`robust201 metrics`: what follows from the results of a dataset, with their uncertainty."""

from pathlib import Path
from typing import Annotated

import typer

from robust201.cli import console
from robust201.cli.look import AsJson, print_json
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
        str | None, typer.Option(help="Architecture that corruption errors are relative to: an index or a name.")
    ] = None,
    ties: Annotated[float, typer.Option(help="Level of significance at which networks are told from the best.")] = 0.05,
    bootstrap: Annotated[
        int, typer.Option(min=0, metavar="DRAWS", help="Draws of the images, for intervals of medians and ranks.")
    ] = 0,
    weights: Annotated[
        str | None, typer.Option(help="Name of the weights, if DATASET has several per architecture.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compute derived metrics (robustness R, attack success, worst case, calibration) and ties with the best."""
    from robust201.reader.dataset import RobustnessDataset
    from robust201.reader.derived import derive_metrics

    found = derive_metrics(
        RobustnessDataset(dataset, weights=weights),
        datasets=split_names(datasets),
        keys=split_names(keys),
        reference=int(reference) if reference is not None and reference.isdecimal() else reference,
        level=ties,
        n_draws=bootstrap,
    )
    if as_json:
        print_json(found.to_payload())
    else:
        console.show_metrics(found)
