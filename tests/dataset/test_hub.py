"""Uploads to the Hugging Face Hub: what is passed to huggingface_hub, and what is rejected."""

from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub.errors import HFValidationError

from robust201.core.errors import ConfigError, ResultsError, StorageError
from robust201.dataset.hub import PAGE_FILE, parse_target, push
from tests.conftest import RunCommand
from tests.support.fabricated import export, make_plan

REPOSITORY = "me/my-robustness"


class FakeHub:
    """A substitute for `HfApi` that records its calls."""

    def __init__(self) -> None:
        self.calls: dict[str, dict[str, Any]] = {}
        self.rejects_requests = False

    def create_repo(self, repository: str, **arguments: Any) -> str:
        if self.rejects_requests:
            raise HFValidationError("no")
        self.calls["create"] = arguments | {"repository": repository}
        return f"https://hub/datasets/{repository}"

    def upload_folder(self, **arguments: Any) -> None:
        self.calls["folder"] = arguments

    def upload_file(self, **arguments: Any) -> None:
        self.calls["report"] = arguments | {"content": Path(arguments["path_or_fileobj"]).read_text()}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    fake = FakeHub()
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda: fake)
    return fake


@pytest.mark.usefixtures("without_figures")
def test_export_uploads_listed_files_and_report(
    hub: FakeHub, finished_results: Path, tmp_path: Path, robust201: RunCommand
) -> None:
    dataset = tmp_path / "exported"
    arguments = ("export", finished_results, "--out", dataset, "--push")
    assert "Write hf://USER/NAME" in robust201(*arguments, REPOSITORY).error_line(exit_code=2)
    assert not dataset.exists()
    result = robust201(*arguments, f"hf://{REPOSITORY}")
    assert result.code == 0, result.err
    assert f"https://hub/datasets/{REPOSITORY}" in result.out
    assert hub.calls["create"] == {
        "repository": REPOSITORY,
        "repo_type": "dataset",
        "private": True,
        "exist_ok": True,
    }
    listed_files = {line.split("  ")[1] for line in (dataset / "SHA256SUMS").read_text().splitlines()}
    assert {*hub.calls["folder"]["allow_patterns"]} == {*listed_files, "SHA256SUMS"}
    assert (hub.calls["folder"]["folder_path"], hub.calls["folder"]["repo_id"]) == (dataset, REPOSITORY)
    assert hub.calls["folder"]["delete_patterns"] == ["parquet/*", "images/*"]
    assert hub.calls["report"]["path_in_repo"] == PAGE_FILE
    assert "no network is clearly above chance" in hub.calls["report"]["content"]


@pytest.mark.parametrize("target", [REPOSITORY, "hf://me", "hf://a/b/c", "hf://../x"])
def test_parse_target_accepts_only_names_of_repositories(target: str) -> None:
    with pytest.raises(ConfigError, match="Write hf://USER/NAME"):
        parse_target(target)
    assert parse_target("hf://datasets/Me_1/a.b-c_d") == "Me_1/a.b-c_d"


def test_push_reports_rejected_uploads_and_damaged_folders(hub: FakeHub, tmp_path: Path) -> None:
    dataset, report = tmp_path / "dataset", tmp_path / PAGE_FILE
    export(dataset, make_plan([0, 2], ["clean", "pgd"]))
    report.write_text("report")
    hub.rejects_requests = True
    with pytest.raises(StorageError, match="hf auth login"):
        push(dataset, f"hf://{REPOSITORY}", report)
    (dataset / "meta.json").write_text("{}")
    with pytest.raises(ResultsError, match=r"meta\.json"):
        push(dataset, f"hf://{REPOSITORY}", report)
    (dataset / "SHA256SUMS").unlink()
    with pytest.raises(ResultsError, match="SHA256SUMS"):
        push(dataset, f"hf://{REPOSITORY}", report)
    assert hub.calls == {}
