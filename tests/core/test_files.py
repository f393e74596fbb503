"""Paths of output files are checked before their content is computed."""

import errno
from pathlib import Path

import pytest

from robust201.core.errors import InputError, StorageFullError
from robust201.core.files import check_output_file


def test_check_output_file_accepts_new_folders_and_creates_nothing(tmp_path: Path) -> None:
    for path in (tmp_path / "table.csv", tmp_path / "new" / "folder" / "table.csv"):
        check_output_file(path)
    assert list(tmp_path.iterdir()) == []


def test_check_output_file_rejects_paths_where_no_file_can_be_created(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (Path("/proc/table.csv"), tmp_path, tmp_path / "file" / "table.csv"):
        with pytest.raises(InputError, match=f"^Writing failed for {path}: "):
            check_output_file(path)


def test_check_output_file_reports_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(**_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("tempfile.TemporaryFile", fail)
    with pytest.raises(StorageFullError, match="No space left on device"):
        check_output_file(tmp_path / "table.csv")
