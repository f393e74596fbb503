"""Evaluations of a dataset's networks, read from stored per-image outcomes so that they can be compared."""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robust201.analysis.dataset_results import DatasetResults, choose_results, read_results
from robust201.analysis.evaluation import Evaluation, KeyResults
from robust201.analysis.ranking import nearest_strength
from robust201.analysis.terms import require_evaluations
from robust201.core.files import resolve_bundled
from robust201.core.records import ArchitectureId
from robust201.dataset.layout import is_dataset
from robust201.dataset.outcomes import has_outcomes_of, read_images
from robust201.dataset.reader import Dataset
from robust201.statistics.intervals import accuracy_intervals

_COLUMNS = ("key", "strength", "accuracy", "low", "high", "n_images")

_NON_PARAMETER_FIELDS = ("network", "images", "dataset", "key")
"""Fields of a protocol that are not parameters of its key; images are compared by their pixels."""


def split_network(text: str) -> tuple[Path, str] | None:
    """Split ``DATASET:NETWORK`` into a dataset's folder and a network's name; return None for other text."""
    for colon in (index for index, character in enumerate(text) if character == ":"):
        folder, name = resolve_bundled(text[:colon]), text[colon + 1 :]
        if name and folder.is_dir() and is_dataset(folder):
            return folder, name
    return None


def read_evaluations(
    folder: Path, name: str, *, keys: Sequence[str] | None = None, data: str | None = None
) -> dict[str, Evaluation]:
    """Return the evaluations of an architecture's networks in a dataset, by network.

    Args:
        folder: the dataset's folder.
        name: an architecture (with all its weights) or ``ARCHITECTURE@WEIGHTS``.
        keys: keys, or keys at a strength, such as ``pgd:8/255``. The default is every key with stored outcomes, at the
            strength nearest to 1/255, to 1 for norms other than Linf, or to severity 3.
        data: name of the image dataset; None if the folder has only one.

    Raises:
        ConfigError: the dataset has no such network, or a key was not evaluated.
        ResultsError: outcomes are not stored.
    """
    results = choose_results(read_results(Dataset(folder).select([name])), data, folder, "Comparing networks")
    if keys is None:
        keys_and_strengths = _default_evaluations(results)
    else:
        keys_and_strengths = list(dict.fromkeys(pair for key in keys for pair in require_evaluations(results, key)))
    return {str(network): _read_evaluation(results, network, keys_and_strengths) for network in results.architectures}


def _default_evaluations(results: DatasetResults) -> list[tuple[str, float]]:
    keys = dict.fromkeys(key for key, _ in results.columns)
    stored_keys = [key for key in keys if has_outcomes_of(results.reader, results.name, key)]
    # If no key has stored outcomes, reading the first key raises an error that says what is missing.
    return [(key, nearest_strength(key, results.strengths(key))) for key in stored_keys or keys]


def _read_evaluation(
    results: DatasetResults, network: ArchitectureId, keys_and_strengths: Sequence[tuple[str, float]]
) -> Evaluation:
    reader = results.reader
    outcomes_by_key: dict[str, dict[float, NDArray[np.bool_]]] = {}
    for key, strength in keys_and_strengths:
        correct = reader.outcomes(results.name, key, strength).of([network]).correct[0]
        outcomes_by_key.setdefault(key, {})[strength] = correct
    images = read_images(reader, results.name)
    image_lines = (f"{pixels} {label}\n" for pixels, label in zip(images["sha256"], images["label"], strict=True))
    digest = hashlib.sha256("".join(image_lines).encode())
    key_results = {
        key: KeyResults(_make_rows(key, outcomes), _protocol_parameters(results, key), outcomes)
        for key, outcomes in outcomes_by_key.items()
    }
    return Evaluation(str(network), "", digest.hexdigest(), (), images["row"], key_results)


def _make_rows(key: str, outcomes: Mapping[float, NDArray[np.bool_]]) -> tuple[dict[str, Any], ...]:
    rows = []
    for strength, correct in outcomes.items():
        accuracy = float(correct.mean())
        low, high = map(float, accuracy_intervals(accuracy, len(correct)))
        rows.append(dict(zip(_COLUMNS, (key, strength, accuracy, low, high, len(correct)), strict=True)))
    return tuple(rows)


def _protocol_parameters(results: DatasetResults, key: str) -> dict[str, Any]:
    """Return a key's protocol without the network and the images; empty if the folder does not record it."""
    protocols = results.reader.protocols_of(results.name, key)
    return {
        name: value for protocol in protocols for name, value in protocol.items() if name not in _NON_PARAMETER_FIELDS
    }
