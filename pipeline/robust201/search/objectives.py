"""What a search maximises, as text: ``clean``, ``0.5*clean + 0.5*pgd:1``, ``clean, pgd:1`` (a Pareto front).

    objectives  = sum, sum, …                 several objectives, each maximised
    sum         = [number*]term + …           weighted; a weight may be negative
    term        = KEY                         clean, or the mean over all strengths of a key
                | KEY:STRENGTH                one evaluation
                | KEY.MEASURE                 a number of a measure, such as jacobian.squared_norm
                | adversarial | corruption    mean over all pairs of attack and epsilon, corruption and severity
                | METRIC(KEY[:STRENGTH])      a derived metric, such as robustness_r(pgd)
                | parameters | flops          of the network, in thousands and millions, as they are known beforehand

A constraint is ``parameters <= 800`` or ``flops <= 120``: known without an evaluation, so it narrows the search.
"""

import math
import re
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from robust201.analysis.dataset_results import SCORE_KINDS
from robust201.analysis.network_costs import FLOPS, PARAMETERS, network_costs
from robust201.core.errors import ConfigError, closest
from robust201.core.records import CLEAN_STRENGTH
from robust201.images import DATASETS
from robust201.reader.dataset import RobustnessDataset
from robust201.reader.derived import derive_metrics
from robust201.reader.result_files import spellings
from robust201.reader.value_checks import CLEAN
from robust201.search.benchmark import WeightedSum
from robust201.spaces.cell_space import CellSpace

_Floats = NDArray[np.float64]

COSTS = {PARAMETERS: 1e3, FLOPS: 1e6}
"""What is known of a network without evaluating it, and the unit it is given in."""

MOST_OBJECTIVES = 4
"""The time that a hypervolume takes grows exponentially with its dimension."""

LEAST_WEIGHT, LARGEST_WEIGHT = 1e-9, 1e9
"""Sizes of weights: no sum of numbers under them is lost or overflows."""

_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_TERM = re.compile(rf"(?:({_NUMBER})\s*\*\s*|(-)\s*)?([^*]+)")
_CALL = re.compile(r"(\w+)\(([^()]*)\)")
_CONSTRAINT = re.compile(rf"\s*(\w+)\s*(<=|>=)\s*({_NUMBER})\s*")


class ObjectiveTerm(NamedTuple):
    """One term of a sum.

    Attributes:
        weight: its factor.
        name: what it is, as written.
    """

    weight: float
    name: str

    @property
    def is_accuracy(self) -> bool:
        """Whether it is a fraction of images: no number of a measure, no metric and no cost."""
        return self.name not in COSTS and not re.search(r"[(.]", self.name.partition(":")[0])


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


def are_accuracies(text: str) -> bool:
    """Whether objectives are made of accuracies alone, which tables and figures show in percent."""
    return all(term.is_accuracy for _, terms in parse_objectives(text) for term in terms)


