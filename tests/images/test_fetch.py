"""Downloads from a real HTTP server on loopback are resumed, verified or rejected; errors explain manual downloads."""

import errno
import fcntl
import re
import socket
from pathlib import Path

import pytest

from robust201.core.errors import DatasetError, StorageFullError
from robust201.images.downloads import transfer
from robust201.images.downloads.fetch import fetch
from tests.support.download_server import ChangeDownload, Server, assert_complete, names_in

# --- transfer


def test_fetch_unpacks_and_removes_the_archive(tmp_path: Path, cifar10c_server: Server) -> None:
    progress_calls: list[tuple[int, int | None]] = []
    folder = fetch("CIFAR-10-C", tmp_path / "data", progress=lambda done, total: progress_calls.append((done, total)))
    assert folder == tmp_path / "data" / "CIFAR-10-C"
    assert_complete(folder.parent)
    assert names_in(tmp_path / "data") == ["CIFAR-10-C"]
    size = len(cifar10c_server.content)
    assert progress_calls[-1] == (size, size)
    assert progress_calls == sorted(progress_calls)
    assert len(progress_calls) > 1
    assert cifar10c_server.requested_ranges == [""]
    assert fetch("CIFAR-10-C", tmp_path / "data") == folder
    assert cifar10c_server.requested_ranges == [""], "existing files are not downloaded again"


def test_fetch_resumes_broken_connections(tmp_path: Path, cifar10c_server: Server) -> None:
    cifar10c_server.cuts = [100_000, 1, 300_000]
    fetch("CIFAR-10-C", tmp_path)
    assert_complete(tmp_path)
    assert cifar10c_server.requested_ranges == ["", "bytes=100000-", "bytes=100001-", "bytes=400001-"]


def test_fetch_resumes_an_interrupted_call(tmp_path: Path, cifar10c_server: Server) -> None:
    # Status 0 is a normal response; it is cut after 5000 bytes, and all further attempts fail.
    cifar10c_server.cuts, cifar10c_server.statuses = [5000], [0, 503, 503, 503]
    with pytest.raises(DatasetError, match=r"HTTP status 503.*; 5,000 bytes are kept in CIFAR-10-C.tar.part"):
        fetch("CIFAR-10-C", tmp_path)
    assert names_in(tmp_path) == ["CIFAR-10-C.tar.part"]
    fetch("CIFAR-10-C", tmp_path)
    assert_complete(tmp_path)
    assert names_in(tmp_path) == ["CIFAR-10-C"]
    assert cifar10c_server.requested_ranges[-1] == "bytes=5000-"


def test_fetch_restarts_without_range_support(tmp_path: Path, cifar10c_server: Server) -> None:
    cifar10c_server.supports_ranges, cifar10c_server.cuts = False, [5000]
    fetch("CIFAR-10-C", tmp_path)
    assert_complete(tmp_path)
    assert cifar10c_server.requested_ranges == ["", "bytes=5000-"]


def test_fetch_works_without_a_content_length(tmp_path: Path, cifar10c_server: Server) -> None:
    cifar10c_server.sends_length = False
    progress_calls: list[int | None] = []
    fetch("CIFAR-10-C", tmp_path, progress=lambda _, total: progress_calls.append(total))
    assert_complete(tmp_path)
    assert set(progress_calls) == {None}


@pytest.mark.parametrize("partial_file", ["complete", "too long", "of another version"])
def test_fetch_replaces_an_invalid_partial_file(tmp_path: Path, cifar10c_server: Server, partial_file: str) -> None:
    contents = {
        "complete": cifar10c_server.content,
        "too long": cifar10c_server.content + b"x",
        "of another version": b"y" * 4000,
    }
    (tmp_path / "CIFAR-10-C.tar.part").write_bytes(contents[partial_file])
    fetch("CIFAR-10-C", tmp_path)
    assert_complete(tmp_path)
    assert len(cifar10c_server.requested_ranges) == (1 if partial_file == "complete" else 2)


def test_fetch_retries_after_temporary_statuses(tmp_path: Path, cifar10c_server: Server) -> None:
    cifar10c_server.statuses = [503, 429]
    fetch("CIFAR-10-C", tmp_path)
    assert_complete(tmp_path)


def test_fetch_leaves_no_file_after_a_wrong_checksum(tmp_path: Path, cifar10c_server: Server) -> None:
    cifar10c_server.content = cifar10c_server.content[:-1] + b"\x01"
    with pytest.raises(DatasetError) as error:
        fetch("CIFAR-10-C", tmp_path)
    assert re.search(r"expected the file CIFAR-10-C.tar \([\d,]+ bytes, sha256 \w{64}\), got another", str(error.value))
    assert names_in(tmp_path) == []


def test_fetch_does_not_retry_a_missing_file(tmp_path: Path, cifar10c_server: Server) -> None:
    cifar10c_server.statuses = [404]
    with pytest.raises(DatasetError, match="HTTP status 404"):
        fetch("CIFAR-10-C", tmp_path)
    assert len(cifar10c_server.requested_ranges) == 1
    assert names_in(tmp_path) == []


def test_fetch_error_explains_the_manual_download_without_a_network(
    tmp_path: Path, change_download: ChangeDownload, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.setattr(
        transfer.time, "sleep", lambda _: pytest.fail("fetch must not wait and retry without a network")
    )
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}/cifar-10-binary.tar.gz"
    change_download("cifar10", url=url)
    with pytest.raises(DatasetError) as error:
        fetch("cifar10", tmp_path)
    assert error.value.exit_code == 2
    message = str(error.value)
    for expected_text in (url, "cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530", str(tmp_path), "yourself"):
        assert expected_text in message
    assert "\n" not in message
    assert names_in(tmp_path) == []


def test_fetch_rejects_urls_other_than_http(tmp_path: Path, change_download: ChangeDownload) -> None:
    (tmp_path / "secret").write_bytes(b"x")
    change_download("cifar10", url=(tmp_path / "secret").as_uri())
    with pytest.raises(DatasetError, match="neither http nor https"):
        fetch("cifar10", tmp_path / "data")


def test_fetch_rejects_a_concurrent_download(tmp_path: Path, cifar10c_server: Server) -> None:
    with (tmp_path / "CIFAR-10-C.tar.part").open("wb") as other_download:
        fcntl.flock(other_download, fcntl.LOCK_EX)
        with pytest.raises(DatasetError, match="another process is downloading it"):
            fetch("CIFAR-10-C", tmp_path)
    assert cifar10c_server.requested_ranges == []


def test_writing_to_distinguishes_a_full_disk_from_missing_permissions(tmp_path: Path) -> None:
    with pytest.raises(StorageFullError, match="No space"), transfer.writing_to(tmp_path):
        raise OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(DatasetError, match="Permission denied"), transfer.writing_to(tmp_path):
        raise PermissionError(errno.EACCES, "Permission denied")
    (tmp_path / "file").touch()
    with pytest.raises(DatasetError, match=r"Not a directory\. Choose another folder"):
        fetch("cifar10", tmp_path / "file" / "data")
