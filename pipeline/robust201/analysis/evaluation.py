"""The result of `robust201.evaluate`: accuracies, per-image outcomes and protocols of one network."""

import textwrap
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from robust201.analysis.evaluation_file import FILE_NAME, is_evaluation, read_content, write_content
from robust201.analysis.tables import Cell, format_percent, latex_table, text_table
from robust201.core.errors import ConfigError, did_you_mean
from robust201.core.files import check_output_file, sole_writer
from robust201.evaluation.attack_flags import KeyAndStrength
from robust201.statistics.intervals import accuracy_intervals
from robust201.tasks import TASKS, expand_keys
from robust201.tasks.constraints import CONSTRAINTS, Constraint
from robust201.tasks.strengths import format_strength, format_term, parse_strength, parse_term, unit_of

STANDARD_COLUMNS = ("key", "strength", "unit", "accuracy", "low", "high", "confidence", "n_images", "seconds")
"""Columns of the table; measures add further columns."""

_LINE_LENGTH = 80
"""Maximum number of characters per line of the table as text."""

_TOLERANCE = 1e-2
"""Maximum difference of a network's logits between batch sizes or machines, relative to the largest absolute logit."""


class KeyResults(NamedTuple):
    """Results of a network on N images under one key.

    Attributes:
        rows: rows of the table (values by column name), by ascending strength.
        protocol: the parameters and all other fields that affect the numbers.
        outcomes: (N,) bool by strength: whether each image was classified correctly. Measures have none.
        distances: (N,) sizes of the smallest perturbations of pixels in [0, 1]; None unless a minimum-norm attack.
    """

    rows: tuple[Mapping[str, Any], ...]
    protocol: Mapping[str, Any]
    outcomes: Mapping[float, NDArray[np.bool_]]
    distances: NDArray[np.float64] | None = None

    @property
    def strengths(self) -> set[float]:
        return {row["strength"] for row in self.rows}

    def select(self, strengths: Collection[float]) -> "KeyResults":
        """Return the results at some strengths."""
        rows = tuple(row for row in self.rows if row["strength"] in strengths)
        outcomes = {strength: correct for strength, correct in self.outcomes.items() if strength in strengths}
        return self._replace(rows=rows, outcomes=outcomes)

    def merge(self, other: "KeyResults") -> "KeyResults":
        """Return the union of the results; `other` replaces common strengths, or everything if it has distances."""
        if other.distances is not None:
            return other
        rows = {row["strength"]: row for row in (*self.rows, *other.rows)}
        outcomes = {**self.outcomes, **other.outcomes}
        return self._replace(
            rows=tuple(rows[strength] for strength in sorted(rows)),
            outcomes={strength: outcomes[strength] for strength in sorted(outcomes)},
        )


