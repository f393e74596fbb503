"""Files are opened without blocking, and reads have a size limit without reserving memory for it."""

import errno
import subprocess
import sys
from pathlib import Path

import pytest

from robust201.core.errors import InputError, StorageError, StorageFullError
from robust201.core.files import (
    IrregularFileError,
    check_file,
    check_output_file,
    load_json,
    open_file,
    read_file,
    read_text,
    sha256_of,
    sole_writer,
)
from tests.support.irregular_files import IRREGULAR, make_sparse, replace


@pytest.mark.parametrize("mode", ["rb", "ab", "wb"])
@pytest.mark.parametrize("file_type", IRREGULAR)
def test_open_file_rejects_irregular_files(tmp_path: Path, file_type: str, mode: str) -> None:
    path = replace(tmp_path / "file", file_type)
    with pytest.raises(IrregularFileError, match=f"^{file_type} instead of a regular file$") as error:
        open_file(path, None, mode)
    assert error.value.filename == str(path)


def test_open_file_rejects_a_folder(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError, match="a folder instead of a regular file"):
        open_file(tmp_path, None)


def test_open_file_rejects_files_above_the_limit(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"1234")
    assert read_file(path, 4) == b"1234"
    assert read_text(path, 4) == "1234"
    with pytest.raises(IrregularFileError, match=r"^0.0 MB, more than 0.0 MB$"):
        read_file(path, 3)
    make_sparse(path)
    for read_function in (load_json, check_file, sha256_of):
        with pytest.raises(IrregularFileError, match=r"^21.47 GB, more than 1.07 GB$"):
            read_function(path, 1 << 30)
    check_file(path)


def test_open_file_appends_and_creates_like_open(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for content in (b"one", b"two"):
        with open_file(path, None, "ab") as stream:
            stream.write(content)
    assert path.read_bytes() == b"onetwo"
    assert path.stat().st_mode & 0o111 == 0


@pytest.mark.parametrize("file_type", IRREGULAR)
def test_sole_writer_does_not_wait_for_an_irregular_lock_file(tmp_path: Path, file_type: str) -> None:
    replace(tmp_path / ".lock", file_type)
    with (
        pytest.raises(StorageError, match=f"{file_type} instead of a regular file"),
        sole_writer(tmp_path, "Exporting"),
    ):
        pass


def test_load_json_reserves_no_memory_for_its_limit(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    path.write_text('{"a": 1}')
    script = """
import resource, sys
from pathlib import Path
from robust201.core.files import MAX_JSON_BYTES, load_json

pages = int(Path("/proc/self/statm").read_text().split()[0])
limit = pages * resource.getpagesize() + (64 << 20)
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
assert MAX_JSON_BYTES > limit
assert load_json(Path(sys.argv[1])) == {"a": 1}
"""
    subprocess.run([sys.executable, "-c", script, str(path)], check=True, timeout=60)


def test_check_output_file_accepts_new_folders_and_creates_nothing(tmp_path: Path) -> None:
    for path in (tmp_path / "table.csv", tmp_path / "new" / "folder" / "table.csv"):
        check_output_file(path)
    assert list(tmp_path.iterdir()) == []


def test_check_output_file_rejects_a_folder_where_no_file_can_be_created() -> None:
    with pytest.raises(InputError, match=r"^Writing failed for /proc/table\.csv: no file can be created in"):
        check_output_file(Path("/proc/table.csv"))


def test_check_output_file_reports_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(**_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("tempfile.TemporaryFile", fail)
    with pytest.raises(StorageFullError, match="No space left on device"):
        check_output_file(tmp_path / "table.csv")
