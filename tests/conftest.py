"""Fixtures of many tests: a tiny sweep over the digits with random weights."""

import functools
import gc
import os
import re
import secrets
import shutil
import signal
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest
import typer
import yaml
from xdist.scheduler import LoadFileScheduling

# Networks of tests are tiny: a second thread costs them more than it gives. PyTorch reads this when it is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

from robust201.planning.config import SweepConfig
from robust201.planning.loading import parse_config
from tests.support.download_server import cifar10c_server, publish, server  # noqa: F401 - fixtures
from tests.support.kept_plans import move_plan
from tests.support.local_ray import ray_address  # noqa: F401 - fixtures
from tests.support.object_stores import s3, s3_environment, s3_url  # noqa: F401 - fixtures

if TYPE_CHECKING:
    import torch

    from robust201.weights.store import CheckpointStore

# Machines that are busy are slow: no example has a deadline. One commit tests the same examples everywhere, so that
# a failure is the change's; `pytest --hypothesis-profile explore` looks for new ones.
hypothesis.settings.register_profile("robust201", deadline=None, derandomize=True, max_examples=30)
hypothesis.settings.register_profile("explore", deadline=None, max_examples=1000)
hypothesis.settings.load_profile("robust201")

# Where SIGINT is ignored (nohup, trap '' INT), processes that tests start and interrupt would ignore it, too.
signal.signal(signal.SIGINT, signal.default_int_handler)

# The clusters that tests start themselves would else let Ray write a token into the user's home, readable to all.
os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))

REPOSITORY = Path(__file__).resolve().parent.parent
TINY_ARCHITECTURES = (0, 21)
TINY_KEYS: dict[str, dict[str, Any]] = {
    "clean": {},
    "fgsm": {"epsilons_255": [1, 8]},
    "pgd": {"epsilons_255": [1, 8], "steps": 2},
    "aa_apgd-ce": {"epsilons_255": [1, 8], "steps": 3},
    "aa_square": {"epsilons_255": [1, 8], "queries": 5},
    "brightness": {"severities": [1, 5]},
    "gaussian_noise": {"severities": [1, 5]},
}
WRITTEN_KEYS = {key: TINY_KEYS[key] for key in ("clean", "fgsm", "brightness")}


@pytest.fixture(scope="session", autouse=True)
def without_flushes() -> Iterator[None]:
    """Flush nothing to the disk: it takes a busy one ten milliseconds, and guards against power cuts alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _descriptor: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def one_command_line() -> Iterator[None]:
    """Build the command line once: it takes as long as a small command, and depends on nothing that tests change."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.main, "get_command", functools.cache(typer.main.get_command))
        yield


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder named by ROBUST201_DATA, or a reason to skip."""
    folder = Path(os.environ.get("ROBUST201_DATA", REPOSITORY.parent / "shared"))
    if not (folder / "cifar10" / "test.parquet").exists():
        pytest.skip(f"no cifar10/test.parquet in {folder}; name a data folder by ROBUST201_DATA")
    return folder


def add_network(store: "CheckpointStore", index: int, state_dict: "Mapping[str, torch.Tensor]", **changes: Any) -> None:
    """Put the weights of a tiny network (C=4, N=1, ten classes) into a store, as those of the digits."""
    from robust201.spaces.nasbench201 import cells as nasbench201

    fields: dict[str, Any] = {
        "space": "nasbench201",
        "dataset": "digits",
        "epochs": 1,
        "seed": 777,
        "channels": 4,
        "cells": 1,
        "n_classes": 10,
        "source": "random",
        "source_sha256": "0" * 64,
    }
    spec = nasbench201.architecture(index).spec
    store.add(index=index, spec=spec, state_dict=dict(state_dict), **(fields | changes))


@pytest.fixture(scope="session")
def tiny_weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint store with random networks (C=4, N=1) for the digits."""
    import torch

    from robust201.spaces.nasbench201 import cells as nasbench201
    from robust201.spaces.nasbench201.network import build_network
    from robust201.weights.store import CheckpointStore

    folder = tmp_path_factory.mktemp("weights")
    with CheckpointStore(folder) as store:
        for index in (*TINY_ARCHITECTURES, 309):
            torch.manual_seed(index)
            spec = nasbench201.architecture(index).spec
            network = build_network(spec, channels=4, cells=1, n_classes=10)
            add_network(store, index, network.state_dict())
    return folder


