"""The tables that `robust201.evaluate` and `robust201.compare` return."""

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from robust201.analysis.latex_tables import comparison_latex, evaluation_latex
from robust201.analysis.robustbench import LEADERBOARDS, model_info
from robust201.core.errors import ConfigError, did_you_mean
from robust201.statistics.intervals import accuracy_intervals
from robust201.statistics.outcomes import pack_outcomes
from robust201.statistics.significance import holm_adjust, paired_differences
from robust201.tasks import TASKS
from robust201.tasks.constraints import CONSTRAINTS, Constraint

LEVEL = 0.05
"""Adjusted p-value below which a difference counts as significant."""

_COLUMNS = ("first", "second", "key", "strength", "first_accuracy", "second_accuracy", "difference", "low", "high")
_TEST_COLUMNS = ("only_first", "only_second", "p_value", "adjusted_p_value", "n_images")


class WorstCase(NamedTuple):
    """Worst-case accuracy: an image counts as correct only if it is classified correctly in every evaluation.

    Attributes:
        accuracy: fraction of the images that are classified correctly in every evaluation.
        low: lower end of the accuracy's 95% interval.
        high: upper end of the accuracy's 95% interval.
        evaluations: the evaluations, as (key, strength).
        outcomes: whether each image is classified correctly in all evaluations, by the image's position.
    """

    accuracy: float
    low: float
    high: float
    evaluations: tuple[tuple[str, float], ...]
    outcomes: "pd.Series[Any]"

    @property
    def summary(self) -> str:
        """Sentence with the accuracy, its interval and the keys of the evaluations."""
        keys = list(dict.fromkeys(key for key, _ in self.evaluations))
        evaluations_text = f"{len(self.evaluations):,} evaluations" if len(self.evaluations) > 1 else "1 evaluation"
        return (
            f"{self.accuracy:.1%} ({self.low:.1%} to {self.high:.1%}) of {len(self.outcomes):,} images withstand each "
            f"of {evaluations_text}: {', '.join(keys)}."
        )


