"""HTTP server on loopback with configurable faults, and the files that it serves."""

import dataclasses
import hashlib
import io
import tarfile
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from robust201.images.downloads import registry
from robust201.images.downloads.registry import Checksum


class Server(ThreadingHTTPServer):
    """Server of a single file, with the faults that a test configures."""

    content = b""
    statuses: list[int]  # status codes of the first responses; 0 for a normal response
    cuts: list[int]  # numbers of bytes after which the first normal responses end, one per response
    n_requests = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/data.tar"


class Handler(BaseHTTPRequestHandler):
    """Answers GET requests with the server's content and faults."""

    server: Server

    def do_GET(self) -> None:
        server = self.server
        server.n_requests += 1
        status = server.statuses.pop(0) if server.statuses else 0
        if status:
            self.send_error(status)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(server.content)))
        self.end_headers()
        self.wfile.write(server.content[: server.cuts.pop(0)] if server.cuts else server.content)

    def log_message(self, *args: object) -> None:
        """Discard the message."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr("pooch.core.time.sleep", lambda _seconds: None)
    monkeypatch.setenv("NO_PROXY", "*")
    with Server(("127.0.0.1", 0), Handler) as server:
        server.statuses, server.cuts = [], []
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


FILES = {"CIFAR-10-C/labels.npy": b"labels" * 50, "CIFAR-10-C/fog.npy": bytes(range(256)) * 3000}
"""Contents of the files of a small CIFAR-10-C, by path in the archive."""


def make_tar(files: dict[str, bytes]) -> bytes:
    """Return a tar archive of `files` (contents by name)."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return stream.getvalue()


def sha256(content: bytes) -> Checksum:
    return Checksum("sha256", hashlib.sha256(content).hexdigest(), len(content))


ChangeDownload = Callable[..., None]


@pytest.fixture
def change_download(monkeypatch: pytest.MonkeyPatch) -> ChangeDownload:
    """Return a function that replaces fields of one entry of the download registry."""

    def replace(name: str, **fields: object) -> None:
        entries = dict(registry.downloads())
        entries[name] = dataclasses.replace(entries[name], **fields)  # type: ignore[arg-type]
        monkeypatch.setattr(registry, "downloads", lambda: entries)

    return replace


@pytest.fixture
def cifar10c_server(server: Server, change_download: ChangeDownload) -> Server:
    """Serve a small archive as CIFAR-10-C, and change the registry's entry for CIFAR-10-C accordingly."""
    server.content = make_tar(FILES)
    members = {Path(name).name: sha256(content) for name, content in FILES.items()}
    change_download("CIFAR-10-C", url=server.url, checksum=sha256(server.content), members=members)
    return server


def assert_complete(folder: Path) -> None:
    for name, content in FILES.items():
        assert (folder / name).read_bytes() == content


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())
