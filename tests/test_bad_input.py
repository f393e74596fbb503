"""Every kind of bad input, through the command line: one clear line, the right exit code, nothing half-written."""

import errno
import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pipeline.checkpoints.store import CheckpointStore
from pipeline.files import write_text
from pipeline.host import HostId
from pipeline.lease import Holder, Lease
from pipeline.spaces import nasbench201
from pipeline.spaces.network import build_network
from tests.conftest import REPOSITORY, RunCommand, WriteSweep, add_network, read_tree

NO_CELL = "|nor_conv_3x3~0|+|nor_conv_3x3~0|skip_conect~1|+|none~0|none~1|none~2|"


@pytest.fixture
def finished(robust201: RunCommand, write_sweep: WriteSweep, tmp_path: Path) -> Path:
    """The results folder of a complete sweep of ten evaluations."""
    assert robust201("run", write_sweep()).code == 0
    return tmp_path / "results"


def shards(results: Path) -> list[Path]:
    return sorted((results / "shards").rglob("*.parquet"))


# Names


@pytest.mark.parametrize(
    ("changes", "hint"),
    [
        ({"kyes": {}}, "'kyes'. Did you mean 'keys'?"),
        ({"execution": {"windw": 2}}, "'execution.windw'. Did you mean 'window'?"),
        ({"keys": {"pdg": {}}}, "'pdg'. Did you mean 'pgd'?"),
        ({"keys": {"pgd": {"step": 3}}}, "'keys.pgd.step'. Did you mean 'steps'?"),
        ({"keys": {"pgd": {"target": "least-likely"}}}, "Did you mean 'least_likely'?"),
        ({"datasets": {"digit": {}}}, "'digit'. Did you mean 'digits'?"),
        ({"datasets": {"digits": {"form": "digit"}}}, "Did you mean 'digits'?"),
        ({"measurements": ["acuracy"]}, "Did you mean 'accuracy'?"),
        ({"execution": {"executor": "rai"}}, "Did you mean 'ray'?"),
        ({"architectures": [15_625]}, "expected 0 to 15624, got 15625. The closest index is 15624."),
        ({"architectures": [-1]}, "The closest index is 0."),
        ({"architectures": ["15625"]}, "The closest index is 15624."),
        ({"architectures": [NO_CELL]}, "got 'skip_conect'. Did you mean 'skip_connect'?"),
        ({"architectures": ["conv"]}, "expected an index, or six edges"),
        ({"architectures": "evaluted"}, "Did you mean 'evaluated'?"),
        ({"architectures": [True]}, "got True among them"),
        ({"execution": {"micro_batch": True}}, "execution.micro_batch: expected no yes or no here, got True."),
        ({"seed": False}, "seed: expected no yes or no here, got False."),
        ({"keys": {"pgd": {"steps": True}}}, "keys.pgd.steps: expected no yes or no here, got True."),
        ({"keys": {"fog": {"severities": [1, True]}}}, "expected no yes or no here, got True among them."),
        ({"architectures": []}, "an empty list"),
        ({"keys": {"pgd": {"epsilons_255": [1, -2]}}}, "keys.pgd.epsilons_255.1: expected more than 0, got -2."),
        ({"keys": {"fgsm": {"epsilons_255": [0]}}}, "expected more than 0, got 0."),
        ({"keys": {"fgsm": {"epsilons_255": [256]}}}, "expected at most 255, got 256."),
        ({"keys": {"fgsm": {"epsilons_255": [".nan"]}}}, "got '.nan'."),
        ({"keys": {"fog": {"severities": [0]}}}, "keys.fog.severities.0: expected at least 1, got 0."),
        ({"keys": {}}, "at least one key"),
        ({"keys": ["pgd"]}, "expected names, each with its fields"),
        ({"images": {"count": 0}}, "images.count: expected at least 1, got 0."),
        ({"images": {"count": 451}}, "expected a count from 1 to 450, got 451."),
        ({"results": ""}, "results: expected a path, got ''."),
        ({"results": "a\0b"}, "expected a path"),
        ({"results": "${NOWHERE_AT_ALL}/x"}, "export NOWHERE_AT_ALL=FOLDER"),
        ({"results": "~nobody-of-that-name/x"}, "no such user"),
        ({"format": 2}, "format: expected 1, got 2."),
        ({"network": {"channels": 8, "cells": 1}}, "expected a network of 8 channels, 1 cells and 10 classes, got 4"),
        ({"datasets": {"digits": {"corruptions": {"source": "published", "path": "x"}}}}, "none published for this"),
    ],
)
def test_a_sweep_with_a_wrong_field_starts_nothing(
    robust201: RunCommand, write_sweep: WriteSweep, tmp_path: Path, changes: dict[str, Any], hint: str
) -> None:
    sweep = write_sweep(**changes)
    before = read_tree(tmp_path)
    ended = robust201("run", sweep)
    assert hint in ended.refusal(2)
    assert len(ended.err.splitlines()) == 1
    assert read_tree(tmp_path) == before


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        (("--keys", "pdg"), "Did you mean 'pgd'?"),
        (("--keys", "fog"), "Known: clean, fgsm, brightness."),
        (("--keys", ""), "expected names separated by commas, got none"),
        (("--datasets", "digitz"), "Did you mean 'digits'?"),
        (("--datasets", "cifar10"), "Known: digits."),
        (("--architectures", "15625"), "The closest index is 15624."),
        (("--architectures", "0-15625"), "The closest index is 15624."),
        (("--architectures", "309"), "expected some of tiny's architectures, got none"),
        (("--architectures", NO_CELL), "Did you mean 'skip_connect'?"),
        (("--architectures", ""), "expected at least one evaluated index, got none"),
        (("--executor", "inlin"), "Did you mean 'inline'?"),
        (("--workers", "0"), "expected at least 1, got 0."),
        (("--results", ""), "results: expected a path, got ''."),
    ],
)
def test_a_wrong_option_starts_nothing(
    robust201: RunCommand, write_sweep: WriteSweep, tmp_path: Path, options: tuple[str, str], hint: str
) -> None:
    sweep = write_sweep()
    before = read_tree(tmp_path)
    ended = robust201("run", sweep, *options)
    assert hint in ended.refusal(2)
    assert len(ended.err.splitlines()) == 1
    assert read_tree(tmp_path) == before


