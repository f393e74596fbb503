"""`robust201 correlate` and `design`: statistical analyses of a dataset."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from robust201.cli import console
from robust201.cli.monitoring import AsJson, print_json
from robust201.cli.options import Datasets, WeightsName, split_names

if TYPE_CHECKING:
    import pandas as pd

    from robust201.analysis.dataset_results import DatasetResults
    from robust201.reader.dataset import RobustnessDataset

Folders = Annotated[
    list[Path],
    typer.Argument(
        metavar="DATASET...",
        help="Folders written by export, their parquet subfolders, or the published dataset. Several folders are "
        "merged; an evaluation comes from the first folder that has it.",
    ),
]
Join = Annotated[
    list[Path] | None,
    typer.Option("--join", help="Join another table about the same architectures (docs/use-cases.md). Repeatable."),
]
Out = Annotated[Path | None, typer.Option("--out", help="Also write the tables to this folder as CSV.")]

_MAX_PRINTED_ROWS = 12


def correlate(
    folders: Folders,
    datasets: Datasets = None,
    keys: Annotated[
        str | None,
        typer.Option(
            help="Only these accuracies, separated by commas: a key (clean), a key at a strength (pgd:1) or a score "
            "(adversarial)."
        ),
    ] = None,
    join: Join = None,
    out: Out = None,
    weights: WeightsName = None,
    measure_weights: Annotated[
        str | None,
        typer.Option(
            "--measure-weights-name",
            help="Weights whose measures are used, such as random-s0. Default: the weights that have accuracies.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Correlate measures with accuracies, and compare each measure with the number of parameters as a baseline."""
    import pandas as pd

    from robust201.analysis.measure_correlations import MIN_ARCHITECTURES, correlate_measures
    from robust201.analysis.terms import find_evaluations, require_evaluations
    from robust201.core.errors import ResultsError

    reader, all_results, tables = _read_inputs(folders, datasets, join, weights, out, measure_weights, all_weights=True)
    key_names = split_names(keys)
    for name in key_names or ():
        if not any(find_evaluations(results, name) for results in all_results):
            require_evaluations(all_results[0], name)  # raises an error about the unknown name
    correlations = pd.concat(
        [correlate_measures(results, tables, keys=key_names) for results in all_results], ignore_index=True
    )
    if correlations.empty:
        raise ResultsError(
            f"Correlating measures failed for {reader.path}: fewer than {MIN_ARCHITECTURES} architectures have both a "
            "measure and an accuracy. Export a measure such as jacobian, or add a table with --join."
        )
    _write_tables({"correlations": correlations}, out)
    if as_json:
        print_json({"correlations": _to_json_rows(correlations)})
    else:
        for (dataset, measure), rows in correlations.groupby(["dataset", "measure"], sort=False):
            by_magnitude = rows.assign(magnitude=rows["kendall"].abs()).sort_values(
                "magnitude", ascending=False, kind="stable"
            )
            console.show_table(
                f"{dataset}: {measure}",
                (
                    "key",
                    "Kendall's tau",
                    "Spearman's rho",
                    "partial tau",
                    "gain over\nparameter count",
                    "better than\nparameter count",
                ),
                [_format_correlation(row) for row in by_magnitude.head(_MAX_PRINTED_ROWS).to_dict("records")],
            )


def design(
    folders: Folders,
    datasets: Datasets = None,
    score: Annotated[
        str,
        typer.Option(
            help="Accuracy to explain: a score such as adversarial, a key, or a key at a strength such as pgd:1."
        ),
    ] = "adversarial",
    join: Join = None,
    maximise: Annotated[
        str | None,
        typer.Option(help="Objectives to maximise in the Pareto front, separated by commas. Default: all scores."),
    ] = None,
    minimise: Annotated[
        str | None, typer.Option(help="Objectives to minimise in the Pareto front. Default: parameters.")
    ] = None,
    out: Out = None,
    weights: WeightsName = None,
    as_json: AsJson = False,
) -> None:
    """Analyse what makes a cell robust: effects of operations, a regression tree, predictions and the Pareto front."""
    import pandas as pd

    from robust201.analysis import design as cell_design
    from robust201.analysis.network_costs import PARAMETERS
    from robust201.analysis.terms import Terms, require_evaluations

    _, all_results, tables = _read_inputs(folders, datasets, join, weights, out)
    payload: dict[str, dict[str, Any]] = {}
    for results in all_results:
        terms = Terms(results, tables)
        require_evaluations(results, score)  # raises an error if `score` is not an accuracy
        accuracies = terms.mean(score)
        objectives_to_maximise = split_names(maximise) or tuple(results.scores.columns)
        objectives_to_minimise = split_names(minimise) or (
            (PARAMETERS,) if minimise is None and PARAMETERS in terms.measures else ()
        )
        objective_values = pd.DataFrame(
            {name: terms.mean(name) for name in (*objectives_to_maximise, *objectives_to_minimise)}
        )
        front = cell_design.pareto_table(
            objective_values, maximise=objectives_to_maximise, minimise=objectives_to_minimise
        )
        effects = cell_design.operation_effects(results, accuracies)
        prediction = cell_design.predict_from_cells(results, accuracies)
        front.insert(0, "architecture", front.index)
        front.insert(1, "spec", [results.spec(architecture) for architecture in front["architecture"]])
        tree = cell_design.describe_tree(results, accuracies)
        result_tables = {
            "effects": effects.operations,
            "variance": effects.variance,
            "pairs": effects.pairs,
            "prediction": prediction,
            "pareto": front.reset_index(drop=True),
        }
        _write_tables({f"{results.name}-{name}": frame for name, frame in result_tables.items()}, out)
        if as_json:
            payload[results.name] = {"score": score, "tree": tree.splitlines()}
            payload[results.name] |= {name: _to_json_rows(frame) for name, frame in result_tables.items()}
        else:
            _show_design(results, score, result_tables, tree)
    if as_json:
        print_json(payload)


