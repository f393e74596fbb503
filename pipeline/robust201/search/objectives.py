"""Objectives of a search, such as ``clean``, ``0.5*clean + 0.5*pgd:1`` or ``clean, -latency`` (a Pareto front).

    objectives  = sum, sum, …           several objectives, each maximised
    sum         = [number*]term + …     weighted sum; a weight may be negative
    term                                see `analysis.terms`

A constraint is ``parameters <= 8e5`` or ``latency <= 5``. It restricts a cost or a joined column. These are known
before any evaluation, so a constraint reduces the number of cells that can be queried.
"""

import math
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from robust201.analysis.dataset_results import DatasetResults
from robust201.analysis.terms import NUMBER_PATTERN, Terms
from robust201.core.errors import ConfigError, did_you_mean
from robust201.reader.dataset import RobustnessDataset
from robust201.reader.frames import read_accuracies
from robust201.search.benchmark import WeightedSum
from robust201.spaces.cell_space import CellSpace

_Floats = NDArray[np.float64]

MAX_OBJECTIVES = 4
"""Maximum number of objectives: the time to compute a hypervolume is exponential in their number."""

MIN_WEIGHT, MAX_WEIGHT = 1e-9, 1e9
"""Bounds of the absolute value of weights, so that sums neither lose terms nor overflow."""

_TERM = re.compile(rf"(?:({NUMBER_PATTERN})\s*\*\s*|(-)\s*)?([^*]+)")
_CONSTRAINT = re.compile(rf"\s*(.+?)\s*(<=|>=)\s*({NUMBER_PATTERN})\s*")


class ObjectiveTerm(NamedTuple):
    """A term of a weighted sum."""

    weight: float
    name: str


def parse_objectives(text: str) -> list[tuple[str, tuple[ObjectiveTerm, ...]]]:
    """Parse comma-separated objectives; return the text and the terms of each objective.

    Raises:
        ConfigError: the text is not a valid objective.
    """
    objectives = [(objective.strip(), tuple(_parse_sum(objective, text))) for objective in _split(text, ",")]
    if len(objectives) > MAX_OBJECTIVES:
        raise ConfigError(
            f"Reading the objective failed for {text!r}: it has {len(objectives)} objectives, but the "
            f"hypervolume can be computed for at most {MAX_OBJECTIVES}. Remove some, or combine them in a sum."
        )
    objective_texts = [objective for objective, _ in objectives]
    if len(set(objective_texts)) < len(objective_texts):
        raise ConfigError(
            f"Reading the objective failed for {text!r}: it contains the same objective twice. Remove one."
        )
    return objectives


def _parse_sum(objective: str, text: str) -> Iterator[ObjectiveTerm]:
    for term in _split(objective, "+"):
        match = _TERM.fullmatch(term.strip())
        if match is None:
            raise ConfigError(
                f"Reading the objective failed for {text!r}: {term.strip()!r} is not a term such as clean, pgd:1 "
                "or 0.5*pgd:1. docs/architecture-search.md lists the terms."
            )
        number, minus, name = match.groups()
        weight = float(number) if number else -1.0 if minus else 1.0
        if not MIN_WEIGHT <= abs(weight) <= MAX_WEIGHT:
            raise ConfigError(
                f"Reading the objective failed for {text!r}: the absolute value of a weight must be between "
                f"{MIN_WEIGHT:g} and {MAX_WEIGHT:g}, got {number}. Choose another weight."
            )
        yield ObjectiveTerm(weight, name.strip())


