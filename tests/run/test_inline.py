"""Runs in this process: the device, the lock, units of another plan, old events, and absent weights."""

import json
import os
import shutil
import socket
import time
from contextlib import closing

import pytest
import torch

from robust201.core.errors import ConfigError, InputError, LockHeldError
from robust201.networks import device
from robust201.run import lock
from robust201.run.lock import LOCK_FILE, STALE_SECONDS, hold_lock
from robust201.run.sweep import prepare_run
from robust201.store.folder import ResultsFolder, SliceFormat
from robust201.sweep.config import ExecutionSection
from robust201.sweep.facts import save_plan
from robust201.sweep.filters import EVERYTHING, Filters
from robust201.sweep.plan import open_results
from tests.support.runs import read_state, run_inline

KEYS = {
    "clean": {},
    "fgsm": {"epsilons": ["1/255", "2/255", "8/255"]},
    "aa_square": {"epsilons": ["1/255", "8/255"], "queries": 5},
    "brightness": {"severities": [1, 5]},
}
TINY_SLICES = {"device": "cpu", "gmacs_per_second": 1e-5}


@pytest.fixture
def sweep(make_sweep):
    def make(name, **changes):
        config = make_sweep(keys=KEYS, images={"count": 20, "seed": 0}, execution=TINY_SLICES)
        return config.model_copy(update={"results": config.results.parent / name} | changes)

    return make


def test_results_folder_of_another_device_is_rejected(sweep):
    config = sweep("results")
    ResultsFolder.create(config.results, SliceFormat(1.0, 8, is_cpu=False))
    with pytest.raises(InputError, match="device"):
        run_inline(config)
    assert [path.name for path in config.results.iterdir()] == ["format.json"]


def test_device_auto_is_chosen_by_the_first_run_and_kept_for_the_folder(sweep, monkeypatch):
    config = sweep("results", execution=ExecutionSection(device="auto"))
    clean_only = Filters(keys=("clean",))
    monkeypatch.setattr(device, "choose_device", lambda *_settings: torch.device("cpu"))
    assert run_inline(config, clean_only).is_complete
    assert open_results(config.results)[0].config.execution.device == "cpu"
    monkeypatch.setattr(device, "choose_device", lambda *_settings: torch.device("cuda"))
    with pytest.raises(InputError, match=r"expected execution\.device cpu"):
        run_inline(config, clean_only)


@pytest.mark.parametrize("command", [("plan", "--save"), ("submit", "slurm"), ("submit", "ray")], ids=" ".join)
def test_commands_for_other_machines_need_an_explicit_device(robust201, write_sweep, tmp_path, command):
    path = write_sweep(execution={"device": "auto"})
    assert "execution.device" in robust201(*command, path).error_line(exit_code=2)
    assert not (tmp_path / "results").exists()


def test_lock_keeps_a_second_driver_out(tmp_path):
    with hold_lock(tmp_path), pytest.raises(LockHeldError), hold_lock(tmp_path):
        pass
    assert not (tmp_path / LOCK_FILE).exists()


def test_lock_of_a_successor_is_not_renewed(tmp_path, monkeypatch):
    monkeypatch.setattr(lock, "RENEW_SECONDS", 0.01)
    path = tmp_path / LOCK_FILE
    with hold_lock(tmp_path):
        os.utime(path, (0, 0))
        time.sleep(0.2)
        assert path.stat().st_mtime > 0
        path.write_text(json.dumps({"token": "successor"}))
        os.utime(path, (0, 0))
        time.sleep(0.2)
        assert path.stat().st_mtime == 0
    assert path.exists()


@pytest.mark.parametrize(
    ("holder", "age_seconds"),
    [({"host": socket.gethostname(), "pid": 99_999_999}, 0), ({"host": "elsewhere", "pid": 1}, STALE_SECONDS + 60)],
)
def test_lock_of_an_ended_or_silent_holder_is_taken_over(tmp_path, holder, age_seconds):
    path = tmp_path / LOCK_FILE
    path.write_text(json.dumps(holder))
    os.utime(path, (time.time() - age_seconds,) * 2)
    with hold_lock(tmp_path):
        assert json.loads(path.read_text())["pid"] == os.getpid()


def test_worker_rejects_units_of_another_plan(sweep):
    config = sweep("results")
    with prepare_run(config, EVERYTHING, lambda _line: None) as work:
        parts = list(work.state.missing_parts())
        save_plan(config.model_copy(update={"keys": KEYS | {"aa_square": {"queries": 6}}}), work.plan.facts)
        with closing(work.start_worker()) as worker:
            for part in parts:
                if part.unit.key == "aa_square":
                    with pytest.raises(ConfigError, match="digits aa_square"):
                        worker.compute(part, lambda: False)
            assert worker.compute(parts[0], lambda: False).failure == ""
    assert read_state(config.results).n_missing_parts == len(parts) - 1


def test_next_run_deletes_old_events_but_keeps_failures(make_sweep):
    config = make_sweep(keys={"clean": {}}, images={"count": 20, "seed": 0})
    run_inline(config)
    folder = config.results / "events"
    (driver,) = folder.glob("driver-*")
    failures = folder / "failures" / driver.name
    failures.parent.mkdir()
    for path in (driver, failures):
        path.touch()
        os.utime(path, (0, 0))
    run_inline(config)
    assert [driver.exists(), failures.exists()] == [False, True]


def test_filtered_run_without_the_weights_of_other_networks_keeps_their_results(make_sweep, tiny_weights, tmp_path):
    store = tmp_path / "weights"
    shutil.copytree(tiny_weights, store)
    config = make_sweep(keys={"clean": {}}, checkpoints={"path": str(store)})
    run_inline(config, Filters(architectures=(0,)))
    manifest = store / "manifest.jsonl"
    manifest.write_text(
        "".join(
            line for line in manifest.read_text().splitlines(keepends=True) if '"index":0,' not in line.replace(" ", "")
        )
    )
    run_inline(config, Filters(architectures=(21,)))
    assert read_state(config.results).n_done == 2
    changed_config = config.model_copy(update={"checkpoints": config.checkpoints.model_copy(update={"epochs": 1})})
    run_inline(changed_config, Filters(architectures=(21,)))  # `epochs` may select other weights for #0
    assert read_state(config.results).n_done == 1
