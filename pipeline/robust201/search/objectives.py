"""What a search maximises, as text: ``clean``, ``0.5*clean + 0.5*pgd:1``, ``clean, -latency`` (a Pareto front).

    objectives  = sum, sum, …           several objectives, each maximised
    sum         = [number*]term + …     weighted; a weight may be negative
    term                                see `analysis.terms`

A constraint is ``parameters <= 8e5`` or ``latency <= 5``: of costs and joined columns, which are known without an
evaluation, so it narrows the search.
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

MOST_OBJECTIVES = 4
"""The time that a hypervolume takes grows exponentially with its dimension."""

LEAST_WEIGHT, LARGEST_WEIGHT = 1e-9, 1e9
"""Sizes of weights: no sum of numbers under them is lost or overflows."""

_TERM = re.compile(rf"(?:({NUMBER_PATTERN})\s*\*\s*|(-)\s*)?([^*]+)")
_CONSTRAINT = re.compile(rf"\s*(.+?)\s*(<=|>=)\s*({NUMBER_PATTERN})\s*")


class ObjectiveTerm(NamedTuple):
    """One term of a sum."""

    weight: float
    name: str


def parse_objectives(text: str) -> list[tuple[str, tuple[ObjectiveTerm, ...]]]:
    """Understand the text of the objectives; give the text and the terms of each.

    Raises:
        ConfigError: it is none.
    """
    found = [(part.strip(), tuple(_parse_sum(part, text))) for part in _split(text, ",")]
    if len(found) > MOST_OBJECTIVES:
        raise ConfigError(
            f"Reading the objective failed for {text!r}: expected at most {MOST_OBJECTIVES} objectives, got "
            f"{len(found)}, whose hypervolume takes too long. Leave some out, or add them up."
        )
    names = [name for name, _ in found]
    if len(set(names)) < len(names):
        raise ConfigError(
            f"Reading the objective failed for {text!r}: expected each objective once, got one twice. Remove one."
        )
    return found


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
        if not LEAST_WEIGHT <= abs(weight) <= LARGEST_WEIGHT:
            raise ConfigError(
                f"Reading the objective failed for {text!r}: expected weights of {LEAST_WEIGHT:g} to "
                f"{LARGEST_WEIGHT:g} in size, got {number}. Choose another weight."
            )
        yield ObjectiveTerm(weight, name.strip())


def _split(text: str, mark: str) -> list[str]:
    """Split at a mark outside of parentheses and numbers."""
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
    """List the datasets that a folder has accuracies of; without a sweep.json it names the published ones."""
    return [name for name in reader.data if any(reader.files.find(name, key, "accuracy") for key in reader.keys_all)]


class TableValues:
    """The values of one dataset of a folder, by index of its space of cells.

    Attributes:
        is_predicted: for each index, whether its accuracies are predictions, not counts; one index per isomorphism
            class.
        n_estimated: number of cells, one per class, some of whose accuracies are estimates from samples of images.

    Raises:
        ConfigError: the architectures are no cells, or there is no such dataset.
    """

    def __init__(
        self, reader: RobustnessDataset, dataset: str, predictions: Path | None = None, *, estimates: bool = False
    ) -> None:
        """Read the values.

        Accuracies that were not counted are taken from the folder's estimates, if wanted, and those of cells that the
        folder lacks from a file of predictions, if one is given.
        """
        self.reader, self.dataset = reader, dataset
        self.space = cells_of(reader)
        held = held_datasets(reader)
        if dataset not in held:
            raise ConfigError(
                f"Searching failed for {reader.path}: expected one of its datasets, got {dataset!r}."
                f"{closest(dataset, held)}"
            )
        accuracies = read_accuracies(reader.files, dataset)
        evaluated = accuracies.index
        counted = DatasetResults(dataset, reader, accuracies)
        self._counted = Terms(counted)
        self.n_estimated = 0
        if estimates:
            filled = fill_in_estimates(counted)[0].accuracies
            self.n_estimated = int((filled.notna() & accuracies.isna()).any(axis=1).sum())
            accuracies = filled
        if predictions is not None:
            accuracies = fill_accuracies(accuracies, predictions, dataset)
        self.is_predicted = np.zeros(self.n, dtype=np.bool_)
        new = accuracies.index.difference(evaluated).to_numpy(np.int64)
        if wrong := sorted(set(new.tolist()) - set(self.space.isomorphs())):
            raise ResultsError(
                f"Reading predictions failed for {predictions}: expected indices of cells, one per isomorphism class, "
                f"got {wrong[0]}. Write the file again with: robust201 predict"
            )
        self.is_predicted[new] = True
        self.terms = Terms(DatasetResults(dataset, reader, accuracies))

    def join(self, tables: Sequence[pd.DataFrame]) -> None:
        self.terms = Terms(self.terms.results, tables)
        self._counted = Terms(self._counted.results, tables)

    @property
    def n(self) -> int:
        return len(self.space.specs())

    def objective(self, name: str, terms: Sequence[ObjectiveTerm]) -> WeightedSum:
        """Read an objective.

        Raises:
            ConfigError: the dataset has no such values.
        """
        columns, weights = [], []
        for term in terms:
            found = self.term(term.name)
            columns.append(found)
            weights += [term.weight / found.shape[1]] * found.shape[1]
        is_accuracy = all(self.terms.is_accuracy(term.name) for term in terms)
        return WeightedSum(name, np.concatenate(columns, axis=1), np.array(weights), is_accuracy)

    def uses_estimates(self, terms: Sequence[ObjectiveTerm]) -> bool:
        """Whether some of an objective's values are made of estimates."""
        if not self.n_estimated:
            return False
        is_estimated = [
            self.terms.columns(term.name).notna() & self._counted.columns(term.name).isna() for term in terms
        ]
        return any(bool(mask.to_numpy().any()) for mask in is_estimated)

    def term(self, name: str) -> _Floats:
        """Read one term: (n, E) values of its evaluations, whose mean it is; NaN where there are none."""
        columns = self.terms.columns(name)
        found = np.full((self.n, columns.shape[1]), math.nan)
        found[columns.index.to_numpy(np.int64)] = columns.to_numpy(np.float64)
        return found


