"""Files that a results folder keeps for itself, damaged: told in one line, never waited for, or passed over."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import RunCommand
from tests.support.small_results import write_results

JUNK: dict[str, Callable[[Path], object]] = {
    "empty": lambda path: path.write_bytes(b""),
    "a list": lambda path: path.write_bytes(b"[]"),
    "null": lambda path: path.write_bytes(b"null"),
    "no text": lambda path: path.write_bytes(b"\xff\xfe"),
    "nested too deeply": lambda path: path.write_bytes(b"[" * 100_000),
    "a pipe": os.mkfifo,
    "a folder": lambda path: path.mkdir(),
}


@pytest.fixture
def imported(tmp_path: Path, robust201: RunCommand) -> Path:
    write_results(tmp_path / "dataset", {"clean": {"0": 0.9}, "pgd": {"0": [0.5, 0.4]}})
    assert robust201("import-json", tmp_path / "dataset", "--out", tmp_path / "results").code == 0
    return tmp_path / "results"


@pytest.mark.parametrize("what", JUNK)
@pytest.mark.parametrize("name", ["format.json", "imported.json", "protocols"])
def test_a_damaged_file_of_a_results_folder_is_told(
    imported: Path, tmp_path: Path, robust201: RunCommand, name: str, what: str
) -> None:
    path = next((imported / name).iterdir()) if name == "protocols" else imported / name
    path.unlink()
    JUNK[what](path)
    ended = robust201("verify", imported)
    if name != "format.json" and what in {"a pipe", "a folder"}:  # as one that is not there
        assert "2 shards, 3 evaluations sound" in ended.out
        return
    assert ended.code in {2, 4}
    assert "Traceback" not in ended.err
    line = ended.err.splitlines()[-1]
    assert "expected" in line
    assert str(imported) in line


@pytest.mark.parametrize("what", JUNK)
@pytest.mark.parametrize("name", ["progress.json", "failures.jsonl"])
def test_what_a_run_told_of_itself_is_passed_over_where_it_is_damaged(
    finished: Path, robust201: RunCommand, name: str, what: str
) -> None:
    (finished / name).unlink(missing_ok=True)
    JUNK[what](finished / name)
    ended = robust201("status", finished)
    assert (ended.code, ended.err) == (0, "")
    assert "100 %" in ended.out


@pytest.mark.parametrize("what", JUNK)
@pytest.mark.parametrize("name", ["sweep.json", ".export-journal.json"])
def test_a_damaged_file_of_an_export_keeps_no_export_from_replacing_it(
    imported: Path, tmp_path: Path, robust201: RunCommand, name: str, what: str
) -> None:
    command = ("export", imported, "--out", tmp_path / "out", "--licence", "mit", "--processes", 1)
    assert robust201(*command).code == 0
    path = tmp_path / "out" / name
    path.unlink(missing_ok=True)
    JUNK[what](path)
    ended = robust201(*command)
    if what in {"a pipe", "a folder"}:  # which an export does not remove
        assert ended.code in {0, 2, 4}
        assert "Traceback" not in ended.err
        return
    assert ended.code == 0
    assert not (tmp_path / "out/.export-journal.json").exists()
