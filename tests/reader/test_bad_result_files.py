"""Result files with unknown ids or invalid values, which every command rejects with a one-line error."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from robust201.core.errors import ResultsError
from robust201.reader.dataset import RobustnessDataset
from tests.conftest import RunCommand
from tests.support.small_results import write_results

MATRIX = [[3, 1], [0, 4]]
CONFIDENCE = {"label": [[0.9, 0.1], [0.2, 0.8]], "argmax": [[0.9, 0.1], [0.2, 0.8]], "prediction": [0.9, None]}

INVALID_VALUES: dict[str, tuple[str, str, Any]] = {
    "an id that is not a number": ("accuracy", "foo", [0.5, 0.4]),
    "an id out of range": ("accuracy", "99999", [0.5, 0.4]),
    "an id with a sign": ("accuracy", "-1", [0.5, 0.4]),
    "an id with a leading zero": ("accuracy", "01", [0.5, 0.4]),
    "text": ("accuracy", "1", ["a", "b"]),
    "numbers as text": ("accuracy", "1", ["0.5", "0.4"]),
    "booleans": ("accuracy", "1", [True, False]),
    "an object": ("accuracy", "1", {"a": [0.5, 0.4]}),
    "nested accuracies": ("accuracy", "1", [[0.5], [0.4]]),
    "NaN": ("accuracy", "1", [0.5, float("nan")]),
    "above 1": ("accuracy", "1", [0.5, 1.5]),
    "below 0": ("accuracy", "1", [-0.5, 0.5]),
    "counts without a matrix": ("cm", "1", [1, 2]),
    "a matrix that is not square": ("cm", "1", [[[1, 2]], [[1, 2]]]),
    "a ragged matrix": ("cm", "1", [[[1, 2], [3]], MATRIX]),
    "a matrix of text": ("cm", "1", [[["a", "b"], ["c", "d"]], MATRIX]),
    "an empty matrix": ("cm", "1", [[], []]),
    "matrices of a single class": ("cm", "1", [[[1]], [[1]]]),
    "a confidence that is a list": ("confidence", "1", [[0.5], [0.5]]),
    "a confidence that lacks a field": ("confidence", "1", [{"label": MATRIX, "argmax": MATRIX}] * 2),
    "a confidence of text": ("confidence", "1", [CONFIDENCE | {"prediction": ["a", "b"]}, CONFIDENCE]),
    "a confidence with a field that is too long": (
        "confidence",
        "1",
        [CONFIDENCE | {"prediction": [0.1, 0.2, 0.3]}] * 2,
    ),
    "a confidence of another shape": ("confidence", "1", [CONFIDENCE | {"label": [[0.5]]}, CONFIDENCE]),
    "a list per field, of a wrong shape": ("confidence", "1", {name: [1, 2] for name in CONFIDENCE}),
}


@pytest.mark.parametrize("accuracies", [[0.6], [0.6, 0.5, 0.4], 0.6])
def test_accuracy_rejects_wrong_number_of_values(tmp_path: Path, accuracies: Any) -> None:
    write_results(tmp_path, {"clean": {"1": 0.8}, "pgd": {"1": accuracies}})
    dataset = RobustnessDataset(tmp_path)
    assert dataset.strengths("cifar10", "pgd") == (1.0, 8.0)
    with pytest.raises(ResultsError, match="#1 cifar10 pgd accuracy: expected 2 values"):
        dataset.accuracy(1, "cifar10", "pgd", 1.0)
    assert dataset.accuracy(1, "cifar10", "pgd", 0) == 0.8


def write_valid_results(folder: Path) -> Path:
    accuracies = {"clean": {"0": 0.9, "1": 0.8}, "pgd": {"0": [0.5, 0.4], "1": [0.6, 0.5]}}
    write_results(folder, accuracies)
    write_results(folder, {"pgd": {"0": [CONFIDENCE] * 2, "1": [CONFIDENCE] * 2}}, measure="confidence")
    return write_results(folder, {"pgd": {"0": [MATRIX] * 2, "1": [MATRIX] * 2}}, measure="cm")


def make_invalid(folder: Path, case: str) -> str:
    """Write a case's invalid id or value to a result file, and return the id as it is spelled in error messages."""
    measurement, identifier, value = INVALID_VALUES[case]
    path = folder / f"cifar10/pgd_{measurement}.json"
    content = json.loads(path.read_text())
    content["cifar10"]["pgd"][measurement][identifier] = value
    path.write_text(json.dumps(content))
    return f"#{identifier}" if identifier == "1" else identifier


