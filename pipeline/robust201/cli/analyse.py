"""`robust201 analyse`: correlations of measures with accuracies, and effects of operations."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from robust201.cli import console
from robust201.cli.evaluate import to_json_rows
from robust201.cli.help_texts import HELP_OPTIONS, add_commands
from robust201.cli.options import AsJson, ImageDataset, WeightsName, print_json, split_names

if TYPE_CHECKING:
    import pandas as pd

    from robust201.analysis.dataset_results import DatasetResults

Folders = Annotated[
    list[Path],
    typer.Argument(
        metavar="DATASET...",
        help="Folders written by export, or the published dataset. Several folders are merged; an evaluation comes "
        "from the last folder that has it.",
    ),
]
Out = Annotated[Path | None, typer.Option("--out", help="Also write the tables to this folder as CSV.")]

_MAX_PRINTED_ROWS = 12

analyse_app = typer.Typer(
    name="analyse",
    help="Analyse measures of networks, or the design of cells.",
    no_args_is_help=True,
    context_settings=HELP_OPTIONS,
)


def measures(
    folders: Folders,
    data: ImageDataset = None,
    keys: Annotated[
        str | None,
        typer.Option(
            help="Only these accuracies, separated by commas: a key (clean), a key at a strength (pgd:1/255) or a "
            "score (adversarial)."
        ),
    ] = None,
    out: Out = None,
    weights: WeightsName = None,
    as_json: AsJson = False,
) -> None:
    """Correlate measures with accuracies, and compare each measure with the number of parameters as a baseline."""
    import pandas as pd

    from robust201.analysis.measure_correlations import MIN_ARCHITECTURES, correlate_measures
    from robust201.analysis.terms import find_evaluations, require_evaluations
    from robust201.core.errors import ResultsError

    all_results = _read_inputs(folders, data, weights, out, all_weights=True)
    key_names = split_names(keys)
    for name in key_names or ():
        if not any(find_evaluations(results, name) for results in all_results):
            require_evaluations(all_results[0], name)  # raises an error about the unknown name
    correlations = pd.concat(
        [correlate_measures(results, keys=key_names) for results in all_results], ignore_index=True
    )
    if correlations.empty:
        raise ResultsError(
            f"Correlating measures failed for {all_results[0].reader.path}: fewer than {MIN_ARCHITECTURES} "
            "architectures have both a measure and an accuracy. Export a measure such as jacobian."
        )
    _write_tables({"correlations": correlations}, out)
    if as_json:
        print_json({"correlations": to_json_rows(correlations)})
    else:
        for (dataset, measure), rows in correlations.groupby(["dataset", "measure"], sort=False):
            strongest = rows.loc[rows["kendall"].abs().sort_values(ascending=False, kind="stable").index]
            shown = strongest.head(_MAX_PRINTED_ROWS).to_dict("records")
            console.show_table(
                f"{dataset}: {measure}",
                ("key", "Kendall's tau", "partial tau", "gain over parameters", "significant gain"),
                [_format_correlation(all_results[0], row) for row in shown],
            )


def design(
    folders: Folders,
    data: ImageDataset = None,
    score: Annotated[
        str,
        typer.Option(
            help="Accuracy to explain: a score such as adversarial, a key, or a key at a strength such as pgd:1/255."
        ),
    ] = "adversarial",
    out: Out = None,
    weights: WeightsName = None,
    as_json: AsJson = False,
) -> None:
    """Compute the effects of operations on a cell's accuracy."""
    from robust201.analysis.design import operation_effects
    from robust201.analysis.terms import mean_accuracy

    all_results = _read_inputs(folders, data, weights, out)
    payload: dict[str, dict[str, Any]] = {}
    for results in all_results:
        effects = operation_effects(results, mean_accuracy(results, score))
        _write_tables({f"{results.name}-effects": effects}, out)
        if as_json:
            payload[results.name] = {"score": score, "effects": to_json_rows(effects)}
        else:
            _show_effects(results, score, effects)
    if as_json:
        print_json(payload)


def _read_inputs(
    folders: Sequence[Path], data: str | None, weights: str | None, out: Path | None, *, all_weights: bool = False
) -> "list[DatasetResults]":
    """Return the results on one dataset, or on every dataset.

    With `all_weights`, all sets of weights of each architecture are used, unless `weights` selects one.
    """
    from robust201.analysis.dataset_results import choose_results, read_results
    from robust201.core.errors import ResultsError
    from robust201.core.files import check_output_file
    from robust201.dataset.reader import Dataset

    if out is not None:
        check_output_file(out / "correlations.csv")  # with any file name, this checks that the folder is writable
    reader = Dataset(*folders, weights=weights)
    all_results = read_results(reader.select() if all_weights and weights is None else reader)
    if not all_results:
        raise ResultsError(
            f"Reading {reader.path} failed: it has no accuracies. Add a folder with accuracies, or export a key such "
            "as clean."
        )
    return all_results if data is None else [choose_results(all_results, data, reader.path, "Analysing")]


def _write_tables(tables: "Mapping[str, pd.DataFrame]", out: Path | None) -> None:
    from robust201.core.files import make_folder, write_csv

    if out is None:
        return
    make_folder(out)
    for name, frame in tables.items():
        write_csv(out / f"{name}.csv", frame)
        console.say(str(out / f"{name}.csv"))


def _format_correlation(results: "DatasetResults", correlation: Mapping[Any, Any]) -> tuple[str, ...]:
    from robust201.analysis.tables import format_estimate

    return (
        results.term(str(correlation["key"]), correlation["strength"]),
        *(
            format_estimate(*(correlation[column] for column in (name, f"{name}_low", f"{name}_high")))
            for name in ("kendall", "partial", "gain")
        ),
        ("yes" if correlation["beats_parameters"] else "no"),
    )


def _show_effects(results: "DatasetResults", score: str, effects: "pd.DataFrame") -> None:
    from robust201.analysis.tables import format_percent

    rows = [
        (
            f"{row['edge']} {row['operation']}",
            format_percent(row["effect"], row["low"], row["high"], decimals=2, sign="+"),
        )
        for row in effects.sort_values("effect", ascending=False, kind="stable").to_dict("records")
    ]
    title = f"{results.name}: effects of operations on {score}, in percentage points"
    console.show_table(title, ("edge and operation", "effect [95% interval]"), rows)


add_commands(analyse_app, measures, design, prefix="analyse")