class Evaluation(pd.DataFrame):
    """One row per key and strength; see `robust201.evaluate`.

    Selections from the table are plain DataFrames without outcomes.
    """

    _metadata = [  # noqa: RUF012 - pandas requires a list
        *("_outcomes", "_positions", "_images_sha256", "_protocols", "_preset", "_distances", "_notices"),
    ]
    _outcomes: dict[tuple[str, float], NDArray[np.bool_]]
    _positions: NDArray[np.int64]
    _images_sha256: str
    _protocols: dict[str, Mapping[str, Any]]
    _preset: str | None
    _distances: dict[str, NDArray[np.float64]]
    _notices: tuple[str, ...]

    @classmethod
    def build(
        cls,
        rows: Sequence[Mapping[str, Any]],
        columns: Sequence[str],
        outcomes: Mapping[tuple[str, float], NDArray[np.bool_]],
        positions: NDArray[np.int64],
        images_sha256: str,
        protocols: Mapping[str, Mapping[str, Any]],
        preset: str | None = None,
        distances: Mapping[str, NDArray[np.float64]] | None = None,
        notices: Sequence[str] = (),
    ) -> "Evaluation":
        """Build the table from its rows and from the outcomes of N images.

        Args:
            rows: the rows, by column name.
            columns: the columns, in order.
            outcomes: (N,) whether each image was classified correctly, by key and strength.
            positions: (N,) positions of the evaluated images in the input.
            images_sha256: digest of images and labels; comparisons require equal digests.
            protocols: by key, the parameters and all other fields that affect the numbers.
            preset: the preset of keys that was evaluated, if any.
            distances: (N,) minimum perturbation sizes for pixels in [0, 1], by key of a minimum-norm attack.
            notices: warnings that the network's accuracies are doubtful.
        """
        table = cls(rows, columns=list(columns))
        table._outcomes, table._positions = dict(outcomes), positions
        table._images_sha256, table._protocols = images_sha256, dict(protocols)
        table._preset, table._distances, table._notices = preset, dict(distances or {}), tuple(notices)
        return table

    @property
    def _constructor(self) -> type[pd.DataFrame]:
        return pd.DataFrame

    @property
    def outcomes(self) -> pd.DataFrame:
        """Whether each image was classified correctly: bool, one row per image and one column per (key, strength).

        The index contains the images' positions in the input, which has more images if a subset was evaluated.
        """
        frame = pd.DataFrame(self._outcomes, index=self._positions)
        frame.columns = pd.MultiIndex.from_tuples(list(self._outcomes), names=["key", "strength"])
        return frame.rename_axis("image")

    def worst_case(self, evaluations: Sequence[str | tuple[str, float]] | None = None) -> WorstCase:
        """Return the fraction of images that are classified correctly in every evaluation (Croce and Hein, ICML 2020).

        Args:
            evaluations: keys (all their strengths), or pairs of key and strength; different norms and corruptions may
                be mixed. None selects all evaluations.

        Raises:
            ConfigError: a key or strength was not evaluated, or the list is empty.
        """
        columns = list(self._outcomes) if evaluations is None else self._find_evaluations(evaluations)
        if not columns:
            raise ConfigError("Computing the worst case failed: `evaluations` is empty. List at least one.")
        correct = np.all([self._outcomes[column] for column in columns], axis=0)
        accuracy = float(correct.mean())
        low, high = map(float, accuracy_intervals(accuracy, len(correct)))
        series: pd.Series[Any] = pd.Series(correct, index=self._positions, dtype=bool).rename_axis("image")
        return WorstCase(accuracy, low, high, tuple(columns), series)

    def _find_evaluations(self, evaluations: Sequence[str | tuple[str, float]]) -> list[tuple[str, float]]:
        columns: dict[tuple[str, float], None] = {}
        for name in [evaluations] if isinstance(evaluations, str) else evaluations:
            key, strength = (name, None) if isinstance(name, str) else name
            matches = [
                (evaluated_key, evaluated_strength)
                for evaluated_key, evaluated_strength in self._outcomes
                if evaluated_key == key and strength in (None, evaluated_strength)
            ]
            if not matches:
                evaluated_names = [
                    f"{evaluated_key} {evaluated_strength:g}" for evaluated_key, evaluated_strength in self._outcomes
                ]
                label = str(key) if strength is None else f"{key} {strength:g}"
                raise ConfigError(
                    f"Computing the worst case failed for {label!r}: it was not evaluated."
                    f"{did_you_mean(label, [*evaluated_names, *(key for key, _ in self._outcomes)])} "
                    f"Evaluated: {', '.join(evaluated_names)}."
                )
            columns |= dict.fromkeys(matches)
        return list(columns)

    @property
    def distances(self) -> pd.DataFrame:
        """Size of the smallest perturbation that fools the network, with one row per image and one column per key.

        Sizes are in the key's norm, in the unit of the table's strengths: 1/255 for Linf, the pixel range for L2 and
        L1. They are 0 for images that are misclassified without an attack, and infinity for images that were not fooled
        within the key's largest epsilon. Only minimum-norm attacks (`fmn`, `fmn_l2`, `fmn_l1`) have a column.
        """
        distances = {
            key: values * (1.0 if (constraint := self._constraint_of(key)) is None else constraint.divisor)
            for key, values in self._distances.items()
        }
        return pd.DataFrame(distances, index=self._positions).rename_axis("image")

    @property
    def notices(self) -> tuple[str, ...]:
        """Warnings that the network's accuracies are doubtful, such as outputs of a sigmoid."""
        return self._notices

    @property
    def images_sha256(self) -> str:
        """Digest of the evaluated images and labels."""
        return self._images_sha256

    @property
    def protocols(self) -> Mapping[str, Mapping[str, Any]]:
        """By key, the parameters and all other fields that affect the numbers."""
        return self._protocols

    @property
    def model_info(self) -> dict[str, Any]:
        """The results in the format of RobustBench's `model_info` files (see `robustbench.model_info`).

        Raises:
            ConfigError: the keys were not the preset of a leaderboard.
        """
        if self._preset not in LEADERBOARDS:
            raise ConfigError(
                "Writing a leaderboard entry failed: the keys were not the preset of a leaderboard. Evaluate with keys="
                f"{next(iter(LEADERBOARDS))!r} (or {', '.join([*LEADERBOARDS][1:])})."
            )
        return model_info(self._preset, self, len(self._positions))

    @property
    def summary(self) -> str:
        """Sentences with the clean accuracy and, by norm ball, the fraction of images that withstand every attack."""
        balls: dict[tuple[Constraint, float], list[str]] = {}
        for key, strength in self._outcomes:
            if (constraint := self._constraint_of(key)) is not None:
                balls.setdefault((constraint, strength), []).append(key)
        clean = [
            f"{_format_fraction(correct)} of {len(correct):,} images are classified correctly (95% intervals)."
            for (key, _), correct in self._outcomes.items()
            if key == "clean"
        ]
        return "\n".join([*clean, *(self._describe_ball(*ball, keys) for ball, keys in balls.items())])

    @property
    def latex(self) -> str:
        """LaTeX table of the accuracies in percent, with their 95% intervals."""
        return evaluation_latex(self)

    def _constraint_of(self, key: str) -> Constraint | None:
        """Return the norm ball of an attack; for a custom task, it comes from the protocol."""
        return TASKS[key].constraint if key in TASKS else CONSTRAINTS.get(self._protocols[key].get("norm") or "")

    def _describe_ball(self, constraint: Constraint, strength: float, keys: Sequence[str]) -> str:
        withstands_all = np.all([self._outcomes[key, strength] for key in keys], axis=0)
        unit = "/255" if constraint.divisor == 255 else ""
        worst_case_note = ", each image under its worst attack" if len(keys) > 1 else ""
        ensembles = [key for key, task in TASKS.items() if task.role == "ensemble" and task.constraint == constraint]
        autoattack_note = " AutoAttack may fool more images." if ensembles and not {*keys} & {*ensembles} else ""
        return (
            f"{_format_fraction(withstands_all)} withstand {', '.join(keys)} at epsilon {strength:g}{unit} "
            f"({constraint.name}){worst_case_note}.{autoattack_note}"
        )


