"""`robust201 predict`: accuracies of cells that were not evaluated, from those that were."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from robust201.cli import console
from robust201.cli.analyse import Folders
from robust201.cli.estimates import say_unused_estimates
from robust201.cli.monitoring import AsJson, print_json
from robust201.cli.options import WeightsName, split_names
from robust201.core.files import check_output_file

if TYPE_CHECKING:
    from robust201.analysis.dataset_results import DatasetResults
    from robust201.search.cell_predictions import CellPredictions, Quality

_SHOWN_ROWS = 20


def predict(
    folders: Folders,
    data: Annotated[
        str | None, typer.Option("--dataset", help="Which dataset to predict for, if DATASET has several.")
    ] = None,
    keys: Annotated[
        str | None,
        typer.Option(help="Keys, keys at a strength, and scores, such as clean,pgd:1. Default: all accuracies."),
    ] = None,
    measures: Annotated[
        list[Path] | None,
        typer.Option(
            "--measures",
            metavar="FOLDER",
            help="A dataset with measures of all cells, such as random networks' (docs/measures.md), to predict from "
            "also. Repeatable.",
        ),
    ] = None,
    level: Annotated[float, typer.Option(min=0.5, max=0.99, help="Level of the intervals.")] = 0.9,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the division into fifths.")] = 0,
    weights: WeightsName = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Also write the predictions to this file: .parquet or .csv.")
    ] = None,
    estimates: Annotated[
        bool,
        typer.Option(
            "--estimates",
            help="Use estimates from samples where cells lack counts, weighted by standard errors. Default: counts "
            "only.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Predict the accuracies of cells that were not evaluated, with intervals, and show how good predictions are.

    Each fifth of the evaluated cells is predicted from the others. `search` takes the file of predictions.
    """
    from robust201.analysis.estimated import fill_in_estimates, read_standard_errors
    from robust201.analysis.measure_folders import read_measure_folders
    from robust201.reader.dataset import RobustnessDataset
    from robust201.search.cell_predictions import check_prediction_file, predict_cells, write_predictions

    if out is not None:
        check_output_file(out)
        check_prediction_file(out)
    results = read_one(folders, data, weights)
    standard_errors = None
    if estimates:
        standard_errors = read_standard_errors(results)
        results, note = fill_in_estimates(results)
        console.say(note or f"{folders[0]} has no estimates: predictions are from counts.")
    else:
        say_unused_estimates(results.reader.files, "predictions use")
    table = None
    if measures is not None:
        table = read_measure_folders([RobustnessDataset(folder) for folder in measures], results.name)
    names = split_names(keys)
    found = predict_cells(results, names, measures=table, standard_errors=standard_errors, level=level, seed=seed)
    if out is not None:
        write_predictions(out, found.frame)
        console.say(f"Wrote {out}.")
    if as_json:
        print_json(_payload(found))
    else:
        _show(found)


def read_one(folders: list[Path], data: str | None, weights: str | None = None) -> "DatasetResults":
    """Read the results of one dataset of a folder, which must be named if there are several."""
    from robust201.analysis.dataset_results import choose_results, read_results
    from robust201.reader.dataset import RobustnessDataset

    reader = RobustnessDataset(*folders, weights=weights)
    return choose_results(read_results(reader), data, folders[0], "Predicting")


def _payload(found: "CellPredictions") -> dict[str, Any]:
    return {
        "dataset": found.dataset,
        "n_evaluated": found.n_evaluated,
        "n_predicted": found.frame["architecture"].nunique(),
        "level": found.level,
        "is_weak": found.is_weak,
        "quality": [_nulls(one._asdict()) for one in found.quality],
        "constant": [
            {"key": key, "strength": strength, "accuracy": accuracy} for key, strength, accuracy in found.constant
        ],
    }


def _nulls(numbers: dict[str, Any]) -> dict[str, Any]:
    """Replace NaN, which JSON lacks, by None."""
    return {name: None if value != value else value for name, value in numbers.items()}  # noqa: PLR0124


def _show(found: "CellPredictions") -> None:
    n_predicted = found.frame["architecture"].nunique()
    title = (
        f"{found.dataset}: {n_predicted:,} cells predicted from {found.n_evaluated:,}; quality from evaluated cells "
        "that were left out, a fifth at a time"
    )
    percent = f"{100 * found.level:g}%"
    columns = ("", "Kendall's tau", "R2", f"coverage of {percent} intervals", "median half-width, points")
    console.show_table(title, columns, [_cells(one) for one in found.quality[:_SHOWN_ROWS]])
    if len(found.quality) > _SHOWN_ROWS:
        console.say(f"and {len(found.quality) - _SHOWN_ROWS:,} more; --json lists all")
    if found.constant:
        shown = ", ".join(f"{_name(key, strength)} {accuracy:g}" for key, strength, accuracy in found.constant)
        console.say(f"Not predicted, since all evaluated cells have the same accuracy: {shown}")
    if found.is_weak:
        console.say(
            f"warning: predictions are weak: from {found.n_evaluated:,} evaluated cells, the order of cells left out "
            "is hardly predicted (Kendall's tau). Do not rank cells by them; evaluate more: robust201 plan SWEEP "
            "--like DATASET --next 200"
        )


def _name(key: str, strength: float) -> str:
    from robust201.reader.result_files import evaluation_names

    return "clean" if key == "clean" else evaluation_names([(key, strength)])[0]


def _cells(one: "Quality") -> tuple[str, ...]:
    return (
        _name(one.key, one.strength),
        f"{one.kendall:.2f}",
        f"{one.r_squared:.2f}",
        f"{100 * one.coverage:.0f}%",
        f"{100 * one.half_width:.1f}",
    )
