"""Terms: the names by which commands select values of architectures, such as accuracies, costs and measures.

    adversarial | corruption    all pairs of attack and epsilon, or of corruption and severity (see `averaged_keys`)
    KEY                         clean, or all strengths of a key
    KEY:STRENGTH                one evaluation
    parameters | flops          number of the network's parameters, or of its multiply-accumulates
    KEY.MEASURE[:STRENGTH]      a measure, such as jacobian.squared_norm
    COLUMN                      a column of a joined table, in its own units
    METRIC(KEY[:STRENGTH])      a derived metric, such as robustness_r(pgd)

A term with several numbers per architecture stands for their mean. The forms are tried in this order, so that names of
keys and columns may contain dots.
"""

import re
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import pandas as pd

from robust201.analysis.dataset_results import ADVERSARIAL, SCORE_KINDS, SCORES, DatasetResults
from robust201.analysis.network_costs import network_costs
from robust201.core.errors import ConfigError, did_you_mean
from robust201.core.records import CLEAN_STRENGTH
from robust201.reader.dataset import RobustnessDataset
from robust201.reader.frames import MEAN_DECIMALS
from robust201.reader.joined_tables import unique_column_name
from robust201.reader.networks import architecture_of_network
from robust201.reader.result_files import evaluation_names, paper_key
from robust201.reader.value_checks import CLEAN, parse_architecture_id
from robust201.tasks import expand_keys

NUMBER_PATTERN = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"

_CALL = re.compile(r"(\w+)\(([^()]*)\)")


def measure_name(key: str, measurement: str, strength: float) -> str:
    """Return a measurement's name, such as ``jacobian.squared_norm``, with the strength appended unless that is 0."""
    return f"{key}.{measurement}" + (f":{strength:g}" if strength != CLEAN_STRENGTH else "")


def find_evaluations(results: DatasetResults, name: str) -> list[tuple[str, float]]:
    """Return the keys and strengths of a score, a key or a key at a strength; empty for other names."""
    if name in SCORE_KINDS:
        keys = results.averaged_keys(name)
        return [column for column in results.columns if column[0] in keys]
    expanded_keys = expand_keys([paper_key(name)])
    evaluations = [column for column in results.columns if column[0] in expanded_keys]
    key, strength = _split_strength(name)
    return evaluations or [column for column in results.columns if column == (paper_key(key), strength)]


def require_evaluations(results: DatasetResults, name: str) -> list[tuple[str, float]]:
    """Return the keys and strengths of a name (see `find_evaluations`).

    Raises:
        ConfigError: no evaluation has this name.
    """
    evaluations = find_evaluations(results, name)
    if evaluations:
        return evaluations
    if name in SCORE_KINDS:
        required_results = "an attack in a norm ball" if name == ADVERSARIAL else "a corruption"
        raise ConfigError(
            f"Looking up {name} failed for {results.name}: it has no results under {required_results}. Choose another "
            "score, or export more keys."
        )
    key, _, strength = name.rpartition(":")
    strengths = results.strengths(paper_key(key))
    if strengths:
        raise ConfigError(
            f"Looking up {name} failed for {results.name}: it has no results under {key} at strength {strength}. "
            f"Choose one of {', '.join(f'{known_strength:g}' for known_strength in strengths)}."
        )
    raise _unknown_error(results, name, "a score, a key, or a key at a strength", _evaluation_names(results))


def collect_measures(
    results: DatasetResults, tables: Sequence[pd.DataFrame] = (), *, with_result_measures: bool = True
) -> pd.DataFrame:
    """Return all values of the architectures except accuracies.

    Args:
        results: results of a dataset.
        tables: joined tables, as returned by `reader.joined_tables.read_joined`.
        with_result_measures: whether to include the measures of the results.

    Returns:
        float64 by evaluated architecture: the measures of the results, the columns of the tables and, if the
        architectures are cells, the numbers of parameters and multiply-accumulates.
    """
    costs = network_costs(results.reader, results.name, results.architectures, n_classes=results.n_classes)
    columns: dict[str, pd.Series] = {str(name): values for name, values in costs.items()}
    for key_measurement_strength, values in results.measures.items() if with_result_measures else ():
        columns[measure_name(*key_measurement_strength)] = values  # type: ignore[misc]
    accuracy_names = {*SCORES, *_evaluation_names(results)}
    for table in tables:
        for name, values in _rows_of_dataset(table, results).set_index("architecture").items():
            reindexed = values.reindex(list(map(architecture_of_network, results.architectures)))
            columns[unique_column_name(str(name), {*columns, *accuracy_names})] = reindexed.set_axis(
                results.accuracies.index
            )
    return pd.DataFrame(columns).reindex(results.accuracies.index)


def read_join_tables(
    reader: RobustnessDataset, sources: "Sequence[Path | pd.DataFrame]", all_results: Sequence[DatasetResults]
) -> list[pd.DataFrame]:
    """Read tables (or files of tables) that are joined with the results of several datasets.

    Raises:
        ConfigError: a table has no architecture that was evaluated on any of the datasets, or `read_joined` rejects
            the table.
    """
    tables = [reader.read_table(source) for source in sources]
    for source, table in zip(sources, tables, strict=True):
        if not any(_has_architectures(_rows_of_dataset(table, results), results) for results in all_results):
            raise ConfigError(
                f"Joining failed for {source if isinstance(source, Path) else 'a table'}: it has no architecture that "
                f"was evaluated on {', '.join(results.name for results in all_results)}. "
                "Check the table's architecture and dataset columns."
            )
    return tables


