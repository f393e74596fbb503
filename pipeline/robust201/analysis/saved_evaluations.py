"""Evaluations that continue in a folder: each key is saved when it is done."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from robust201.analysis.evaluation import Evaluation, different_fields, write_evaluation
from robust201.analysis.evaluation_file import FILE_NAME, is_evaluation
from robust201.core.errors import ConfigError
from robust201.core.files import check_output_file, sole_writer

_TOLERANCE = 1e-3
"""Difference of a network's logits between devices and library versions, as a fraction of the largest logit."""


def read_saved(
    folder: Path,
    expected: Evaluation,
    protocols: Mapping[str, Mapping[str, Any]],
    strengths: Mapping[str, Collection[float]],
) -> Evaluation:
    """Return the evaluation that a folder already has; without results if it has none.

    Args:
        folder: folder of an evaluation.
        expected: the network and images of the results.
        protocols: expected protocols by key.
        strengths: requested strengths by key. A minimum-norm attack must have the same, at which its distances end.

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
            f"and parameters, got other {', '.join(different)}. Choose another folder."
        )
    return saved


def _list_differences(
    saved: Evaluation,
    expected: Evaluation,
    protocols: Mapping[str, Mapping[str, Any]],
    strengths: Mapping[str, Collection[float]],
) -> Iterator[str]:
    has_network = (saved.network, saved.network_sha256) == (expected.network, expected.network_sha256)
    if not (has_network and _are_close(saved.logits, expected.logits)):
        yield "network"
    has_images = saved.images_sha256 == expected.images_sha256
    if not (has_images and np.array_equal(saved.positions, expected.positions)):
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


def extend_saved(folder: Path, evaluation: Evaluation) -> None:
    """Add the results of an evaluation to those that the folder already has.

    Raises:
        ConfigError: see `read_saved`.
        StorageError: the file cannot be written.
    """
    strengths = {key: results.strengths for key, results in evaluation.results.items()}
    with sole_writer(folder, "Saving an evaluation", wait=True):
        saved = read_saved(folder, evaluation, evaluation.protocols, strengths)
        results = {
            key: saved.results[key].merge(new) if key in saved.results else new
            for key, new in evaluation.results.items()
        }
        notices = tuple(dict.fromkeys([*saved.notices, *evaluation.notices]))
        write_evaluation(folder, replace(evaluation, results={**saved.results, **results}, notices=notices))
