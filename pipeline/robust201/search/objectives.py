"""Objectives of a search, such as ``clean``, ``0.5*clean + 0.5*pgd:1`` or ``clean, -latency`` (a Pareto front).

    objectives  = sum, sum, …           several objectives, each maximised
    sum         = [number*]term + …     weighted sum; a weight may be negative
    term                                see `analysis.terms`

A constraint is ``parameters <= 8e5`` or ``latency <= 5``. It restricts a cost or a joined column; these are known
without an evaluation, so a constraint narrows the search.
"""

import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from robust201.analysis.dataset_results import DatasetResults
from robust201.analysis.estimated import fill_in_estimates
from robust201.analysis.terms import NUMBER_PATTERN, Terms
from robust201.core.errors import ConfigError, ResultsError, closest
from robust201.reader.dataset import RobustnessDataset
from robust201.reader.frames import read_accuracies
from robust201.search.benchmark import WeightedSum
from robust201.search.cell_predictions import fill_accuracies
from robust201.spaces.cell_space import CellSpace

_Floats = NDArray[np.float64]

MAX_OBJECTIVES = 4
"""Maximum number of objectives: the time of a hypervolume is exponential in its dimension."""

MIN_WEIGHT, MAX_WEIGHT = 1e-9, 1e9
"""Range of weights' absolute values in which sums neither lose terms nor overflow."""

_TERM = re.compile(rf"(?:({NUMBER_PATTERN})\s*\*\s*|(-)\s*)?([^*]+)")
_CONSTRAINT = re.compile(rf"\s*(.+?)\s*(<=|>=)\s*({NUMBER_PATTERN})\s*")


class ObjectiveTerm(NamedTuple):
    """A term of a weighted sum."""

    weight: float
    name: str


def parse_objectives(text: str) -> list[tuple[str, tuple[ObjectiveTerm, ...]]]:
    """Parse objectives; return the text and the terms of each.

    Raises:
        ConfigError: the text is not a valid objective.
    """
    objectives = [(part.strip(), tuple(_parse_sum(part, text))) for part in _split(text, ",")]
    if len(objectives) > MAX_OBJECTIVES:
        raise ConfigError(
            f"Reading the objective failed for {text!r}: expected at most {MAX_OBJECTIVES} objectives, got "
            f"{len(objectives)}, whose hypervolume takes too long. Leave some out, or add them up."
        )
    names = [name for name, _ in objectives]
    if len(set(names)) < len(names):
        raise ConfigError(f"Reading the objective failed for {text!r}: it contains an objective twice. Remove one.")
    return objectives


def _parse_sum(part: str, text: str) -> Iterator[ObjectiveTerm]:
    for piece in _split(part, "+"):
        match = _TERM.fullmatch(piece.strip())
        if match is None:
            raise ConfigError(
                f"Reading the objective failed for {text!r}: expected terms such as clean, pgd:1 or 0.5*clean + "
                f"0.5*pgd:1, got {piece.strip()!r}. docs/architecture-search.md lists the terms."
            )
        number, minus, name = match.groups()
        weight = float(number) if number else -1.0 if minus else 1.0
        if not MIN_WEIGHT <= abs(weight) <= MAX_WEIGHT:
            raise ConfigError(
                f"Reading the objective failed for {text!r}: expected weights of {MIN_WEIGHT:g} to "
                f"{MAX_WEIGHT:g} in size, got {number}. Choose another weight."
            )
        yield ObjectiveTerm(weight, name.strip())


