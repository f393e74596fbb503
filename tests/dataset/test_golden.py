"""Exports of fabricated results have the recorded bytes."""

from pathlib import Path
from typing import Any

import pytest

from robust201.core.files import sha256_of
from tests.conftest import REPOSITORY
from tests.golden.compare_demo import read_hashes
from tests.support.fabricated import export, make_plan

RECORDED_VERSION = "0.1.0"
LISTING = REPOSITORY / "tests" / "golden" / "export.sha256"
VERSION_DEPENDENT_FILES = {"README.md", "SHA256SUMS", "versions.json"}
"""Files that contain installed versions, or hashes of such files; they are not listed."""

OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {"formats": ("json", "parquet")},
    "round": {"key_style": "published", "round_to": 3},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_exports_have_recorded_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr("robust201.dataset.side_files.__version__", RECORDED_VERSION)
    export(tmp_path, make_plan((0, 2, 10, 309), datasets=("cifar10", "cifar100")), **OPTIONS[name])
    paths = [path for path in tmp_path.rglob("*") if path.is_file() and path.name not in VERSION_DEPENDENT_FILES]
    hashes = {f"{name}/{path.relative_to(tmp_path).as_posix()}": sha256_of(path) for path in paths}
    assert hashes == {file: digest for file, digest in read_hashes(LISTING).items() if file.startswith(f"{name}/")}
