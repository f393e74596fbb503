"""Commands on results folders of an unknown version, on paths that are in use, and on a full disk."""

import errno
import json
import os
from pathlib import Path

import pytest

from tests.conftest import read_tree


def shard_paths(results: Path) -> list[Path]:
    return sorted((results / "shards").rglob("*.parquet"))


def test_commands_reject_results_of_unknown_format_version(robust201, write_sweep, finished_results, tmp_path):
    path = finished_results / "format.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"version": 99}))
    tree_before = read_tree(tmp_path)
    for arguments in (
        ("status", finished_results),
        ("export", finished_results, "--out", tmp_path / "json"),
        ("merge", finished_results, "--out", tmp_path / "both"),
        ("merge", finished_results, "--compact"),
        ("verify", finished_results),
        ("run", write_sweep()),
    ):
        assert "99" in robust201(*arguments).error_line(exit_code=2)
    assert read_tree(tmp_path) == tree_before


@pytest.mark.parametrize("content", ["file", "below a file", "export"])
def test_run_rejects_results_path_in_use(robust201, write_sweep, tiny_weights, tmp_path, content):
    path_in_use = tmp_path / "taken"
    if content in {"file", "below a file"}:
        path_in_use.write_text("mine")
    else:
        path_in_use.mkdir()
        (path_in_use / "meta.json").write_text("mine")
    sweep = write_sweep(results=str(path_in_use / "x" if content == "below a file" else path_in_use))
    tree_before = read_tree(tmp_path)
    robust201("run", sweep).error_line(exit_code=2)
    assert read_tree(tmp_path) == tree_before


def test_full_disk_stops_run_without_losing_results(robust201, write_sweep, finished_results, tmp_path, monkeypatch):
    original_fsync, results, synced_descriptors = os.fsync, tmp_path / "fresh", []

    def fsync_until_full(descriptor: int) -> None:
        if ".parquet" in str(Path(f"/proc/self/fd/{descriptor}").readlink()):
            synced_descriptors.append(descriptor)
            if len(synced_descriptors) > 3:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        original_fsync(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fsync_until_full)
        command_result = robust201("run", write_sweep(), "--out", results)
    error_line = command_result.error_line(exit_code=4)
    assert "the disk is full" in error_line
    assert "Free some space and run the same command again" in error_line
    assert len(shard_paths(results)) == 3
    assert not [name for name in read_tree(results) if name.endswith((".tmp", "lock.json"))]
    assert not json.loads(robust201("status", "--json", results).out)["running"]
    assert robust201("run", write_sweep(), "--out", results).code == 0
    for folder in (results, finished_results):
        assert robust201("export", folder, "--out", tmp_path / f"{folder.name}-json").code == 0
    assert read_tree(tmp_path / "fresh-json") == read_tree(tmp_path / "results-json")