@pytest.fixture
def failing_fgsm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every evaluation of FGSM in this process fail."""
    from robust201.runtime import worker
    from robust201.tasks.evaluate import evaluate_part

    def fail_on_fgsm(context: Any, row: Any, *arguments: Any, **options: Any) -> Iterator[Any]:
        if row.key == "fgsm":
            raise RuntimeError("no such luck")
        yield from evaluate_part(context, row, *arguments, **options)

    monkeypatch.setattr(worker, "evaluate_part", fail_on_fgsm)


def shown_by(case: pytest.Function) -> set[tuple[object, ...]]:
    """What each parametrisation gives a case: names of its arguments, and which objects."""
    together = [
        str(mark.args[0]) if isinstance(mark.args[0], str) else ",".join(mark.args[0])
        for mark in case.iter_markers("parametrize")
    ]
    groups = [tuple(name.strip() for name in names.split(",")) for names in together]
    alone = [(name,) for name in case.callspec.params if not any(name in group for group in groups)]
    return {(group, *(id(case.callspec.params[name]) for name in group)) for group in (*groups, *alone)}


def mark_cases_slow(items: Sequence[pytest.Item]) -> None:
    """Of a test marked `each_value`, mark as slow the cases that are not needed to show each value once."""
    cases: dict[tuple[Path, str], list[pytest.Function]] = defaultdict(list)
    for item in items:
        names = {mark.name for mark in item.iter_markers()}
        if isinstance(item, pytest.Function) and "each_value" in names and "slow" not in names:
            cases[item.path, item.originalname].append(item)
    for left in cases.values():
        shown: set[tuple[object, ...]] = set()
        while left:
            best = max(left, key=lambda case: len(shown_by(case) - shown))  # of equal ones the first
            if shown_by(best) <= shown:
                break
            shown |= shown_by(best)
            left.remove(best)
        for case in left:
            case.add_marker(pytest.mark.slow)


LONGEST = ("faults", "runtime", "cli", "figures", "tasks", "spaces", "shards", "dataset", "project", "planning")
"""Folders of tests by their time: begun in this order and before all others, so that processes end together."""

ON_ONE_RAY = tuple(f"tests/runtime/test_{name}.py" for name in ("executors", "own_code", "sweep", "training_run"))
"""Files that share a Ray (`ray_address`): run by one process, so that it is started once."""


@pytest.hookimpl(tryfirst=True)  # before pytest deselects by marker
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    mark_cases_slow(items)
    ranks = {folder: rank for rank, folder in enumerate(LONGEST)}
    items.sort(key=lambda item: ranks.get(item.path.parent.name, len(ranks)))


def pytest_collection_finish() -> None:
    """Leave modules and tests out of all garbage collections to come: they live as long as the process."""
    gc.collect()
    gc.freeze()


class FilesByRay(LoadFileScheduling):  # type: ignore[misc]  # xdist has no types
    """`--dist loadfile`, where the files `ON_ONE_RAY` count as one."""

    def _split_scope(self, nodeid: str) -> str:
        file: str = super()._split_scope(nodeid)
        return "on one Ray" if file in ON_ONE_RAY else file


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> FilesByRay | None:
    return FilesByRay(config, log) if config.getoption("dist") == "loadfile" else None


MakeFields = Callable[..., dict[str, Any]]


def tiny_fields(folder: Path, weights: Path, /, **changes: Any) -> dict[str, Any]:
    """Fields of a tiny sweep with results in a folder (see `sweep_fields`)."""
    execution = {"executor": "inline", "threads": 1, "gmacs_per_second": 10} | changes.pop("execution", {})
    return {
        "name": "tiny",
        "results": str(folder / "results"),
        "architectures": list(TINY_ARCHITECTURES),
        "network": {"channels": 4, "cells": 1},
        "checkpoints": {"path": str(weights)},
        "datasets": {"digits": {"corruptions": {"source": "generated", "path": str(folder / "corruptions")}}},
        "images": {"count": 10, "seed": 0},
        "keys": TINY_KEYS,
        "batch_size": 4,
        "execution": execution,
    } | changes


@pytest.fixture
def sweep_fields(tiny_weights: Path, tmp_path: Path) -> MakeFields:
    """Make the fields of tiny sweeps: two architectures, seven keys, ten images; arguments replace top-level fields."""
    return lambda **changes: tiny_fields(tmp_path, tiny_weights, **changes)


MakeSweep = Callable[..., SweepConfig]


@pytest.fixture
def make_sweep(sweep_fields: MakeFields) -> MakeSweep:
    """Make tiny sweeps (see `sweep_fields`)."""
    return lambda **changes: parse_config(sweep_fields(**changes), "test")


WriteSweep = Callable[..., Path]


@pytest.fixture
def write_sweep(sweep_fields: MakeFields, tmp_path: Path) -> WriteSweep:
    """Write tiny sweeps with three keys (see `sweep_fields`) to sweep.yaml, as wrong as the arguments make them."""

    def write(**changes: Any) -> Path:
        path = tmp_path / "sweep.yaml"
        path.write_text(yaml.safe_dump(sweep_fields(**({"keys": WRITTEN_KEYS} | changes)), sort_keys=False))
        return path

    return write


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str

    def refusal(self, code: int) -> str:
        """The one line that says what went wrong: the subject, the fault and the remedy."""
        assert self.code == code, self.err
        lines = self.err.splitlines()
        assert [line for line in lines if line.startswith("error: ")] == lines[-1:], self.err
        assert re.fullmatch(r"error: \S.+: .+[.?] \S.+", lines[-1]), lines[-1]
        assert "Traceback" not in self.err
        assert self.out == ""
        return lines[-1]


RunCommand = Callable[..., Ended]


@pytest.fixture
def robust201(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> RunCommand:
    """Run the command line in this process."""
    from robust201.cli.app import main

    def run(*arguments: object) -> Ended:
        monkeypatch.setattr(sys, "argv", ["robust201", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        return Ended(int(ended.value.code or 0), *capsys.readouterr())

    return run


def read_tree(folder: Path) -> dict[str, bytes]:
    """All files below a folder, by relative path."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def names(paths: Sequence[Path]) -> list[str]:
    """File names, sorted."""
    return sorted(path.name for path in paths)


@pytest.fixture(scope="session")
def finished_once(tiny_weights: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a complete sweep, computed once for all tests that start from a copy of it."""
    from robust201.runtime.executors import make_executor
    from robust201.runtime.sweep import run_sweep

    folder = tmp_path_factory.mktemp("finished")
    config = parse_config(tiny_fields(folder, tiny_weights, keys=WRITTEN_KEYS), "test")
    assert run_sweep(config, make_executor).complete
    return folder


@pytest.fixture
def finished(finished_once: Path, write_sweep: WriteSweep, tmp_path: Path) -> Path:
    """The results folder of a complete sweep of ten evaluations, as `run` of `write_sweep()` leaves it."""
    write_sweep()
    for name in ("results", "corruptions"):
        shutil.copytree(finished_once / name, tmp_path / name)
    move_plan(tmp_path / "results", finished_once, tmp_path)
    return tmp_path / "results"
