"""Evaluations that continue in a folder: each key is saved when it is done."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from robust201.analysis.evaluation import Evaluation, KeyResults
from robust201.analysis.evaluation_file import FILE_NAME, is_evaluation
from robust201.core.errors import ConfigError
from robust201.core.files import check_output_file


def read_saved(
    folder: Path, expected: Evaluation, protocols: Mapping[str, Mapping[str, Any]]
) -> Mapping[str, KeyResults]:
    """Return the results by key that a folder already has; none if it has no evaluation.

    Args:
        folder: folder of an evaluation.
        expected: the network and images of the results.
        protocols: expected protocols by key.

    Raises:
        ConfigError: the results belong to another network, or to other images or parameters.
    """
    if not is_evaluation(folder):
        check_output_file(folder / FILE_NAME)
        return {}
    saved = Evaluation.load(folder)
    differences = {
        "network": saved.network_sha256 != expected.network_sha256,
        "images": saved.images_sha256 != expected.images_sha256
        or not np.array_equal(saved.positions, expected.positions),
        **{
            f"parameters of {key}": saved.results[key].protocol != protocols[key]
            for key in protocols
            if key in saved.results
        },
    }
    if different := [name for name, differs in differences.items() if differs]:
        raise ConfigError(
            f"Continuing an evaluation failed for {folder / FILE_NAME}: expected results of the same network, images "
            f"and parameters, got other {', '.join(different)}. Choose another folder."
        )
    return saved.results


def extend_saved(folder: Path, evaluation: Evaluation) -> None:
    """Add the results of an evaluation to those that the folder already has."""
    if is_evaluation(folder):
        saved = Evaluation.load(folder)
        results = {
            key: saved.results[key].merge(new) if key in saved.results else new
            for key, new in evaluation.results.items()
        }
        notices = tuple(dict.fromkeys([*saved.notices, *evaluation.notices]))
        evaluation = replace(evaluation, results={**saved.results, **results}, notices=notices)
    evaluation.save(folder)