class Terms:
    """Values of a dataset's architectures, looked up by term."""

    def __init__(self, results: DatasetResults, tables: Sequence[pd.DataFrame] = ()) -> None:
        self.results, self.tables = results, tables

    @cached_property
    def measures(self) -> pd.DataFrame:
        return collect_measures(self.results, self.tables)

    @property
    def names_known_in_advance(self) -> list[str]:
        """Names of numbers that are known without an evaluation: costs, and the columns of joined tables."""
        return [str(name) for name in self.measures if name not in self._measure_columns]

    @cached_property
    def _measure_columns(self) -> dict[str, tuple[str, str, float]]:
        return {measure_name(*column): column for column in self.results.measures}  # type: ignore[misc]

    def is_accuracy(self, name: str) -> bool:
        """Return whether a term is an accuracy, a fraction of images."""
        return bool(find_evaluations(self.results, name))

    def columns(self, name: str) -> pd.DataFrame:
        """Return the numbers of a term: float64, with one row per architecture and at least one column.

        Raises:
            ConfigError: the dataset has no such numbers.
        """
        if name in SCORE_KINDS or self.is_accuracy(name):
            return self.results.accuracies[require_evaluations(self.results, name)]
        if name in self.measures:
            return self.measures[[name]]
        if call := _CALL.fullmatch(name):
            return self._metric(*call.groups()).to_frame()
        measure, strength = _split_strength(name)
        columns = [
            column
            for column, (key, measurement, column_strength) in self._measure_columns.items()
            if measure in (f"{key}.{measurement}", f"{paper_key(key)}.{measurement}")
            and strength in (None, column_strength)
        ]
        if columns:
            return self.measures[columns]
        if self.results.strengths(paper_key(name.rpartition(":")[0])):
            require_evaluations(self.results, name)  # raises an error that lists the strengths
        known_names = [*_evaluation_names(self.results), *map(str, self.measures)]
        raise _unknown_error(self.results, name, "a score, a key, a measure, a cost or a joined column", known_names)

    def mean(self, name: str) -> "pd.Series[float]":
        """Return the mean of a term's numbers by architecture; NaN if any is missing."""
        columns = self.columns(name)
        if columns.shape[1] == 1:
            return columns.iloc[:, 0]
        return columns.mean(axis=1, skipna=False).round(MEAN_DECIMALS)

    def _metric(self, metric_name: str, argument: str) -> "pd.Series[float]":
        keys, strength = _split_strength(argument)
        evaluated_keys = [
            column[0] for key in keys.split("+") for column in require_evaluations(self.results, key.strip())
        ]
        result_keys = [key for key in self.results.reader.keys_all if paper_key(key) in {*evaluated_keys, CLEAN}]
        metrics = self.results.reader.metrics([self.results.name], result_keys).metrics
        matches = [
            metric
            for metric in metrics
            if (metric.metric, metric.strength) == (metric_name, strength)
            and {*map(paper_key, metric.key.split("+"))} == {*evaluated_keys}
        ]
        if len(matches) != 1:
            known_names = {
                f"{metric.metric}({metric.key}{'' if metric.strength is None else f':{metric.strength:g}'})"
                for metric in metrics
            }
            raise _unknown_error(
                self.results,
                f"{metric_name}({argument})",
                "a metric that can be computed from the results",
                sorted(known_names),
            )
        values = matches[0].values
        return values.set_axis([parse_architecture_id(str(name)) for name in values.index]).reindex(
            self.results.accuracies.index
        )


def _split_strength(name: str) -> tuple[str, float | None]:
    name_part, colon, strength_part = name.rpartition(":")
    has_strength = colon and re.fullmatch(NUMBER_PATTERN, strength_part.strip())
    return (name_part, float(strength_part)) if has_strength else (name, None)


def _unknown_error(results: DatasetResults, name: str, expected: str, known_names: Sequence[str]) -> ConfigError:
    return ConfigError(
        f"Looking up {name!r} failed for {results.name}: no such name; expected {expected}."
        f"{did_you_mean(name, known_names)}"
    )


def _evaluation_names(results: DatasetResults) -> list[str]:
    keys = dict.fromkeys(key for key, _ in results.columns)
    return list(dict.fromkeys([*results.scores, *keys, *evaluation_names(results.columns)]))


def _has_architectures(rows: pd.DataFrame, results: DatasetResults) -> bool:
    """Return whether a table has a row of an evaluated architecture."""
    return bool(rows["architecture"].isin(list(map(architecture_of_network, results.architectures))).any())


def _rows_of_dataset(table: pd.DataFrame, results: DatasetResults) -> pd.DataFrame:
    return table[table["dataset"] == results.name].drop(columns="dataset") if "dataset" in table else table
