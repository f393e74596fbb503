"""Training runs of `robust201 run` and `plan`."""

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from robust201.cli import console, console_run

if TYPE_CHECKING:
    from robust201.run.work import Tally
    from robust201.sweep.filters import Filters
    from robust201.sweep.training_config import TrainingConfig, TrainingRun


def train(config: "TrainingConfig", filters: "Filters") -> "tuple[Tally, int, bool]":
    """Train the missing snapshots; return the tally, the exit code, and whether anything was saved.

    The test accuracies of the complete training runs are printed.
    """
    from robust201.run.driver import run_work
    from robust201.run.snapshots import saved_steps
    from robust201.run.trainings import prepare_training_runs
    from robust201.run.user_code import load_code

    load_code(config)
    steps_before = saved_steps(config.results)
    display = console_run.RunDisplay("Training", "epochs")
    with display.showing(), prepare_training_runs(config, filters, console.say) as work:
        console_run.show_start(work.n_planned, work.n_done, "epoch")
        tally = run_work(work, console.say, display.update)
    console.say_each(_describe_accuracies(config, work.training_runs))
    completion = f"Complete. Evaluate the networks in a sweep with weights: {{path: {config.store}, recipe: …}}"
    return tally, console_run.show_tally(tally, "epoch", completion), saved_steps(config.results) != steps_before


def _describe_accuracies(config: "TrainingConfig", training_runs: "Collection[TrainingRun]") -> list[str]:
    from robust201.core.user_code import hash_files
    from robust201.sweep.training_config import TrainingRun
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
        and TrainingRun(record.index, record.dataset, record.recipe, record.seed) in training_runs
    ]


def plan_training_runs(config: "TrainingConfig", filters: "Filters", *, check: bool) -> dict[str, Any]:
    """Return the numbers of training runs and snapshots and the estimated hours; `check` also reads the inputs."""
    from robust201.run.trainings import preview_training_runs
    from robust201.sweep.filters import select_training_runs
    from robust201.sweep.training_plan import estimate_training_runs

    summary = estimate_training_runs(config, select_training_runs(config, filters))
    console.say_each([f"warning: {line}" for line in summary["warnings"]])
    if check:
        training_runs = preview_training_runs(config, filters, console.say)
        n_snapshots = sum(len(planned.steps) for planned in training_runs)
        n_missing = sum(len(planned.missing) for planned in training_runs)
        summary |= {"snapshots": n_snapshots, "snapshots_done": n_snapshots - n_missing}
    return summary
