"""Networks of a dataset as evaluations to compare: outcomes by image that an export has stored."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from robust201.analysis.dataset_results import DatasetResults, choose_results, read_results
from robust201.analysis.evaluation import Evaluation
from robust201.analysis.leaderboard import nearest_strength
from robust201.analysis.terms import evaluations_named
from robust201.core.errors import ConfigError
from robust201.core.records import ArchitectureId
from robust201.reader.dataset import RobustnessDataset
from robust201.reader.outcomes import has_outcomes_of, read_images
from robust201.reader.result_files import is_dataset
from robust201.statistics.intervals import accuracy_intervals

_COLUMNS = ("key", "strength", "accuracy", "low", "high", "n_images")

_OF_NETWORK = ("network", "images", "dataset", "key")
"""Fields of a protocol that are no parameters of its key; images are compared by their pixels."""


def split_network(text: str) -> tuple[Path, str] | None:
    """Divide ``DATASET:NETWORK`` into a dataset's folder and the name of a network; None for any other text."""
    for place in (place for place, letter in enumerate(text) if letter == ":"):
        folder, name = Path(text[:place]), text[place + 1 :]
        if name and folder.is_dir() and is_dataset(folder):
            return folder, name
    return None


def read_evaluations(text: str, *, keys: Sequence[str] | None = None, data: str | None = None) -> dict[str, Evaluation]:
    """Read the outcomes of ``DATASET:NETWORK``, by the name of the network.

    Args:
        text: a dataset's folder, and an architecture, which stands for all its trainings, or a training as
            ``ARCHITECTURE@WEIGHTS``.
        keys: keys, or keys at a strength, such as ``pgd:8``; by default every key at the strength nearest to 1/255 (of
            other norms, to 1), corruptions at severity 3.
        data: which of the folder's datasets; may be left out where there is one.

    Raises:
        ConfigError: the text names no network of a dataset, or a key was not evaluated.
        ResultsError: outcomes are not stored.
    """
    divided = split_network(text)
    if divided is None:
        raise ConfigError(
            f"Comparing networks failed for {text!r}: expected DATASET:ARCHITECTURE, the folder of a dataset and one "
            "of its networks, got another form. Correct it."
        )
    folder, name = divided
    reader = RobustnessDataset(folder).select([name])
    results = choose_results(read_results(reader), data, folder, "Comparing networks")
    if keys is None:
        columns = _default_columns(results)
    else:
        columns = list(dict.fromkeys(column for key in keys for column in evaluations_named(results, key)))
    return {str(network): _read_evaluation(results, network, columns) for network in results.architectures}


def _default_columns(results: DatasetResults) -> list[tuple[str, float]]:
    keys = dict.fromkeys(key for key, _ in results.columns)
    stored = [key for key in keys if has_outcomes_of(results.reader.files, results.name, key)]
    # Without any, reading the first says what is missing.
    return [(key, nearest_strength(key, results.strengths(key))) for key in stored or keys]


def _read_evaluation(
    results: DatasetResults, network: ArchitectureId, columns: Sequence[tuple[str, float]]
) -> Evaluation:
    reader = results.reader
    outcomes = {
        (key, strength): reader.outcomes(results.name, key, strength).of([network]).correct[0]
        for key, strength in columns
    }
    rows = []
    for (key, strength), correct in outcomes.items():
        accuracy = float(correct.mean())
        low, high = map(float, accuracy_intervals(accuracy, len(correct)))
        rows.append(dict(zip(_COLUMNS, (key, strength, accuracy, low, high, len(correct)), strict=True)))
    images = read_images(reader.files, results.name)
    lines = (f"{pixels} {label}\n" for pixels, label in zip(images["sha256"], images["label"], strict=True))
    digest = hashlib.sha256("".join(lines).encode())
    protocols = {key: _parameters(results, key) for key, _ in outcomes}
    return Evaluation.of(rows, _COLUMNS, outcomes, images["row"], digest.hexdigest(), protocols)


def _parameters(results: DatasetResults, key: str) -> dict[str, Any]:
    """Return what decides the numbers of a key, apart from network and images; empty where the folder does not tell."""
    recorded = results.reader.files.protocols_of(results.name, key)
    return {name: value for payload in recorded for name, value in payload.items() if name not in _OF_NETWORK}