DEFAULT_CASES = (
    "an id out of range",
    "an id with a leading zero",
    "text",
    "NaN",
    "above 1",
    "a ragged matrix",
    "matrices of a single class",
    "a confidence that lacks a field",
    "a list per field, of a wrong shape",
)
"""Cases that run by default: at least one for each kind of fault (id, type, range, shape, missing field)."""


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=() if case in DEFAULT_CASES else pytest.mark.slow) for case in INVALID_VALUES]
)
def test_commands_reject_invalid_ids_and_values(tmp_path, case, robust201: RunCommand):
    valid_folder, invalid_folder = write_valid_results(tmp_path / "valid"), write_valid_results(tmp_path / "bad")
    name_in_message = make_invalid(invalid_folder, case)
    measurement = INVALID_VALUES[case][0]
    commands: list[tuple[object, ...]] = [("report", invalid_folder, "--out", tmp_path / "page.html")]
    if measurement == "accuracy":
        commands.append(("verify", valid_folder, "--against", invalid_folder))
    for command in commands:
        error_line = robust201(*command).error_line(2)
        assert f"pgd_{measurement}.json" in error_line
        assert name_in_message in error_line
    # Keep only the invalid file, so that `verify` cannot fail for another reason.
    for path in set((invalid_folder / "cifar10").iterdir()) - {invalid_folder / f"cifar10/pgd_{measurement}.json"}:
        path.unlink()
    result = robust201("verify", invalid_folder)
    assert result.code in {2, 4}
    assert name_in_message in result.err
    assert "pgd" in result.err


def test_commands_accept_valid_files(tmp_path, robust201: RunCommand):
    valid_folder = write_valid_results(tmp_path / "valid")
    assert robust201("report", valid_folder, "--out", tmp_path / "page.html").code == 0
    assert robust201("verify", valid_folder, "--against", valid_folder).code == 0


@pytest.mark.parametrize(
    "case", [case for case, (measurement, _, _) in INVALID_VALUES.items() if measurement != "accuracy"]
)
def test_value_and_iter_stacks_reject_invalid_values(tmp_path, case):
    measurement, identifier, invalid_value = INVALID_VALUES[case]
    valid_value = [MATRIX] * 2 if measurement == "cm" else [CONFIDENCE] * 2
    values_by_id = {str(index): valid_value for index in (0, 2, 3, 4, 5, 6)} | {identifier: invalid_value}
    dataset = RobustnessDataset(write_results(tmp_path, {"pgd": values_by_id}, measure=measurement))
    assert len(dataset.value(0, "cifar10", "pgd", measurement)) == 2
    stacks = dataset.files.iter_stacks("cifar10", "pgd", measurement)
    if case == "matrices of a single class":  # valid values that cannot be stacked
        assert [arrays is None for _, arrays in stacks] == [False, True]
        return
    for read_values in (lambda: dataset.value(1, "cifar10", "pgd", measurement), lambda: list(stacks)):
        with pytest.raises(ResultsError, match=rf"#1 pgd {measurement} failed for .*pgd_{measurement}\.json: expected"):
            read_values()


@pytest.mark.parametrize("measurement", ["cm", "confidence"])
@pytest.mark.parametrize("key", ["clean", "pgd"])
def test_arrays_of_iter_stacks_equal_the_values(tmp_path, measurement, key):
    second_value = {"cm": [[2, 2], [1, 3]], "confidence": CONFIDENCE | {"prediction": [0.5, 0]}}[measurement]
    values = [{"cm": MATRIX, "confidence": CONFIDENCE}[measurement], second_value] * 3
    expected_values = {
        str(index): value if key == "clean" else [value, values[0]] for index, value in enumerate(values)
    }
    write_results(tmp_path, {key: expected_values}, measure=measurement)
    n_stacked = 0
    for values_by_id, arrays in RobustnessDataset(tmp_path).files.iter_stacks("cifar10", key, measurement):
        for position, identifier in enumerate(values_by_id):
            assert values_by_id[identifier] == expected_values[identifier]
            values_by_strength = [expected_values[identifier]] if key == "clean" else expected_values[identifier]
            for field, array in arrays.items():
                field_values = [value[field] if field else value for value in values_by_strength]
                np.testing.assert_array_equal(array[position], np.array(field_values, dtype=float))
            n_stacked += 1
    assert n_stacked == len(expected_values)


