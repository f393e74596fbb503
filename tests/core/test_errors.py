"""Long error messages are shortened, and a full disk has its own error class."""

import errno
import os

import pytest

from robust201.core.errors import MAX_MESSAGE_LENGTH, InputError, RobustError, StorageFullError
from robust201.core.files import check_output_file, write_text


def test_long_error_messages_keep_beginning_and_end():
    output = str(RobustError(f"Reading failed for x: expected y, got {'z' * 1_000_000}. Do this."))
    assert len(output) < MAX_MESSAGE_LENGTH + 100
    assert output.startswith("Reading failed for x")
    assert output.endswith("Do this.")


def test_full_disk_raises_storage_full_error(tmp_path, monkeypatch):
    def fail(**_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("tempfile.TemporaryFile", fail)
    with pytest.raises(StorageFullError, match="No space left on device"):
        check_output_file(tmp_path / "table.csv")


def test_files_do_not_replace_devices_and_pipes(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="pipe"):
        write_text(tmp_path / "pipe", "text")
    assert (tmp_path / "pipe").is_fifo()
