"""Files of evaluations: one JSON file in a folder, with the SHA-256 of its content."""

import base64
import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robust201.analysis.evaluation import Evaluation, KeyResults
from robust201.core.errors import ConfigError, FormatVersionError, ResultsError, describe_read_error
from robust201.core.files import check_output_file, load_json, make_folder, write_text

FILE_NAME = "evaluation.json"

_FORMAT = 1


def is_evaluation(path: Path) -> bool:
    """Return whether a folder has the file of an evaluation."""
    return (path / FILE_NAME).exists()


def write_evaluation(folder: Path, evaluation: Evaluation) -> None:
    """Write an evaluation to a folder, in place of an earlier one."""
    content = {
        "network": evaluation.network,
        "network_sha256": evaluation.network_sha256,
        "images_sha256": evaluation.images_sha256,
        "image_shape": evaluation.image_shape,
        "positions": _encode(evaluation.positions.astype("<i8")),
        "notices": evaluation.notices,
        "preset": evaluation.preset,
        "results": {key: _encode_results(results) for key, results in evaluation.results.items()},
    }
    make_folder(folder)
    document = {"robust201_evaluation": _FORMAT, "sha256": _digest(content), "content": content}
    write_text(folder / FILE_NAME, json.dumps(document))


def read_evaluation(folder: Path) -> Evaluation:
    """Read an evaluation from a folder.

    Raises:
        ResultsError: the folder has no evaluation, or the file is damaged.
        FormatVersionError: another version of robust201 wrote the file.
    """
    path = folder / FILE_NAME
    if not path.exists():
        raise ResultsError(
            f"Reading an evaluation failed for {folder}: expected the file {FILE_NAME}, got none. Write it with "
            "evaluate(…, save=FOLDER) or --save FOLDER."
        )
    try:
        document = load_json(path)
        version, digest, content = (document[name] for name in ("robust201_evaluation", "sha256", "content"))
        if version == _FORMAT and _digest(content) == digest:
            return _decode(content)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _damage_error(path, describe_read_error(error)) from error
    if version != _FORMAT:
        raise FormatVersionError(
            f"Reading an evaluation failed for {path}: expected format {_FORMAT}, got {version!r}. Use the version of "
            "robust201 that wrote it, or evaluate again."
        )
    raise _damage_error(path, "its content does not have the SHA-256 that it names")


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
    saved = read_evaluation(folder)
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
        saved = read_evaluation(folder)
        results = {
            key: saved.results[key].merge(new) if key in saved.results else new
            for key, new in evaluation.results.items()
        }
        notices = tuple(dict.fromkeys([*saved.notices, *evaluation.notices]))
        evaluation = replace(evaluation, results={**saved.results, **results}, notices=notices)
    write_evaluation(folder, evaluation)


def _damage_error(path: Path, reason: str) -> ResultsError:
    return ResultsError(
        f"Reading an evaluation failed for {path}: the file is damaged, or no evaluation ({reason}). Delete it, and "
        "evaluate again."
    )


def _digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def _encode(array: NDArray[Any]) -> str:
    return base64.b64encode(array.tobytes()).decode()


def _encode_results(results: KeyResults) -> dict[str, Any]:
    return {
        "protocol": results.protocol,
        "rows": results.rows,
        "outcomes": [[strength, _encode(np.packbits(correct))] for strength, correct in results.outcomes.items()],
        "distances": None if results.distances is None else _encode(results.distances.astype("<f8")),
    }


def _decode(content: dict[str, Any]) -> Evaluation:
    positions = np.frombuffer(base64.b64decode(content["positions"]), "<i8").astype(np.int64)
    results = {key: _decode_results(fields, len(positions)) for key, fields in content["results"].items()}
    tuples = {name: tuple(content[name]) for name in ("notices", "image_shape")}
    return Evaluation(**content | tuples | {"positions": positions, "results": results})


def _decode_results(fields: dict[str, Any], n_images: int) -> KeyResults:
    outcomes = {
        strength: np.unpackbits(np.frombuffer(base64.b64decode(text), np.uint8), count=n_images).astype(bool)
        for strength, text in fields["outcomes"]
    }
    text = fields["distances"]
    distances = None if text is None else np.frombuffer(base64.b64decode(text), "<f8").astype(np.float64)
    return KeyResults(tuple(fields["rows"]), fields["protocol"], outcomes, distances)
