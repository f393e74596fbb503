"""`robust201 run`, `plan` and `status` for a training YAML."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from robust201.cli import console, console_run
from robust201.cli.monitoring import print_json
from robust201.cli.options import make_filters

if TYPE_CHECKING:
    from robust201.run.work import Tally
    from robust201.sweep.filters import Filters
    from robust201.sweep.training_config import Training, TrainingConfig


def run_training_runs(
    path: Path,
    *,
    architectures: str | None,
    datasets: str | None,
    recipes: str | None,
    executor: str | None,
    workers: int | None,
    out: str | None,
    slurm_requeue: bool,
    allow_code: bool,
) -> int:
    """Train the missing snapshots of a training YAML; return the exit code. The parameters are the options of `run`."""
    from robust201.cli.run import needs_guard, run_guarded
    from robust201.run.environment import check_machine
    from robust201.run.slurm_task import ArrayTask
    from robust201.run.snapshots import saved_steps
    from robust201.run.user_code import announce_code
    from robust201.sweep.loading import load_training

    task = ArrayTask.of(os.environ) if slurm_requeue else None
    config = load_training(path, store=out, execution={"executor": executor, "workers": workers})
    if task is not None:
        config = config.model_copy(update={"execution": task.limit(config.execution)})
    filters = make_filters(config, architectures, datasets, recipes=recipes)
    check_machine(config.execution, config.precision)
    if needs_guard(config.execution):
        announce_code(config, allowed=allow_code, say=lambda _line: None)  # the child repeats this command
        return run_guarded()
    _say_warnings(config)
    announce_code(config, allowed=allow_code, say=console.say)
    states = saved_steps(config.results)
    tally = _compute(config, filters)
    completion = f"Complete. Evaluate the networks in a sweep with weights: {{path: {config.store}, recipe: …}}"
    code = console_run.show_tally(tally, "epoch", completion)
    if task is not None and tally.is_out_of_time:  # after scancel or preemption, the user or Slurm decides
        task.requeue(console.say, has_progress=saved_steps(config.results) != states)
    return code


def _say_warnings(config: TrainingConfig) -> None:
    from robust201.sweep.sweep_warnings import find_default_normalisations

    for warning in find_default_normalisations(config):
        console.say(f"warning: {warning}")


def _compute(config: TrainingConfig, filters: Filters) -> Tally:
    """Run the training runs, show their progress, and print the test accuracies of the complete ones."""
    from robust201.run.driver import run_work
    from robust201.run.trainings import prepare_trainings
    from robust201.run.user_code import load_code

    load_code(config)
    display = console_run.RunDisplay("Training", "epochs")
    with display.showing(), prepare_trainings(config, filters, console.say) as work:
        console_run.show_start(work.n_planned, work.n_done, "epoch")
        tally = run_work(work, console.say, display.update)
    console.say_each(_describe_accuracies(config, work.trainings))
    return tally


def _describe_accuracies(config: TrainingConfig, trainings: Collection[Training]) -> list[str]:
    from robust201.core.user_code import hash_files
    from robust201.sweep.training_config import Training
    from robust201.weights.store import CheckpointStore

    checkpoints = CheckpointStore(config.store)
    if not checkpoints.manifest.exists():  # no snapshot was saved yet
        return []
    space = config.make_space(hash_files(config.code_files())).weights_name
    return [
        f"{record.label}: test accuracy {record.recorded_accuracy:.4f}"
        for record in checkpoints.records()
        if record.space == space
        and record.is_final
        and record.recorded_accuracy is not None
        and Training(record.index, record.dataset, record.recipe, record.seed) in trainings
    ]


def plan_training_runs(
    path: Path, *, architectures: str | None, datasets: str | None, check: bool, as_json: bool
) -> None:
    """Print the numbers of training runs and snapshots and the estimated hours; `check` also reads the inputs."""
    from robust201.core.user_code import hash_files
    from robust201.run.trainings import preview_trainings
    from robust201.sweep.filters import select_trainings
    from robust201.sweep.loading import load_training
    from robust201.sweep.training_plan import estimate_trainings

    config = load_training(path)
    _say_warnings(config)
    hash_files(config.code_files())
    filters = make_filters(config, architectures, datasets)
    summary = estimate_trainings(config, select_trainings(config, filters))
    if check:
        trainings = preview_trainings(config, filters, console.say)
        n_snapshots = sum(len(planned.steps) for planned in trainings)
        n_missing = sum(len(planned.missing) for planned in trainings)
        summary |= {"snapshots": n_snapshots, "snapshots_done": n_snapshots - n_missing}
    if as_json:
        print_json(summary)
    else:
        console.show_training_plan(summary)
