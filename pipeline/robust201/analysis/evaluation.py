"""What `robust201.evaluate` and `robust201.compare` return: tables that know more than their rows."""

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from robust201.analysis.latex_tables import comparison_latex, evaluation_latex
from robust201.analysis.robustbench import BENCHMARKS, Benchmark
from robust201.core.errors import ConfigError, closest
from robust201.statistics.intervals import accuracy_intervals
from robust201.statistics.outcomes import pack_outcomes
from robust201.statistics.significance import holm_adjust, paired_differences
from robust201.tasks import ENSEMBLES, TASKS
from robust201.tasks.constraints import CONSTRAINTS, Constraint

LEVEL = 0.05
"""Adjusted p-value below which a difference counts as significant."""

_COLUMNS = ("first", "second", "key", "strength", "first_accuracy", "second_accuracy", "difference", "low", "high")
_COUNTS = ("only_first", "only_second", "p_value", "adjusted_p_value", "n_images")


class WorstCase(NamedTuple):
    """Accuracy where each image meets the worst of several evaluations.

    Attributes:
        accuracy: share of the images that are classified correctly in every evaluation.
        low: lower end of its 95% interval.
        high: upper end.
        evaluations: (key, strength) of each.
        outcomes: whether each image is classified correctly in all of them, by its position.
    """

    accuracy: float
    low: float
    high: float
    evaluations: tuple[tuple[str, float], ...]
    outcomes: "pd.Series[Any]"

    @property
    def summary(self) -> str:
        """A sentence."""
        names = list(dict.fromkeys(key for key, _ in self.evaluations))
        count = f"{len(self.evaluations):,} evaluations" if len(self.evaluations) > 1 else "1 evaluation"
        return (
            f"{self.accuracy:.1%} ({self.low:.1%} to {self.high:.1%}) of {len(self.outcomes):,} images withstand each "
            f"of {count}: {', '.join(names)}."
        )


