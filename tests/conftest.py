"""Fixtures that many tests use: a tiny sweep on scikit-learn's digits with random weights, and the command line."""

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
import vl_convert
import yaml

# Networks in tests are so tiny that a second thread makes them slower. PyTorch reads the variable when it is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

from robust201.sweep.config import SweepConfig
from robust201.sweep.loading import parse_config
from tests.support.download_server import change_download, cifar10c_server, server  # noqa: F401 - fixtures
from tests.support.object_stores import s3, s3_environment, s3_url  # noqa: F401 - fixtures

if TYPE_CHECKING:
    import torch

    from robust201.weights.store import CheckpointStore

# Examples have no deadline, because a busy machine is slow. By default, every run has the same examples, so only a
# change of the code can cause a new failure; `pytest --hypothesis-profile explore` tries out new examples.
hypothesis.settings.register_profile("robust201", deadline=None, derandomize=True, max_examples=30)
hypothesis.settings.register_profile("explore", deadline=None, max_examples=1000)
hypothesis.settings.load_profile("robust201")

# If SIGINT is ignored here (nohup, trap '' INT), processes that tests start and interrupt would ignore it, too.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Without a token here, Ray would write one to the home folder, readable by all users, when tests start a cluster.
os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))

REPOSITORY = Path(__file__).resolve().parent.parent
TINY_ARCHITECTURES = (0, 21)
TINY_KEYS: dict[str, dict[str, Any]] = {
    "clean": {},
    "fgsm": {"epsilons": ["1/255", "8/255"]},
    "pgd": {"epsilons": ["1/255", "8/255"], "steps": 2},
    "aa_apgd-ce": {"epsilons": ["1/255", "8/255"], "steps": 3},
    "aa_square": {"epsilons": ["1/255", "8/255"], "queries": 5},
    "brightness": {"severities": [1, 5]},
    "gaussian_noise": {"severities": [1, 5]},
}
THREE_KEYS = {key: TINY_KEYS[key] for key in ("clean", "fgsm", "brightness")}


@pytest.fixture(scope="session", autouse=True)
def without_fsync() -> Iterator[None]:
    """Disable `os.fsync`, which takes ten milliseconds on a busy disk and only protects against power cuts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _descriptor: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def without_repeated_work() -> Iterator[None]:
    """Build the command line and the script of report pages once: both are slow to build and never change."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.main, "get_command", functools.cache(typer.main.get_command))
        patch.setattr(vl_convert, "javascript_bundle", functools.cache(vl_convert.javascript_bundle))
        yield


@pytest.fixture
def without_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the figures of report pages, which take seconds, in tests of a page's texts and numbers."""
    monkeypatch.setattr("robust201.figures.report.FIGURES", {})


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Return the data folder (ROBUST201_DATA, by default `shared` next to the repository), or skip the test."""
    folder = Path(os.environ.get("ROBUST201_DATA", REPOSITORY.parent / "shared"))
    if not (folder / "cifar10" / "test.parquet").exists():
        pytest.skip(f"no cifar10/test.parquet in {folder}; set ROBUST201_DATA to a data folder")
    return folder


def add_network(store: "CheckpointStore", index: int, state_dict: "Mapping[str, torch.Tensor]", **changes: Any) -> None:
    """Add the weights of a tiny network (C=4, N=1, ten classes) to a store, as weights trained on the digits."""
    from robust201.networks.nb201 import cells as nasbench201

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
    spec = nasbench201.specs()[index]
    store.add(index=index, spec=spec, state_dict=dict(state_dict), **(fields | changes))


def random_state(index: int) -> "dict[str, torch.Tensor]":
    """Return the random weights of a tiny network (C=4, N=1, ten classes)."""
    import torch

    from robust201.networks.nb201 import cells as nasbench201
    from robust201.networks.nb201.network import Network

    torch.manual_seed(index)
    return Network(nasbench201.specs()[index], channels=4, cells=1, n_classes=10).state_dict()


@pytest.fixture(scope="session")
def tiny_weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a checkpoint store with random networks for the digits."""
    from robust201.weights.store import CheckpointStore

    folder = tmp_path_factory.mktemp("weights")
    with CheckpointStore(folder) as store:
        for index in (*TINY_ARCHITECTURES, 309):
            add_network(store, index, random_state(index))
    return folder


def covered_values(case: pytest.Function) -> set[tuple[object, ...]]:
    """Return a case's parameter values, each as a tuple of its argument names and the `id()` of each argument."""
    argument_names = [
        str(marker.args[0]) if isinstance(marker.args[0], str) else ",".join(marker.args[0])
        for marker in case.iter_markers("parametrize")
    ]
    groups = [tuple(name.strip() for name in names.split(",")) for names in argument_names]
    fixtures = [(name,) for name in case.callspec.params if not any(name in group for group in groups)]
    return {(group, *(id(case.callspec.params[name]) for name in group)) for group in (*groups, *fixtures)}


