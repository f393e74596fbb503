"""Sampled sweeps: the pilot, samples, increments, and what a whole sample is combined into."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from robust201.core.errors import ConfigError
from robust201.export import export_dataset
from robust201.planning.config import SweepConfig
from robust201.planning.plan_file import load_plan
from robust201.planning.samples import SAMPLE_FILE, read_samples
from robust201.runtime.executors import make_executor
from robust201.runtime.scheduler import RunTally
from robust201.runtime.sweep import run_sweep
from robust201.shards import ShardStore
from tests.conftest import MakeSweep

KEYS: dict[str, Any] = {
    "clean": {},
    "fgsm": {"epsilons_255": [1, 8]},
    "pgd": {"epsilons_255": [1, 8], "steps": 3},
    "aa_square": {"epsilons_255": [4], "queries": 3},
}


def run(config: SweepConfig, **options: Any) -> RunTally:
    return run_sweep(config, make_executor, **options)


def files_of(config: SweepConfig, out: Path) -> dict[str, bytes]:
    store = ShardStore.open(config.results)
    export_dataset(load_plan(config.results), store, store.inventory(), out, formats=("json", "parquet"))
    return {str(path.relative_to(out)): path.read_bytes() for path in sorted(out.rglob("*")) if path.is_file()}


def rows_of(config: SweepConfig) -> dict[tuple[str, float, int, int], bytes]:
    """Values of every stored row, by unit, strength and range of images."""
    plan, store = load_plan(config.results), ShardStore.open(config.results)
    inventory = store.inventory()
    return {
        (unit.id, strength): b"".join(
            array.tobytes()
            for _, array in sorted(store.values(unit, strength, inventory, plan.measurements).items())
        )
        for unit in plan.units
        for strength in unit.strengths
    }


@pytest.fixture
def sampled(make_sweep: MakeSweep, tmp_path: Path) -> Any:
    def make(budget: str | None, folder: str = "sampled", **changes: Any) -> SweepConfig:
        section = None if budget is None else {"budget": budget, "pilot": 2}
        fields: dict[str, Any] = {
            "keys": KEYS,
            "results": str(tmp_path / folder),
            "sampling": section,
            "architectures": [0, 21, 3000, 9999],
            "checkpoints": None,
            "weights": {"random": {"seeds": [0]}},
            "images": {"count": 50, "seed": 0},
        }
        return make_sweep(**fields | {"measurements": ["accuracy", "cm", "confidence", "predictions"]} | changes)

    return make


def test_a_sample_has_the_outcomes_of_all_images(sampled: Any) -> None:
    """The increments' images have the outcomes that they have among all images, and a larger budget keeps them."""
    config = sampled("80%")
    tally = run(config)
    assert not tally.failures
    print(tally, [(k, v.n_seen, len(v.design.stratum)) for k, v in read_samples(config.results).keys.items()])
    config = sampled("100%")
    run(config)
    plain = sampled(None, "plain")
    run(plain)
    a, b = files_of(config, config.results.parent / "a"), files_of(plain, config.results.parent / "b")
    assert a.keys() == b.keys()
    assert [name for name in a if a[name] != b[name]] == []
