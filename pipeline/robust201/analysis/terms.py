"""Terms: names of numbers of architectures in commands, and the numbers themselves.

    adversarial | corruption    all pairs of attack and epsilon, or of corruption and severity (see `averaged_keys`)
    KEY                         clean, or all strengths of a key
    KEY:STRENGTH                one evaluation
    parameters | flops          of the network, as counts
    KEY.MEASURE[:STRENGTH]      of a measure, such as jacobian.squared_norm
    COLUMN                      of a joined table, in its own units
    METRIC(KEY[:STRENGTH])      a derived metric, such as robustness_r(pgd)

A term with several numbers stands for their mean. Names are looked up among those of the dataset in this order, so keys
and columns may contain dots.
"""

import re
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import pandas as pd

from robust201.analysis.dataset_results import ADVERSARIAL, SCORE_KINDS, SCORES, DatasetResults
from robust201.analysis.network_costs import network_costs
from robust201.core.errors import ConfigError, closest
from robust201.core.records import CLEAN_STRENGTH
from robust201.reader.dataset import RobustnessDataset
from robust201.reader.frames import MEAN_DECIMALS
from robust201.reader.joined_tables import joined_name
from robust201.reader.networks import trained_architecture
from robust201.reader.result_files import evaluation_names, paper_key
from robust201.reader.value_checks import CLEAN, architecture_of
from robust201.tasks import expand_keys

NUMBER_PATTERN = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"

_CALL = re.compile(r"(\w+)\(([^()]*)\)")


def measure_name(key: str, measurement: str, strength: float) -> str:
    """Name a number of a measure: ``jacobian.squared_norm``, with the strength behind it if that is not 0."""
    return f"{key}.{measurement}" + (f":{strength:g}" if strength != CLEAN_STRENGTH else "")


def find_evaluations(results: DatasetResults, name: str) -> list[tuple[str, float]]:
    """List the keys and strengths that a score, a key or a key at a strength stands for; none for any other name."""
    if name in SCORE_KINDS:
        keys = results.averaged_keys(name)
        return [column for column in results.columns if column[0] in keys]
    named = expand_keys([paper_key(name)])
    found = [column for column in results.columns if column[0] in named]
    key, strength = _divide(name)
    return found or [column for column in results.columns if column == (paper_key(key), strength)]


def evaluations_named(results: DatasetResults, name: str) -> list[tuple[str, float]]:
    """List the keys and strengths that a name stands for (see `find_evaluations`).

    Raises:
        ConfigError: it stands for none.
    """
    found = find_evaluations(results, name)
    if found:
        return found
    if name in SCORE_KINDS:
        expected = "an attack in a norm ball, on the networks themselves" if name == ADVERSARIAL else "a corruption"
        raise ConfigError(
            f"Looking up {name} failed for {results.name}: expected results of {expected}, got none. Choose another "
            "score, or export more keys."
        )
    key, _, strength = name.rpartition(":")
    known = results.strengths(paper_key(key))
    if known:
        raise ConfigError(
            f"Looking up {name} failed for {results.name}: expected a strength of "
            f"{', '.join(f'{one:g}' for one in known)}, got {strength}. Choose one of them."
        )
    raise _unknown(results, name, "a score, a key, or a key at a strength", _evaluation_names(results))


def collect_measures(
    results: DatasetResults, tables: Sequence[pd.DataFrame] = (), *, with_own: bool = True
) -> pd.DataFrame:
    """Collect the numbers of architectures other than accuracies.

    Args:
        results: of a dataset.
        tables: joined tables, as `reader.joined_tables.read_joined` gives them.
        with_own: whether the measures of the results are among them.

    Returns:
        float64 by evaluated architecture: numbers of parameters and multiply-accumulates, where architectures are
        cells, the measures of the results, and the columns of the tables.
    """
    costs = network_costs(results.reader, results.name, results.architectures, n_classes=results.n_classes)
    columns: dict[str, pd.Series] = {str(name): numbers for name, numbers in costs.items()}
    for place, numbers in results.measures.items() if with_own else ():
        columns[measure_name(*place)] = numbers  # type: ignore[misc]
    accuracies = {*SCORES, *_evaluation_names(results)}
    for table in tables:
        for name, numbers in _own_rows(table, results).set_index("architecture").items():
            own = numbers.reindex(list(map(trained_architecture, results.architectures)))
            columns[joined_name(str(name), {*columns, *accuracies})] = own.set_axis(results.accuracies.index)
    return pd.DataFrame(columns).reindex(results.accuracies.index)