class Evaluation(pd.DataFrame):
    """One row per key and strength; see `robust201.evaluate`.

    A part of the table is a plain DataFrame: only the whole one has outcomes.
    """

    _metadata = [  # noqa: RUF012 - pandas reads a list
        *("_outcomes", "_positions", "_images_sha256", "_protocols", "_benchmark", "_distances", "_steps"),
    ]
    _outcomes: dict[tuple[str, float], NDArray[np.bool_]]
    _positions: NDArray[np.int64]
    _images_sha256: str
    _protocols: dict[str, Mapping[str, Any]]
    _benchmark: Benchmark | None
    _distances: dict[str, NDArray[np.float64]]
    _steps: dict[tuple[str, float], NDArray[np.float64]]

    @classmethod
    def of(
        cls,
        rows: Sequence[Mapping[str, Any]],
        columns: Sequence[str],
        outcomes: Mapping[tuple[str, float], NDArray[np.bool_]],
        positions: NDArray[np.int64],
        images_sha256: str,
        protocols: Mapping[str, Mapping[str, Any]],
        benchmark: Benchmark | None = None,
        distances: Mapping[str, NDArray[np.float64]] | None = None,
        steps: Mapping[tuple[str, float], NDArray[np.float64]] | None = None,
    ) -> "Evaluation":
        """Make the table of some rows, with the outcomes of N images by key and strength.

        Args:
            rows: the rows by name of the column.
            columns: the columns, in order.
            outcomes: (N,) whether each image was classified correctly.
            positions: (N,) positions of the evaluated images among the images given.
            images_sha256: digest of images and labels, which comparisons need to be of the same images.
            protocols: by key, its parameters and all else that decides its numbers.
            benchmark: the leaderboard's protocol that was followed.
            distances: (N,) by key, for attacks that look for the smallest perturbation.
            steps: (N,) by key and strength, for attacks that record them.
        """
        table = cls(rows, columns=list(columns))
        table._outcomes, table._positions = dict(outcomes), positions
        table._images_sha256, table._protocols = images_sha256, dict(protocols)
        table._benchmark, table._distances, table._steps = benchmark, dict(distances or {}), dict(steps or {})
        return table

    @property
    def _constructor(self) -> type[pd.DataFrame]:
        return pd.DataFrame

    @property
    def outcomes(self) -> pd.DataFrame:
        """Whether each image was classified correctly: bool, one row per image, one column per (key, strength).

        The index holds the images' positions among the images given: all of them, unless a subset was evaluated.
        """
        frame = pd.DataFrame(self._outcomes, index=self._positions)
        frame.columns = pd.MultiIndex.from_tuples(list(self._outcomes), names=["key", "strength"])
        return frame.rename_axis("image")

    def worst_case(self, evaluations: Sequence[str | tuple[str, float]] | None = None) -> WorstCase:
        """Compute the accuracy where each image meets the worst of several evaluations (Croce and Hein, ICML 2020).

        Args:
            evaluations: keys, which stand for all their strengths, or pairs of key and strength; attacks of several
                norms and corruptions may be among them. None takes all.

        Raises:
            ConfigError: one was not evaluated, or none is named.
        """
        chosen = list(self._outcomes) if evaluations is None else self._find(evaluations)
        if not chosen:
            raise ConfigError("Computing the worst case failed: expected one evaluation or more, got none. Name some.")
        correct = np.all([self._outcomes[one] for one in chosen], axis=0)
        accuracy = float(correct.mean())
        low, high = map(float, accuracy_intervals(accuracy, len(correct)))
        series: pd.Series[Any] = pd.Series(correct, index=self._positions, dtype=bool).rename_axis("image")
        return WorstCase(accuracy, low, high, tuple(chosen), series)

    def _find(self, evaluations: Sequence[str | tuple[str, float]]) -> list[tuple[str, float]]:
        chosen: dict[tuple[str, float], None] = {}
        for one in [evaluations] if isinstance(evaluations, str) else evaluations:
            key, strength = (one, None) if isinstance(one, str) else one
            same = [(name, at) for name, at in self._outcomes if name == key and strength in (None, at)]
            if not same:
                known = [f"{name} {at:g}" for name, at in self._outcomes]
                label = str(key) if strength is None else f"{key} {strength:g}"
                raise ConfigError(
                    f"Computing the worst case failed for {label!r}: it was not evaluated."
                    f"{closest(label, [*known, *(name for name, _ in self._outcomes)])} Evaluated: {', '.join(known)}."
                )
            chosen |= dict.fromkeys(same)
        return list(chosen)

    @property
    def distances(self) -> pd.DataFrame:
        """The smallest perturbation that fools the network on each image: one row per image, one column per key.

        Lengths are in the norm of the key, in units of the pixel range [0, 1] (L0: of changed values): 0 for images
        that are wrong as they are, infinity for those that were not fooled within the key's largest epsilon. Only
        attacks for the smallest perturbation (`fmn`, `ddn_l2`, `sigma_zero_l0`, `bb`, `aa_fab` and their norms) have a
        column.
        """
        return pd.DataFrame(self._distances, index=self._positions).rename_axis("image")

    @property
    def steps(self) -> pd.DataFrame:
        """The step (of Square: query) at which an attack first fools the network on each image.

        One row per image, one column per (key, strength): 0 for images that are wrong as they are, infinity for those
        that were never fooled. So the accuracy after k steps is ``(steps > k).mean()``. Only FGSM, PGD, APGD, Square
        and FMN of the fused engine have columns.
        """
        frame = pd.DataFrame(self._steps, index=self._positions)
        keys, strengths = [key for key, _ in self._steps], [strength for _, strength in self._steps]
        frame.columns = pd.MultiIndex.from_arrays([keys, strengths], names=["key", "strength"])
        return frame.rename_axis("image")

    @property
    def images_sha256(self) -> str:
        """Digest of the images and labels that were evaluated."""
        return self._images_sha256

    @property
    def protocols(self) -> Mapping[str, Mapping[str, Any]]:
        """By key, its parameters and all else that decides its numbers."""
        return self._protocols

    @property
    def model_info(self) -> dict[str, Any]:
        """The results of a benchmark as a row of RobustBench's `model_info` files (see `Benchmark.model_info`).

        Raises:
            ConfigError: the evaluation did not follow a benchmark.
        """
        if self._benchmark is None:
            raise ConfigError(
                "Writing a leaderboard's row failed for this evaluation: it did not follow a benchmark. Evaluate with "
                f"benchmark={next(iter(BENCHMARKS))!r}, or another of {', '.join(BENCHMARKS)}."
            )
        return self._benchmark.model_info(self, len(self._positions))

    @property
    def summary(self) -> str:
        """A sentence on the clean accuracy, and one for each ball on the images that withstand every attack in it."""
        balls: dict[tuple[Constraint, float], list[str]] = {}
        for key, strength in self._outcomes:
            if (constraint := self._constraint_of(key)) is not None:
                balls.setdefault((constraint, strength), []).append(key)
        clean = [
            f"{_show_fraction(correct)} of {len(correct):,} images are classified correctly (95% intervals)."
            for (key, _), correct in self._outcomes.items()
            if key == "clean"
        ]
        return "\n".join([*clean, *(self._describe_ball(*ball, keys) for ball, keys in balls.items())])

    @property
    def latex(self) -> str:
        """A LaTeX table of the accuracies in percent, with their 95% intervals."""
        return evaluation_latex(self)

    def _constraint_of(self, key: str) -> Constraint | None:
        """Return the ball of an attack, which a task of the user's own names in its protocol."""
        return TASKS[key].constraint if key in TASKS else CONSTRAINTS.get(self._protocols[key].get("norm") or "")

    def _describe_ball(self, constraint: Constraint, strength: float, keys: Sequence[str]) -> str:
        withstood = np.all([self._outcomes[key, strength] for key in keys], axis=0)
        unit = "/255" if constraint.divisor == 255 else ""
        worst = ", each image under the worst of them" if len(keys) > 1 else ""
        ensembles = [key for key, row in TASKS.items() if row.constraint == constraint and key.startswith(ENSEMBLES)]
        missing = " AutoAttack may fool more images." if ensembles and not {*keys} & {*ensembles} else ""
        return (
            f"{_show_fraction(withstood)} withstand {', '.join(keys)} at epsilon {strength:g}{unit} "
            f"({constraint.name}){worst}.{missing}"
        )


