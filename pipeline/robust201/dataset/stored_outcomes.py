"""Per-image outcomes of networks on test images, read from a results folder."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robust201.core.errors import ConfigError, did_you_mean
from robust201.dataset.shard_rows import KeyRows
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
        images_sha256: hash of the images (see `ImageSet.sha256`).
        correct: (A, S, N) bool, whether networks classify the images correctly.
        protocols: protocols without the images, by key.
    """

    networks: tuple[Network, ...]
    strengths: tuple[tuple[str, float], ...]
    images: NDArray[np.int64]
    images_sha256: str
    correct: NDArray[np.bool_]
    protocols: Mapping[str, Mapping[str, Any]]


def read_outcomes(results: Path, dataset: str, keys: Sequence[str]) -> KeyOutcomes:
    """Read the outcomes under some keys, which must have the same images.

    Raises:
        ConfigError: the sweep has no such key or dataset, a key is a measure, or the keys have different images.
        InputError: the path is not a results folder.
        DatasetError: the copy of the images in the results folder is missing or damaged.
        IncompleteError: results are missing, or belong to an unstable network.
        ShardDamagedError: a file is damaged.
    """
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
    (sha256,) = hashes
    images, listing = read_image_copy(plan.config, dataset, sha256), list_stable_results(plan, folder)
    correct = [_read_key(KeyRows(folder, planned_keys[name], listing), images.labels) for name in keys]
    payloads = {name: planned_keys[name].payload for name in keys}
    return KeyOutcomes(
        planned_keys[keys[0]].networks,
        tuple((name, strength) for name in keys for strength in planned_keys[name].strengths),
        images.indices,
        sha256,
        np.concatenate(correct, axis=1),
        {name: {field: payload[field] for field in payload if field != "images"} for name, payload in payloads.items()},
    )


def _read_key(rows: KeyRows, labels: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return the outcomes (A, S, N) under a key."""
    networks = range(len(rows.key.networks))
    return np.array([rows.read(network, (PREDICTIONS,))[PREDICTIONS] == labels for network in networks])
