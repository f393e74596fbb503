"""Downloads from a real HTTP server on loopback are verified and unpacked; errors explain manual downloads."""

import re
import shutil
import socket
from pathlib import Path
from unittest.mock import Mock

import pytest

from robust201.core.errors import DatasetError
from robust201.images.downloads import fetch as fetch_module
from robust201.images.downloads import registry
from robust201.images.downloads.fetch import fetch
from tests.support.download_server import FILES, assert_complete, make_tar, names_in, sha256


def test_fetch_unpacks_and_removes_the_archive(tmp_path, cifar10c_server):
    progress = Mock(total=0)
    progress.reset.side_effect = progress.update.reset_mock
    folder = fetch("CIFAR-10-C", tmp_path / "data", progress=progress)
    assert folder == tmp_path / "data" / "CIFAR-10-C"
    assert_complete(folder.parent)
    assert names_in(tmp_path / "data") == ["CIFAR-10-C"]
    n_bytes = sum(call.args[0] for call in progress.update.call_args_list)
    assert n_bytes == progress.total == len(cifar10c_server.content)
    progress.close.assert_called_once_with()
    assert fetch("CIFAR-10-C", tmp_path / "data") == folder
    assert cifar10c_server.n_requests == 1, "existing files are not downloaded again"


def test_fetch_retries_after_a_temporary_error_and_a_broken_connection(tmp_path, cifar10c_server):
    cifar10c_server.statuses, cifar10c_server.cuts = [503], [5000]
    fetch("CIFAR-10-C", tmp_path)
    assert_complete(tmp_path)
    assert cifar10c_server.n_requests == 3


@pytest.mark.parametrize("fault", ["another hash", "404"])
def test_fetch_leaves_no_file_after_a_failure(tmp_path, cifar10c_server, fault):
    if fault == "404":
        cifar10c_server.statuses = [404] * 9
    else:
        cifar10c_server.content = cifar10c_server.content[:-1] + b"\x01"
    with pytest.raises(
        DatasetError, match=rf"expected the file CIFAR-10-C.tar \([\d,]+ bytes, sha256 \w+\), .*{fault}"
    ):
        fetch("CIFAR-10-C", tmp_path)
    assert names_in(tmp_path) == []


@pytest.mark.usefixtures("server")  # the fixture removes the delay between attempts
def test_fetch_error_explains_the_manual_download_without_a_network(tmp_path, change_download):
    with socket.create_server(("127.0.0.1", 0)) as closed_server:
        url = f"http://127.0.0.1:{closed_server.getsockname()[1]}/cifar-10-binary.tar.gz"
    change_download("cifar10", url=url)
    with pytest.raises(DatasetError, match=rf"{url}: .*c32a1d4ab5d03f1284b67883e8d87530.*{tmp_path} yourself"):
        fetch("cifar10", tmp_path)
    assert names_in(tmp_path) == []


@pytest.mark.parametrize("damage", ["truncated", "not a tar archive", "missing member", "member outside"])
def test_fetch_leaves_no_folder_after_an_invalid_archive(tmp_path, cifar10c_server, change_download, damage):
    contents = {
        "truncated": cifar10c_server.content[:300_000],
        "not a tar archive": b"\x1f\x8b no tar",
        "missing member": make_tar({"CIFAR-10-C/fog.npy": FILES["CIFAR-10-C/fog.npy"]}),
        "member outside": make_tar({**FILES, "../../escaped": b"x"}),
    }
    cifar10c_server.content = contents[damage]
    change_download("CIFAR-10-C", checksum=sha256(cifar10c_server.content))
    data_folder = tmp_path / "some" / "data"
    with pytest.raises(DatasetError):
        fetch("CIFAR-10-C", data_folder)
    assert names_in(data_folder) == []
    assert names_in(tmp_path / "some") == ["data"]