def _format_fraction(outcomes: NDArray[np.bool_]) -> str:
    fraction = float(outcomes.mean())
    low, high = accuracy_intervals(fraction, len(outcomes))
    return f"{fraction:.1%} ({low:.1%} to {high:.1%})"


class Comparison(pd.DataFrame):
    """One row per pair of networks, key and strength; see `robust201.compare`.

    Attributes:
        notices: warnings that a network's accuracies are doubtful, by network; empty in selections from the table.
    """

    _metadata = ["notices"]  # noqa: RUF012 - pandas requires a list
    notices: dict[str, tuple[str, ...]]

    @property
    def _constructor(self) -> type[pd.DataFrame]:
        return pd.DataFrame

    @property
    def summary(self) -> str:
        """One sentence per pair of networks: which is significantly more accurate, how often, and by how much.

        Doubts about a network come first.
        """
        pairs = list(dict.fromkeys(zip(self["first"], self["second"], strict=True)))
        return "\n".join(
            [
                notice if notice.startswith(f"{name} ") else f"{name}: {notice}"
                for name, notices in self.notices.items()
                for notice in notices
            ]
            + [
                _describe_pair(first, second, self[(self["first"] == first) & (self["second"] == second)])
                for first, second in pairs
            ]
        )

    @property
    def latex(self) -> str:
        """LaTeX table of the accuracies in percent; the best accuracy, and accuracies tied with it, are bold.

        Networks with doubtful accuracies are not bold, and are marked in the header.
        """
        return comparison_latex(self, LEVEL, doubtful=tuple(self.notices))


def compare_evaluations(evaluations: Mapping[str, Evaluation]) -> Comparison:
    """Compare each pair of evaluations, on the same images and under their common keys and strengths.

    Args:
        evaluations: two or more evaluations, by network name.

    Raises:
        ConfigError: there are fewer than two evaluations, the images differ, or two evaluations share no key
            and strength, or use different parameters for a key.
    """
    _check_comparable(evaluations)
    tables = [_compare_pair(first, second, evaluations) for first, second in combinations(evaluations, 2)]
    rows = pd.concat(tables, ignore_index=True)
    rows["adjusted_p_value"] = holm_adjust(rows["p_value"])
    comparison = Comparison(rows[[*_COLUMNS, *_TEST_COLUMNS]])
    comparison.notices = {name: table.notices for name, table in evaluations.items() if table.notices}
    return comparison


def _check_comparable(evaluations: Mapping[str, Evaluation]) -> None:
    for name, evaluation in evaluations.items():
        if not isinstance(evaluation, Evaluation):
            raise ConfigError(
                f"Comparing networks failed for {name}: expected the table that robust201.evaluate returns, got "
                f"{type(evaluation).__name__}. Pass the complete table, because a selection has no per-image outcomes."
            )
    if len(evaluations) < 2:
        raise ConfigError(
            f"Comparing networks failed: at least two networks are needed, got {len(evaluations)}. Add a network."
        )
    digests = {evaluation.images_sha256 for evaluation in evaluations.values()}
    if len(digests) > 1:
        raise ConfigError(
            f"Comparing networks failed for {', '.join(evaluations)}: they were evaluated on {len(digests)} different "
            "sets of images and labels. Evaluate all networks on the same images."
        )