@pytest.mark.parametrize(
    ("content", "hint"),
    [
        (None, "Is a directory"),
        (b"\xff\xfe\x00sweep", "codec can't decode"),
        (b"", "an empty file"),
        (b"- a\n", "got list"),
        (b"a: b: c\n", "mapping values are not allowed"),
        (b"name: !!python/object/apply:os.abort []\n", "could not determine a constructor"),
        (b"? [1, 2]\n: 3\n", "a field without a name"),
        (b"seed: 2020-99-99\n", "month must be in 1..12"),
        (b"[" * 5_000, "recursion"),
    ],
)
def test_a_file_that_is_no_sweep(robust201: RunCommand, tmp_path: Path, content: bytes | None, hint: str) -> None:
    path = tmp_path / "sweep.yaml"
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content)
    for verb in ("run", "plan", "doctor"):
        assert hint in robust201(verb, path).refusal(2)


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (("fetch", "cifra10", "--to", "."), "Did you mean 'cifar10'?"),
        (("corrupt", "out", "--keys", "fogg"), "Did you mean 'fog'?"),
        (("corrupt", "out", "--dataset", "digitz"), "Did you mean 'digits'?"),
        (("corrupt", "out", "--count", "-5"), "expected a count from 1 to 450, got -5."),
        (("corrupt", "out", "--frost", "nowhere", "--count", "10"), "nowhere"),
        (("corrupt", "out", "--check-published"), "a dataset with published corruptions"),
        (("meta", "--key-style", "publishd"), "Did you mean 'published'?"),
        (("status", "nowhere"), "expected a results folder"),
        (("verify", "nowhere"), "expected a results folder"),
        (("compact", "nowhere"), "expected a results folder"),
        (("export", "nowhere", "out"), "expected a results folder"),
        (("merge", "nowhere", "--into", "out"), "expected a results folder"),
        (("report", "nowhere"), "expected a folder with meta.json"),
        (("import-weights", "nowhere", "--to", "out"), "no such file or folder"),
    ],
)
def test_names_of_other_verbs(
    robust201: RunCommand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], hint: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert hint in robust201(*arguments).refusal(2)
    assert read_tree(tmp_path) == {}
    assert list(tmp_path.iterdir()) == []