def _read_inputs(
    folders: Sequence[Path],
    datasets: str | None,
    join: Sequence[Path] | None,
    weights: str | None,
    out: Path | None,
    measure_weights: str | None = None,
    *,
    all_weights: bool = False,
) -> "tuple[RobustnessDataset, list[DatasetResults], list[pd.DataFrame]]":
    """Return the reader, the results on each requested dataset, and the joined tables.

    With `all_weights`, all sets of weights of each architecture are used, unless `weights` or `measure_weights` selects
    some of them.
    """
    from robust201.analysis.dataset_results import read_results
    from robust201.analysis.terms import read_join_tables
    from robust201.core.errors import ConfigError, ResultsError, did_you_mean
    from robust201.core.files import check_output_file
    from robust201.reader.dataset import RobustnessDataset

    if out is not None:
        check_output_file(out / "correlations.csv")  # with any file name, this checks that the folder is writable
    reader = RobustnessDataset(*folders, weights=weights)
    selected_reader = reader.select() if all_weights and weights is None and measure_weights is None else reader
    all_results = read_results(selected_reader, measure_weights=measure_weights)
    available_names = [results.name for results in all_results]
    if not available_names:
        raise ResultsError(
            f"Reading {reader.path} failed: it has no accuracies. Add a folder with accuracies, or export a key such "
            "as clean."
        )
    requested_names = split_names(datasets) or available_names
    for name in requested_names:
        if name not in available_names:
            raise ConfigError(
                f"Reading {reader.path} failed for {name!r}: there are no results on this dataset."
                f"{did_you_mean(name, available_names)}"
            )
    selected_results = [results for results in all_results if results.name in requested_names]
    return reader, selected_results, read_join_tables(reader, join or (), selected_results)


def _write_tables(tables: "Mapping[str, pd.DataFrame]", out: Path | None) -> None:
    from robust201.core.csv_files import write_csv
    from robust201.core.files import make_folder

    if out is None:
        return
    make_folder(out)
    for name, frame in tables.items():
        write_csv(out / f"{name}.csv", frame)
        console.say(str(out / f"{name}.csv"))


def _to_json_rows(frame: "pd.DataFrame") -> list[dict[str, Any]]:
    """Return the rows of a table as JSON objects, with None in place of NaN."""
    rows: list[dict[str, Any]] = json.loads(frame.to_json(orient="records"))
    return rows


def _format_correlation(correlation: Mapping[Any, Any]) -> tuple[str, ...]:
    return (
        str(correlation["key"]) + (f":{correlation['strength']:g}" if correlation["strength"] else ""),
        *(_format_with_interval(correlation, name) for name in ("kendall", "spearman", "partial", "gain")),
        ("yes" if correlation["beats_parameters"] else "no"),
    )


def _format_with_interval(row: Mapping[Any, Any], name: str) -> str:
    estimate = row[name]
    return "-" if math.isnan(estimate) else f"{estimate:.2f} [{row[f'{name}_low']:.2f}, {row[f'{name}_high']:.2f}]"


def _show_design(results: "DatasetResults", score: str, tables: "Mapping[str, pd.DataFrame]", tree: str) -> None:
    effects = tables["effects"].sort_values("effect", ascending=False, kind="stable")
    console.show_table(
        f"{results.name}: effects of operations on {score}, in percentage points",
        ("edge", "operation", "effect", "95% interval"),
        [
            (
                row["edge"],
                row["operation"],
                f"{100 * row['effect']:+z.2f}",
                f"[{100 * row['low']:+z.2f}, {100 * row['high']:+z.2f}]",
            )
            for row in effects.to_dict("records")
        ],
    )
    console.show_table(
        f"{results.name}: fraction of the variance of {score} explained by the operations on these edges",
        ("edges", "fraction"),
        [
            (row["edges"], f"{row['share']:.1%}")
            for row in tables["variance"].head(_MAX_PRINTED_ROWS).to_dict("records")
        ],
    )
    typer.echo(f"Regression tree of {score}:\n{tree}")
    console.show_table(
        f"{results.name}: rank correlation between predicted and measured accuracies of held-out cells",
        ("training cells", "Kendall's tau", "Spearman's rho"),
        [
            (f"{row['cells']:,.0f}", _format_with_interval(row, "kendall"), _format_with_interval(row, "spearman"))
            for row in tables["prediction"].to_dict("records")
        ],
    )
    front = tables["pareto"]
    names = [str(name) for name in front.columns if name not in ("architecture", "spec")]
    console.show_table(
        f"{results.name}: {len(front):,} architectures on the Pareto front of {', '.join(names)}",
        ("architecture", *names),
        [
            (f"#{row['architecture']}", *(f"{row[name]:.6g}" for name in names))
            for row in front.head(_MAX_PRINTED_ROWS).to_dict("records")
        ],
    )
