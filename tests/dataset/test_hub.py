"""Uploads to a local fake of the Hugging Face Hub, with the real huggingface_hub."""

import base64
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import huggingface_hub.constants
import pytest

from robust201.core.errors import ConfigError, ResultsError, StorageError
from robust201.dataset.hub import PAGE_FILE, parse_target, push
from tests.conftest import RunCommand
from tests.support.fabricated import export, make_plan

REPOSITORY_NAME = "me/my-robustness"


class FakeHub(ThreadingHTTPServer):
    """A server that handles the requests of a push, and stores the uploaded files."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), HubRequestHandler)
        self.files: dict[str, bytes] = {}
        self.created: list[dict] = []
        self.tokens: set[str | None] = set()
        self.rejects_requests = False

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class HubRequestHandler(BaseHTTPRequestHandler):
    server: FakeHub

    def log_message(self, *arguments: object) -> None:
        pass

    def do_GET(self) -> None:
        if self.server.rejects_requests:
            self._send_json({"error": "no"}, 401)
            return
        entries = [{"type": "file", "path": name, "size": 1, "oid": "0"} for name in self.server.files]
        self._send_json(entries if "/tree/" in self.path else {})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.tokens.add(self.headers.get("Authorization"))
        if self.server.rejects_requests:
            self._send_json({"error": "no"}, 401)
        elif self.path == "/api/repos/create":
            self.server.created.append(json.loads(body))
            self._send_json({"url": f"{self.server.url}/datasets/{REPOSITORY_NAME}"})
        elif "/preupload/" in self.path:
            requested_files = json.loads(body)["files"]
            modes = [
                {"path": entry["path"], "uploadMode": "regular", "shouldIgnore": False} for entry in requested_files
            ]
            self._send_json({"files": modes})
        elif "/commit/" in self.path:
            for line in map(json.loads, body.splitlines()):
                value = line["value"]
                if line["key"] == "file":
                    self.server.files[value["path"]] = base64.b64decode(value["content"])
                elif line["key"] == "deletedFile":
                    del self.server.files[value["path"]]
            url = f"{self.server.url}/datasets/{REPOSITORY_NAME}/commit/0123"
            self._send_json({"success": True, "commitOid": "0123", "commitUrl": url, "hookOutput": ""})
        else:
            self._send_json({"errors": [], "warnings": []})

    def _send_json(self, value: object, status: int = 200) -> None:
        content = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    server = FakeHub()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", server.url)
    monkeypatch.setenv("HF_TOKEN", "hf_fake_token")
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    folder = tmp_path / "dataset"
    export(folder, make_plan([0, 2], ["clean", "pgd"]), formats=("json", "parquet"))
    (folder / "private-notes.txt").write_text("not part of the export")
    return folder


def test_export_uploads_listed_files_and_page(
    hub: FakeHub, finished_results: Path, tmp_path: Path, robust201: RunCommand
) -> None:
    dataset = tmp_path / "exported"
    hub.files = {"parquet/dataset=cifar10/key=old/part-0.parquet": b"", "LICENSE": b"mine"}
    arguments = ("export", finished_results, "--out", dataset, "--push")
    assert "Write hf://USER/NAME" in robust201(*arguments, "me/my-robustness").error_line(2)
    assert not dataset.exists()
    result = robust201(*arguments, f"hf://{REPOSITORY_NAME}")
    assert result.code == 0, result.err
    listed_names = {line.split("  ")[1] for line in (dataset / "SHA256SUMS").read_text().splitlines()}
    assert set(hub.files) == {*listed_names, "SHA256SUMS", PAGE_FILE, "LICENSE"}
    for name in (*listed_names, "SHA256SUMS"):
        assert hub.files[name] == (dataset / name).read_bytes()
    page = hub.files[PAGE_FILE].decode()
    assert "no network is clearly above chance" in page
    (created_repository,) = hub.created
    assert (created_repository["name"], created_repository["organization"], created_repository["type"]) == (
        "my-robustness",
        "me",
        "dataset",
    )
    assert created_repository.get("private") is True or created_repository.get("visibility") == "private"
    assert hub.tokens == {"Bearer hf_fake_token"}
    assert f"{hub.url}/datasets/{REPOSITORY_NAME}" in result.out


def test_push_rejects_invalid_targets_and_changed_files(hub: FakeHub, dataset: Path, tmp_path: Path) -> None:
    for target in (
        "me/my-robustness",
        "hf://me",
        "hf://a/b/c",
        "hf://../x",
    ):
        with pytest.raises(ConfigError, match="Write hf://USER/NAME"):
            parse_target(target)
    assert parse_target("hf://datasets/Me_1/a.b-c_d") == "Me_1/a.b-c_d"
    page = tmp_path / PAGE_FILE
    page.write_text("page")
    push(dataset, f"hf://{REPOSITORY_NAME}", page)
    assert PAGE_FILE in hub.files
    assert "private-notes.txt" not in hub.files
    hub.rejects_requests = True
    with pytest.raises(StorageError, match="hf auth login"):
        push(dataset, f"hf://{REPOSITORY_NAME}", page)
    (dataset / "meta.json").write_text("{}")
    with pytest.raises(ResultsError, match=r"meta\.json: the file does not match SHA256SUMS"):
        push(dataset, f"hf://{REPOSITORY_NAME}", page)
    (dataset / "SHA256SUMS").unlink()
    with pytest.raises(ResultsError, match="the folder has no SHA256SUMS"):
        push(dataset, f"hf://{REPOSITORY_NAME}", page)