@pytest.mark.parametrize("is_complete", [True, False])
def test_fetch_keeps_a_folder_that_another_process_finished_first(tmp_path, cifar10c_server, monkeypatch, is_complete):
    unpack = fetch_module._unpack

    def unpack_after_another_process(archive: Path, scratch: Path, entry: registry.Download) -> Path:
        folder = unpack(archive, scratch, entry)
        shutil.copytree(folder, tmp_path / "CIFAR-10-C")
        if not is_complete:
            (tmp_path / "CIFAR-10-C" / "fog.npy").unlink()
        return folder

    monkeypatch.setattr(fetch_module, "_unpack", unpack_after_another_process)
    if is_complete:
        fetch("CIFAR-10-C", tmp_path)
        assert_complete(tmp_path)
    else:
        with pytest.raises(DatasetError, match=r"missing, such as fog\.npy"):
            fetch("CIFAR-10-C", tmp_path)
    assert names_in(tmp_path) == ["CIFAR-10-C"]


# --- manually placed archives


def test_fetch_verifies_and_keeps_an_archive_placed_manually(tmp_path, cifar10c_server):
    (tmp_path / "CIFAR-10-C.tar").write_bytes(cifar10c_server.content)
    fetch("CIFAR-10-C", tmp_path)
    assert_complete(tmp_path)
    assert names_in(tmp_path) == ["CIFAR-10-C", "CIFAR-10-C.tar"]
    shutil.rmtree(tmp_path / "CIFAR-10-C")
    (tmp_path / "CIFAR-10-C.tar").write_bytes(b"x" * len(cifar10c_server.content))
    with pytest.raises(DatasetError, match=r"Verifying failed for .*CIFAR-10-C.tar: expected sha256"):
        fetch("CIFAR-10-C", tmp_path)
    assert names_in(tmp_path) == ["CIFAR-10-C.tar"]
    assert cifar10c_server.n_requests == 0


def test_fetch_verifies_an_existing_folder(tmp_path, cifar10c_server):
    folder = fetch("CIFAR-10-C", tmp_path)
    (folder / "fog.npy").write_bytes(b"\x01" + FILES["CIFAR-10-C/fog.npy"][1:])
    with pytest.raises(DatasetError, match=r"Verifying failed for .*fog.npy: expected sha256"):
        fetch("CIFAR-10-C", tmp_path)
    (folder / "fog.npy").unlink()
    with pytest.raises(DatasetError, match=r"missing, such as fog.npy \(.*Move the folder away"):
        fetch("CIFAR-10-C", tmp_path)


def test_fetch_verifies_imagenet16_placed_manually(tmp_path, change_download):
    with pytest.raises(DatasetError, match=rf"in {tmp_path}/ImageNet16, 11 files are missing.*image-net\.org"):
        fetch("ImageNet16-120", tmp_path)
    (tmp_path / "ImageNet16").mkdir()
    (tmp_path / "ImageNet16" / "val_data").write_bytes(b"val")
    change_download("ImageNet16-120", members={"val_data": sha256(b"val")})
    assert fetch("ImageNet16-120", tmp_path) == tmp_path / "ImageNet16"
    change_download("ImageNet16-120", members={"val_data": sha256(b"lav")})
    with pytest.raises(DatasetError, match="val_data"):
        fetch("ImageNet16-120", tmp_path)


# --- the registry


@pytest.mark.parametrize("name", registry.downloads())
def test_registry_entry_is_complete(name):
    entry = registry.find_download(name)
    lengths = {"md5": 32, "sha256": 64}
    assert entry.source
    assert entry.folder
    assert entry.members
    for checksum in (entry.checksum, *entry.members.values()):
        assert checksum.digest is None or re.fullmatch(rf"[0-9a-f]{{{lengths[checksum.algorithm]}}}", checksum.digest)
    if entry.kind == "manual":
        assert all(checksum.digest for checksum in entry.members.values())
    else:
        assert entry.checksum.digest
        assert entry.checksum.size
        assert entry.file
    assert (entry.kind == "archive") == entry.url.startswith("https://")