def _compare_pair(first: str, second: str, evaluations: Mapping[str, Evaluation]) -> pd.DataFrame:
    first_outcomes, second_outcomes = evaluations[first].outcomes, evaluations[second].outcomes
    common_columns = [column for column in first_outcomes.columns if column in second_outcomes.columns]
    if not common_columns:
        raise ConfigError(
            f"Comparing networks failed for {first} and {second}: they have no evaluated key and strength in common. "
            "Evaluate both with the same keys."
        )
    keys, strengths = zip(*common_columns, strict=True)
    for key in dict.fromkeys(keys):
        first_protocol, second_protocol = (evaluations[network].protocols[key] for network in (first, second))
        fields = dict.fromkeys([*first_protocol, *second_protocol])
        different_fields = [field for field in fields if first_protocol.get(field) != second_protocol.get(field)]
        if different_fields:
            raise ConfigError(
                f"Comparing networks failed for {first} and {second}: {key} has different parameters "
                f"({', '.join(different_fields)}). Evaluate both with the same parameters."
            )
    n_images = len(first_outcomes)
    outcomes = [frame[common_columns].to_numpy(bool).T for frame in (first_outcomes, second_outcomes)]
    differences = paired_differences(pack_outcomes(outcomes[0]), pack_outcomes(outcomes[1]), n_images)
    return pd.DataFrame(
        {
            "first": first,
            "second": second,
            "key": keys,
            "strength": strengths,
            "first_accuracy": outcomes[0].mean(axis=1),
            "second_accuracy": outcomes[1].mean(axis=1),
            **differences._asdict(),
            "n_images": n_images,
        }
    )


def _describe_pair(first: str, second: str, rows: pd.DataFrame) -> str:
    differences = rows["difference"].to_numpy(np.float64)
    is_significant = rows["adjusted_p_value"].to_numpy(np.float64) < LEVEL
    n_images = int(rows["n_images"].iloc[0])
    evaluations_text = "1 evaluation" if len(rows) == 1 else f"{len(rows)} evaluations"
    basis = f"({n_images:,} images, McNemar's exact test, Holm's correction, level {LEVEL:g})"
    findings = []
    for network, is_more_accurate in (
        (first, is_significant & (differences < 0)),
        (second, is_significant & (differences > 0)),
    ):
        if is_more_accurate.any():
            largest_index = int(np.argmax(np.where(is_more_accurate, np.abs(differences), -1.0)))
            largest_difference = _describe_difference(rows.iloc[largest_index])
            findings.append(
                f"{network} is significantly more accurate in {int(is_more_accurate.sum())} of {evaluations_text}, "
                f"with the largest difference for {largest_difference}"
            )
    if not findings:
        n_uncorrected = int((rows["p_value"].to_numpy(np.float64) < LEVEL).sum())
        hint = ""
        if n_uncorrected:
            hint = (
                f" Without the correction, {n_uncorrected} would differ significantly. Choose a smaller set of "
                "evaluations in advance, and compare only those."
            )
        if not (rows["only_first"] + rows["only_second"]).any():
            hint = " They have the same outcome on every image, as if they were the same network."
        any_of = "any of " if len(rows) > 1 else ""
        return f"{first} and {second} do not differ significantly in {any_of}{evaluations_text} {basis}.{hint}"
    n_undecided = int((~is_significant).sum())
    undecided = f"; {n_undecided} show no significant difference" if n_undecided > 1 else ""
    undecided = "; 1 shows no significant difference" if n_undecided == 1 else undecided
    return f"{'; '.join(findings)}{undecided} {basis}."


def _describe_difference(comparison_row: "pd.Series[Any]") -> str:
    low, high = sorted((abs(float(comparison_row["low"])), abs(float(comparison_row["high"]))))
    difference = abs(float(comparison_row["difference"]))
    points = f"{100 * difference:.1f} points, 95% interval {100 * low:.1f} to {100 * high:.1f}"
    strength = "" if comparison_row["key"] == "clean" else f" at {float(comparison_row['strength']):g}"
    return f"{comparison_row['key']}{strength} ({points})"
