"""`robust201 run` for a sweep."""

import os
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from robust201.cli import console, console_run
from robust201.cli.options import load_sweep, make_filters
from robust201.run.environment import check_machine
from robust201.run.guard import guard, is_guarded
from robust201.run.slurm_task import ArrayTask
from robust201.run.user_code import announce_code, load_code
from robust201.sweep.filters import EVERYTHING, Filters
from robust201.sweep.shares import Share

if TYPE_CHECKING:
    from robust201.run.sweep import SweepWork
    from robust201.run.work import Tally
    from robust201.sweep.config import ExecutionSection, SweepConfig


def needs_guard(execution: "ExecutionSection") -> bool:
    """Return whether this process must not connect to Ray itself (see `run.guard`)."""
    return execution.executor == "ray" and not is_guarded()


def run_guarded() -> int:
    """Run the command of this process as a child, and return its exit code."""
    return guard([sys.executable, "-P", "-m", "robust201", *sys.argv[1:]])


def run_sweep_command(
    path: Path,
    *,
    architectures: str | None,
    datasets: str | None,
    keys: str | None,
    executor: str | None,
    workers: int | None,
    out: str | None,
    share: str | None,
    slurm_requeue: bool,
    allow_code: bool,
) -> int:
    """Compute the missing evaluations of a sweep; return the exit code. The parameters are the options of `run`."""
    task = ArrayTask.of(os.environ) if slurm_requeue else None
    lines: list[str] = []
    config = load_sweep(path, say=lines.append, results=out, execution={"executor": executor, "workers": workers})
    filters = make_filters(config, architectures, datasets, keys)
    selected = None if share is None else Share.parse(share)
    if task is not None:
        config = config.model_copy(update={"execution": task.limit(config.execution)})
    check_machine(config.execution, config.precision)
    announce_code(config, allowed=allow_code, say=lines.append)
    if needs_guard(config.execution):
        return run_guarded()  # the child repeats this command
    for line in lines:
        console.say(line)
    tally = compute(config, filters, selected)
    code = _show_end(config, tally, filters, selected)
    if task is not None and tally.is_out_of_time:  # after scancel or preemption, the user or Slurm decides
        task.requeue(console.say, has_progress=tally.n_parts > 0)
    return code


def compute(config: "SweepConfig", filters: Filters = EVERYTHING, share: Share | None = None) -> "Tally":
    """Compute a sweep or one share of it, and show its progress."""
    from robust201.run.driver import run_work

    display = console_run.RunDisplay()
    with display.showing(), _prepare(config, filters, share) as work:
        console_run.show_start(work.n_planned, work.n_done, "evaluation", work.causes)
        return run_work(work, console.say, display.update)


def _prepare(config: "SweepConfig", filters: Filters, share: Share | None) -> AbstractContextManager["SweepWork"]:
    from robust201.run.share import prepare_share
    from robust201.run.sweep import prepare_run

    if share is not None:
        return nullcontext(prepare_share(config, share, filters, console.say))
    load_code(config)
    return prepare_run(config, filters, console.say)


def _show_end(config: "SweepConfig", tally: "Tally", filters: Filters, share: Share | None) -> int:
    from robust201.dataset.unstable_networks import read_unstable_networks

    results = quote(str(config.results))
    completion = f"Complete. Export the results with: robust201 export {results} --out DATASET"
    if filters != EVERYTHING or share is not None:
        completion = f"Complete for this selection. Status of the whole sweep: robust201 status {results}"
    unstable = read_unstable_networks(config.results) if share is None else {}  # shares end by the thousand
    if unstable:
        first = next(iter(unstable.values()))
        completion = (
            f"Incomplete: the results of {console.format_count(len(unstable), 'unstable network')} do not count, such "
            f"as {first.label}: {first.failure} If the cause is gone, delete {results}/events."
        )
    code = console_run.show_tally(tally, "evaluation", completion, f"All failures: robust201 status {results}")
    return code or (3 if unstable else 0)