def _show_fraction(outcomes: NDArray[np.bool_]) -> str:
    fraction = float(outcomes.mean())
    low, high = accuracy_intervals(fraction, len(outcomes))
    return f"{fraction:.1%} ({low:.1%} to {high:.1%})"


class Comparison(pd.DataFrame):
    """One row per pair of networks, key and strength; see `robust201.compare`."""

    @property
    def _constructor(self) -> type[pd.DataFrame]:
        return pd.DataFrame

    @property
    def summary(self) -> str:
        """A sentence about each pair: which network is more robust, in which evaluations, and how sure that is."""
        pairs = list(dict.fromkeys(zip(self["first"], self["second"], strict=True)))
        return "\n".join(
            _describe_pair(first, second, self[(self["first"] == first) & (self["second"] == second)])
            for first, second in pairs
        )

    @property
    def latex(self) -> str:
        """A LaTeX table of the accuracies in percent; those that are best, or tied with the best, are bold."""
        return comparison_latex(self, LEVEL)


def compare_evaluations(evaluations: Mapping[str, Evaluation]) -> Comparison:
    """Compare every two evaluations of the same images, by the keys and strengths that both have.

    Args:
        evaluations: by name of the network, two or more.

    Raises:
        ConfigError: fewer than two, other images, no key and strength in common, or a key with other parameters.
    """
    _check_comparable(evaluations)
    tables = [_compare_pair(first, second, evaluations) for first, second in combinations(evaluations, 2)]
    rows = pd.concat(tables, ignore_index=True)
    rows["adjusted_p_value"] = holm_adjust(rows["p_value"])
    return Comparison(rows[[*_COLUMNS, *_COUNTS]])


