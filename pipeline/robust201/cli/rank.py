"""`robust201 rank`: rank the networks of a dataset, with intervals and ties, as a table for papers."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from robust201.cli import console
from robust201.cli.evaluate import check_table_file, to_json_rows, write_table
from robust201.cli.options import (
    AsJson,
    DatasetPath,
    ImageDataset,
    TableFile,
    WeightsName,
    explicit_options,
    print_json,
    split_names,
)
from robust201.cli.plot import ShownNetworks
from robust201.core.errors import ConfigError
from robust201.core.files import check_output_file, write_csv

if TYPE_CHECKING:
    from robust201.analysis.dataset_results import DatasetResults
    from robust201.dataset.derived import DerivedMetrics
    from robust201.dataset.reader import Dataset


_MAX_NAMED_KEYS = 4
"""Maximum number of keys of a metric that are named."""


def rank(
    context: typer.Context,
    dataset: DatasetPath,
    data: ImageDataset = None,
    keys: Annotated[
        str | None,
        typer.Option(
            help="Columns: keys, keys at a strength and means, such as clean,pgd:8/255,corruption; rows are sorted by "
            "the first one other than clean. Default: clean, every attack at the epsilon nearest to 1/255 (L2, L1: 1), "
            "and the mean over corruptions, sorted by the strongest Linf attack (if none, in the first attack's norm)."
        ),
    ] = None,
    architectures: ShownNetworks = None,
    n_rows: Annotated[int, typer.Option("--rows", min=1, metavar="N", help="Number of networks, best first.")] = 20,
    metrics: Annotated[
        bool,
        typer.Option("--metrics", help="Print derived metrics of --keys (without strengths) instead of a ranking."),
    ] = False,
    weights: WeightsName = None,
    out: TableFile = None,
    as_json: AsJson = False,
) -> None:
    """Rank the networks of a dataset, with intervals and ties."""
    from robust201.analysis.ranking import rank_networks

    if metrics:
        _show_metrics(context, dataset, data, split_names(keys), weights, out, as_json=as_json)
        return
    if out is not None:
        check_table_file(out)
    results = _read_results(dataset, data, weights, split_names(architectures))
    ranking = rank_networks(results, split_names(keys), max_networks=n_rows)
    if out is not None:
        write_table(out, ranking)
    if as_json:
        print_json({"summary": ranking.summary, "rows": to_json_rows(ranking.table)})
    else:
        typer.echo(ranking)


def _show_metrics(
    context: typer.Context,
    dataset: Path,
    data: str | None,
    keys: tuple[str, ...] | None,
    weights: str | None,
    out: Path | None,
    *,
    as_json: bool,
) -> None:
    from robust201.dataset.reader import Dataset

    for parameter, option in explicit_options(context).items():
        if parameter in ("architectures", "n_rows"):
            raise ConfigError(
                f"Reading the command line failed for {option}: it applies only to a ranking, not to --metrics. Remove "
                "the option."
            )
    if out is not None:
        check_output_file(out)
        if out.suffix != ".csv":
            raise ConfigError(f"Writing metrics failed for --out {out}: the file name must end in .csv. Change it.")
    reader = Dataset(dataset, weights=weights)
    derived_metrics = reader.metrics(data, keys)
    if out is not None:
        write_csv(out, derived_metrics.table)
        console.say(f"Wrote {out}.")
    if as_json:
        print_json({"metrics": to_json_rows(derived_metrics.table), "needs": derived_metrics.needs})
    else:
        _print_metrics(derived_metrics, reader)


def _print_metrics(metrics: "DerivedMetrics", reader: "Dataset") -> None:
    """Print the range of each metric over networks, and what is missing for metrics that were not computed."""
    from robust201.analysis.labels import strength_label

    rows = []
    names = ["dataset", "metric", "key", "strength", "note"]
    groups: Any = metrics.table.groupby(names, sort=False, dropna=False)
    for (dataset, metric, key, strength, note), group in groups:
        values = group["value"].dropna()
        numbers = ["-"] * 3
        if len(values):
            numbers = [f"{value:.4f}" for value in (values.min(), values.median(), values.max())]
        first_key, *others = key.split("+")
        keys = key if len(others) < _MAX_NAMED_KEYS else f"{len(others) + 1} keys"
        at_strength = "" if math.isnan(strength) else f", {strength_label(strength, reader.unit_of(first_key))}"
        label = f"{dataset} {keys}{at_strength}"
        rows.append((label, metric, *numbers, f"{len(values):,}", note))
    if rows:
        console.show_table("Metrics", ("", "metric", "lowest", "median", "highest", "networks", ""), rows)
    for name, required_results in metrics.needs.items():
        console.say(f"{name}: not computed; requires {required_results}.")


def _read_results(
    dataset: Path, data: str | None, weights: str | None, networks: tuple[str, ...] | None
) -> "DatasetResults":
    from robust201.analysis.dataset_results import choose_results, read_results
    from robust201.dataset.reader import Dataset

    reader = Dataset(dataset, weights=weights).select(networks)
    return choose_results(read_results(reader), data, dataset, "Ranking")