def _parse_sum(part: str, text: str) -> Iterator[ObjectiveTerm]:
    for piece in _split(part, "+"):
        match = _TERM.fullmatch(piece.strip())
        if match is None:
            raise ConfigError(
                f"Reading the objective failed for {text!r}: expected terms such as clean, pgd:1 or 0.5*clean + "
                f"0.5*pgd:1, got {piece.strip()!r}. docs/search.md lists the terms."
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
    """TableValues of one dataset of a folder, by index of its space of cells.

    Raises:
        ConfigError: the architectures are no cells, or there is no such dataset.
    """

    def __init__(self, reader: RobustnessDataset, dataset: str) -> None:
        self.reader, self.dataset = reader, dataset
        self.space = cells_of(reader)
        self._terms: dict[str, _Floats] = {}
        held = held_datasets(reader)
        if dataset not in held:
            raise ConfigError(
                f"Searching failed for {reader.path}: expected one of its datasets, got {dataset!r}."
                f"{closest(dataset, held)}"
            )

    @property
    def n(self) -> int:
        """How many cells the space has."""
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
        return WeightedSum(name, np.concatenate(columns, axis=1), np.array(weights))

    def term(self, name: str) -> _Floats:
        """Read one term, once: (n, E) values of its evaluations, whose mean it is."""
        if name not in self._terms:
            self._terms[name] = self._read_term(name)
        return self._terms[name]

    def _read_term(self, name: str) -> _Floats:
        if name in COSTS:
            return self.cost(name)[:, None]
        if name in SCORE_KINDS:
            return self._mean_of_kind(name)
        if call := _CALL.fullmatch(name):
            return self._metric(*call.groups())[:, None]
        key, _, strength = name.partition(":")
        key, _, measure = key.partition(".")
        measure = measure or "accuracy"
        frame = self.reader.to_frame(self.dataset, self._key(key, measure), measure)
        if frame["value"].dtype.kind != "f":
            raise ConfigError(
                f"Reading the objective failed for {name}: expected numbers, got values of type "
                f"{frame['value'].dtype}. Choose another measurement."
            )
        if strength:
            chosen = self._strength(self._key(key, measure), strength)
            frame = frame[frame["strength"] == chosen]
        elif self._repeats_clean(self._key(key, measure)):
            frame = frame[frame["strength"] != CLEAN_STRENGTH]
        return self._columns(frame)

    def cost(self, name: str) -> _Floats:
        """Give parameters in thousands or multiply-accumulates in millions, by index."""
        if name not in self._costs:
            raise ConfigError(
                f"Computing {name} failed for {self.dataset}: expected a dataset whose images and classes are known, "
                f"got another. Known: {', '.join(DATASETS)}."
            )
        return self._by_index(self._costs[name]) / COSTS[name]

    @cached_property
    def _costs(self) -> pd.DataFrame:
        # Cells of a class may differ in size: the evaluated one counts.
        return network_costs(self.reader, self.dataset, sorted(set(self.space.isomorphs())))

    def _key(self, key: str, measure: str = "accuracy") -> str:
        """Find a key that has results, in either spelling."""
        find = self.reader.files.find
        known = [one for one in self.reader.keys_all if find(self.dataset, one, measure) is not None]
        for spelling in spellings(key):
            if spelling in known:
                return spelling
        names = dict.fromkeys(one for name in known for one in reversed(spellings(name)))
        raise ConfigError(
            f"Reading the objective failed for {self.dataset}: expected a key with {measure}, got {key!r}."
            f"{closest(key, [*names, *SCORE_KINDS, *COSTS])}"
        )

    def _strength(self, key: str, text: str) -> float:
        known = self.reader.strengths(self.dataset, key)
        value = _number(text)
        if value not in known:
            raise ConfigError(
                f"Reading the objective failed for {key}:{text}: expected a strength of "
                f"{', '.join(f'{one:g}' for one in known)}, got {text}. Choose one of them."
            )
        return value

    def _repeats_clean(self, key: str) -> bool:
        return key != CLEAN and self.reader.files.repeats_clean(self.dataset, key)

    def _mean_of_kind(self, name: str) -> _Floats:
        kind = SCORE_KINDS[name]
        found = [key for key in self.reader.keys_all if self.reader.files.kind_of(key) == kind]
        held = [key for key in found if self.reader.files.find(self.dataset, key, "accuracy") is not None]
        if not held:
            raise ConfigError(
                f"Reading the objective failed for {name}: expected results of {'an' if kind == 'attack' else 'a'} "
                f"{kind} on {self.dataset}, got none. Choose another objective, or export more keys."
            )
        return np.concatenate([self.term(key) for key in held], axis=1)

    def _metric(self, metric: str, place: str) -> _Floats:
        key, _, strength = place.partition(":")
        keys = [self._key(one.strip()) for one in key.split("+")]
        rows = derive_metrics(self.reader, datasets=[self.dataset], keys=list(dict.fromkeys([CLEAN, *keys]))).metrics
        named = [row for row in rows if row.metric == metric]
        here = [row for row in named if {*row.key.split("+")} == {*keys}]
        at = [row for row in here if (row.strength is None) == (not strength)]
        if strength:
            at = [row for row in at if row.strength == _number(strength)]
        if len(at) != 1:
            known = {f"{row.metric}({row.key}{'' if row.strength is None else f':{row.strength:g}'})" for row in rows}
            wanted = f"{metric}({place})"
            raise ConfigError(
                f"Reading the objective failed for {wanted}: expected a metric that follows from the results, got none."
                f"{closest(wanted, sorted(known))}"
            )
        return self._by_index(at[0].values)

    def _columns(self, frame: pd.DataFrame) -> _Floats:
        wide = frame.set_index(["architecture", "strength"])["value"].unstack("strength")
        found = np.full((self.n, wide.shape[1]), math.nan)
        found[wide.index.to_numpy()] = wide.to_numpy(np.float64)
        return found

    def _by_index(self, values: "pd.Series[float]") -> _Floats:
        found = np.full(self.n, math.nan)
        found[values.index.to_numpy(np.int64)] = values.to_numpy(np.float64)
        return found


def _number(text: str) -> float:
    """Read a strength; NaN, which equals none, where it is no number."""
    return float(text) if re.fullmatch(_NUMBER, text.strip()) else math.nan


def cells_of(reader: RobustnessDataset) -> CellSpace:
    """Give the space of a folder's architectures; a `ConfigError` says that they are no cells."""
    if reader.files.space is None:
        raise ConfigError(
            f"Searching failed for {reader.path}: expected architectures that are cells, got those of the space "
            f"{reader.files.space_name or 'unknown'}, whose members have no neighbours. Choose a dataset of cells."
        )
    return reader.files.space


def meets(values: TableValues, constraints: Sequence[str]) -> NDArray[np.bool_]:
    """Say by index which cells meet all constraints.

    Raises:
        ConfigError: one is not understood, or is of something that only an evaluation tells.
    """
    met = np.ones(values.n, dtype=np.bool_)
    for text in constraints:
        match = _CONSTRAINT.fullmatch(text)
        if match is None or match[1] not in COSTS:
            raise ConfigError(
                f"Reading the constraint failed for {text!r}: expected {' or '.join(COSTS)}, <= or >=, and a number, "
                "such as 'parameters <= 800', got another. Anything else belongs in the objective."
            )
        cost = values.cost(match[1])
        met &= cost <= float(match[3]) if match[2] == "<=" else cost >= float(match[3])
    return met
