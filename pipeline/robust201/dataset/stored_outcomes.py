"""Per-image outcomes of networks on test images, read from a results folder or an export."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robust201.core.errors import ConfigError, ResultsError, did_you_mean
from robust201.core.files import load_json
from robust201.core.records import Weights
from robust201.dataset.layout import SWEEP_FILE
from robust201.dataset.outcomes import read_images
from robust201.dataset.reader import Dataset
from robust201.dataset.shard_rows import KeyRows
from robust201.dataset.side_files import WEIGHTS_FILE
from robust201.dataset.unstable_networks import list_stable_results
from robust201.sweep.facts import Network
from robust201.sweep.inputs import read_image_copy
from robust201.sweep.plan import open_results
from robust201.tasks.columns import PREDICTIONS


@dataclass(frozen=True, eq=False)
class KeyOutcomes:
    """Outcomes of A networks on N test images at S strengths of one or more keys.

    Attributes:
        networks: (A,) networks.
        strengths: (S,) pairs of key and strength.
        images: (N,) int64, ascending positions of the images in the test split.
        correct: (A, S, N) bool, whether networks classify the images correctly.
        protocols: protocols without the images, by key.
    """

    networks: tuple[Network, ...]
    strengths: tuple[tuple[str, float], ...]
    images: NDArray[np.int64]
    correct: NDArray[np.bool_]
    protocols: Mapping[str, Mapping[str, Any]]


def read_outcomes(path: Path, dataset: str, keys: Sequence[str]) -> KeyOutcomes:
    """Read the outcomes under some keys, which must have the same images, from a results folder or an export.

    Raises:
        ConfigError: there is no such key or dataset, a key is a measure, or the keys have different images.
        InputError: the path is neither a results folder nor an export.
        ResultsError: the export has no per-image outcomes, or not of the same networks under all keys.
        DatasetError: the copy of the images in the results folder is missing or damaged.
        IncompleteError: results are missing, or belong to an unstable network.
        ShardDamagedError: a file is damaged.
    """
    return (_read_export if (path / SWEEP_FILE).is_file() else _read_results)(path, dataset, keys)


def _read_export(export: Path, dataset: str, keys: Sequence[str]) -> KeyOutcomes:
    reader = Dataset(export)
    strengths = tuple((key, strength) for key in keys for strength in reader.strengths(dataset, key))
    outcomes = [reader.outcomes(dataset, *strength) for strength in strengths]
    architectures = outcomes[0].architectures
    if any(other.architectures != architectures for other in outcomes):
        raise ResultsError(
            f"Reading outcomes failed for {export}: expected results of the same networks under {', '.join(keys)}. "
            "Export a sweep in which no result is missing."
        )
    hashes = load_json(export / WEIGHTS_FILE)[dataset]
    protocols = {key: reader.folders[0].protocols_of(dataset, key)[0] for key in keys}
    return KeyOutcomes(
        tuple(Network(name, Weights(next(iter(hashes[str(name)].values())))) for name in architectures),
        strengths,
        read_images(reader, dataset)["row"],
        np.stack([other.correct for other in outcomes], axis=1),
        {key: _without_images(payload) for key, payload in protocols.items()},
    )


def _without_images(payload: Mapping[str, Any]) -> dict[str, Any]:
    return {field: payload[field] for field in payload if field != "images"}


def _read_results(results: Path, dataset: str, keys: Sequence[str]) -> KeyOutcomes:
    plan, folder = open_results(results)
    planned_keys = {key.key: key for key in plan.keys if key.dataset == dataset}
    for name in keys:
        if name not in planned_keys:
            raise ConfigError(
                f"Reading outcomes failed for {results}: expected results of {dataset} {name}, got none."
                f"{did_you_mean(name, planned_keys)}"
            )
        if planned_keys[name].task.columns:
            raise ConfigError(
                f"Reading outcomes failed for {results}: expected keys with predicted classes, got {name}, which is a "
                "measure. Choose another key."
            )
    hashes = {str(planned_keys[name].payload["images"]["sha256"]) for name in keys}
    if len(hashes) != 1:
        raise ConfigError(
            f"Reading outcomes failed for {results}: {', '.join(keys)} have different images. Evaluate all of them on "
            "the same images."
        )
    images, listing = read_image_copy(plan.config, dataset, hashes.pop()), list_stable_results(plan, folder)
    correct = [_read_key(KeyRows(folder, planned_keys[name], listing), images.labels) for name in keys]
    return KeyOutcomes(
        planned_keys[keys[0]].networks,
        tuple((name, strength) for name in keys for strength in planned_keys[name].strengths),
        images.indices,
        np.concatenate(correct, axis=1),
        {name: _without_images(planned_keys[name].payload) for name in keys},
    )


def _read_key(rows: KeyRows, labels: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return the outcomes (A, S, N) under a key."""
    outcomes = [
        [columns[PREDICTIONS] == labels for columns in rows.read(network, (PREDICTIONS,)).values()]
        for network in range(len(rows.key.networks))
    ]
    return np.array(outcomes)
