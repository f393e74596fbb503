"""A tiny sweep, an export of it that was thinned out, and sweeps that complete that: fixtures and what reads them."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from robust201.dataset import export_dataset
from robust201.monitoring.status import SweepStatus, read_status
from robust201.planning.adoption import read_inventory
from robust201.planning.config import SweepConfig, parse_config
from robust201.planning.plan_file import load_plan
from robust201.runtime.executors import make_executor
from robust201.runtime.sweep import RunPreview, run_sweep
from robust201.shards import Inventory, ShardStore

ARCHITECTURES = (0, 21, 309)
KEYS: dict[str, dict[str, Any]] = {
    "clean": {},
    "fgsm": {"epsilons_255": [1, 4, 8]},
    "pgd": {"epsilons_255": [1, 8], "steps": 2},
    "brightness": {"severities": [1, 5]},
}
N_PLANNED = 3 * 8
CLEAN = {"dataset": "digits", "key": "clean"}
PLAIN: dict[str, Any] = {"datasets": {"digits": {}}}
"""Without corruptions, which are those of other images."""


MakeNamed = Callable[..., SweepConfig]


def make_config(folder: Path, weights: Path, corruptions: Path, **changes: Any) -> SweepConfig:
    """A tiny sweep that takes imported results; arguments replace top-level fields."""
    fields = {
        "name": "tiny",
        "results": str(folder),
        "take_imported": True,
        "architectures": list(ARCHITECTURES),
        "network": {"channels": 4, "cells": 1},
        "checkpoints": {"path": str(weights)},
        "datasets": {"digits": {"corruptions": {"source": "generated", "path": str(corruptions)}}},
        "images": {"count": 10, "seed": 0},
        "keys": KEYS,
        "execution": {"executor": "inline", "threads": 1, "gmacs_per_second": 10},
    }
    return parse_config(fields | changes, "test")


@pytest.fixture(scope="module")
def corruptions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where corrupted images are, once they were needed."""
    return tmp_path_factory.mktemp("shared") / "corruptions"


@pytest.fixture
def sweep(tiny_weights: Path, corruptions: Path, tmp_path: Path) -> MakeNamed:
    """Make sweeps with their results in a folder of the given name (see `make_config`)."""
    return lambda name, **changes: make_config(tmp_path / name, tiny_weights, corruptions, **changes)


def run(config: SweepConfig, **options: Any) -> RunPreview:
    seen: list[RunPreview] = []
    assert run_sweep(config, make_executor, on_preview=seen.append, **options).complete
    return seen[0]


def open_results(config: SweepConfig) -> tuple[Any, ShardStore, Inventory]:
    plan, store = load_plan(config.results), ShardStore.open(config.results)
    return plan, store, read_inventory(plan, store, verify="all")


def export(config: SweepConfig, out: Path, **options: Any) -> Path:
    export_dataset(*open_results(config), out, **options)
    return out


def status_of(config: SweepConfig) -> SweepStatus:
    plan, _, inventory = open_results(config)
    return read_status(plan, inventory)


def results_of(folder: Path) -> dict[str, bytes]:
    """Files of values, as published."""
    return {path.name: path.read_bytes() for path in (folder / "meta.json", *folder.glob("digits/*"))}


def change_rows(folder: Path, key: str, edit: Callable[[dict[str, Any]], Any]) -> None:
    """Edit what the files of a key have for each architecture; the edit changes rows, or gives new ones."""
    for path in folder.glob(f"digits/{key}_*.json"):
        content = json.loads(path.read_text())
        rows = content["digits"][key]
        for measure in rows:
            rows[measure] = edit(rows[measure]) or rows[measure]
        path.write_text(json.dumps(content))


def change_json(path: Path, edit: Callable[[dict[str, Any]], Any]) -> None:
    content = json.loads(path.read_text())
    edit(content)
    path.write_text(json.dumps(content))


def take_strengths(folder: Path, key: str, places: tuple[int, ...]) -> None:
    """Leave only some strengths of a key."""
    change_rows(folder, key, lambda rows: {i: [values[place] for place in places] for i, values in rows.items()})
    for name, of_keys in (("sweep.json", ("strengths", "digits")), ("meta.json", ("epsilons",))):

        def edit(content: dict[str, Any], of_keys: tuple[str, ...] = of_keys) -> None:
            for step in of_keys:
                content = content[step]
            content[key] = [content[key][place] for place in places]

        change_json(folder / name, edit)


def thin_out(source: Path, folder: Path) -> Path:
    """Copy an export without brightness, PGD of #0, clean of #21, and FGSM at 4: 13 of 24 evaluations are left."""
    shutil.copytree(source, folder)
    for path in folder.glob("digits/brightness_*"):
        path.unlink()
    change_rows(folder, "pgd", lambda rows: rows.pop("0") and None)
    change_rows(folder, "clean", lambda rows: rows.pop("21") and None)
    take_strengths(folder, "fgsm", (0, 2))
    return folder


N_LEFT = 2 + 3 * 2 + 2 * 2


@pytest.fixture(scope="module")
def whole(tiny_weights: Path, corruptions: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[SweepConfig, Path]:
    """A computed sweep, and an export of it."""
    folder = tmp_path_factory.mktemp("whole")
    config = make_config(folder / "results", tiny_weights, corruptions, take_imported=False)
    run(config)
    return config, export(config, folder / "A", formats=("json", "parquet"))


@pytest.fixture
def part(whole: tuple[SweepConfig, Path], tmp_path: Path) -> Path:
    """What is left of the export."""
    return thin_out(whole[1], tmp_path / "part")