def cells_of(reader: RobustnessDataset) -> CellSpace:
    """Return the space of a folder's architectures; a `ConfigError` says that they are no cells."""
    if reader.files.space is None:
        raise ConfigError(
            f"Searching failed for {reader.path}: expected architectures that are cells, got those of the space "
            f"{reader.files.space_name or 'unknown'}, whose members have no neighbours. Choose a dataset of cells."
        )
    return reader.files.space


def meets(values: TableValues, constraints: Sequence[str]) -> NDArray[np.bool_]:
    """Mark by index the evaluated cells that meet all constraints; one without the number meets none.

    Raises:
        ConfigError: one is not understood, is of something that only an evaluation tells, or is met by no cell.
    """
    met = np.ones(values.n, dtype=np.bool_)
    for text in constraints:
        match = _CONSTRAINT.fullmatch(text)
        if match is None or match[1] not in values.terms.known_in_advance:
            known = ", ".join(values.terms.known_in_advance) or "no cost, as nothing is joined and the classes are unknown"
            raise ConfigError(
                f"Reading the constraint failed for {text!r}: expected a cost, <= or >=, and a number, such as "
                f"'parameters <= 800000', got another. Costs here: {known}. Anything else belongs in the objective."
            )
        cost = values.term(match[1])[:, 0]
        own = cost <= float(match[3]) if match[2] == "<=" else cost >= float(match[3])
        if not own.any():
            raise ConfigError(
                f"Constraining the search failed for {text!r}: expected a constraint that some cell meets, got none: "
                f"{match[1]} lies between {np.nanmin(cost):.10g} and {np.nanmax(cost):.10g}. Choose another number."
            )
        met &= own
    return met
