"""Runs of sweeps in this process, complete or killed."""

from pathlib import Path
from typing import Any

from robust201.core.records import Unit
from robust201.dataset.export import export_dataset
from robust201.dataset.shard_rows import KeyRows, UnitRows
from robust201.run.sweep import run_sweep
from robust201.run.work import Moment, Tally
from robust201.sweep.config import SweepConfig
from robust201.sweep.filters import EVERYTHING, Filters
from robust201.sweep.parts import SweepState, compare
from robust201.sweep.plan import open_results
from tests.conftest import read_tree


class KilledError(BaseException):
    """End of a run as if the process was killed."""


def run_inline(config: SweepConfig, filters: Filters = EVERYTHING, *, killed_after: int | None = None) -> Tally:
    """Run a sweep in this process; raise `KilledError` after a number of parts."""

    def kill(moment: Moment) -> None:
        if moment.tally.n_parts == killed_after:
            raise KilledError

    execution = config.execution.model_copy(update={"executor": "inline"})
    return run_sweep(config.model_copy(update={"execution": execution}), filters, on_moment=kill)


def list_units(results: Path) -> list[Unit]:
    """Return the planned units of a results folder."""
    plan, _ = open_results(results)
    return [key.unit(network) for key in plan.keys for network in range(len(key.networks))]


def read_state(results: Path) -> SweepState:
    """Return which evaluations of a results folder are stored."""
    plan, folder = open_results(results)
    return compare(plan, folder.list(), folder.read_tuple)


def read_rows(results: Path, keys: tuple[str, ...] | None = None) -> list[tuple[Unit, UnitRows]]:
    """Return the results of all units, or of those of some keys."""
    plan, folder = open_results(results)
    listing = folder.list()
    return [item for key in plan.narrow(keys=keys).keys for item in KeyRows(folder, key, listing)]


def export_bytes(config: SweepConfig, out: Path, **options: Any) -> dict[str, bytes]:
    """Export a sweep; return the published files by path."""
    plan, folder = open_results(config.results)
    export_dataset(plan, folder, out, **options)
    return {path: content for path, content in read_tree(out).items() if path.startswith("digits/")}
