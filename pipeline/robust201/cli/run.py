"""`robust201 run`: compute the missing results of a sweep or training YAML."""

import os
import sys
from contextlib import AbstractContextManager, nullcontext
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from robust201.cli import console, console_run
from robust201.cli.options import (
    AllowCode,
    Architectures,
    Datasets,
    Executor,
    Keys,
    Recipes,
    SlurmRequeue,
    Sweep,
    Workers,
    load_yaml,
    make_filters,
    reject_options,
)

if TYPE_CHECKING:
    from robust201.run.sweep import SweepWork
    from robust201.run.work import Tally
    from robust201.sweep.config import ExecutionSection, SweepConfig
    from robust201.sweep.filters import Filters
    from robust201.sweep.shares import Share


def run(
    sweep: Sweep,
    architectures: Architectures = None,
    datasets: Datasets = None,
    keys: Keys = None,
    recipes: Recipes = None,
    executor: Executor = None,
    workers: Workers = None,
    out: Annotated[
        str | None, typer.Option("--out", help="Results folder or checkpoint store; overrides the YAML.")
    ] = None,
    share: Annotated[
        str | None,
        typer.Option(
            metavar="I/N",
            help="Run only share I of N (counted from 1, such as 3/64) of a sweep that `plan --save` saved.",
        ),
    ] = None,
    slurm_requeue: SlurmRequeue = False,
    allow_code: AllowCode = False,
) -> None:
    """Compute the missing results of a sweep or training YAML.

    Ctrl-C finishes the work in progress; a second Ctrl-C stops immediately. Run the command again to resume.
    """
    from robust201.cli.train import train
    from robust201.run.environment import check_machine
    from robust201.run.slurm_task import ArrayTask
    from robust201.run.user_code import announce_code
    from robust201.sweep.config import SweepConfig
    from robust201.sweep.shares import Share

    task = ArrayTask.of(os.environ) if slurm_requeue else None
    announcements: list[str] = []
    config = load_yaml(sweep, announcements.append, out=out, execution={"executor": executor, "workers": workers})
    if isinstance(config, SweepConfig):
        reject_options("sweep", recipes=recipes)
    else:
        reject_options("training YAML", keys=keys, share=share)
    filters = make_filters(config, architectures, datasets, keys, recipes)
    selected_share = None if share is None else Share.parse(share)
    if task is not None:
        config = config.model_copy(update={"execution": task.limit(config.execution)})
    check_machine(config.execution, config.precision)
    announce_code(config, allowed=allow_code, say=announcements.append)
    if needs_child_process(config.execution):
        raise typer.Exit(run_in_child_process())  # the child repeats this command
    for line in announcements:
        console.say(line)
    if isinstance(config, SweepConfig):
        tally = compute(config, filters, selected_share)
        code, has_progress = _report_end(config, tally, filters, selected_share), tally.n_parts > 0
    else:
        tally, code, has_progress = train(config, filters)
    if task is not None and tally.is_out_of_time:  # after scancel or preemption, the user or Slurm decides
        task.requeue(console.say, has_progress=has_progress)
    raise typer.Exit(code)


def needs_child_process(execution: "ExecutionSection") -> bool:
    """Return whether a child of this process must connect to Ray, because Ray may end or block it (see `run.guard`)."""
    from robust201.run.guard import is_guarded

    return execution.executor == "ray" and not is_guarded()


def run_in_child_process() -> int:
    """Repeat this process's command in a child process that connects to Ray, and return the child's exit code."""
    from robust201.run.guard import guard

    return guard([sys.executable, "-P", "-m", "robust201", *sys.argv[1:]])


def compute(config: "SweepConfig", filters: "Filters | None" = None, share: "Share | None" = None) -> "Tally":
    """Compute a sweep or one share of it, and show its progress."""
    from robust201.run.driver import run_work
    from robust201.sweep.filters import EVERYTHING

    display = console_run.RunDisplay()
    with display.showing(), _prepare(config, filters or EVERYTHING, share) as work:
        console_run.show_start(work.n_planned, work.n_done, "evaluation", work.causes)
        return run_work(work, console.say, display.update)


def _prepare(config: "SweepConfig", filters: "Filters", share: "Share | None") -> AbstractContextManager["SweepWork"]:
    from robust201.run.share import prepare_share
    from robust201.run.sweep import prepare_run
    from robust201.run.user_code import load_code

    if share is not None:
        return nullcontext(prepare_share(config, share, filters, console.say))
    load_code(config)
    return prepare_run(config, filters, console.say)


def _report_end(config: "SweepConfig", tally: "Tally", filters: "Filters", share: "Share | None") -> int:
    from robust201.dataset.unstable_networks import read_unstable_networks
    from robust201.sweep.filters import EVERYTHING

    results = quote(str(config.results))
    conclusion = f"Complete. Export the results with: robust201 export {results} --out DATASET"
    if filters != EVERYTHING or share is not None:
        conclusion = f"Complete for this selection. Status of the whole sweep: robust201 status {results}"
    unstable = read_unstable_networks(config.results) if share is None else {}  # too slow for thousands of shares
    if unstable:
        first = next(iter(unstable.values()))
        conclusion = (
            f"Incomplete: the results of {console.format_count(len(unstable), 'unstable network')} are excluded, such "
            f"as {first.label}: {first.failure} Once the cause is fixed, delete {results}/events."
        )
    code = console_run.show_tally(tally, "evaluation", conclusion, f"All failures: robust201 status {results}")
    return code or (3 if unstable else 0)
