"""Faults in real runs, such as random kills: later runs complete the sweep with the same bytes.

`pytest -n 0 -m faults` runs all faults; FAULT_SEED changes the moments, and FAULT_REPEATS sets the number of kills.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter

import pytest

from robust201.core.files import WRITE_STEPS
from tests.conftest import REPOSITORY
from tests.support.runs import export_bytes, read_state, run_inline
from tests.support.trials import HANG_SECONDS, KEYS, Trial, assert_all_ended, delete_half_of_shards, wait_for_parts

pytestmark = [pytest.mark.faults, pytest.mark.timeout(7200)]

REPEATS = int(os.environ.get("FAULT_REPEATS", "12"))
VICTIMS = ("worker", "raylet", "gcs_server", "child", "guard", "ray")
DEADLY_ATTACK = """
import os, signal

def perturb(model, images, labels, strength):
    os.kill(os.getpid(), signal.SIGKILL)
"""
PROGRAM_DYING_WHILE_WRITING = """
import os, signal, sys
from pathlib import Path
from robust201.__main__ import main
from robust201.store import local

atomic_write = local.atomic_write

step = sys.argv.pop()

def write(path, **options):
    marker = Path(os.environ["FAULT_MARKER"])
    def die(name):
        if name == step and not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
    return atomic_write(path, on_step=die)

