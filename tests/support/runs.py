"""Runs of sweeps in this process, complete or killed."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from robust201.core.records import EvaluationResult, Part, Unit
from robust201.dataset.export import export_dataset
from robust201.dataset.shard_rows import KeyRows, UnitColumns, decode_shard
from robust201.run.driver import run_work
from robust201.run.share import prepare_share
from robust201.run.sweep import SweepWork, prepare_run
from robust201.run.trainings import prepare_training_runs
from robust201.run.work import OnProgress, Say, Tally
from robust201.store.folder import ResultsFolder
from robust201.store.names import ShardName, content_hash
from robust201.store.shards import Shard, encode
from robust201.sweep.config import SweepConfig
from robust201.sweep.filters import EVERYTHING, Filters
from robust201.sweep.parts import SweepState, compare
from robust201.sweep.plan import open_results
from robust201.sweep.shares import Share
from robust201.sweep.training_config import TrainingConfig
from tests.conftest import read_tree


class KilledError(BaseException):
    """End of a run as if the process was killed."""


def quiet(_line: str) -> None:
    """Ignore a line for the user."""


def run_sweep(
    config: SweepConfig,
    filters: Filters = EVERYTHING,
    *,
    say: Say = quiet,
    on_start: Callable[[SweepWork], None] = lambda _work: None,
    on_progress: OnProgress = lambda _tally, _seconds_left: None,
) -> Tally:
    """Compute the missing parts of a sweep; `on_start` receives the work before anything is computed."""
    with prepare_run(config, filters, say) as work:
        on_start(work)
        return run_work(work, say, on_progress)


def run_share(
    config: SweepConfig, share: Share, filters: Filters = EVERYTHING, *, say: Say = quiet, **options: Any
) -> Tally:
    """Compute the missing parts of a share."""
    return run_work(prepare_share(config, share, filters, say), say, **options)


def run_trainings(config: TrainingConfig, filters: Filters = EVERYTHING, *, say: Say = quiet) -> Tally:
    """Compute the missing snapshots of training runs."""
    with prepare_training_runs(config, filters, say) as work:
        return run_work(work, say)


def save_plan(config: SweepConfig, filters: Filters = EVERYTHING) -> None:
    """Write what a run would write before it computes anything."""
    with prepare_run(config, filters, quiet):
        pass


def run_inline(config: SweepConfig, filters: Filters = EVERYTHING, *, killed_after: int | None = None) -> Tally:
    """Run a sweep in this process; raise `KilledError` after `killed_after` parts, if it is set."""

    def kill(tally: Tally, _seconds_left: float | None) -> None:
        if tally.n_parts == killed_after:
            raise KilledError

    execution = config.execution.model_copy(update={"executor": "inline"})
    return run_sweep(config.model_copy(update={"execution": execution}), filters, on_progress=kill)


def list_units(results: Path) -> list[Unit]:
    """Return the planned units of a results folder."""
    plan, _ = open_results(results)
    return [key.unit(network) for key in plan.keys for network in range(len(key.networks))]


def read_state(results: Path) -> SweepState:
    """Return which evaluations of a results folder are stored."""
    plan, folder = open_results(results)
    return compare(plan, folder.list(), folder.read_tuple)


def read_rows(results: Path, keys: tuple[str, ...] | None = None) -> list[tuple[Unit, UnitColumns]]:
    """Return the results of all units, or of the units of some keys."""
    plan, folder = open_results(results)
    listing = folder.list()
    return [item for key in plan.narrow(keys=keys).keys for item in KeyRows(folder, key, listing)]


def read_shard(folder: ResultsFolder, name: ShardName) -> Shard:
    """Read and check all columns of a shard."""
    return decode_shard(folder, name, folder.read(name))


def store_variant(
    folder: ResultsFolder,
    name: ShardName,
    change: Callable[[dict[str, Any]], dict[str, Any]] = lambda values: values,
    pixels: Mapping[float, str] | None = None,
) -> None:
    """Store a changed copy of a shard as another file of its part; `pixels`: hashes by strength."""
    shard = read_shard(folder, name)
    part = Part(shard.unit, shard.unit.strengths, shard.start, shard.stop)
    results = [
        EvaluationResult(part, strength, change(dict(values)), 1.0, {}) for strength, values in shard.rows.items()
    ]
    content = encode(results, pixels=[*{**shard.pixels, **(pixels or {})}.values()])
    folder.write(name._replace(hash=content_hash(content)), content)


def export_bytes(config: SweepConfig, out: Path, **options: Any) -> dict[str, bytes]:
    """Export a sweep; return the files of the dataset `digits` by path."""
    plan, folder = open_results(config.results)
    export_dataset(plan, folder, out, **options)
    return {path: content for path, content in read_tree(out).items() if path.startswith("digits/")}