# Checkpoints


@pytest.fixture
def weights(tiny_weights: Path, tmp_path: Path) -> Path:
    """A checkpoint store to be damaged."""
    return shutil.copytree(tiny_weights, tmp_path / "weights")


def network_weights(index: int = 21, n_classes: int = 10) -> dict[str, torch.Tensor]:
    torch.manual_seed(index)
    network = build_network(nasbench201.architecture(index).spec, channels=4, cells=1, n_classes=n_classes)
    return network.state_dict()


@pytest.mark.parametrize("damage", ["no network", "no file", "truncated", "empty", "no manifest", "damaged manifest"])
def test_a_checkpoint_that_is_missing_or_cut_short(
    robust201: RunCommand, write_sweep: WriteSweep, weights: Path, tmp_path: Path, damage: str
) -> None:
    file = next(weights.rglob("000021*.safetensors"))
    architectures = [0, 13] if damage == "no network" else [0, 21]
    if damage == "no file":
        file.unlink()
    elif damage == "truncated":
        file.write_bytes(file.read_bytes()[:-1])
    elif damage == "empty":
        file.write_bytes(b"")
    elif damage == "no manifest":
        (weights / "manifest.jsonl").unlink()
    elif damage == "damaged manifest":
        (weights / "manifest.jsonl").write_bytes((weights / "manifest.jsonl").read_bytes().replace(b'"seed"', b'"sed"'))
    sweep = write_sweep(checkpoints={"path": str(weights)}, architectures=architectures)
    before = read_tree(tmp_path)
    for verb in ("run", "plan"):
        ended = robust201(verb, sweep)
        ended.refusal(2)
        assert len(ended.err.splitlines()) == 1
    assert read_tree(tmp_path) == before


def test_a_checkpoint_with_a_flipped_bit_fails_its_own_units_only(
    robust201: RunCommand, write_sweep: WriteSweep, weights: Path, tmp_path: Path
) -> None:
    sweep = write_sweep(checkpoints={"path": str(weights)})
    file = next(weights.rglob("000021*.safetensors"))
    whole = file.read_bytes()
    file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    ended = robust201("run", sweep)
    assert ended.code == 3
    assert "failed: 3 parts: CheckpointError: Loading weights failed for #21 digits" in ended.err
    assert "Traceback" not in ended.err
    assert json.loads(robust201("status", "--json", tmp_path / "results").out)["done"] == 5
    file.write_bytes(whole)
    assert robust201("run", sweep).code == 0


class Foreign:
    """Unpickling it would make a folder."""

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        return os.mkdir, ("made-by-a-pickle",)


def write_weights(folder: Path, damage: str) -> None:
    folder.mkdir()
    state = network_weights(n_classes=7 if damage == "another network" else 10)
    if damage == "shapes":
        first = next(iter(state))
        state[first] = state[first].transpose(0, 1).contiguous()
    if damage == "nan":
        state["classifier.weight"][3, 1] = float("nan")
    file = folder / "000021.pth"
    torch.save(state | ({"more": Foreign()} if damage == "foreign" else {}), file)
    if damage == "pickle":
        file.write_bytes(pickle.dumps(Foreign()))
    if damage == "truncated":
        file.write_bytes(file.read_bytes()[:-100])


