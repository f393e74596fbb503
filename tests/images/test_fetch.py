"""Downloads from a real HTTP server on loopback are verified and unpacked; errors explain manual downloads."""

import dataclasses
import importlib.util
import re
import shutil
import socket
import zipfile
from pathlib import Path

import numpy as np
import pytest

from robust201.core.errors import DatasetError
from robust201.images import DATASETS, load_images
from robust201.images.downloads import fetch as fetch_module
from robust201.images.downloads import registry
from robust201.images.downloads.fetch import fetch
from robust201.images.downloads.registry import Checksum
from tests.support.download_server import FILES, ChangeDownload, Server, assert_complete, make_tar, names_in, sha256


class RecordingProgress:
    total = 0

    def __init__(self) -> None:
        self.n_bytes = 0
        self.is_closed = False

    def update(self, n_bytes: int) -> None:
        self.n_bytes += n_bytes

    def reset(self) -> None:
        self.n_bytes = 0

    def close(self) -> None:
        self.is_closed = True


def test_fetch_unpacks_and_removes_the_archive(tmp_path: Path, cifar10c_server: Server) -> None:
    progress = RecordingProgress()
    folder = fetch("CIFAR-10-C", tmp_path / "data", progress=progress)
    assert folder == tmp_path / "data" / "CIFAR-10-C"
    assert_complete(folder.parent)
    assert names_in(tmp_path / "data") == ["CIFAR-10-C"]
    assert (progress.n_bytes, progress.total, progress.is_closed) == (*[len(cifar10c_server.content)] * 2, True)
    assert fetch("CIFAR-10-C", tmp_path / "data") == folder
    assert cifar10c_server.n_requests == 1, "existing files are not downloaded again"


def test_fetch_retries_after_a_temporary_status_and_a_broken_connection(
    tmp_path: Path, cifar10c_server: Server
) -> None:
    cifar10c_server.statuses, cifar10c_server.cuts = [503], [5000]
    fetch("CIFAR-10-C", tmp_path)
    assert_complete(tmp_path)
    assert cifar10c_server.n_requests == 3


@pytest.mark.parametrize("fault", ["another file", "404"])
def test_fetch_leaves_no_file_after_a_failure(tmp_path: Path, cifar10c_server: Server, fault: str) -> None:
    if fault == "404":
        cifar10c_server.statuses = [404] * 9
    else:
        cifar10c_server.content = cifar10c_server.content[:-1] + b"\x01"
    with pytest.raises(
        DatasetError, match=rf"expected the file CIFAR-10-C.tar \([\d,]+ bytes, sha256 \w+\), .*{fault}"
    ):
        fetch("CIFAR-10-C", tmp_path)
    assert names_in(tmp_path) == []


