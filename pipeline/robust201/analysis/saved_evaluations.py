"""Files of evaluations: one JSON file in a folder, with the SHA-256 of its content."""

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from robust201.analysis.evaluation import Evaluation, KeyResults, different_fields
from robust201.core.errors import ConfigError, FormatVersionError, ResultsError, describe_read_error
from robust201.core.files import check_output_file, load_json, make_folder, sole_writer, write_text

_FILE_NAME = "evaluation.json"

_FORMAT = 2

_TOLERANCE = 1e-2
"""Difference of a network's logits between batch sizes and machines, as a fraction of the largest logit."""


def is_evaluation(folder: Path) -> bool:
    """Return whether a folder has the file of an evaluation."""
    return (folder / _FILE_NAME).exists()


def load_evaluation(folder: Path) -> Evaluation:
    """Read the evaluation in a folder; see `Evaluation.load`."""
    path = folder / _FILE_NAME
    if not path.exists():
        raise ResultsError(
            f"Reading an evaluation failed for {folder}: expected the file {_FILE_NAME}, got none. Write it with "
            "evaluate(…, save=FOLDER) or --save FOLDER."
        )
    try:
        document = load_json(path)
        version, digest, content = (document[name] for name in ("robust201_evaluation", "sha256", "content"))
        if version == _FORMAT and _digest(content) == digest:
            return _decode(content)
        reason = "its content does not have the SHA-256 that it names"
    except (OSError, ValueError, KeyError, TypeError) as error:
        version, reason = _FORMAT, describe_read_error(error)
    if version != _FORMAT:
        raise FormatVersionError(
            f"Reading an evaluation failed for {path}: expected format {_FORMAT}, got {version!r}. Use the version of "
            "robust201 that wrote it, or evaluate again."
        )
    raise ResultsError(
        f"Reading an evaluation failed for {path}: the file is damaged, or no evaluation ({reason}). Delete it, and "
        "evaluate again."
    )


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
        check_output_file(folder / _FILE_NAME)
        return replace(expected, results={}, notices=())
    saved = load_evaluation(folder)
    if different := list(_list_differences(saved, expected, protocols, strengths)):
        raise ConfigError(
            f"Continuing an evaluation failed for {folder / _FILE_NAME}: expected results of the same network, images "
            f"and parameters, got other {', '.join(different)}. Evaluate the same, or choose another folder."
        )
    return saved


def _list_differences(
    saved: Evaluation,
    expected: Evaluation,
    protocols: Mapping[str, Mapping[str, Any]],
    strengths: Mapping[str, Collection[float]],
) -> Iterator[str]:
    has_network = (saved.network, saved.network_sha256) == (expected.network, expected.network_sha256)
    has_images = saved.images_sha256 == expected.images_sha256 and np.array_equal(saved.positions, expected.positions)
    # The logits are those of the first images, so they tell networks apart on equal images only.
    if not has_network or (has_images and not _are_close(saved.logits, expected.logits)):
        yield "network"
    if not has_images:
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
    """Add the results of an evaluation to those that the folder already has; see `Evaluation.save`."""
    strengths = {key: results.strengths for key, results in evaluation.results.items()}
    with sole_writer(folder, "Saving an evaluation", wait=True):
        saved = read_saved(folder, evaluation, evaluation.protocols, strengths)
        results = {
            key: saved.results[key].merge(new) if key in saved.results else new
            for key, new in evaluation.results.items()
        }
        notices = tuple(dict.fromkeys([*saved.notices, *evaluation.notices]))
        merged = replace(evaluation, results={**saved.results, **results}, notices=notices)
        content = vars(replace(merged)) | {"results": _encode(merged)}  # `replace` leaves out cached tables
        make_folder(folder)
        document = {"robust201_evaluation": _FORMAT, "sha256": _digest(content), "content": content}
        write_text(folder / _FILE_NAME, json.dumps(document, default=np.ndarray.tolist))


def _digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, default=np.ndarray.tolist).encode()).hexdigest()


def _encode(evaluation: Evaluation) -> dict[str, Any]:
    """Return the results as JSON values, in which outcomes are numbers."""
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