@pytest.mark.parametrize(
    ("damage", "hint"),
    [
        ("foreign", "mkdir"),
        ("pickle", ""),
        ("truncated", ""),
        ("shapes", "the source holds another network"),
        ("nan", "classifier.weight"),
        ("missing", "expected a file of network #309"),
    ],
)
def test_weights_that_cannot_be_imported(
    robust201: RunCommand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str, hint: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write_weights(tmp_path / "source", damage)
    before = read_tree(tmp_path)
    wanted = ["--architectures", "309"] if damage == "missing" else []
    ended = robust201("import-weights", "source", "--to", "store", "--datasets", "cifar10", *wanted)
    assert hint in ended.refusal(2)
    assert len(ended.err.splitlines()) == 1
    assert read_tree(tmp_path) == before
    assert not (tmp_path / "made-by-a-pickle").exists()


def test_a_refused_network_does_not_keep_others_out(
    robust201: RunCommand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_weights(tmp_path / "source", "nan")
    torch.save(network_weights(0), tmp_path / "source" / "000000.pth")
    options = ("--to", "store", "--datasets", "cifar10", "--keep-going")
    ended = robust201("import-weights", "source", *options)
    assert (ended.code, ended.out) == (3, "Imported 1 networks into store.\n")
    (line,) = ended.err.splitlines()
    assert line.startswith("refused: ")
    assert "000021" in line
    assert [record.index for record in CheckpointStore(tmp_path / "store").records()] == [0]
    again = robust201("import-weights", "source", *options, "--format", "nats")
    assert "expected at least one network, got none" in again.refusal(2)


# Images

N_TEST = 10_000
ROW_BYTES = 1 + 3 * 32 * 32


@pytest.fixture
def cifar10_weights(tmp_path: Path) -> Path:
    folder = tmp_path / "weights"
    with CheckpointStore(folder) as store:
        add_network(store, 21, network_weights(), dataset="cifar10")
    return folder


@pytest.mark.parametrize(
    ("damage", "hint"),
    [
        ("no folder", "got no such file or folder"),
        ("no file", "test_batch.bin: expected a readable file"),
        ("size", "got 30,729,999"),
        ("checksum", "expected sha256"),
        ("label", "expected labels 0 to 9, got 10 in row 7 (1 such rows)"),
    ],
)
def test_images_that_are_missing_or_damaged(
    robust201: RunCommand, write_sweep: WriteSweep, cifar10_weights: Path, tmp_path: Path, damage: str, hint: str
) -> None:
    batches = tmp_path / "cifar10" / "cifar-10-batches-bin"
    if damage != "no folder":
        batches.mkdir(parents=True)
    if damage in {"size", "checksum", "label"}:
        rows = np.zeros((N_TEST, ROW_BYTES), np.uint8)
        rows[7, 0] = 10 if damage == "label" else 3
        content = rows.tobytes()
        (batches / "test_batch.bin").write_bytes(content[:-1] if damage == "size" else content)
    if damage == "checksum":
        (batches / "SHA256SUMS").write_text(f"{'0' * 64}  test_batch.bin\n")
    sweep = write_sweep(
        architectures=[21],
        checkpoints={"path": str(cifar10_weights)},
        datasets={"cifar10": {"path": str(tmp_path / "cifar10")}},
    )
    before = sorted(tmp_path.rglob("*"))
    corrupt = ("corrupt", tmp_path / "out", "--dataset", "cifar10", "--path", tmp_path / "cifar10")
    for arguments in (("run", sweep), ("plan", sweep), corrupt):
        ended = robust201(*arguments)
        assert hint in ended.refusal(2)
        assert len(ended.err.splitlines()) == 1
    assert sorted(tmp_path.rglob("*")) == before


def test_corrupted_images_that_were_damaged_are_refused(
    robust201: RunCommand, write_sweep: WriteSweep, finished: Path, tmp_path: Path
) -> None:
    file = tmp_path / "corruptions" / "brightness.npy"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    before = read_tree(finished)
    assert "expected sha256" in robust201("run", write_sweep()).refusal(2)
    assert read_tree(finished) == before
    file.unlink()
    assert robust201("run", write_sweep()).code == 0


@pytest.mark.parametrize(
    "change", [{"images": {"count": 20}}, {"datasets": {"digits": {"corruptions": {"source": "generated", "seed": 1}}}}]
)
def test_corrupted_images_of_another_selection_are_refused_before_anything_is_written(
    robust201: RunCommand, write_sweep: WriteSweep, finished: Path, tmp_path: Path, change: dict[str, Any]
) -> None:
    if "datasets" in change:
        change["datasets"]["digits"]["corruptions"]["path"] = str(tmp_path / "corruptions")
    before = read_tree(tmp_path)
    sweep = write_sweep(results=str(tmp_path / "other"), **change)
    assert "corruptions" in robust201("run", sweep).refusal(2)
    sweep.unlink()
    before.pop("sweep.yaml")
    assert read_tree(tmp_path) == before


def test_published_images_are_never_mixed_with_generated_ones(robust201: RunCommand, tmp_path: Path) -> None:
    published = tmp_path / "CIFAR-10-C"
    published.mkdir()
    np.save(published / "labels.npy", np.zeros(50, np.uint8))
    before = read_tree(tmp_path)
    ended = robust201("corrupt", published, "--count", "10", "--keys", "brightness")
    assert "expected an empty folder, got .npy files without a manifest" in ended.refusal(2)
    assert {name for name in read_tree(tmp_path) if not name.endswith(".lock")} == set(before)


# The results folder


@pytest.mark.parametrize("file", ["format.json", "plan.json"])
def test_results_of_an_unknown_format_version(
    robust201: RunCommand, write_sweep: WriteSweep, finished: Path, tmp_path: Path, file: str
) -> None:
    content = json.loads((finished / file).read_text())
    content["version" if file == "format.json" else "format"] = 99
    (finished / file).write_text(json.dumps(content))
    before = read_tree(tmp_path)
    verbs: list[tuple[object, ...]] = [
        ("status", finished),
        ("export", finished, tmp_path / "json"),
        ("merge", finished, "--into", tmp_path / "both"),
    ]
    if file == "format.json":
        verbs += [("run", write_sweep()), ("verify", finished), ("compact", finished)]
    for arguments in verbs:
        line = robust201(*arguments).refusal(2)
        assert "99" in line
        assert "Use the version of robust201 that" in line
    assert read_tree(tmp_path) == before


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"format": 1}', '{"format": 1, "config": {}, "facts": {}}'])
def test_a_damaged_plan_is_refused_and_written_anew(
    robust201: RunCommand, write_sweep: WriteSweep, finished: Path, content: str
) -> None:
    (finished / "plan.json").write_text(content)
    assert str(finished) in robust201("status", finished).refusal(2)
    assert "10 done, 0 missing" in robust201("run", write_sweep()).err
    assert robust201("status", finished).code == 0


@pytest.mark.parametrize("kind", ["file", "below a file", "export", "checkpoints", "shards"])
def test_a_results_path_that_is_something_else(
    robust201: RunCommand, write_sweep: WriteSweep, tiny_weights: Path, tmp_path: Path, kind: str
) -> None:
    taken = tmp_path / "taken"
    if kind in {"file", "below a file"}:
        taken.write_text("mine")
    else:
        taken.mkdir()
        name = {"export": "meta.json", "checkpoints": "manifest.jsonl", "shards": "shards"}[kind]
        (taken / name).write_text("mine")
    sweep = write_sweep(results=str(taken / "x" if kind == "below a file" else taken))
    before = read_tree(tmp_path)
    robust201("run", sweep).refusal(2)
    assert read_tree(tmp_path) == before


@pytest.mark.parametrize("kind", ["file", "foreign", "results"])
def test_an_export_spares_what_is_there(robust201: RunCommand, finished: Path, tmp_path: Path, kind: str) -> None:
    out = finished if kind == "results" else tmp_path / "out"
    if kind == "file":
        out.write_text("mine")
    if kind == "foreign":
        out.mkdir()
        (out / "meta.json").write_text("mine")
    before = read_tree(tmp_path)
    robust201("export", finished, out).refusal(2)
    assert read_tree(tmp_path) == before


def test_a_report_needs_an_exported_dataset(robust201: RunCommand, finished: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.svg"
    for command in (("report", finished), ("plot", "attacks", finished)):
        refusal = robust201(*command, "--out", out).refusal(2)
        assert "expected a folder with meta.json, got the shards of a sweep" in refusal
        # What to type instead, as it is typed.
        assert f"robust201 export {finished} DATASET --partial" in refusal
    assert robust201("export", finished, tmp_path / "json").code == 0
    (tmp_path / "folder").mkdir()
    ended = robust201("report", tmp_path / "json", "--out", tmp_path / "folder")
    assert str(tmp_path / "folder") in ended.refusal(4)
    assert not out.exists()
    assert not list(tmp_path.glob(".*.tmp"))


# One driver at a time


@pytest.fixture
def lease_on(finished: Path) -> Iterator[Path]:
    """The lease that another driver holds on the finished results: this very process, which is alive."""
    with Lease.acquire(finished, interval_seconds=3600):
        yield finished / "lease.json"


@pytest.mark.usefixtures("lease_on")
def test_a_second_driver_is_refused(
    robust201: RunCommand, write_sweep: WriteSweep, finished: Path, tmp_path: Path
) -> None:
    sweep = write_sweep(keys={"clean": {}, "pgd": {"steps": 1}})
    other = tmp_path / "other"
    assert robust201("run", sweep, "--results", other, "--keys", "clean").code == 0
    before = read_tree(finished)
    for arguments in (("run", sweep), ("merge", other, "--into", finished)):
        line = robust201(*arguments).refusal(4)
        assert f"process {os.getpid()} on " in line
        assert "which is alive. Wait until it ends" in line
    assert read_tree(finished) == before
    # Whoever only reads is not kept out.
    assert robust201("status", finished).code == 0
    assert robust201("export", finished, tmp_path / "json").code == 0


def test_the_lease_of_a_driver_that_was_killed_is_taken_over(
    robust201: RunCommand, write_sweep: WriteSweep, finished: Path
) -> None:
    program = (
        "import sys, time; from pathlib import Path; from pipeline.lease import Lease\n"
        "Lease.acquire(Path(sys.argv[1])); print('held', flush=True); time.sleep(600)"
    )
    process = subprocess.Popen([sys.executable, "-c", program, finished], cwd=REPOSITORY, stdout=subprocess.PIPE)
    assert process.stdout is not None
    with process.stdout as said:
        assert said.readline() == b"held\n"
        assert "which is alive" in robust201("run", write_sweep()).refusal(4)
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert (finished / "lease.json").exists()
    ended = robust201("run", write_sweep())
    assert ended.code == 0
    assert "watching" not in ended.err
    assert not (finished / "lease.json").exists()


def lease_of_another_host(results: Path) -> Holder:
    here = HostId.of_this_process()
    there = replace(here, host="elsewhere", machine="another", boot_id="another")
    holder = Holder.new(there, interval_seconds=0.05)
    write_text(results / "lease.json", holder.to_bytes().decode())
    return holder


def test_a_lease_from_another_host_is_taken_over_once_its_heartbeat_stands_still(
    robust201: RunCommand, write_sweep: WriteSweep, finished: Path
) -> None:
    lease_of_another_host(finished)
    ended = robust201("run", write_sweep())
    assert ended.code == 0
    assert "on elsewhere since" in ended.err
    assert "watching its heartbeat" in ended.err
    assert not (finished / "lease.json").exists()


def test_a_living_driver_on_another_host_is_refused(
    robust201: RunCommand, write_sweep: WriteSweep, finished: Path
) -> None:
    holder = lease_of_another_host(finished)
    ended = threading.Event()

    def beat() -> None:
        beating = holder
        while not ended.wait(0.02):
            beating = beating.beaten()
            write_text(finished / "lease.json", beating.to_bytes().decode())

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        assert "on elsewhere since" in robust201("run", write_sweep()).refusal(4)
    finally:
        ended.set()
        thread.join()


# A full device


def test_a_full_device_stops_the_run_and_loses_nothing(
    robust201: RunCommand, write_sweep: WriteSweep, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsync, results, shards_written = os.fsync, tmp_path / "fresh", []

    def fsync_until_full(descriptor: int) -> None:
        if ".parquet" in str(Path(f"/proc/self/fd/{descriptor}").readlink()):
            shards_written.append(descriptor)
            if len(shards_written) > 3:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fsync_until_full)
        ended = robust201("run", write_sweep(), "--results", results)
    line = ended.refusal(4)
    assert "expected free space on the device, got none" in line
    assert "Free some space and run the same command again" in line
    assert len(shards(results)) == 3
    assert not [name for name in read_tree(results) if name.endswith((".tmp", "lease.json"))]
    assert not json.loads(robust201("status", "--json", results).out)["running"]
    assert robust201("run", write_sweep(), "--results", results).code == 0
    for folder in (results, finished):
        assert robust201("export", folder, tmp_path / f"{folder.name}-json").code == 0
    assert read_tree(tmp_path / "fresh-json") == read_tree(tmp_path / "results-json")


@pytest.fixture
def small_device(tmp_path: Path) -> Iterator[Callable[[int], Path]]:
    """Mount a file system of so many KiB, or say why that cannot be done here."""
    folder = tmp_path / "device"
    folder.mkdir()

    def mount(kibibytes: int) -> Path:
        command = ["mount", "-t", "tmpfs", "-o", f"size={kibibytes}k", "tmpfs", str(folder)]
        try:
            subprocess.run(command, check=True, capture_output=True, text=True)
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"no file system can be mounted here: {getattr(error, 'stderr', None) or error}")
        return folder

    yield mount
    if folder.is_mount():
        subprocess.run(["umount", str(folder)], check=True)


def test_a_device_that_is_really_full(
    robust201: RunCommand, write_sweep: WriteSweep, finished: Path, small_device: Callable[[int], Path]
) -> None:
    needed = sum(-(-len(content) // 4096) * 4 for content in read_tree(finished).values())
    results = small_device(needed - 2 * (max(shard.stat().st_size for shard in shards(finished)) >> 10)) / "results"
    sweep = write_sweep()
    ended = robust201("run", sweep, "--results", results)
    assert "No space left on device" in ended.refusal(4)
    kept = {shard.name for shard in shards(results)}
    assert kept
    assert not list(results.rglob("*.tmp"))
    remount = ["mount", "-o", "remount,size=10m", str(results.parent)]
    subprocess.run(remount, check=True)
    assert robust201("run", sweep, "--results", results).code == 0
    assert kept < {shard.name for shard in shards(results)}
    assert robust201("verify", results).code == 0


def test_an_export_onto_a_full_device_leaves_no_half_file(
    robust201: RunCommand, finished: Path, small_device: Callable[[int], Path]
) -> None:
    device = small_device(400)
    ended = robust201("export", finished, device / "json")
    assert "No space left on device" in ended.refusal(4)
    assert not list(device.rglob("*.tmp"))
    assert not (device / "json" / "SHA256SUMS").exists()
    subprocess.run(["mount", "-o", "remount,size=20m", str(device)], check=True)
    assert robust201("export", finished, device / "json").code == 0


# Shards


@pytest.mark.parametrize("damage", ["truncated", "data", "footer"])
def test_a_damaged_shard(
    robust201: RunCommand, write_sweep: WriteSweep, finished: Path, tmp_path: Path, damage: str
) -> None:
    assert robust201("export", finished, tmp_path / "before").code == 0
    victim = shards(finished)[2]
    content = bytearray(victim.read_bytes())
    position = {"truncated": len(content) // 2, "data": len(content) // 3, "footer": len(content) - 40}[damage]
    content[position] ^= 1
    victim.write_bytes(content[:position] if damage == "truncated" else content)
    damaged = read_tree(tmp_path)

    line = robust201("export", finished, tmp_path / "after").refusal(4)
    assert victim.name in line
    assert "Run the sweep again: it sets the shard aside" in line
    verified = robust201("verify", finished)
    assert (verified.code, verified.out) == (4, "1 problems found\n")
    assert victim.name in verified.err
    (finding,) = json.loads(robust201("verify", "--json", finished).out)["findings"]
    assert finding["kind"] == "damaged"
    assert read_tree(tmp_path) == damaged

    ended = robust201("run", write_sweep())
    assert ended.code == 0
    assert f"Damaged shard set aside, its evaluations are computed again: digits/{victim.name}" in ended.err
    assert (finished / "damaged" / "digits" / victim.name).exists()
    assert robust201("verify", finished).code == 0
    assert robust201("export", finished, tmp_path / "after").code == 0
    assert read_tree(tmp_path / "after") == read_tree(tmp_path / "before")


def test_a_device_that_is_not_there_starts_nothing(
    robust201: RunCommand, write_sweep: WriteSweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    ended = robust201("run", write_sweep(execution={"device": "cuda"}))
    assert "expected a GPU that PyTorch can use, got none" in ended.refusal(2)


def test_a_folder_that_may_not_be_written_to(
    robust201: RunCommand, write_sweep: WriteSweep, finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_file = Path.replace

    def refuse(path: Path, target: Path) -> Path:
        if target.suffix == ".parquet":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return replace_file(path, target)

    before = set(shards(finished))
    monkeypatch.setattr(Path, "replace", refuse)
    ended = robust201("run", write_sweep(keys={"clean": {}, "pgd": {"epsilons_255": [1], "steps": 1}}))
    assert "Permission denied. Check the path and its permissions" in ended.refusal(4)
    assert set(shards(finished)) == before
    assert not list(finished.rglob("*.tmp"))
