"""Networks of a dataset as evaluations to compare, read from the per-image outcomes that an export stores."""

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

_NOT_PARAMETERS = ("network", "images", "dataset", "key")
"""Fields of a protocol that are not parameters of its key; images are compared by their pixels."""


def split_network(text: str) -> tuple[Path, str] | None:
    """Split ``DATASET:NETWORK`` into a dataset's folder and a network's name; return None for any other text."""
    for index in (index for index, letter in enumerate(text) if letter == ":"):
        folder, name = Path(text[:index]), text[index + 1 :]
        if name and folder.is_dir() and is_dataset(folder):
            return folder, name
    return None


def read_evaluations(text: str, *, keys: Sequence[str] | None = None, data: str | None = None) -> dict[str, Evaluation]:
    """Read the outcomes of the networks that ``DATASET:NETWORK`` names, by network.

    Args:
        text: a dataset's folder, and an architecture, which stands for all its training runs, or a single run as
            ``ARCHITECTURE@WEIGHTS``.
        keys: keys, or keys at a strength, such as ``pgd:8``; by default every key at the strength nearest to 1/255 (for
            norms other than Linf, to 1), corruptions at severity 3.
        data: name of the dataset; may be left out if the folder has only one.

    Raises:
        ConfigError: the text does not name a network of a dataset, or a key was not evaluated.
        ResultsError: outcomes are not stored.
    """
    parts = split_network(text)
    if parts is None:
        raise ConfigError(
            f"Comparing networks failed for {text!r}: it is not of the form DATASET:ARCHITECTURE. Name the folder of a "
            "dataset and one of its networks."
        )
    folder, name = parts
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
    # If no key has stored outcomes, reading the first one raises an error that explains what is missing.
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
    """Return everything that decides a key's numbers, except network and images; empty if the folder lacks it."""
    payloads = results.reader.files.protocols_of(results.name, key)
    return {name: value for payload in payloads for name, value in payload.items() if name not in _NOT_PARAMETERS}