def mark_cases_slow(items: Sequence[pytest.Item]) -> None:
    """Mark cases of `slow_combinations` tests as slow if they are not needed to cover each value once."""
    cases: dict[tuple[Path, str], list[pytest.Function]] = defaultdict(list)
    for item in items:
        markers = {marker.name for marker in item.iter_markers()}
        if isinstance(item, pytest.Function) and "slow_combinations" in markers and "slow" not in markers:
            cases[item.path, item.originalname].append(item)
    for remaining in cases.values():
        covered: set[tuple[object, ...]] = set()
        while remaining:
            # `max` returns the first of equally good cases.
            best_case = max(remaining, key=lambda case: len(covered_values(case) - covered))
            if covered_values(best_case) <= covered:
                break
            covered |= covered_values(best_case)
            remaining.remove(best_case)
        for case in remaining:
            case.add_marker(pytest.mark.slow)


SLOWEST_FOLDERS = ("faults", "golden", "networks", "run", "figures", "project", "api", "dataset", "store")
"""Folders with the slowest tests. These run first, in this order, so that all processes end at about the same time."""


@pytest.hookimpl(tryfirst=True)  # before pytest deselects by marker
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    mark_cases_slow(items)
    ranks = {folder: rank for rank, folder in enumerate(SLOWEST_FOLDERS)}
    items.sort(key=lambda item: ranks.get(item.path.parent.name, len(ranks)))


def pytest_collection_finish() -> None:
    """Exclude the modules and tests from later garbage collections, because they live as long as the process."""
    gc.collect()
    gc.freeze()


MakeFields = Callable[..., dict[str, Any]]


def tiny_sweep_fields(folder: Path, weights: Path, /, **changes: Any) -> dict[str, Any]:
    """Return the fields of a tiny sweep whose results are in a folder (see `sweep_fields`)."""
    execution = {"executor": "inline", "device": "cpu", "threads": 1, "gmacs_per_second": 10} | changes.pop(
        "execution", {}
    )
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
    """Return a function that makes the fields of a tiny sweep: two architectures, seven keys and ten images.

    Its arguments replace top-level fields, except that `execution` is merged with the default.
    """
    return lambda **changes: tiny_sweep_fields(tmp_path, tiny_weights, **changes)


MakeSweep = Callable[..., SweepConfig]


@pytest.fixture
def make_sweep(sweep_fields: MakeFields) -> MakeSweep:
    """Return a function that makes the configuration of a tiny sweep (see `sweep_fields`)."""
    return lambda **changes: parse_config(sweep_fields(**changes), "test")


WriteSweep = Callable[..., Path]


@pytest.fixture
def write_sweep(sweep_fields: MakeFields, tmp_path: Path) -> WriteSweep:
    """Return a function that writes a tiny sweep with three keys to sweep.yaml (see `sweep_fields`)."""

    def write(**changes: Any) -> Path:
        path = tmp_path / "sweep.yaml"
        path.write_text(yaml.safe_dump(sweep_fields(**({"keys": THREE_KEYS} | changes)), sort_keys=False))
        return path

    return write


@dataclass(frozen=True)
class FinishedCommand:
    """Result of a command: exit code, stdout and stderr."""

    code: int
    out: str
    err: str

    def error_line(self, *, exit_code: int) -> str:
        """Check the exit code; return the only error line, which has a subject, a fault and a remedy."""
        assert self.code == exit_code, self.err
        lines = self.err.splitlines()
        assert [line for line in lines if line.startswith("error: ")] == lines[-1:], self.err
        assert re.fullmatch(r"error: \S.+: .+[.?] \S.+", lines[-1]), lines[-1]
        assert "Traceback" not in self.err
        assert self.out == ""
        return lines[-1]


RunCommand = Callable[..., FinishedCommand]


@pytest.fixture
def robust201(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> RunCommand:
    """Return a function that runs the command line in this process."""
    from robust201.cli.app import main

    def run(*arguments: object) -> FinishedCommand:
        monkeypatch.setattr(sys, "argv", ["robust201", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as exit_info:
            main()
        return FinishedCommand(int(exit_info.value.code or 0), *capsys.readouterr())

    return run


def read_tree(folder: Path) -> dict[str, bytes]:
    """Return the contents of all files below a folder, by relative path."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.fixture(scope="session")
def finished_template(tiny_weights: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a finished sweep, which is computed once; tests start from a copy (`finished_results`)."""
    from tests.support.runs import run_inline

    folder = tmp_path_factory.mktemp("finished")
    config = parse_config(tiny_sweep_fields(folder, tiny_weights, keys=THREE_KEYS), "test")
    assert run_inline(config).is_complete
    return folder


@pytest.fixture
def finished_results(finished_template: Path, write_sweep: WriteSweep, tmp_path: Path) -> Path:
    """Return the results folder of a finished sweep of ten evaluations, as `run` computes it for `write_sweep()`."""
    write_sweep()
    for folder_name in ("results", "corruptions"):
        shutil.copytree(finished_template / folder_name, tmp_path / folder_name)
    plan = tmp_path / "results/plan.json"
    plan.write_text(plan.read_text().replace(str(finished_template), str(tmp_path)))
    return tmp_path / "results"