@pytest.mark.parametrize("tolerance", ["inf", "nan", "1e999", "-inf"])
def test_diff_rejects_tolerance_that_is_not_finite(tmp_path, tolerance, robust201: RunCommand):
    valid_folder = write_valid_results(tmp_path)
    assert "tolerance" in robust201(
        "verify", valid_folder, "--against", valid_folder, f"--tolerance={tolerance}"
    ).error_line(2)


def test_diff_ignores_missing_accuracy(tmp_path, robust201: RunCommand):
    valid_folder, incomplete_folder = write_valid_results(tmp_path / "valid"), write_valid_results(tmp_path / "other")
    write_results(incomplete_folder, {"pgd": {"0": [0.5, None], "1": [0.6, 0.5]}})
    assert robust201("verify", valid_folder, "--against", incomplete_folder).code == 0


@pytest.mark.parametrize("content", ["5", "[]", '"x"', "null", '{"format": 1}', '{"format": 1, "strengths": 5}'])
def test_reader_rejects_invalid_sweep_json(tmp_path, content, robust201: RunCommand):
    folder = write_valid_results(tmp_path / "dataset")
    (folder / "sweep.json").write_text(content)
    error_line = robust201("verify", folder, "--against", folder).error_line(2)
    assert "Opening a dataset failed for" in error_line
    assert "sweep.json" in error_line


def test_to_frame_without_keys_is_empty(tmp_path):
    dataset = RobustnessDataset(write_valid_results(tmp_path))
    for arguments in ({"data": "cifar10", "key": []}, {"data": [], "key": "pgd"}):
        assert len(dataset.to_frame(**arguments)) == 0


def test_error_does_not_suggest_folders_that_are_not_datasets(tmp_path):
    folder = write_valid_results(tmp_path)
    (folder / "parquet").mkdir()
    (folder / ".hidden").mkdir()
    with pytest.raises(ResultsError, match=r"expected a dataset of .*got 'x'\. Known: cifar10\."):
        RobustnessDataset(folder).to_frame("x", "pgd")


SWEEP: dict[str, Any] = {"format": 1, "strengths": {"cifar10": {"pgd": [1, 8]}}, "measurements": ["accuracy"]}


@pytest.mark.parametrize(
    "fields",
    [
        {"sweep": 5},
        {"sweep": {"images": 5}},
        {"sweep": {"images": {"count": "1"}}},
        {"sweep": {"protocols": [1]}},
        {"sweep": {"protocols": {}}},
        {"sweep": {"protocols": [{"n_images": "x"}]}},
        {"sweep": {"protocols": [{"protocol": "imported", "decimals": {"accuracy": "x"}}]}},
        {"sweep": {}, "weights": 5},
        {"sweep": {}, "round_to": "x"},
        {"sweep": {}, "measurements": [1]},
    ],
)
def test_reader_rejects_invalid_record_in_sweep_json(tmp_path: Path, fields: dict[str, Any], robust201: RunCommand):
    folder = write_valid_results(tmp_path / "dataset")
    (folder / "sweep.json").write_text(json.dumps(SWEEP | fields))
    for command in (("verify", folder, "--against", folder), ("report", folder, "--out", tmp_path / "page.html")):
        assert "sweep.json: expected strengths by dataset and key" in robust201(*command).error_line(2)


@pytest.mark.parametrize("fields", [pytest.param({}, marks=pytest.mark.slow), {"sweep": {"images": None}}])
def test_reader_accepts_sweep_json_without_protocols(tmp_path: Path, fields: dict[str, Any], robust201: RunCommand):
    folder = write_valid_results(tmp_path / "dataset")
    (folder / "sweep.json").write_text(json.dumps(SWEEP | fields))
    for command in (("verify", folder, "--against", folder), ("report", folder, "--out", tmp_path / "page.html")):
        assert robust201(*command).code == 0