def read_join_tables(
    reader: RobustnessDataset, sources: "Sequence[Path | pd.DataFrame]", several: Sequence[DatasetResults]
) -> list[pd.DataFrame]:
    """Read tables, or their files, to be joined with the results of some datasets.

    Raises:
        ConfigError: one names no architecture that was evaluated on any of them (see `read_joined` for others).
    """
    tables = [reader.read_table(source) for source in sources]
    for source, table in zip(sources, tables, strict=True):
        if not any(_names_any(_own_rows(table, one), one) for one in several):
            raise ConfigError(
                f"Joining failed for {source if isinstance(source, Path) else 'a table'}: expected numbers of "
                f"architectures that were evaluated on {', '.join(one.name for one in several)}, got none of them. "
                "Check its columns of architectures and datasets."
            )
    return tables


class Terms:
    """The numbers of the architectures of a dataset, by name."""

    def __init__(self, results: DatasetResults, tables: Sequence[pd.DataFrame] = ()) -> None:
        self.results, self.tables = results, tables

    @cached_property
    def measures(self) -> pd.DataFrame:
        return collect_measures(self.results, self.tables)

    @property
    def beforehand(self) -> list[str]:
        """Names of what is known without an evaluation: costs, and the columns of joined tables."""
        return [str(name) for name in self.measures if name not in self._of_keys]

    @cached_property
    def _of_keys(self) -> dict[str, tuple[str, str, float]]:
        return {measure_name(*place): place for place in self.results.measures}  # type: ignore[misc]

    def is_accuracy(self, name: str) -> bool:
        """Whether a term is a fraction of images."""
        return bool(find_evaluations(self.results, name))

    def columns(self, name: str) -> pd.DataFrame:
        """Give the numbers of a term: float64, a row per architecture, one column or more.

        Raises:
            ConfigError: the dataset has no such numbers.
        """
        if name in SCORE_KINDS or self.is_accuracy(name):
            return self.results.accuracies[evaluations_named(self.results, name)]
        if name in self.measures:
            return self.measures[[name]]
        if call := _CALL.fullmatch(name):
            return self._metric(*call.groups()).to_frame()
        wanted, strength = _divide(name)
        found = [
            column
            for column, (key, measurement, at) in self._of_keys.items()
            if wanted in (f"{key}.{measurement}", f"{paper_key(key)}.{measurement}") and strength in (None, at)
        ]
        if found:
            return self.measures[found]
        if self.results.strengths(paper_key(name.rpartition(":")[0])):
            evaluations_named(self.results, name)  # says which strengths there are
        known = [*_evaluation_names(self.results), *map(str, self.measures)]
        raise _unknown(self.results, name, "a score, a key, a measure, a cost or a joined column", known)

    def mean(self, name: str) -> "pd.Series[float]":
        """Give the mean of the numbers of a term by architecture; NaN where one is missing."""
        columns = self.columns(name)
        if columns.shape[1] == 1:
            return columns.iloc[:, 0]
        return columns.mean(axis=1, skipna=False).round(MEAN_DECIMALS)

    def _metric(self, metric: str, place: str) -> "pd.Series[float]":
        keys, strength = _divide(place)
        named = [column[0] for key in keys.split("+") for column in evaluations_named(self.results, key.strip())]
        held = [key for key in self.results.reader.keys_all if paper_key(key) in {*named, CLEAN}]
        rows = self.results.reader.metrics([self.results.name], held).metrics
        at = [
            row
            for row in rows
            if (row.metric, row.strength) == (metric, strength) and {*map(paper_key, row.key.split("+"))} == {*named}
        ]
        if len(at) != 1:
            known = {f"{row.metric}({row.key}{'' if row.strength is None else f':{row.strength:g}'})" for row in rows}
            raise _unknown(self.results, f"{metric}({place})", "a metric that follows from the results", sorted(known))
        values = at[0].values
        return values.set_axis([architecture_of(str(one)) for one in values.index]).reindex(
            self.results.accuracies.index
        )


def _divide(name: str) -> tuple[str, float | None]:
    head, mark, tail = name.rpartition(":")
    return (head, float(tail)) if mark and re.fullmatch(NUMBER_PATTERN, tail.strip()) else (name, None)


def _unknown(results: DatasetResults, name: str, expected: str, known: Sequence[str]) -> ConfigError:
    return ConfigError(
        f"Looking up {name!r} failed for {results.name}: expected {expected} that it has, got none of this name."
        f"{closest(name, known)}"
    )


def _evaluation_names(results: DatasetResults) -> list[str]:
    keys = dict.fromkeys(key for key, _ in results.columns)
    return list(dict.fromkeys([*results.scores, *keys, *evaluation_names(results.columns)]))


def _names_any(rows: pd.DataFrame, results: DatasetResults) -> bool:
    """Whether a table has numbers of an architecture that was evaluated."""
    return bool(rows["architecture"].isin(list(map(trained_architecture, results.architectures))).any())


def _own_rows(table: pd.DataFrame, results: DatasetResults) -> pd.DataFrame:
    return table[table["dataset"] == results.name].drop(columns="dataset") if "dataset" in table else table