def _check_comparable(evaluations: Mapping[str, Evaluation]) -> None:
    for name, evaluation in evaluations.items():
        if not isinstance(evaluation, Evaluation):
            raise ConfigError(
                f"Comparing networks failed for {name}: expected a table that robust201.evaluate returned, with its "
                f"outcomes by image, got {type(evaluation).__name__}. Give the whole table, not a part of it."
            )
    if len(evaluations) < 2:
        raise ConfigError(
            f"Comparing networks failed: expected two networks or more, got {len(evaluations)}. Name another."
        )
    digests = {evaluation.images_sha256 for evaluation in evaluations.values()}
    if len(digests) > 1:
        raise ConfigError(
            f"Comparing networks failed for {', '.join(evaluations)}: expected evaluations of the same images and "
            f"labels, got {len(digests)} different sets. Evaluate all networks on the same images."
        )


def _compare_pair(first: str, second: str, evaluations: Mapping[str, Evaluation]) -> pd.DataFrame:
    one, other = evaluations[first].outcomes, evaluations[second].outcomes
    common = [column for column in one.columns if column in other.columns]
    if not common:
        raise ConfigError(
            f"Comparing networks failed for {first} and {second}: expected a key and strength that both were evaluated "
            "with, got none. Evaluate both with the same keys."
        )
    keys, strengths = zip(*common, strict=True)
    for key in dict.fromkeys(keys):
        settings = [evaluations[name].protocols[key] for name in (first, second)]
        names = dict.fromkeys([*settings[0], *settings[1]])
        other_fields = [name for name in names if settings[0].get(name) != settings[1].get(name)]
        if other_fields:
            raise ConfigError(
                f"Comparing networks failed for {first} and {second}: expected {key} with the same parameters, got "
                f"others in {', '.join(other_fields)}. Evaluate both with the same."
            )
    n_images = len(one)
    outcomes = [frame[common].to_numpy(bool).T for frame in (one, other)]
    found = paired_differences(pack_outcomes(outcomes[0]), pack_outcomes(outcomes[1]), n_images)
    return pd.DataFrame(
        {
            "first": first,
            "second": second,
            "key": keys,
            "strength": strengths,
            "first_accuracy": outcomes[0].mean(axis=1),
            "second_accuracy": outcomes[1].mean(axis=1),
            **found._asdict(),
            "n_images": n_images,
        }
    )


def _describe_pair(first: str, second: str, rows: pd.DataFrame) -> str:
    difference = rows["difference"].to_numpy(np.float64)
    significant = rows["adjusted_p_value"].to_numpy(np.float64) < LEVEL
    n_images = int(rows["n_images"].iloc[0])
    evaluations = "1 evaluation" if len(rows) == 1 else f"{len(rows)} evaluations"
    basis = f"{evaluations} of {n_images:,} images (McNemar's exact test, Holm's correction, {LEVEL:g})"
    parts = []
    for name, won in ((first, significant & (difference < 0)), (second, significant & (difference > 0))):
        if won.any():
            largest = int(np.argmax(np.where(won, np.abs(difference), -1.0)))
            most = _name_row(rows.iloc[largest])
            parts.append(f"{name} is significantly more accurate in {int(won.sum())}, most at {most}")
    if not parts:
        uncorrected = int((rows["p_value"].to_numpy(np.float64) < LEVEL).sum())
        hint = (
            f" {uncorrected} would be without the correction: compare fewer, chosen beforehand." if uncorrected else ""
        )
        if not (rows["only_first"] + rows["only_second"]).any():
            hint = " They classify every image alike, as the same network would."
        return f"{first} and {second} do not differ significantly in {'any of ' if len(rows) > 1 else ''}{basis}.{hint}"
    open_rows = int((~significant).sum())
    undecided = f"; {open_rows} show no significant difference" if open_rows > 1 else ""
    undecided = "; 1 shows no significant difference" if open_rows == 1 else undecided
    return f"{'; '.join(parts)}{undecided}; of {basis}."


def _name_row(row: "pd.Series[Any]") -> str:
    low, high = sorted((abs(float(row["low"])), abs(float(row["high"]))))
    size = abs(float(row["difference"]))
    points = f"{100 * size:.1f} points, 95% interval {100 * low:.1f} to {100 * high:.1f}"
    strength = "" if row["key"] == "clean" else f" {float(row['strength']):g}"
    return f"{row['key']}{strength} ({points})"
