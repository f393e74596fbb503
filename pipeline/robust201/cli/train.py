"""`robust201 run` and `plan` for a training YAML."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from robust201.cli import console
from robust201.cli.monitoring import print_json
from robust201.cli.options import AllowCode, select_trainings

if TYPE_CHECKING:
    from robust201.planning.training_plan import TrainingPlan
    from robust201.sweep.training_config import Training
    from robust201.weights.manifest import CheckpointRecord


def run_training_runs(
    path: Path,
    *,
    out: str | None,
    executor: str | None,
    workers: int | None,
    recipes: str | None,
    slurm_requeue: bool,
    allow_code: AllowCode,
) -> int:
    """Train the missing snapshots of a training YAML; return the exit code. Parameters are the options of `run`."""
    from robust201.core.user_code import hash_files
    from robust201.planning.training_plan import saved_states
    from robust201.run.slurm_task import ArrayTask
    from robust201.run.user_code import announce_code, load_code
    from robust201.runtime.executors import check_device
    from robust201.runtime.training_run import run_trainings
    from robust201.sweep.loading import load_training
    from robust201.sweep.sweep_warnings import find_default_normalisations

    execution = {"executor": executor, "workers": workers}
    config = load_training(path, store=out, execution=execution)
    selection = select_trainings(config, recipes)
    slurm_task = ArrayTask.of(os.environ) if slurm_requeue else None
    if slurm_task is not None:
        config = config.model_copy(update={"execution": slurm_task.limit(config.execution)})
    states_before = saved_states(config)
    for warning in find_default_normalisations(config):
        console.say(f"warning: {warning}")
    check_device(config)
    announce_code(config, allowed=allow_code, say=console.say)
    load_code(config)
    space = config.make_space(hash_files(config.code_files()))
    planned_runs: list[Training] = []

    def show_preview(plan: TrainingPlan) -> None:
        planned_runs.extend(planned_training.training for planned_training in plan.trainings)
        console.say(
            f"Planned {console.format_count(plan.n_evaluations, 'snapshot')} of "
            f"{console.format_count(len(plan.trainings), 'training run')}: {plan.n_done:,} done, "
            f"{plan.n_evaluations - plan.n_done:,} missing."
        )

    display = console.RunDisplay("Training", "snapshots")
    with display.showing():
        tally = run_trainings(
            config,
            selection=selection,
            on_preview=show_preview,
            on_progress=display.update,
            say=console.say,
        )
    console.say_each(_describe_accuracies(config.store, space.weights_name, planned_runs))
    completion_message = f"Complete. Evaluate the networks in a sweep with weights: {{path: {config.store}, recipe: …}}"
    code = console.show_tally(tally, "snapshot", completion_message)
    if slurm_task is not None and tally.stopped_by_time_limit and tally.remaining:
        slurm_task.requeue(console.say, has_progress=bool(tally.results or saved_states(config) - states_before))
    return code


def _describe_accuracies(store: Path, space: str, trainings: Sequence[Training]) -> list[str]:
    """Return a line with the test accuracy of each finished run of `trainings` in a space."""
    from robust201.weights.store import CheckpointStore

    requested_runs = set(trainings)
    checkpoints = CheckpointStore(store)
    if not checkpoints.manifest.exists():  # no snapshot was saved yet
        return []
    return [
        f"{record.label}: test accuracy {record.recorded_accuracy:.4f}"
        for record in checkpoints.records()
        if record.space == space
        and record.is_final
        and record.recorded_accuracy is not None
        and _training_of(record) in requested_runs
    ]


def _training_of(record: CheckpointRecord) -> Training:
    from robust201.sweep.training_config import Training

    return Training(record.index, record.dataset, record.recipe, record.seed)


def plan_training_runs(path: Path, *, check: bool, as_json: bool) -> None:
    """Print the numbers of training runs and snapshots and the estimated hours; `check` also reads the inputs."""
    from robust201.core.user_code import hash_files
    from robust201.planning.training_plan import estimate_trainings
    from robust201.runtime.training_run import ALL_TRAININGS, preview_trainings
    from robust201.sweep.loading import load_training
    from robust201.sweep.sweep_warnings import find_default_normalisations

    config = load_training(path)
    for warning in find_default_normalisations(config):
        console.say(f"warning: {warning}")
    hash_files(config.code_files())
    summary = estimate_trainings(config, ALL_TRAININGS.select(config))
    if check:
        plan = preview_trainings(config, ALL_TRAININGS, console.say)
        summary |= {"snapshots": plan.n_evaluations, "snapshots_done": plan.n_done}
    if as_json:
        print_json(summary)
    else:
        console.show_training_plan(summary)