def _split(text: str, separator: str) -> list[str]:
    """Split at separators outside parentheses; the + of an exponent such as 1e+5 does not separate."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter == "(") - (letter == ")")
        is_exponent = re.search(r"(?:^|[^\w.])[\d.]+[eE]$", parts[-1]) is not None
        if letter == separator and depth == 0 and not is_exponent:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


def datasets_with_accuracies(reader: RobustnessDataset) -> list[str]:
    """Return the datasets with accuracies in a folder; `reader.data` may list more if the folder has no sweep.json."""
    return [name for name in reader.data if any(reader.files.find(name, key, "accuracy") for key in reader.keys_all)]


class TableValues:
    """The accuracies and other terms of one dataset in a folder, by cell index.

    Raises:
        ConfigError: the architectures are not cells, or the dataset does not exist.
    """

    def __init__(self, reader: RobustnessDataset, dataset: str) -> None:
        self.reader, self.dataset = reader, dataset
        self.space = cell_space_of(reader)
        available_datasets = datasets_with_accuracies(reader)
        if dataset not in available_datasets:
            raise ConfigError(
                f"Searching failed for {reader.path}: it has no results on {dataset!r}."
                f"{did_you_mean(dataset, available_datasets)}"
            )
        self.terms = Terms(DatasetResults(dataset, reader, read_accuracies(reader.files, dataset)))

    def join(self, tables: Sequence[pd.DataFrame]) -> None:
        """Add the columns of tables as terms."""
        self.terms = Terms(self.terms.results, tables)

    @property
    def n_cells(self) -> int:
        """Number of cells in the space."""
        return len(self.space.specs())

    def objective(self, name: str, terms: Sequence[ObjectiveTerm]) -> WeightedSum:
        """Return an objective with the values of its terms.

        Raises:
            ConfigError: the dataset has no values of a term.
        """
        columns, weights = [], []
        for term in terms:
            values = self.term_values(term.name)
            columns.append(values)
            weights += [term.weight / values.shape[1]] * values.shape[1]
        is_accuracy = all(self.terms.is_accuracy(term.name) for term in terms)
        return WeightedSum(name, np.concatenate(columns, axis=1), np.array(weights), is_accuracy)

    def term_values(self, name: str) -> _Floats:
        """Return the values (n, E) of a term's E evaluations; NaN if missing. The term's value is their mean."""
        columns = self.terms.columns(name)
        values = np.full((self.n_cells, columns.shape[1]), math.nan)
        values[columns.index.to_numpy(np.int64)] = columns.to_numpy(np.float64)
        return values


def cell_space_of(reader: RobustnessDataset) -> CellSpace:
    """Return the cell space of a folder's architectures; raise ConfigError if they are not cells."""
    if reader.files.space is None:
        raise ConfigError(
            f"Searching failed for {reader.path}: its architectures belong to the space "
            f"{reader.files.space_name or 'unknown'}, which has no cells. Choose a dataset of cells."
        )
    return reader.files.space


def find_cells_meeting_constraints(values: TableValues, constraints: Sequence[str]) -> NDArray[np.bool_]:
    """Return a mask (n,) of the cells that meet all constraints; a cell whose constrained cost is unknown does not.

    Raises:
        ConfigError: a constraint is invalid, restricts something other than a cost, or is met by no cell.
    """
    meets_all = np.ones(values.n_cells, dtype=np.bool_)
    for constraint in constraints:
        match = _CONSTRAINT.fullmatch(constraint)
        if match is None or match[1] not in values.terms.names_known_in_advance:
            cost_names = ", ".join(values.terms.names_known_in_advance) or "none (join a table)"
            raise ConfigError(
                f"Reading the constraint failed for {constraint!r}: it must have the form 'parameters <= 800000': a "
                f"cost, <= or >=, and a number. Known costs: {cost_names}. Other quantities belong in the objective."
            )
        cost = values.term_values(match[1])[:, 0]
        is_met = cost <= float(match[3]) if match[2] == "<=" else cost >= float(match[3])
        if not is_met.any():
            raise ConfigError(
                f"Constraining the search failed for {constraint!r}: no cell meets it, since `{match[1]}` lies between "
                f"{np.nanmin(cost):.10g} and {np.nanmax(cost):.10g}. Choose another number."
            )
        meets_all &= is_met
    return meets_all
