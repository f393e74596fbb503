"""Error messages for damaged and misplaced files are short and name the file."""

import errno
import json

import pytest

from robust201.core.errors import MAX_MESSAGE_LENGTH, RobustError, StorageFullError, describe_read_error, one_line
from robust201.core.files import check_output_file


@pytest.mark.parametrize(
    ("fail", "message"),
    [
        ((b"x" * 5000 + b"\xff").decode, "it is not valid UTF-8"),
        (lambda: {}["format"], "it lacks 'format'"),
        (lambda: json.loads("{"), "Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"),
    ],
)
def test_describe_read_error_returns_a_short_reason(fail, message):
    with pytest.raises((ValueError, KeyError)) as raised:
        fail()
    assert describe_read_error(raised.value) == message


def test_one_line_shortens_text():
    assert one_line("a\n  b.\n") == "a b"
    assert one_line(ValueError()) == "ValueError"
    assert len(one_line("x" * 1000)) == 300


def test_long_error_messages_keep_beginning_and_end():
    output = str(RobustError(f"Reading failed for x: expected y, got {'z' * 1_000_000}. Do this."))
    assert len(output) < MAX_MESSAGE_LENGTH + 100
    assert output.startswith("Reading failed for x")
    assert output.endswith("Do this.")


def test_error_for_a_damaged_plan_does_not_quote_it(finished_results, robust201):
    plan = finished_results / "plan.json"
    plan.write_bytes(plan.read_bytes().replace(b"format", b"form\xfft", 1))
    for command in ("status", "plan", "verify"):
        error = robust201(command, finished_results).error_line(2)
        assert str(plan) in error
        assert len(error) < 400


def test_exported_dataset_is_rejected_as_results_folder(finished_results, robust201, tmp_path):
    assert robust201("export", finished_results, "--out", tmp_path / "dataset").code == 0
    for command in ("status", "plan", "run"):
        error = robust201(command, tmp_path / "dataset").error_line(2)
        assert str(tmp_path / "dataset") in error


def test_full_disk_is_an_error_of_its_own(tmp_path, monkeypatch):
    def fail(**_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("tempfile.TemporaryFile", fail)
    with pytest.raises(StorageFullError, match="No space left on device"):
        check_output_file(tmp_path / "table.csv")
