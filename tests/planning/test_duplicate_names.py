"""Duplicate names in a dataset, in one JSON object or in both spellings, are rejected by all readers."""

import gzip
import json
import random
from pathlib import Path

import pytest

from robust201.core.errors import ResultsError
from robust201.reader.dataset import RobustnessDataset
from robust201.reader.value_checks import parse_json
from tests.conftest import RunCommand
from tests.support.small_results import write_results

MATRICES = [[[3, 1], [0, 4]], [[2, 2], [0, 4]]]
CONFIDENCES = [{"label": [[1.0]], "argmax": [[1.0]], "prediction": [0.9, None]}] * 2
ROWS = {"accuracy": [0.5, 0.4], "cm": MATRICES, "confidence": CONFIDENCES}


def write_twice(folder: Path, measure: str, first: str, second: str, key: str = "pgd") -> Path:
    """Write a file with two rows named `first` and `second`, which may be equal."""
    write_results(folder, {key: {}}, measure=measure)
    row = json.dumps(ROWS[measure])
    rows = f'{{"{first}": {row}, "2": {row}, "{second}": {row}}}'
    (folder / f"cifar10/{key}_{measure}.json").write_text(f'{{"cifar10": {{"{key}": {{"{measure}": {rows}}}}}}}')
    return folder


@pytest.mark.parametrize("measure", ROWS)
@pytest.mark.parametrize(
    ("first", "second", "message"), [("0", "0", "'0' twice"), ("0", "00", "'00'"), ("00", "0", "'00'")]
)
@pytest.mark.each_value
def test_duplicate_id_is_rejected_by_all_readers(
    tmp_path: Path,
    robust201: RunCommand,
    measure: str,
    first: str,
    second: str,
    message: str,
) -> None:
    folder = write_twice(tmp_path / "dataset", measure, first, second)
    for read in (
        lambda data: data.value(2, "cifar10", "pgd", measure),
        lambda data: data.query("cifar10", "pgd", measure),
        lambda data: list(data.files.iter_values("cifar10", "pgd", measure)),
    ):
        with pytest.raises(ResultsError, match=f"pgd_{measure}.json.*{message}"):
            read(RobustnessDataset(folder))
    assert message in robust201("convert", folder).refusal(2)


def test_duplicate_field_of_a_value_is_rejected(tmp_path: Path) -> None:
    folder = write_twice(tmp_path, "confidence", "0", "1")
    file = folder / "cifar10/pgd_confidence.json"
    file.write_text(file.read_text().replace('"label"', '"label": [[0.0]], "label"', 1))
    data = RobustnessDataset(folder)
    with pytest.raises(ResultsError, match="'label' twice"):
        data.value(0, "cifar10", "pgd", "confidence")
    with pytest.raises(ResultsError, match="'label' twice"):
        list(data.files.iter_values("cifar10", "pgd", "confidence"))


@pytest.mark.parametrize("inside", ["measurement", "key"])
def test_file_with_values_of_another_key_or_measurement_is_rejected(tmp_path: Path, inside: str) -> None:
    folder = write_twice(tmp_path, "cm", "0", "1")
    file = folder / "cifar10/pgd_cm.json"
    rows = {"3": MATRICES}
    more = json.dumps({"other": rows} if inside == "measurement" else {"fgsm": {"cm": rows}})[1:-1]
    braces = {"measurement": "}}}", "key": "}}"}[inside]
    file.write_text(f"{file.read_text().removesuffix(braces)}, {more}{braces}")
    assert json.loads(file.read_text())
    with pytest.raises(ResultsError, match=r"pgd_cm\.json"):
        RobustnessDataset(folder).value(0, "cifar10", "pgd", "cm")


@pytest.mark.parametrize("suffix", [pytest.param("", marks=pytest.mark.slow), ".gz"])
def test_key_with_files_in_both_spellings_is_rejected(tmp_path: Path, robust201: RunCommand, suffix: str) -> None:
    folder = write_results(tmp_path / "dataset", {"clean": {"0": 0.9}, "pgd": {"0": [0.5, 0.4]}})
    text = json.dumps({"cifar10": {"pgd@Linf": {"accuracy": {"0": [0.6, 0.3]}}}}).encode()
    other = folder / f"cifar10/pgd@Linf_accuracy.json{suffix}"
    other.write_bytes(gzip.compress(text) if suffix else text)
    for key in ("pgd", "pgd@Linf"):
        with pytest.raises(ResultsError, match="expected one spelling"):
            RobustnessDataset(folder).accuracy(0, "cifar10", key)
    for verb in (
        ("convert", folder),
        ("diff", folder, folder),
        ("report", folder),
    ):
        line = robust201(*verb).refusal(2)
        assert "/pgd_accuracy.json" in line
        assert f"/pgd@Linf_accuracy.json{suffix}" in line


@pytest.mark.parametrize("where", ["file", "meta.json"])
def test_key_in_both_spellings_within_one_file_is_rejected(tmp_path: Path, where: str) -> None:
    folder = write_results(tmp_path, {"pgd": {"0": [0.5, 0.4]}})
    file = folder / ("cifar10/pgd_accuracy.json" if where == "file" else "meta.json")
    content = json.loads(file.read_text())
    by_key = content["cifar10"] if where == "file" else content["epsilons"]
    by_key["pgd@Linf"] = by_key["pgd"]
    file.write_text(json.dumps(content))
    with pytest.raises(ResultsError, match="got pgd and pgd@Linf"):
        RobustnessDataset(folder).accuracy(0, "cifar10", "pgd")


def test_parse_json_matches_json_and_rejects_duplicates() -> None:
    draw = random.Random(0)
    names = [str(draw.randrange(10**6)) for _ in range(200)]
    nested = {name: {"a": [1, 2.5, None], "b": {"c": "\u00e4\n"}} for name in names}
    assert parse_json(json.dumps(nested).encode()) == nested
    twice = (b'{"a": 1, "a": 1}', b'[{"b": {"a": 1, "\\u0061": 2}}]')
    for text in (*twice, b"[" * 10**5, b"", b'{"a": 1' + b"0" * 5000 + b"}"):
        with pytest.raises(ValueError, match=r"\w"):
            parse_json(text)


def test_duplicate_id_in_meta_json_is_rejected(tmp_path: Path) -> None:
    folder = write_results(tmp_path, {"pgd": {"0": [0.5, 0.4]}})
    file = folder / "meta.json"
    first = json.dumps(json.loads(file.read_text())["ids"]["0"])
    file.write_text(file.read_text().replace('"ids": {', f'"ids": {{"0": {first}, ', 1))
    with pytest.raises(ResultsError, match=r"meta\.json.*'0' twice"):
        RobustnessDataset(folder)
