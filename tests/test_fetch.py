"""Downloads against a real HTTP server on loopback: resumed, refused, damaged, hostile; and what needs no network."""

import dataclasses
import errno
import fcntl
import hashlib
import importlib.util
import io
import re
import socket
import tarfile
import threading
import zipfile
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from pipeline.datasets import DATASETS, load_images, registry, transfer
from pipeline.datasets.fetch import fetch
from pipeline.datasets.registry import Checksum
from pipeline.errors import ConfigError, DatasetError, StorageFullError


class Server(ThreadingHTTPServer):
    """Serves one content, and behaves as badly as a test asks for."""

    content = b""
    ranges = True
    sends_length = True
    statuses: list[int]  # answers to the first requests; 0 for an ordinary one
    cuts: list[int]  # bytes after which the connection of the first ordinary requests is cut
    asked: list[str]  # Range header of every request

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/data.tar"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        server = self.server
        wanted = self.headers.get("Range", "")
        server.asked.append(wanted)
        status = server.statuses.pop(0) if server.statuses else 0
        start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted and server.ranges else 0
        if status or start >= len(server.content) > 0:
            self.send_error(status or 416)
            return
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(server.content) - 1}/{len(server.content)}")
        if server.sends_length:
            self.send_header("Content-Length", str(len(server.content) - start))
        self.end_headers()
        body = server.content[start:]
        self.wfile.write(body[: server.cuts.pop(0)] if server.cuts else body)

    def log_message(self, *args: object) -> None:
        """Keep the tests' output clean."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(transfer, "BACKOFF_SECONDS", (0.0, 0.0))
    monkeypatch.setenv("NO_PROXY", "*")
    with Server(("127.0.0.1", 0), Handler) as running:
        running.statuses, running.cuts, running.asked = [], [], []
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


FILES = {"CIFAR-10-C/labels.npy": b"labels" * 50, "CIFAR-10-C/fog.npy": bytes(range(256)) * 3000}


def make_tar(files: dict[str, bytes], *others: tarfile.TarInfo) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
        for member in others:
            tar.addfile(member)
    return stream.getvalue()


def sha256(content: bytes) -> Checksum:
    return Checksum("sha256", hashlib.sha256(content).hexdigest(), len(content))


Publish = Callable[..., None]


@pytest.fixture
def publish(monkeypatch: pytest.MonkeyPatch) -> Publish:
    """Replace fields of one entry of the registry."""

    def replace(name: str, **fields: object) -> None:
        changed = dict(registry.downloads())
        changed[name] = dataclasses.replace(changed[name], **fields)  # type: ignore[arg-type]
        monkeypatch.setattr(registry, "downloads", lambda: changed)

    return replace


@pytest.fixture
def corrupted(server: Server, publish: Publish) -> Server:
    """A server that holds a small CIFAR-10-C, known to the registry."""
    server.content = make_tar(FILES)
    members = {Path(name).name: sha256(content) for name, content in FILES.items()}
    publish("CIFAR-10-C", url=server.url, checksum=sha256(server.content), members=members)
    return server


def assert_whole(folder: Path) -> None:
    for name, content in FILES.items():
        assert (folder / name).read_bytes() == content


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# --- the transfer


def test_whole_download_is_unpacked_and_its_archive_removed(tmp_path: Path, corrupted: Server) -> None:
    seen: list[tuple[int, int | None]] = []
    folder = fetch("CIFAR-10-C", tmp_path / "data", progress=lambda done, total: seen.append((done, total)))
    assert folder == tmp_path / "data" / "CIFAR-10-C"
    assert_whole(folder.parent)
    assert names_in(tmp_path / "data") == ["CIFAR-10-C"]
    size = len(corrupted.content)
    assert seen[-1] == (size, size)
    assert seen == sorted(seen)
    assert len(seen) > 1
    assert corrupted.asked == [""]
    assert fetch("CIFAR-10-C", tmp_path / "data") == folder
    assert corrupted.asked == [""], "what is there is not downloaded again"


def test_broken_connections_are_continued_where_they_stopped(tmp_path: Path, corrupted: Server) -> None:
    corrupted.cuts = [100_000, 1, 300_000]
    fetch("CIFAR-10-C", tmp_path)
    assert_whole(tmp_path)
    assert corrupted.asked == ["", "bytes=100000-", "bytes=100001-", "bytes=400001-"]


def test_a_later_call_continues_an_interrupted_one(tmp_path: Path, corrupted: Server) -> None:
    corrupted.cuts, corrupted.statuses = [5000], [0, 503, 503, 503]
    with pytest.raises(DatasetError, match=r"HTTP status 503.*; 5,000 bytes are kept in CIFAR-10-C.tar.part"):
        fetch("CIFAR-10-C", tmp_path)
    assert names_in(tmp_path) == ["CIFAR-10-C.tar.part"]
    fetch("CIFAR-10-C", tmp_path)
    assert_whole(tmp_path)
    assert names_in(tmp_path) == ["CIFAR-10-C"]
    assert corrupted.asked[-1] == "bytes=5000-"


def test_server_without_ranges_sends_everything_again(tmp_path: Path, corrupted: Server) -> None:
    corrupted.ranges, corrupted.cuts = False, [5000]
    fetch("CIFAR-10-C", tmp_path)
    assert_whole(tmp_path)
    assert corrupted.asked == ["", "bytes=5000-"]


def test_server_that_does_not_say_the_length(tmp_path: Path, corrupted: Server) -> None:
    corrupted.sends_length = False
    seen: list[int | None] = []
    fetch("CIFAR-10-C", tmp_path, progress=lambda _, total: seen.append(total))
    assert_whole(tmp_path)
    assert set(seen) == {None}


@pytest.mark.parametrize("left", ["whole", "longer", "of another version"])
def test_part_file_that_is_not_a_beginning(tmp_path: Path, corrupted: Server, left: str) -> None:
    content = {"whole": corrupted.content, "longer": corrupted.content + b"x", "of another version": b"y" * 4000}[left]
    (tmp_path / "CIFAR-10-C.tar.part").write_bytes(content)
    fetch("CIFAR-10-C", tmp_path)
    assert_whole(tmp_path)
    assert len(corrupted.asked) == (1 if left == "whole" else 2)


def test_passing_statuses_are_tried_again(tmp_path: Path, corrupted: Server) -> None:
    corrupted.statuses = [503, 429]
    fetch("CIFAR-10-C", tmp_path)
    assert_whole(tmp_path)


def test_wrong_checksum_leaves_nothing(tmp_path: Path, corrupted: Server) -> None:
    corrupted.content = corrupted.content[:-1] + b"\x01"
    with pytest.raises(DatasetError) as caught:
        fetch("CIFAR-10-C", tmp_path)
    assert re.search(
        r"expected the file CIFAR-10-C.tar \([\d,]+ bytes, sha256 \w{64}\), got another", str(caught.value)
    )
    assert names_in(tmp_path) == []


def test_missing_file_is_reported_at_once(tmp_path: Path, corrupted: Server) -> None:
    corrupted.statuses = [404]
    with pytest.raises(DatasetError, match="HTTP status 404"):
        fetch("CIFAR-10-C", tmp_path)
    assert len(corrupted.asked) == 1
    assert names_in(tmp_path) == []


def test_without_a_network_one_line_says_what_to_do(
    tmp_path: Path, publish: Publish, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.setattr(transfer.time, "sleep", lambda _: pytest.fail("nothing to wait for without a network"))
    with socket.create_server(("127.0.0.1", 0)) as free:
        url = f"http://127.0.0.1:{free.getsockname()[1]}/cifar-10-binary.tar.gz"
    publish("cifar10", url=url)
    with pytest.raises(DatasetError) as caught:
        fetch("cifar10", tmp_path)
    assert caught.value.exit_code == 2
    message = str(caught.value)
    for words in (url, "cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530", str(tmp_path), "by hand"):
        assert words in message
    assert "\n" not in message
    assert names_in(tmp_path) == []


def test_addresses_other_than_http_are_refused(tmp_path: Path, publish: Publish) -> None:
    (tmp_path / "secret").write_bytes(b"x")
    publish("cifar10", url=(tmp_path / "secret").as_uri())
    with pytest.raises(DatasetError, match="neither http nor https"):
        fetch("cifar10", tmp_path / "data")


def test_second_download_of_the_same_file_is_refused(tmp_path: Path, corrupted: Server) -> None:
    with (tmp_path / "CIFAR-10-C.tar.part").open("wb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(DatasetError, match="got one under way"):
            fetch("CIFAR-10-C", tmp_path)
    assert corrupted.asked == []


def test_full_disk_and_missing_rights_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(StorageFullError, match="No space"), transfer.writing_to(tmp_path):
        raise OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(DatasetError, match="Permission denied"), transfer.writing_to(tmp_path):
        raise PermissionError(errno.EACCES, "Permission denied")
    (tmp_path / "file").touch()
    with pytest.raises(DatasetError, match="expected a folder that can be written to"):
        fetch("cifar10", tmp_path / "file" / "data")


# --- unpacking


def link(name: str, target: str, kind: bytes = tarfile.SYMTYPE) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, target
    return member


@pytest.mark.parametrize(
    ("files", "others"),
    [
        ({"CIFAR-10-C/../../escaped": b"x"}, []),
        ({"../escaped": b"x"}, []),
        ({"{tmp}/escaped": b"x"}, []),
        ({"elsewhere/escaped": b"x"}, []),
        ({}, [link("CIFAR-10-C/out", "../..")]),
        ({}, [link("CIFAR-10-C/out", "/etc/passwd", tarfile.LNKTYPE)]),
        ({}, [link("CIFAR-10-C/out", "", tarfile.FIFOTYPE)]),
    ],
)
def test_tar_that_escapes_is_refused_whole(
    tmp_path: Path, corrupted: Server, publish: Publish, files: dict[str, bytes], others: list[tarfile.TarInfo]
) -> None:
    files = {name.format(tmp=tmp_path): content for name, content in files.items()}
    corrupted.content = make_tar({**FILES, **files}, *others)
    publish("CIFAR-10-C", checksum=sha256(corrupted.content))
    data = tmp_path / "some" / "data"
    with pytest.raises(DatasetError, match="expected regular files below CIFAR-10-C/, got"):
        fetch("CIFAR-10-C", data)
    assert names_in(data) == ["CIFAR-10-C.tar"]
    assert names_in(tmp_path) == ["some"]
    assert names_in(data.parent) == ["data"]


@pytest.mark.parametrize("damage", ["cut", "no tar", "member missing", "member changed"])
def test_archive_that_is_not_what_it_should_be_leaves_no_folder(
    tmp_path: Path, corrupted: Server, publish: Publish, damage: str
) -> None:
    words = {
        "cut": (corrupted.content[:300_000], "expected a whole tar"),
        "no tar": (b"\x1f\x8b no tar", "expected a whole tar"),
        "member missing": (make_tar({"CIFAR-10-C/fog.npy": FILES["CIFAR-10-C/fog.npy"]}), "none named labels.npy"),
        "member changed": (make_tar({**FILES, "CIFAR-10-C/labels.npy": b"y" * 300}), "Verifying failed for labels.npy"),
    }
    corrupted.content, message = words[damage]
    publish("CIFAR-10-C", checksum=sha256(corrupted.content))
    with pytest.raises(DatasetError, match=message):
        fetch("CIFAR-10-C", tmp_path)
    assert names_in(tmp_path) == ["CIFAR-10-C.tar"]


def test_unpacked_cifar_loads_and_a_flipped_bit_is_found(
    tmp_path: Path, server: Server, publish: Publish, monkeypatch: pytest.MonkeyPatch
) -> None:
    labels = np.arange(5, dtype=np.uint8)
    content = np.hstack([labels[:, None], np.full((5, 3072), 7, np.uint8)]).tobytes()
    server.content = make_tar({"cifar-10-batches-bin/test_batch.bin": content})
    members = {"test_batch.bin": Checksum("md5", None, len(content))}
    publish("cifar10", url=server.url, checksum=sha256(server.content), members=members)
    monkeypatch.setitem(DATASETS, "cifar10", dataclasses.replace(DATASETS["cifar10"], n_test=5))
    fetch("cifar10", tmp_path)
    np.testing.assert_array_equal(load_images("cifar10", path=tmp_path).labels, labels)
    file = tmp_path / "cifar-10-batches-bin" / "test_batch.bin"
    file.write_bytes(content[:-1] + b"\x06")
    with pytest.raises(DatasetError, match="expected sha256"):
        load_images("cifar10", path=tmp_path)


# --- by hand


def test_archive_put_there_by_hand_is_verified_used_and_kept(tmp_path: Path, corrupted: Server) -> None:
    (tmp_path / "CIFAR-10-C.tar").write_bytes(corrupted.content)
    fetch("CIFAR-10-C", tmp_path)
    assert_whole(tmp_path)
    assert names_in(tmp_path) == ["CIFAR-10-C", "CIFAR-10-C.tar"]
    assert corrupted.asked == []


def test_wrong_archive_put_there_by_hand_is_refused_and_kept(tmp_path: Path, corrupted: Server) -> None:
    (tmp_path / "CIFAR-10-C.tar").write_bytes(b"x" * len(corrupted.content))
    with pytest.raises(DatasetError, match=r"Verifying failed for .*CIFAR-10-C.tar: expected sha256"):
        fetch("CIFAR-10-C", tmp_path)
    assert names_in(tmp_path) == ["CIFAR-10-C.tar"]


def test_folder_that_is_there_is_verified(tmp_path: Path, corrupted: Server) -> None:
    folder = fetch("CIFAR-10-C", tmp_path)
    (folder / "fog.npy").write_bytes(b"\x01" + FILES["CIFAR-10-C/fog.npy"][1:])
    with pytest.raises(DatasetError, match=r"Verifying failed for .*fog.npy: expected sha256"):
        fetch("CIFAR-10-C", tmp_path)
    (folder / "fog.npy").unlink()
    with pytest.raises(DatasetError, match=r"expected in .* the files fog.npy \(.*Move the folder away"):
        fetch("CIFAR-10-C", tmp_path)


def test_imagenet16_is_asked_for_by_hand_and_then_verified(tmp_path: Path, publish: Publish) -> None:
    with pytest.raises(DatasetError) as caught:
        fetch("ImageNet16-120", tmp_path)
    for words in (str(tmp_path / "ImageNet16"), "val_data (md5 3410e3017fdaefba8d5073aaa65e4bd6)", "image-net.org"):
        assert words in str(caught.value)
    assert "the files train_data_batch_1 … val_data (" in str(caught.value)
    assert "), 11 in all, got" in str(caught.value)
    (tmp_path / "ImageNet16").mkdir()
    (tmp_path / "ImageNet16" / "val_data").write_bytes(b"val")
    publish("ImageNet16-120", members={"val_data": sha256(b"val")})
    assert fetch("ImageNet16-120", tmp_path) == tmp_path / "ImageNet16"
    publish("ImageNet16-120", members={"val_data": sha256(b"lav")})
    with pytest.raises(DatasetError, match="val_data"):
        fetch("ImageNet16-120", tmp_path)


# --- a wheel through pip, without a network


FROST = {"frost1.png": b"ice" * 99, "frost4.jpg": b"cold" * 99}


def make_wheel(folder: Path, frost: dict[str, bytes]) -> bytes:
    file = folder / "imagecorruptions-1.1.2-py3-none-any.whl"
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in frost.items():
            archive.writestr(f"imagecorruptions/frost/{name}", content)
        info = "imagecorruptions-1.1.2.dist-info"
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: imagecorruptions\nVersion: 1.1.2\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return file.read_bytes()


@pytest.fixture
def wheels(tmp_path: Path, publish: Publish, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that pip takes the wheel from instead of an index."""
    if importlib.util.find_spec("pip") is None:
        pytest.skip("this environment has no pip")
    folder = tmp_path / "wheels"
    folder.mkdir()
    members = {name: sha256(content) for name, content in FROST.items()}
    publish("imagecorruptions-frost", checksum=sha256(make_wheel(folder, FROST)), members=members)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def test_frost_images_are_taken_from_the_wheel_that_pip_downloads(tmp_path: Path, wheels: Path) -> None:
    folder = fetch("imagecorruptions-frost", tmp_path / "data")
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == FROST
    assert names_in(tmp_path / "data") == ["imagecorruptions-frost"]
    make_wheel(wheels, {**FROST, "frost4.jpg": b"warm"})
    with pytest.raises(DatasetError, match=r"Verifying failed for .*whl"):
        fetch("imagecorruptions-frost", tmp_path / "other")
    assert names_in(tmp_path / "other") == []


def test_wheel_that_pip_cannot_get_may_be_put_there_by_hand(tmp_path: Path, wheels: Path) -> None:
    wheel = wheels / "imagecorruptions-1.1.2-py3-none-any.whl"
    content = wheel.read_bytes()
    wheel.unlink()
    with pytest.raises(DatasetError) as caught:
        fetch("imagecorruptions-frost", tmp_path / "data")
    for words in ("imagecorruptions==1.1.2", wheel.name, sha256(content).digest or "", str(tmp_path / "data")):
        assert words in str(caught.value)
    (tmp_path / "data" / wheel.name).write_bytes(content)
    folder = fetch("imagecorruptions-frost", tmp_path / "data")
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == FROST


# --- the registry


def test_unknown_name_gets_the_closest(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"'CIFAR10-C'.*Did you mean 'CIFAR-10-C'"):
        fetch("CIFAR10-C", tmp_path)


@pytest.mark.parametrize("name", registry.downloads())
def test_entry_is_complete(name: str) -> None:
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