def different_fields(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[str]:
    """Return the names of the fields in which two protocols differ."""
    return [name for name in dict.fromkeys([*first, *second]) if first.get(name) != second.get(name)]


@dataclass(frozen=True, eq=False, repr=False)
class Evaluation:
    """Result of `robust201.evaluate`.

    Attributes:
        network: name of the network's class, or of the network in a dataset.
        network_sha256: digest of the network's code, settings, tensors and normalisation; empty if it is unknown.
        logits: logits of the first images, because `network_sha256` does not cover functions that the network's class
            imports from other modules; empty if they are unknown.
        images_sha256: digest of images and labels; comparisons require equal digests.
        image_shape: (channels, height, width) of the images; empty if it is unknown.
        positions: (N,) positions of the evaluated images in the input, which has more images if a subset was evaluated.
        results: results by key.
        notices: reasons to doubt the network's accuracies, such as outputs of a sigmoid.
        preset: the preset of keys that was evaluated, if any.
    """

    network: str
    network_sha256: str
    images_sha256: str
    image_shape: tuple[int, ...]
    positions: NDArray[np.int64]
    results: Mapping[str, KeyResults]
    notices: tuple[str, ...] = ()
    preset: str | None = None
    logits: tuple[float, ...] = ()

    @cached_property
    def table(self) -> pd.DataFrame:
        """One row per key and strength; see `robust201.evaluate`."""
        rows = [row for result in self.results.values() for row in result.rows]
        columns = dict.fromkeys([*STANDARD_COLUMNS, *(column for row in rows for column in row)])
        units = {key: self.unit_of(key) for key in self.results}
        return pd.DataFrame([{**row, "unit": units[row["key"]]} for row in rows], columns=list(columns))

    @property
    def evaluations(self) -> dict[KeyAndStrength, NDArray[np.bool_]]:
        """(N,) bool by key and strength: whether each image was classified correctly."""
        return {
            (key, strength): correct
            for key, result in self.results.items()
            for strength, correct in result.outcomes.items()
        }

    @property
    def outcomes(self) -> pd.DataFrame:
        """Whether each image was classified correctly: bool, one row per image and one column per (key, strength).

        The index contains `positions`.
        """
        evaluations = self.evaluations
        frame = pd.DataFrame(evaluations, index=self.positions)
        frame.columns = pd.MultiIndex.from_tuples(list(evaluations), names=["key", "strength"])
        return frame.rename_axis("image")

    @property
    def distances(self) -> pd.DataFrame:
        """Size of the smallest perturbation that fools the network, with one row per image and one column per key.

        Sizes are in the key's norm, in the unit of the table's strengths: 1/255 for Linf, the pixel range for L2 and
        L1. They are 0 for images that are misclassified without an attack, and infinity for images that were not fooled
        within the key's largest epsilon. Only minimum-norm attacks (`fmn`, `fmn_l2`, `fmn_l1`) have a column.
        """
        distances = {
            key: result.distances * (1.0 if (constraint := self._constraint_of(key)) is None else constraint.divisor)
            for key, result in self.results.items()
            if result.distances is not None
        }
        return pd.DataFrame(distances, index=self.positions).rename_axis("image")

    @property
    def protocols(self) -> dict[str, Mapping[str, Any]]:
        """The protocol of each key: the parameters and all other fields that affect the numbers."""
        return {key: result.protocol for key, result in self.results.items()}

    def find(self, names: str | Sequence[str]) -> list[KeyAndStrength]:
        """Return the evaluations of keys, groups of keys, or keys at a strength such as ``pgd:8/255``.

        Raises:
            ConfigError: a name has no evaluation.
        """
        evaluated_pairs = list(self.evaluations)
        selected: dict[KeyAndStrength, None] = {}
        for name in [names] if isinstance(names, str) else names:
            keys = expand_keys([name])
            matches = [pair for pair in evaluated_pairs if pair[0] in keys] or [
                pair for pair in evaluated_pairs if pair == self._parse(name)
            ]
            if not matches:
                terms = [format_term(key, strength, self.unit_of(key)) for key, strength in evaluated_pairs]
                raise ConfigError(
                    f"Looking up evaluations failed for {name!r}: it was not evaluated."
                    f"{did_you_mean(name, dict.fromkeys([*terms, *self.results]))}"
                )
            selected |= dict.fromkeys(matches)
        return list(selected)

    def _parse(self, name: str) -> KeyAndStrength | None:
        """Parse a key at a strength, such as ``pgd:8/255``; return None for other names."""
        key, text = parse_term(name)
        try:
            return (key, parse_strength(text, self._constraint_of(key))) if key in self.results else None
        except ValueError:
            return None

    @property
    def model_info(self) -> dict[str, Any]:
        """The results in the format of RobustBench's `model_info` files (see `robustbench.model_info`).

        Raises:
            ConfigError: the keys were not the preset of a leaderboard.
        """
        from robust201.analysis.robustbench import model_info

        return model_info(self.preset, self.table, len(self.positions))

    @property
    def summary(self) -> str:
        """Sentences with the clean accuracy and, for each norm ball, the fraction of images that no attack fools."""
        balls: dict[tuple[Constraint, float], list[str]] = {}
        evaluations = self.evaluations
        for key, strength in evaluations:
            if (constraint := self._constraint_of(key)) is not None:
                balls.setdefault((constraint, strength), []).append(key)
        clean = [
            f"{_format_fraction(correct)} of {len(correct):,} images are classified correctly (95% intervals)."
            for (key, _), correct in evaluations.items()
            if key == "clean"
        ]
        return "\n".join([*clean, *(self._describe_ball(*ball, keys) for ball, keys in balls.items())])

    def latex(self) -> str:
        """Return a LaTeX table of the accuracies in percent, with their 95% intervals."""
        from robust201.analysis.labels import key_label, strength_label

        rows: list[list[str | Cell]] = [
            [
                key_label(row["key"]),
                strength_label(row["strength"], row["unit"]),
                Cell(format_percent(row["accuracy"], row["low"], row["high"])),
            ]
            for row in self.table.dropna(subset="accuracy").to_dict("records")
        ]
        caption = f"Accuracy in percent with 95% intervals on {len(self.positions):,} images."
        return latex_table(["Key", "Strength", "Accuracy"], rows, n_left=2, caption=caption)

    def save(self, path: str | Path) -> None:
        """Write the evaluation to a folder, and keep the folder's other results; `load` reads them.

        Raises:
            ConfigError: the folder has results of another network, or of other images or parameters.
            StorageError: the file cannot be written.
        """
        _extend_saved(Path(path), self)

    @staticmethod
    def load(path: str | Path) -> "Evaluation":
        """Read an evaluation that `save` or `robust201.evaluate` wrote to a folder.

        Raises:
            ResultsError: the folder has no evaluation, or the file is damaged.
            FormatVersionError: the file has the format of another version of robust201.
        """
        return _decode(read_content(Path(path)))

    def __str__(self) -> str:
        """Return the table as text, with at most 80 characters per line."""
        rows = []
        for row in self.table.to_dict("records"):
            key, strength = row["key"], format_strength(row["strength"], row["unit"])
            if not np.isnan(row["accuracy"]):
                rows.append([key, strength, format_percent(row["accuracy"], row["low"], row["high"])])
            else:
                measured = {name: row[name] for name in self.results[key].rows[0] if name not in STANDARD_COLUMNS}
                rows += [[key, strength, f"{name} {_format_measured(value)}"] for name, value in measured.items()]
        table = text_table(["key", "strength", "accuracy, % [95% interval]"], rows, n_left=3)
        title = textwrap.shorten(f"{self.network} on {len(self.positions):,} images", _LINE_LENGTH, placeholder="…")
        return "\n".join([title, *(line[:_LINE_LENGTH] for line in table.splitlines())])

    __repr__ = __str__

    def _constraint_of(self, key: str) -> Constraint | None:
        """Return the norm ball of an attack; for a custom task, it comes from the protocol."""
        return TASKS[key].constraint if key in TASKS else CONSTRAINTS.get(self.results[key].protocol.get("norm") or "")

    def unit_of(self, key: str) -> str:
        """Return the unit of a key's strengths (see `tasks.strengths.unit_of`)."""
        return unit_of(self._constraint_of(key), TASKS[key].kind if key in TASKS else "")

    def _describe_ball(self, constraint: Constraint, strength: float, keys: Sequence[str]) -> str:
        withstands_all = np.all([self.results[key].outcomes[strength] for key in keys], axis=0)
        unit = "/255" if constraint.divisor == 255 else ""
        worst_case_note = ", each image under its worst attack" if len(keys) > 1 else ""
        ensembles = [
            key for key, task in TASKS.items() if task.model.role == "ensemble" and task.constraint == constraint
        ]
        autoattack_note = " AutoAttack may fool more images." if ensembles and not {*keys} & {*ensembles} else ""
        return (
            f"{_format_fraction(withstands_all)} withstand {', '.join(keys)} at epsilon {strength:g}{unit} "
            f"({constraint.name}){worst_case_note}.{autoattack_note}"
        )


def _format_measured(value: Any) -> str:
    return f"{np.size(value):,} numbers" if isinstance(value, list) else f"{value:.6g}"


def _format_fraction(outcomes: NDArray[np.bool_]) -> str:
    fraction = float(outcomes.mean())
    low, high = accuracy_intervals(fraction, len(outcomes))
    return format_percent(fraction, float(low), float(high), unit="%")


def read_saved(
    folder: Path,
    expected: Evaluation,
    protocols: Mapping[str, Mapping[str, Any]],
    strengths: Mapping[str, Collection[float]],
) -> Evaluation:
    """Return the saved evaluation in a folder, or an evaluation without results if there is none.

    Args:
        folder: folder of an evaluation.
        expected: the network and images of the results.
        protocols: expected protocols by key.
        strengths: requested strengths by key; for minimum-norm attacks, they must equal the saved strengths.

    Raises:
        ConfigError: the results belong to another network, or to other images or parameters.
    """
    if not is_evaluation(folder):
        check_output_file(folder / FILE_NAME)
        return replace(expected, results={}, notices=())
    saved = Evaluation.load(folder)
    if different := list(_list_differences(saved, expected, protocols, strengths)):
        raise ConfigError(
            f"Continuing an evaluation failed for {folder / FILE_NAME}: expected results of the same network, images "
            f"and parameters, but these differ: {', '.join(different)}. Use the same ones, or choose another folder."
        )
    return saved


def _list_differences(
    saved: Evaluation,
    expected: Evaluation,
    protocols: Mapping[str, Mapping[str, Any]],
    strengths: Mapping[str, Collection[float]],
) -> Iterator[str]:
    same_network = (saved.network, saved.network_sha256) == (expected.network, expected.network_sha256)
    same_images = saved.images_sha256 == expected.images_sha256 and np.array_equal(saved.positions, expected.positions)
    # The logits belong to the first images, so they can be compared only if the images are equal.
    if not same_network or (same_images and not _are_close(saved.logits, expected.logits)):
        yield "network"
    if not same_images:
        yield "images"
    for key in (key for key in protocols if key in saved.results):
        fields = different_fields(saved.results[key].protocol, protocols[key])
        if saved.results[key].distances is not None and saved.results[key].strengths != {*strengths[key]}:
            fields.append("epsilons")
        if fields:
            yield f"parameters of {key} ({', '.join(fields)})"


def _are_close(first: tuple[float, ...], second: tuple[float, ...]) -> bool:
    scale = max(map(abs, first), default=0.0)
    return len(first) == len(second) and np.allclose(first, second, rtol=0.0, atol=_TOLERANCE * scale)


def _extend_saved(folder: Path, evaluation: Evaluation) -> None:
    """Add the results of an evaluation to the saved results in a folder; see `Evaluation.save`."""
    strengths = {key: results.strengths for key, results in evaluation.results.items()}
    with sole_writer(folder, "Saving an evaluation", wait=True):
        saved = read_saved(folder, evaluation, evaluation.protocols, strengths)
        results = {
            key: saved.results[key].merge(new) if key in saved.results else new
            for key, new in evaluation.results.items()
        }
        notices = tuple(dict.fromkeys([*saved.notices, *evaluation.notices]))
        merged = replace(evaluation, results={**saved.results, **results}, notices=notices)
        write_content(folder, vars(replace(merged)) | {"results": _encode(merged)})  # without cached tables


def _encode(evaluation: Evaluation) -> dict[str, Any]:
    """Return the results as JSON values and arrays, with outcomes as 0 or 1."""
    return {
        key: results._asdict() | {"outcomes": [[strength, 1 * array] for strength, array in results.outcomes.items()]}
        for key, results in evaluation.results.items()
    }


def _decode(content: Mapping[str, Any]) -> Evaluation:
    results = {key: _decode_results(fields) for key, fields in content["results"].items()}
    tuples = {name: tuple(content[name]) for name in ("notices", "image_shape", "logits")}
    positions = np.array(content["positions"], np.int64)
    return Evaluation(**{**content, **tuples, "positions": positions, "results": results})


def _decode_results(fields: Mapping[str, Any]) -> KeyResults:
    outcomes = {strength: np.array(numbers, np.bool_) for strength, numbers in fields["outcomes"]}
    distances = None if fields["distances"] is None else np.array(fields["distances"], np.float64)
    return KeyResults(tuple(fields["rows"]), fields["protocol"], outcomes, distances)
