"""The short form: two faults that cost little. The long form is `python -m tests.faults`, or `-m faults`."""

import random
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import yaml

from robust201.core.files import sha256_of
from robust201.planning.loading import parse_training
from robust201.runtime.training_run import run_trainings
from tests.faults import trainings, verdict
from tests.faults.processes import wait_until, zombies
from tests.faults.table import FAULTS, Fault, run_fault, run_undisturbed
from tests.faults.trial import Command, Trial

SEED = 1


@pytest.fixture(scope="module")
def undisturbed_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the sweep was computed without a fault."""
    return tmp_path_factory.mktemp("undisturbed") / "sweep"


@pytest.fixture(scope="module")
def undisturbed(undisturbed_folder: Path) -> dict[str, bytes]:
    """The export of that sweep."""
    return run_undisturbed(undisturbed_folder)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "fault",
    [pytest.param(fault, id=fault.name, marks=[] if fault.is_short else [pytest.mark.faults]) for fault in FAULTS],
)
def test_a_fault_leaves_every_evaluation_once_and_the_bytes_of_an_undisturbed_run(
    fault: Fault, undisturbed: dict[str, bytes], tmp_path: Path
) -> None:
    outcome = run_fault(fault, tmp_path / "trial", undisturbed, seed=SEED, repeats=1)
    if outcome.skipped:
        pytest.skip(outcome.skipped)
    assert outcome.injected
    assert outcome.problems == (), f"seed {SEED}"


def _exchange(store: Path) -> None:
    first, second = sorted(store.glob("zoo*/**/*.safetensors"))[:2]
    content = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(content)


def _keep(store: Path) -> None:
    (store / "training/lease.json").touch()


@pytest.mark.faults
@pytest.mark.parametrize(("harm", "complaint"), [(_exchange, "weights differ: "), (_keep, "lease.json left")])
def test_the_verdict_on_trainings_sees_what_is_wrong(
    harm: Callable[[Path], None], complaint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = Trial("harmless", tmp_path, {}, random.Random(SEED))
    fields = trainings.training_fields(tmp_path / "store")
    (tmp_path / "trainings.yaml").write_text(yaml.safe_dump(fields))
    assert run_trainings(parse_training(fields | {"execution": {"executor": "inline", "device": "cpu"}}, "")).complete
    shutil.copytree(tmp_path / "store", tmp_path / "whole")
    assert trainings.judge(trial) == []
    harm(tmp_path / "store")
    monkeypatch.setattr(trainings, "_run", lambda *_arguments: SimpleNamespace(text=lambda: ": 8 done, 0 missing"))
    assert any(complaint in problem for problem in trainings.judge(trial))


def _lose(trial: Trial) -> None:
    next((trial.results / "shards").rglob("*.parquet")).unlink()


def _rot(trial: Trial) -> None:
    next((trial.results / "shards").rglob("*.parquet")).write_bytes(b"")


def _hold(trial: Trial) -> None:
    (trial.results / "lease.json").touch()


def _linger(trial: Trial) -> None:
    subprocess.run(["sh", "-c", "sleep 60 >/dev/null 2>&1 &"], env=trial.environment(), check=True)
    # Until it has become `sleep`, the child goes by the name of the shell.
    wait_until(lambda: ["sleep", "60"] in [process.cmdline() for process in trial.family()], 60, "the child sleeps")


def _neglect(trial: Trial) -> None:
    """Leave a dead child with a parent that never asks for it."""
    script = "(sh -c 'sleep 1 & exec sleep 60' >/dev/null 2>&1 &)"
    subprocess.run(["sh", "-c", script], env=trial.environment(), check=True)

    def has_died() -> bool:
        trial.family()
        return bool(zombies(trial.known.values()))

    wait_until(has_died, 60, "the child is dead")


def _repeat(trial: Trial) -> None:
    """Commit the rows of a shard again, with another time, as a second worker would."""
    path = next((trial.results / "shards").rglob("*.parquet"))
    rows = pq.read_table(path)
    column = rows.schema.get_field_index("seconds")
    copy = path.with_name("copy")
    longer = pc.add(rows["seconds"], 1.0).cast(rows.schema.field(column).type)
    pq.write_table(rows.set_column(column, rows.schema.field(column), longer), copy)
    copy.rename(path.with_name(f"{path.stem.rpartition('-')[0]}-{sha256_of(copy)[:16]}.parquet"))


def _run_instead(trial: Trial, *arguments: str) -> None:
    """Let another command take the place of `robust201 run`."""

    def start_another(*_options: str, **_named: object) -> Command:
        return trial.start(*arguments)

    mock.patch.object(trial, "start_run", start_another).start()


def _stay(trial: Trial) -> None:
    """Leave a temporary file that the next command does not take away."""
    (trial.results / "shards/digits/.left.tmp").touch()
    _run_instead(trial, "status", str(trial.results))


def _fail_later(trial: Trial) -> None:
    """Leave a temporary file, and let the command that should take it away fail."""
    (trial.results / "shards/digits/.left.tmp").touch()
    _run_instead(trial, "status", str(trial.folder / "nowhere"))


@pytest.mark.parametrize(
    ("harm", "complaint"),
    [
        (_lose, "missing: "),
        pytest.param(_rot, "damaged shard left", marks=pytest.mark.slow),
        (_repeat, "2 live rows of one evaluation: "),
        pytest.param(_hold, "lease.json left", marks=pytest.mark.slow),
        pytest.param(_linger, "lives on: sleep 60", marks=pytest.mark.slow),
        (_neglect, "which its parent does not collect: sleep 60"),
        (_stay, "stays for ever: .left.tmp"),
        pytest.param(_fail_later, "a run of the finished sweep failed", marks=pytest.mark.slow),
    ],
)
def test_the_verdict_sees_what_is_wrong(
    harm: Callable[[Trial], None],
    complaint: str,
    undisturbed: dict[str, bytes],
    undisturbed_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(verdict, "GRACE_SECONDS", 0.0)
    shutil.copytree(undisturbed_folder / "results", tmp_path / "results")
    trial = Trial("harmless", tmp_path, undisturbed, random.Random(SEED), zombie_seconds=0.0)
    assert verdict.judge(trial) == []
    shutil.rmtree(tmp_path / "json")
    harm(trial)
    try:
        assert any(complaint in problem for problem in verdict.judge(trial))
    finally:
        trial.end()


def test_the_verdict_compares_bytes_unless_it_is_told_to_bear_less(undisturbed: dict[str, bytes]) -> None:
    name = "digits/pgd_confidence.json"

    def moved(by: float) -> dict[str, bytes]:
        text = re.sub(rb"\d\.\d+", lambda number: str(float(number[0]) + by).encode(), undisturbed[name], count=1)
        return undisturbed | {name: text}

    nearly, wrong = moved(1e-4), moved(1e-2)
    assert verdict.compare_bytes(undisturbed, undisturbed) == []
    assert verdict.compare_bytes(undisturbed, nearly) == [f"export differs: {name}"]
    assert verdict.compare_nearly(undisturbed, nearly) == []
    assert verdict.compare_nearly(undisturbed, wrong) == [f"export differs by more than 0.001: {name}"]