local.atomic_write = write
main()
"""


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """Return the export of a run without faults."""
    trial = Trial(tmp_path_factory.mktemp("undisturbed"))
    assert run_inline(trial.config).is_complete
    return export_bytes(trial.config, trial.folder / "export")


def test_run_completed_after_random_kills_has_the_same_bytes(tmp_path, expected):
    trial, counts = Trial(tmp_path), Counter()
    while counts.total() < REPEATS:
        delete_half_of_shards(trial)
        process, victim = trial.start(), trial.rng.choice(VICTIMS)
        time.sleep(trial.rng.uniform(1, 20))
        killed = trial.kill(process, victim)
        if killed is not None:
            counts[victim] += 1
        code = trial.wait_for_end(process, HANG_SECONDS if victim != "worker" and killed else 400)
        assert code in ({0, -9} if victim == "guard" else {0, 3}), trial.log.read_text()[-500:]
        assert_all_ended(killed or ())
    print(dict(counts))
    assert "Traceback" not in trial.log.read_text()
    trial.complete()
    assert export_bytes(trial.config, tmp_path / "export") == expected


def test_killed_worker_loses_only_its_part_and_deadly_parts_are_reported(tmp_path):
    (tmp_path / "deadly.py").write_text(DEADLY_ATTACK)
    keys = KEYS | {"deadly": {"file": str(tmp_path / "deadly.py"), "strengths": [1]}}
    trial = Trial(tmp_path, {"keys": keys, "architectures": [21]})  # the deadly attack is one part
    process = trial.start("--allow-code")
    wait_for_parts(trial, process, 3)
    assert trial.kill(process, "worker")
    assert trial.wait_for_end(process) == 3
    assert [part.label for part in read_state(trial.results).missing_parts()] == ["#21 digits deadly"]
    assert "its worker died 3 times" in trial.log.read_text()


@pytest.mark.parametrize("victim", ["raylet", "gcs_server", "child"])
@pytest.mark.parametrize("moment", ["start", "parts"])
def test_loss_of_ray_gives_exit_code_3_and_the_next_run_completes(tmp_path, expected, victim, moment):
    trial = Trial(tmp_path)
    process, deadline = trial.start(), time.monotonic() + 100
    if moment == "parts":
        wait_for_parts(trial, process)
    while (session := trial.kill(process, victim)) is None:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    code = trial.wait_for_end(process, HANG_SECONDS)
    # Exit code and number of errors. Workers may have computed all parts before Ray notices the loss.
    expected_results = {(3, 1), (0, 0)} if moment == "parts" and victim != "child" else {(3, 1)}
    assert (code, trial.log.read_text().count("error: ")) in expected_results, trial.log.read_text()
    assert_all_ended(session)
    trial.complete("--executor", "inline")
    assert export_bytes(trial.config, tmp_path / "export") == expected


def test_inline_run_completed_after_kills_has_the_same_bytes(tmp_path, expected):
    trial = Trial(tmp_path, executor="inline")
    for _ in range(REPEATS):
        delete_half_of_shards(trial)
        process = trial.start()
        time.sleep(trial.rng.uniform(0.5, 9))
        process.kill()
        process.wait()
    trial.complete()
    assert export_bytes(trial.config, tmp_path / "export") == expected


def test_shares_completed_after_kills_have_the_same_bytes(tmp_path, expected):
    """The corrupted images are also deleted, so the shares generate them concurrently."""
    trial, shares = Trial(tmp_path, executor="inline"), [("--share", f"{index}/3") for index in (1, 2, 3)]
    plan = [sys.executable, "-m", "robust201", "plan", str(trial.sweep), "--save"]
    subprocess.run(plan, check=True, capture_output=True, cwd=REPOSITORY)
    for _ in range(-(-REPEATS // len(shares))):
        delete_half_of_shards(trial)
        shutil.rmtree(trial.results / "corruptions", ignore_errors=True)
        processes = [trial.start(*share) for share in shares]
        for process in trial.rng.sample(processes, len(processes)):
            time.sleep(trial.rng.uniform(0.5, 9))
            process.kill()
            process.wait()
    assert "Traceback" not in trial.log.read_text()
    for share in shares:
        trial.complete(*share)
    assert export_bytes(trial.config, tmp_path / "export") == expected


@pytest.mark.parametrize("step", WRITE_STEPS)
def test_run_killed_while_writing_a_shard_is_completed(tmp_path, expected, step):
    trial, program = Trial(tmp_path, executor="inline"), tmp_path / "program.py"
    program.write_text(PROGRAM_DYING_WHILE_WRITING)
    process = trial.start(step, program=[str(program)], FAULT_MARKER=str(tmp_path / "marker"))
    assert trial.wait_for_end(process) == -signal.SIGKILL
    assert (tmp_path / "marker").exists()
    trial.complete()
    assert export_bytes(trial.config, tmp_path / "export") == expected


@pytest.mark.parametrize("executor", ["inline", "ray"])
def test_one_signal_drains_a_run_and_two_signals_stop_it(tmp_path, expected, executor):
    trial = Trial(tmp_path, executor=executor)
    for n_signals, signal_number in ((1, signal.SIGTERM), (1, signal.SIGUSR1), (2, signal.SIGINT)):
        process = trial.start()
        wait_for_parts(trial, process)
        for _ in range(n_signals):
            process.send_signal(signal_number)
            time.sleep(0.3)
        code = trial.wait_for_end(process, HANG_SECONDS)
        assert code in ({0, 3} if n_signals == 1 else {0, 3, -signal.SIGINT})  # the run may end before the second
        delete_half_of_shards(trial)
    assert "Traceback" not in trial.log.read_text()
    trial.complete()
    assert export_bytes(trial.config, tmp_path / "export") == expected


@pytest.mark.parametrize("executor", ["inline", "ray"])
def test_full_disk_ends_the_run_with_code_4(tmp_path, expected, executor):
    trial = Trial(tmp_path, executor=executor)
    trial.results.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64m", "robust201-faults", str(trial.results)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("cannot mount a tmpfs")
    try:
        plan = [sys.executable, "-m", "robust201", "plan", str(trial.sweep), "--save"]
        subprocess.run(plan, check=True, capture_output=True)
        used = shutil.disk_usage(trial.results).used // 1024
        resize(trial.results, f"{used + 250}k")  # a whole run needs 400 KiB
        assert trial.wait_for_end(trial.start()) == 4
        assert "the disk is full" in trial.log.read_text()
        assert not list(trial.results.rglob(".*.tmp"))
        resize(trial.results, "64m")
        trial.complete()
        assert export_bytes(trial.config, tmp_path / "export") == expected
    finally:
        subprocess.run(["umount", "--lazy", str(trial.results)], check=True)


def resize(folder, size):
    subprocess.run(["mount", "-o", f"remount,size={size}", str(folder)], check=True)


def test_second_driver_is_rejected_unless_the_first_is_dead(tmp_path, expected):
    trial = Trial(tmp_path, executor="inline")
    first = trial.start()
    wait_for_parts(trial, first, 1)
    assert trial.wait_for_end(trial.start(), HANG_SECONDS) == 4
    first.kill()
    first.wait()
    lock = json.loads((trial.results / "lock.json").read_text())
    assert lock["pid"] == first.pid
    trial.complete()
    assert export_bytes(trial.config, tmp_path / "export") == expected