def _split(text: str, mark: str) -> list[str]:
    """Split at a separator outside parentheses and numbers."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter == "(") - (letter == ")")
        exponent = re.search(r"(?:^|[^\w.])[\d.]+[eE]$", parts[-1]) is not None
        if letter == mark and depth == 0 and not exponent:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


def held_datasets(reader: RobustnessDataset) -> list[str]:
    """Return the datasets with accuracies in a folder; without a sweep.json, `reader.data` lists all published ones."""
    return [name for name in reader.data if any(reader.files.find(name, key, "accuracy") for key in reader.keys_all)]


class TableValues:
    """The values of one dataset in a folder, by index of its space of cells.

    Attributes:
        is_predicted: whether a cell's accuracies are predictions instead of counts, by index; one index per isomorphism
            class.
        n_estimated: number of cells, one per class, with accuracies that are estimates from samples of images.

    Raises:
        ConfigError: the architectures are not cells, or the dataset does not exist.
    """

    def __init__(
        self, reader: RobustnessDataset, dataset: str, predictions: Path | None = None, *, estimates: bool = False
    ) -> None:
        """Read the values.

        Missing counts are replaced by the folder's estimates, if `estimates` is true, and accuracies of missing cells
        by those in the file `predictions`, if it is not None.
        """
        self.reader, self.dataset = reader, dataset
        self.space = cells_of(reader)
        available = held_datasets(reader)
        if dataset not in available:
            raise ConfigError(
                f"Searching failed for {reader.path}: it has no results of {dataset!r}.{closest(dataset, available)}"
            )
        accuracies = read_accuracies(reader.files, dataset)
        evaluated = accuracies.index
        counted = DatasetResults(dataset, reader, accuracies)
        self._counted = Terms(counted)
        self.n_estimated = 0
        if estimates:
            with_estimates = fill_in_estimates(counted)[0].accuracies
            self.n_estimated = int((with_estimates.notna() & accuracies.isna()).any(axis=1).sum())
            accuracies = with_estimates
        if predictions is not None:
            accuracies = fill_accuracies(accuracies, predictions, dataset)
        self.is_predicted = np.zeros(self.n, dtype=np.bool_)
        predicted = accuracies.index.difference(evaluated).to_numpy(np.int64)
        if wrong := sorted(set(predicted.tolist()) - set(self.space.isomorphs())):
            raise ResultsError(
                f"Reading predictions failed for {predictions}: expected indices of cells, one per isomorphism class, "
                f"got {wrong[0]}. Write the file again with: robust201 predict"
            )
        self.is_predicted[predicted] = True
        self.terms = Terms(DatasetResults(dataset, reader, accuracies))

    def join(self, tables: Sequence[pd.DataFrame]) -> None:
        self.terms = Terms(self.terms.results, tables)
        self._counted = Terms(self._counted.results, tables)

    @property
    def n(self) -> int:
        return len(self.space.specs())

    def objective(self, name: str, terms: Sequence[ObjectiveTerm]) -> WeightedSum:
        """Return an objective with its values.

        Raises:
            ConfigError: the dataset has no such values.
        """
        columns, weights = [], []
        for term in terms:
            values = self.term(term.name)
            columns.append(values)
            weights += [term.weight / values.shape[1]] * values.shape[1]
        is_accuracy = all(self.terms.is_accuracy(term.name) for term in terms)
        return WeightedSum(name, np.concatenate(columns, axis=1), np.array(weights), is_accuracy)

    def uses_estimates(self, terms: Sequence[ObjectiveTerm]) -> bool:
        """Return whether any of an objective's values are based on estimates."""
        if not self.n_estimated:
            return False
        is_estimated = [
            self.terms.columns(term.name).notna() & self._counted.columns(term.name).isna() for term in terms
        ]
        return any(bool(mask.to_numpy().any()) for mask in is_estimated)

    def term(self, name: str) -> _Floats:
        """Return the evaluations (n, E) of a term, whose mean is its value; NaN if missing."""
        columns = self.terms.columns(name)
        values = np.full((self.n, columns.shape[1]), math.nan)
        values[columns.index.to_numpy(np.int64)] = columns.to_numpy(np.float64)
        return values


def cells_of(reader: RobustnessDataset) -> CellSpace:
    """Return the cell space of a folder's architectures; raise a `ConfigError` if they are not cells."""
    if reader.files.space is None:
        raise ConfigError(
            f"Searching failed for {reader.path}: its architectures are not cells but of the space "
            f"{reader.files.space_name or 'unknown'}, which has no neighbours. Choose a dataset of cells."
        )
    return reader.files.space


def meets(values: TableValues, constraints: Sequence[str]) -> NDArray[np.bool_]:
    """Return which evaluated cells meet all constraints, by index; a cell without the number does not.

    Raises:
        ConfigError: a constraint is invalid, is not about a cost, or is met by no cell.
    """
    meets_all = np.ones(values.n, dtype=np.bool_)
    for text in constraints:
        match = _CONSTRAINT.fullmatch(text)
        if match is None or match[1] not in values.terms.known_in_advance:
            known = ", ".join(values.terms.known_in_advance) or "none (join a table)"
            raise ConfigError(
                f"Reading the constraint failed for {text!r}: expected a cost, <= or >=, and a number, such as "
                f"'parameters <= 800000'. Costs here: {known}. Other quantities belong in the objective."
            )
        cost = values.term(match[1])[:, 0]
        is_met = cost <= float(match[3]) if match[2] == "<=" else cost >= float(match[3])
        if not is_met.any():
            raise ConfigError(
                f"Constraining the search failed for {text!r}: no cell meets it, since {match[1]} lies between "
                f"{np.nanmin(cost):.10g} and {np.nanmax(cost):.10g}. Choose another number."
            )
        meets_all &= is_met
    return meets_all
