"""Command line with results folders that are damaged, in use, on a full disk or in another version's format."""

import errno
import json
import os
from pathlib import Path

import pytest
import torch

from robust201.runtime.lease import Lease
from tests.conftest import read_tree
from tests.support.small_results import write_results


def shards(results: Path) -> list[Path]:
    return sorted((results / "shards").rglob("*.parquet"))


# The results folder


@pytest.mark.parametrize("file", ["format.json", "plan.json"])
def test_commands_reject_results_of_unknown_format_version(robust201, write_sweep, finished, tmp_path, file):
    content = json.loads((finished / file).read_text())
    content["version" if file == "format.json" else "format"] = 99
    (finished / file).write_text(json.dumps(content))
    before = read_tree(tmp_path)
    verbs: list[tuple[object, ...]] = [
        ("status", finished),
        ("export", finished, "--out", tmp_path / "json"),
        ("merge", finished, "--out", tmp_path / "both"),
    ]
    if file == "format.json":
        verbs += [("run", write_sweep()), ("verify", finished), ("compact", finished)]
    for arguments in verbs:
        line = robust201(*arguments).refusal(2)
        assert "99" in line
        assert "Use the version of robust201 that" in line
    assert read_tree(tmp_path) == before


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"format": 1}', '{"format": 1, "config": {}, "facts": {}}'])
def test_damaged_plan_is_rejected_and_rewritten_by_run(robust201, write_sweep, finished, content):
    (finished / "plan.json").write_text(content)
    assert str(finished) in robust201("status", finished).refusal(2)
    assert "10 done, 0 missing" in robust201("run", write_sweep()).err
    assert robust201("status", finished).code == 0


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"null", b"[]", b"half", b'{"key":', b"\x93\xff", b"[" * 100_000, b"changed"]
)
def test_run_rewrites_damaged_protocol(robust201, write_sweep, finished, content):
    for path in sorted((finished / "protocols").glob("*.json")):
        original = path.read_bytes()
        replacements = {b"half": original[: len(original) // 2], b"changed": original.replace(b":0", b":1", 1)}
        path.write_bytes(replacements.get(content, content))
    assert robust201("verify", finished).code == 4
    assert robust201("run", write_sweep()).code == 0
    assert robust201("verify", finished).code == 0


def test_run_fails_if_protocol_path_is_a_folder(robust201, write_sweep, finished):
    path = sorted((finished / "protocols").glob("*.json"))[0]
    path.unlink()
    path.mkdir()
    assert str(path) in robust201("run", write_sweep()).refusal(4)


@pytest.mark.parametrize("kind", ["file", "below a file", "export", "checkpoints", "shards"])
def test_run_rejects_results_path_in_use(robust201, write_sweep, tiny_weights, tmp_path, kind):
    path_in_use = tmp_path / "taken"
    if kind in {"file", "below a file"}:
        path_in_use.write_text("mine")
    else:
        path_in_use.mkdir()
        name = {"export": "meta.json", "checkpoints": "manifest.jsonl", "shards": "shards"}[kind]
        (path_in_use / name).write_text("mine")
    sweep = write_sweep(results=str(path_in_use / "x" if kind == "below a file" else path_in_use))
    before = read_tree(tmp_path)
    robust201("run", sweep).refusal(2)
    assert read_tree(tmp_path) == before


@pytest.mark.parametrize("kind", ["file", "foreign", "other files", "results", "inside results"])
def test_export_does_not_overwrite_existing_files(robust201, finished, tmp_path, kind):
    out = {"results": finished, "inside results": finished / "shards"}.get(kind, tmp_path / "out")
    if kind == "file":
        out.write_text("mine")
    if kind == "foreign":
        out.mkdir()
        (out / "meta.json").write_text("mine")
    if kind == "other files":
        (out / "notes").mkdir(parents=True)
    before = read_tree(tmp_path)
    robust201("export", finished, "--out", out).refusal(2)
    assert read_tree(tmp_path) == before


def test_report_requires_exported_dataset(robust201, finished, tmp_path):
    out = tmp_path / "out.svg"
    for command in (("report", finished), ("plot", "attacks", finished)):
        refusal = robust201(*command, "--out", out).refusal(2)
        assert "expected a folder with meta.json, got the results of a sweep" in refusal
        # The error contains the exact command to run.
        assert f"Run `robust201 export {finished} --out DATASET` (unfinished: --partial)" in refusal
    assert robust201("export", finished, "--out", tmp_path / "json").code == 0
    (tmp_path / "folder").mkdir()
    command_result = robust201("report", tmp_path / "json", "--out", tmp_path / "folder")
    assert str(tmp_path / "folder") in command_result.refusal(2)
    assert not out.exists()
    assert not list(tmp_path.glob(".*.tmp"))


# One driver at a time


@pytest.fixture
def lease_on(finished):
    """A live lease, held by this process, on the finished results."""
    with Lease.acquire(finished, interval_seconds=3600):
        yield finished / "lease.json"


@pytest.mark.usefixtures("lease_on")
def test_second_driver_is_rejected(robust201, write_sweep, finished, tmp_path):
    sweep = write_sweep(keys={"clean": {}, "pgd": {"steps": 1}})
    other = tmp_path / "other"
    assert robust201("run", sweep, "--out", other, "--keys", "clean").code == 0
    before = read_tree(finished)
    for arguments in (("run", sweep), ("merge", other, "--out", finished)):
        line = robust201(*arguments).refusal(4)
        assert f"process {os.getpid()} on " in line
        assert "which is alive. Wait until it ends" in line
    assert read_tree(finished) == before
    # Readers are not blocked.
    assert robust201("status", finished).code == 0
    assert robust201("export", finished, "--out", tmp_path / "json").code == 0


# Full disk


def test_full_disk_stops_run_without_losing_results(robust201, write_sweep, finished, tmp_path, monkeypatch):
    fsync, results, shards_written = os.fsync, tmp_path / "fresh", []

    def fsync_until_full(descriptor: int) -> None:
        if ".parquet" in str(Path(f"/proc/self/fd/{descriptor}").readlink()):
            shards_written.append(descriptor)
            if len(shards_written) > 3:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fsync_until_full)
        command_result = robust201("run", write_sweep(), "--out", results)
    line = command_result.refusal(4)
    assert "expected free space on the disk, got none" in line
    assert "Free some space and run the same command again" in line
    assert len(shards(results)) == 3
    assert not [name for name in read_tree(results) if name.endswith((".tmp", "lease.json"))]
    assert not json.loads(robust201("status", "--json", results).out)["running"]
    assert robust201("run", write_sweep(), "--out", results).code == 0
    for folder in (results, finished):
        assert robust201("export", folder, "--out", tmp_path / f"{folder.name}-json").code == 0
    assert read_tree(tmp_path / "fresh-json") == read_tree(tmp_path / "results-json")


# Shards


@pytest.mark.parametrize(
    "damage",
    [pytest.param("truncated", marks=pytest.mark.slow), "data", pytest.param("footer", marks=pytest.mark.slow)],
)
def test_damaged_shard_is_reported_and_recomputed(robust201, write_sweep, finished, tmp_path, damage):
    assert robust201("export", finished, "--out", tmp_path / "before").code == 0
    victim = shards(finished)[2]
    content = bytearray(victim.read_bytes())
    position = {"truncated": len(content) // 2, "data": len(content) // 3, "footer": len(content) - 40}[damage]
    content[position] ^= 1
    victim.write_bytes(content[:position] if damage == "truncated" else content)
    damaged = read_tree(tmp_path)

    line = robust201("export", finished, "--out", tmp_path / "after").refusal(4)
    assert victim.name in line
    assert "Run the sweep again: it sets the file aside" in line
    verified = robust201("verify", finished)
    assert (verified.code, verified.out) == (4, "1 problem found\n")
    assert victim.name in verified.err
    (finding,) = json.loads(robust201("verify", "--json", finished).out)["findings"]
    assert finding["kind"] == "damaged"
    assert read_tree(tmp_path) == damaged

    command_result = robust201("run", write_sweep())
    assert command_result.code == 0
    assert f"Damaged result file set aside, its evaluations are recomputed: digits/{victim.name}" in command_result.err
    assert (finished / "damaged" / "digits" / victim.name).exists()
    assert robust201("verify", finished).code == 0
    assert robust201("export", finished, "--out", tmp_path / "after").code == 0
    assert read_tree(tmp_path / "after") == read_tree(tmp_path / "before")


def test_run_fails_early_without_requested_gpu(robust201, write_sweep, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    command_result = robust201("run", write_sweep(execution={"device": "cuda"}))
    assert "PyTorch cannot use a GPU on this machine" in command_result.refusal(2)


def test_run_reports_missing_write_permission(robust201, write_sweep, finished, monkeypatch):
    replace_file = Path.replace

    def raise_permission_error(path: Path, target: Path) -> Path:
        if target.suffix == ".parquet":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return replace_file(path, target)

    before = set(shards(finished))
    monkeypatch.setattr(Path, "replace", raise_permission_error)
    command_result = robust201("run", write_sweep(keys={"clean": {}, "pgd": {"epsilons_255": [1], "steps": 1}}))
    assert "Permission denied. Check the path and its permissions" in command_result.refusal(4)
    assert set(shards(finished)) == before
    assert not list(finished.rglob("*.tmp"))


# Invalid output paths are rejected before anything is computed or written.

ACCURACIES = {"clean": {"0": 0.9, "1": 0.8}, "pgd": {"0": [0.5, 0.4], "1": [0.6, 0.5]}}


@pytest.mark.parametrize("verb", [("report",), ("plot", "attacks"), ("plot", "all")])
@pytest.mark.parametrize("out_name", ["taken.svg", "file/below.svg", ""])
def test_report_and_plot_reject_invalid_output_paths(tmp_path, monkeypatch, robust201, verb, out_name):
    write_results(tmp_path / "dataset", ACCURACIES)
    monkeypatch.chdir(tmp_path)
    if verb == ("plot", "all"):
        (tmp_path / "taken.svg").write_text("mine")  # a file in place of the output folder
        out_name = out_name or "file"
    else:
        (tmp_path / "taken.svg").mkdir()
    (tmp_path / "file").write_text("mine")
    before = read_tree(tmp_path)
    assert " failed for " in robust201(*verb, "dataset", "--out", out_name).refusal(2)
    assert read_tree(tmp_path) == before


def test_plot_rejects_figure_path_that_is_a_folder(tmp_path, robust201):
    folder = write_results(tmp_path / "dataset", ACCURACIES)
    (tmp_path / "plots/cifar10-attacks.png").mkdir(parents=True)
    assert "cifar10-attacks.png" in robust201("plot", "all", folder, "--out", tmp_path / "plots").refusal(2)


def test_report_of_current_folder_is_written_next_to_it(tmp_path, monkeypatch, robust201):
    monkeypatch.chdir(write_results(tmp_path / "dataset", ACCURACIES))
    assert robust201("report", ".").code == 0
    assert (tmp_path / "dataset-report.html").is_file()