@pytest.mark.usefixtures("server")
def test_fetch_error_explains_the_manual_download_without_a_network(
    tmp_path: Path, change_download: ChangeDownload
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed_server:
        url = f"http://127.0.0.1:{closed_server.getsockname()[1]}/cifar-10-binary.tar.gz"
    change_download("cifar10", url=url)
    with pytest.raises(DatasetError) as error:
        fetch("cifar10", tmp_path)
    assert error.value.exit_code == 2
    message = str(error.value)
    for expected_text in (url, "cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530", str(tmp_path), "yourself"):
        assert expected_text in message
    assert "\n" not in message
    assert names_in(tmp_path) == []


@pytest.mark.parametrize("damage", ["truncated", "not a tar archive", "missing member", "member outside"])
def test_fetch_leaves_no_folder_after_an_invalid_archive(
    tmp_path: Path, cifar10c_server: Server, change_download: ChangeDownload, damage: str
) -> None:
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


def test_fetch_records_hashes_that_reveal_a_flipped_bit(
    tmp_path: Path, server: Server, change_download: ChangeDownload, monkeypatch: pytest.MonkeyPatch
) -> None:
    labels = np.arange(5, dtype=np.uint8)
    content = np.hstack([labels[:, None], np.full((5, 3072), 7, np.uint8)]).tobytes()
    server.content = make_tar({"cifar-10-batches-bin/test_batch.bin": content})
    members = {"test_batch.bin": Checksum("md5", None, len(content))}
    change_download("cifar10", url=server.url, checksum=sha256(server.content), members=members)
    monkeypatch.setitem(DATASETS, "cifar10", dataclasses.replace(DATASETS["cifar10"], n_test=5))
    fetch("cifar10", tmp_path)
    np.testing.assert_array_equal(load_images("cifar10", path=tmp_path).labels, labels)
    file = tmp_path / "cifar-10-batches-bin" / "test_batch.bin"
    file.write_bytes(content[:-1] + b"\x06")
    with pytest.raises(DatasetError, match="expected sha256"):
        load_images("cifar10", path=tmp_path)


@pytest.mark.parametrize("is_complete", [True, False])
def test_fetch_keeps_the_folder_that_another_process_finished_first(
    tmp_path: Path, cifar10c_server: Server, monkeypatch: pytest.MonkeyPatch, is_complete: bool
) -> None:
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


def test_fetch_verifies_and_keeps_an_archive_placed_manually(tmp_path: Path, cifar10c_server: Server) -> None:
    (tmp_path / "CIFAR-10-C.tar").write_bytes(cifar10c_server.content)
    fetch("CIFAR-10-C", tmp_path)
    assert_complete(tmp_path)
    assert names_in(tmp_path) == ["CIFAR-10-C", "CIFAR-10-C.tar"]
    assert cifar10c_server.n_requests == 0


def test_fetch_rejects_and_keeps_a_wrong_archive_placed_manually(tmp_path: Path, cifar10c_server: Server) -> None:
    (tmp_path / "CIFAR-10-C.tar").write_bytes(b"x" * len(cifar10c_server.content))
    with pytest.raises(DatasetError, match=r"Verifying failed for .*CIFAR-10-C.tar: expected sha256"):
        fetch("CIFAR-10-C", tmp_path)
    assert names_in(tmp_path) == ["CIFAR-10-C.tar"]


def test_fetch_verifies_an_existing_folder(tmp_path: Path, cifar10c_server: Server) -> None:
    folder = fetch("CIFAR-10-C", tmp_path)
    (folder / "fog.npy").write_bytes(b"\x01" + FILES["CIFAR-10-C/fog.npy"][1:])
    with pytest.raises(DatasetError, match=r"Verifying failed for .*fog.npy: expected sha256"):
        fetch("CIFAR-10-C", tmp_path)
    (folder / "fog.npy").unlink()
    with pytest.raises(DatasetError, match=r"missing, such as fog.npy \(.*Move the folder away"):
        fetch("CIFAR-10-C", tmp_path)


def test_fetch_verifies_imagenet16_placed_manually(tmp_path: Path, change_download: ChangeDownload) -> None:
    with pytest.raises(DatasetError) as error:
        fetch("ImageNet16-120", tmp_path)
    for expected_text in (
        str(tmp_path / "ImageNet16"),
        "11 files are missing",
        "image-net.org",
    ):
        assert expected_text in str(error.value)
    (tmp_path / "ImageNet16").mkdir()
    (tmp_path / "ImageNet16" / "val_data").write_bytes(b"val")
    change_download("ImageNet16-120", members={"val_data": sha256(b"val")})
    assert fetch("ImageNet16-120", tmp_path) == tmp_path / "ImageNet16"
    change_download("ImageNet16-120", members={"val_data": sha256(b"lav")})
    with pytest.raises(DatasetError, match="val_data"):
        fetch("ImageNet16-120", tmp_path)


# --- a wheel through pip, without network access


FROST = {"frost1.png": b"ice" * 99, "frost4.jpg": b"cold" * 99}


def make_wheel(folder: Path, images: dict[str, bytes]) -> bytes:
    file = folder / "imagecorruptions-1.1.2-py3-none-any.whl"
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in images.items():
            archive.writestr(f"imagecorruptions/frost/{name}", content)
        info_folder = "imagecorruptions-1.1.2.dist-info"
        archive.writestr(f"{info_folder}/METADATA", "Metadata-Version: 2.1\nName: imagecorruptions\nVersion: 1.1.2\n")
        archive.writestr(f"{info_folder}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info_folder}/RECORD", "")
    return file.read_bytes()


@pytest.fixture
def wheels(tmp_path: Path, change_download: ChangeDownload, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder of wheels that pip uses instead of a package index."""
    if importlib.util.find_spec("pip") is None:
        pytest.skip("this environment has no pip")
    folder = tmp_path / "wheels"
    folder.mkdir()
    members = {name: sha256(content) for name, content in FROST.items()}
    change_download("imagecorruptions-frost", checksum=sha256(make_wheel(folder, FROST)), members=members)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def test_fetch_takes_frost_images_from_the_wheel(tmp_path: Path, wheels: Path) -> None:
    folder = fetch("imagecorruptions-frost", tmp_path / "data")
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == FROST
    assert names_in(tmp_path / "data") == ["imagecorruptions-frost"]
    make_wheel(wheels, {**FROST, "frost4.jpg": b"warm"})
    with pytest.raises(DatasetError, match=r"Verifying failed for .*whl"):
        fetch("imagecorruptions-frost", tmp_path / "other")
    assert names_in(tmp_path / "other") == []


def test_fetch_accepts_a_wheel_placed_manually(tmp_path: Path, wheels: Path) -> None:
    wheel = wheels / "imagecorruptions-1.1.2-py3-none-any.whl"
    content = wheel.read_bytes()
    wheel.unlink()
    with pytest.raises(DatasetError) as error:
        fetch("imagecorruptions-frost", tmp_path / "data")
    for expected_text in ("imagecorruptions==1.1.2", wheel.name, sha256(content).digest or "", str(tmp_path / "data")):
        assert expected_text in str(error.value)
    (tmp_path / "data" / wheel.name).write_bytes(content)
    folder = fetch("imagecorruptions-frost", tmp_path / "data")
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == FROST


# --- the registry


@pytest.mark.parametrize("name", registry.downloads())
def test_registry_entry_is_complete(name: str) -> None:
    entry = registry.download(name)
    lengths = {"md5": 32, "sha256": 64}
    assert entry.title
    assert entry.licence
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
    assert (entry.kind == "package") == bool(entry.package and entry.package_folder)
