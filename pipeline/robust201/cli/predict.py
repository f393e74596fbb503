"""`robust201 predict`: predict the accuracies of unevaluated cells from the accuracies of evaluated cells."""

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

_MAX_PRINTED_ROWS = 20


def predict(
    folders: Folders,
    data: Annotated[
        str | None, typer.Option("--dataset", help="Image dataset to predict accuracies for, if DATASET has several.")
    ] = None,
    keys: Annotated[
        str | None,
        typer.Option(
            help="Accuracies to predict: keys, keys at a strength and scores, such as clean,pgd:1. Default: all."
        ),
    ] = None,
    measures: Annotated[
        list[Path] | None,
        typer.Option(
            "--measures",
            metavar="FOLDER",
            help="Dataset with measures of all cells, such as measures of random weights (docs/measures.md), to use as "
            "additional predictors. Repeatable.",
        ),
    ] = None,
    level: Annotated[float, typer.Option(min=0.5, max=0.99, help="Nominal coverage of the intervals.")] = 0.9,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the random division of the cells into fifths.")] = 0,
    weights: WeightsName = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Also write the predictions to this file: .parquet or .csv.")
    ] = None,
    estimates: Annotated[
        bool,
        typer.Option(
            "--estimates",
            help="Also use accuracies estimated from a sample of the images, weighted by their standard errors. "
            "Default: only accuracies on all images.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Predict the accuracies of cells that were not evaluated, with intervals, and show the quality of predictions.

    To measure the quality, each fifth of the evaluated cells is predicted from the others.
    The file of predictions is an input of `search --predictions`.
    """
    from robust201.analysis.estimated import fill_in_estimates, read_standard_errors
    from robust201.analysis.measure_folders import read_measure_folders
    from robust201.reader.dataset import RobustnessDataset
    from robust201.search.cell_predictions import check_prediction_file, predict_cells, write_predictions

    if out is not None:
        check_output_file(out)
        check_prediction_file(out)
    results = read_dataset_results(folders, data, weights)
    standard_errors = None
    if estimates:
        standard_errors = read_standard_errors(results)
        results, note = fill_in_estimates(results)
        console.say(note or f"{folders[0]} has no estimates: predictions use only accuracies on all images.")
    else:
        say_unused_estimates(results.reader.files, "predictions use")
    measure_table = None
    if measures is not None:
        measure_table = read_measure_folders([RobustnessDataset(folder) for folder in measures], results.name)
    key_names = split_names(keys)
    predictions = predict_cells(
        results, key_names, measures=measure_table, standard_errors=standard_errors, level=level, seed=seed
    )
    if out is not None:
        write_predictions(out, predictions.frame)
        console.say(f"Wrote {out}.")
    if as_json:
        print_json(_to_payload(predictions))
    else:
        _show(predictions)


def read_dataset_results(folders: list[Path], data: str | None, weights: str | None = None) -> "DatasetResults":
    """Read the results on one image dataset; `data` must name it if the folders have several."""
    from robust201.analysis.dataset_results import choose_results, read_results
    from robust201.reader.dataset import RobustnessDataset

    reader = RobustnessDataset(*folders, weights=weights)
    return choose_results(read_results(reader), data, folders[0], "Predicting")


def _to_payload(predictions: "CellPredictions") -> dict[str, Any]:
    return {
        "dataset": predictions.dataset,
        "n_evaluated": predictions.n_evaluated,
        "n_predicted": predictions.frame["architecture"].nunique(),
        "level": predictions.level,
        "is_weak": predictions.is_weak,
        "quality": [_replace_nan(quality._asdict()) for quality in predictions.quality],
        "constant": [
            {"key": key, "strength": strength, "accuracy": accuracy}
            for key, strength, accuracy in predictions.constant_evaluations
        ],
    }


def _replace_nan(fields: dict[str, Any]) -> dict[str, Any]:
    """Replace NaN with None, because JSON has no NaN."""
    return {name: None if value != value else value for name, value in fields.items()}  # noqa: PLR0124


def _show(predictions: "CellPredictions") -> None:
    n_predicted = predictions.frame["architecture"].nunique()
    title = (
        f"{predictions.dataset}: {n_predicted:,} cells predicted from {predictions.n_evaluated:,}; quality measured by "
        "cross-validation on the evaluated cells, a fifth at a time"
    )
    percent = f"{100 * predictions.level:g}%"
    columns = ("", "Kendall's tau", "R2", f"coverage of {percent} intervals", "median half-width, points")
    console.show_table(
        title, columns, [_format_quality(quality) for quality in predictions.quality[:_MAX_PRINTED_ROWS]]
    )
    if len(predictions.quality) > _MAX_PRINTED_ROWS:
        console.say(f"and {len(predictions.quality) - _MAX_PRINTED_ROWS:,} more; --json lists all")
    if predictions.constant_evaluations:
        constant_accuracies = ", ".join(
            f"{_format_evaluation(key, strength)} {accuracy:g}"
            for key, strength, accuracy in predictions.constant_evaluations
        )
        console.say(f"Not predicted, because all evaluated cells have the same accuracy: {constant_accuracies}")
    if predictions.is_weak:
        console.say(
            f"warning: the predictions are weak: the predicted order of held-out cells hardly agrees with their "
            f"measured order (Kendall's tau, {predictions.n_evaluated:,} evaluated cells). Do not rank cells by these "
            "predictions; evaluate more cells: robust201 plan SWEEP --like DATASET --next 200"
        )


def _format_evaluation(key: str, strength: float) -> str:
    from robust201.reader.result_files import evaluation_names

    return "clean" if key == "clean" else evaluation_names([(key, strength)])[0]


def _format_quality(quality: "Quality") -> tuple[str, ...]:
    return (
        _format_evaluation(quality.key, quality.strength),
        f"{quality.kendall:.2f}",
        f"{quality.r_squared:.2f}",
        f"{100 * quality.coverage:.0f}%",
        f"{100 * quality.half_width:.1f}",
    )
