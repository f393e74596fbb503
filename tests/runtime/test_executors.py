"""What every executor promises the scheduler, on each of them: complete, resumable, drained, failures reported."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray

from robust201.core.records import Receipt
from robust201.runtime.executors import make_executor
from robust201.runtime.executors.base import Event
from robust201.runtime.progress import RunProgress
from robust201.runtime.sweep import Filters, run_sweep
from robust201.weights.store import CheckpointStore
from tests.conftest import REPOSITORY, TINY_KEYS, MakeFields, MakeSweep

KEYS = {key: TINY_KEYS[key] for key in ("clean", "fgsm", "brightness")}
N_EVALUATIONS = 2 * 5


@pytest.fixture(scope="module")
def local_ray() -> Iterator[None]:
    """One Ray for the tests of this module; the executor uses a Ray that already runs."""
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=128 << 20)
    yield
    ray.shutdown()


@pytest.fixture(params=["inline", pytest.param("ray", marks=pytest.mark.ray)])
def execution(request: pytest.FixtureRequest) -> dict[str, object]:
    if request.param == "ray":
        request.getfixturevalue("local_ray")
    return {"executor": request.param, "workers": 2}


def test_all_is_computed_once_and_nothing_twice(make_sweep: MakeSweep, execution: dict[str, object]) -> None:
    config = make_sweep(keys=KEYS, execution=execution)
    tally = run_sweep(config, make_executor)
    assert tally.complete
    assert (tally.evaluations, tally.failures, tally.deaths) == (N_EVALUATIONS, [], 0)
    assert run_sweep(config, make_executor).evaluations == 0


def test_a_drain_ends_early_and_the_rest_is_resumed(make_sweep: MakeSweep, execution: dict[str, object]) -> None:
    config = make_sweep(keys=KEYS, execution=execution)
    asked: list[Receipt] = []

    def interrupt(_progress: RunProgress, event: Event) -> None:
        if isinstance(event, Receipt) and not asked:
            asked.append(event)
            signal.raise_signal(signal.SIGTERM)

    drained = run_sweep(config, make_executor, on_progress=interrupt)
    assert drained.drained
    assert 0 < drained.evaluations < N_EVALUATIONS
    resumed = run_sweep(config, make_executor)
    assert resumed.complete
    assert drained.evaluations + resumed.evaluations == N_EVALUATIONS


def test_an_error_in_a_worker_fails_its_parts_and_no_others(
    make_sweep: MakeSweep, execution: dict[str, object], tmp_path: Path, tiny_weights: Path
) -> None:
    import shutil

    weights = tmp_path / "weights"
    shutil.copytree(tiny_weights, weights)
    config = make_sweep(keys=KEYS, execution=execution, checkpoints={"path": str(weights)})

    def damage_then_start(plan, facts):
        # after the driver's check, before the workers': what a failing disk does
        store = CheckpointStore(weights)
        (weights / store.find(21, "digits").file).write_bytes(b"no tensors")
        return make_executor(plan, facts)

    tally = run_sweep(config, damage_then_start)
    assert {failure.part.unit.architecture for failure in tally.failures} == {21}
    assert {failure.kind for failure in tally.failures} == {"application"}
    assert tally.evaluations == N_EVALUATIONS // 2
    assert not tally.complete


def test_a_narrowed_run_computes_what_it_was_narrowed_to(make_sweep: MakeSweep, execution: dict[str, object]) -> None:
    config = make_sweep(keys=KEYS, execution=execution)
    assert run_sweep(config, make_executor, filters=Filters(architectures=(0,), keys=("fgsm",))).evaluations == 2


_OWN_RAY = """
import json, os, sys
from pathlib import Path

import ray
from robust201.planning.loading import (parse_config)
from robust201.runtime.executors.ray import RayExecutor

@ray.remote
def tell():
    return os.environ.get("RAY_AUTH_MODE"), os.environ.get("RAY_AUTH_TOKEN")

told, changed = [], []
for given in ({}, {"RAY_AUTH_TOKEN": "given" * 8}):
    os.environ.update(given)
    before = dict(os.environ)
    executor = RayExecutor(parse_config(json.loads(sys.argv[1]), "test"), print)  # it is given no bundle
    told.append(ray.get(tell.remote()))
    executor.close()
    changed += [name for name in {*before, *os.environ} if "AUTH" in name and before.get(name) != os.environ.get(name)]
print(json.dumps({"told": told, "changed": changed, "files": [p.name for p in Path.home().rglob("*auth*")]}))
"""


@pytest.mark.ray
def test_a_ray_of_the_runs_own_asks_for_a_token_that_is_in_no_file(sweep_fields: MakeFields, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_AUTH_")}
    environment |= {"HOME": str(home), "PYTHONPATH": str(REPOSITORY)}
    fields = sweep_fields(execution={"executor": "ray", "workers": 1})
    command = [sys.executable, "-c", _OWN_RAY, json.dumps(fields)]
    ended = subprocess.run(command, env=environment, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    answer = json.loads(ended.stdout.splitlines()[-1])
    assert (answer["changed"], answer["files"]) == ([], [])
    (made_mode, made), (given_mode, given) = answer["told"]
    assert (made_mode, given_mode, given) == ("token", "token", "given" * 8)
    assert len(made) == 64
