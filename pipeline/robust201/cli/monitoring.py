"""Read-only commands: `robust201 status` and `doctor`."""

import itertools
import json
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from robust201.cli import console, console_status
from robust201.cli.options import Results, results_of
from robust201.core.errors import ConfigError, EvaluationError, InputError, RobustError

if TYPE_CHECKING:
    from robust201.run.doctor import HealthCheck
    from robust201.run.status import Status
    from robust201.run.training_status import TrainingStatus

_Status = TypeVar("_Status", bound="Status | TrainingStatus")

_SECONDS_BETWEEN_REFRESHES = 10.0
_PATIENCE_SECONDS = 15 * 60.0
"""How long `--watch` waits without an active worker."""

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]


def print_json(payload: Any) -> None:
    """Print a value as indented JSON."""
    typer.echo(json.dumps(payload, indent=2))


def status(
    path: Results,
    watch: Annotated[
        bool,
        typer.Option(
            "--watch",
            help="Refresh until everything is complete, or until no worker has been active for 15 minutes (exit code "
            "3). With --log: keep printing new lines. Press Ctrl-C to quit.",
        ),
    ] = False,
    log: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Only print the events of all workers about one network and key, in chronological order: "
            "ARCHITECTURE/DATASET/KEY, such as 21/cifar10/pgd (append /WEIGHTS if there are several), or a unit ID or "
            "its prefix.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show the progress of a sweep, its workers, failures and remaining time.

    For a training YAML or its checkpoint store, show how many epochs and training runs are complete.
    """
    if log is not None:
        _show_log(results_of(path), log, watch=watch, as_json=as_json)
        return
    if watch and as_json:
        raise ConfigError(
            "Reading the command line failed for robust201 status: --watch and --json are mutually exclusive. "
            "Remove one of them; scripts can poll `robust201 status --json`."
        )
    from robust201.run.training_status import has_trainings
    from robust201.sweep.loading import is_training_yaml

    if is_training_yaml(path) or has_trainings(path):
        raise typer.Exit(_show_trainings(path, watch=watch, as_json=as_json))
    from robust201.run.status import read_status

    results = results_of(path)

    def read() -> "Status":
        return read_status(results)

    if watch:
        raise typer.Exit(_watch(read, console_status.make_sweep_display()))
    current_status = read()
    if as_json:
        print_json(current_status.to_payload())
    else:
        console_status.show_status(current_status)


def _show_trainings(path: Path, *, watch: bool, as_json: bool) -> int:
    """Show the status of the training runs of a YAML or checkpoint store; return the exit code."""
    from robust201.run.training_status import read_training_status
    from robust201.sweep.loading import load_training

    store = load_training(path).store if path.is_file() else path

    def read_status() -> "TrainingStatus":
        return read_training_status(store)

    if watch:
        return _watch(read_status, console_status.make_trainings_display())
    current_status = read_status()
    if as_json:
        print_json(current_status.to_payload())
    else:
        for line in console_status.describe_trainings(current_status):
            typer.echo(line)
    return 0


def _watch(read_status: Callable[[], _Status], display: console_status.Display[_Status]) -> int:
    """Watch until everything is complete, workers become inactive or the user quits; return the exit code."""
    last_activity = time.monotonic()
    try:
        with display.showing():
            while True:
                current_status, now = read_status(), time.monotonic()
                last_activity = now if current_status.running else last_activity
                display.update(current_status, now - last_activity)
                if current_status.complete:
                    return 0
                if now - last_activity >= _PATIENCE_SECONDS:
                    break
                time.sleep(_SECONDS_BETWEEN_REFRESHES)
    except KeyboardInterrupt:
        return 0 if display.is_complete else EvaluationError.exit_code
    console.say(
        f"No worker has been active for {_PATIENCE_SECONDS / 60:g} minutes. Start or submit the run again to resume."
    )
    return EvaluationError.exit_code


def _show_log(results: Path, name: str, *, watch: bool, as_json: bool) -> None:
    """Print the events about a network and key."""
    from robust201.run.logs import follow_log, read_log

    events = follow_log(results, name, every=1.0) if watch else read_log(results, name)
    if not events:
        raise InputError(
            f"Looking up events failed for {name!r}: expected a network and key that a worker has started, such as "
            f"21/cifar10/pgd, or the beginning of a unit's id, got none in {results}. Correct the name, or wait."
        )
    try:
        for event in events:
            if as_json:
                typer.echo(json.dumps(event))
            else:
                console_status.show_event(event)
    except KeyboardInterrupt:
        return


def doctor(
    sweep: Annotated[
        Path | None,
        typer.Argument(metavar="SWEEP", help="Also check what this sweep YAML or results folder needs."),
    ] = None,
) -> None:
    """Check the installation, and optionally the inputs of a sweep; every failed check comes with a fix."""
    from robust201.run.doctor import HealthCheck, examine

    config, failed_sweep_checks = None, []
    try:
        if sweep:
            from robust201.sweep.facts import load_sweep

            config = load_sweep(sweep)
    except RobustError as error:  # the cause may be a fault that the other checks report, such as an unset variable
        failed_sweep_checks.append(
            HealthCheck("sweep", ok=False, detail=f"{sweep} is invalid and was not checked", fix=str(error))
        )
    except ImportError as error:
        raise ConfigError(
            f"Reading the sweep failed for {sweep}: it needs a package that is not installed ({error}). "
            "To list missing packages, run: robust201 doctor (without a sweep)."
        ) from error
    raise typer.Exit(_show_checks(itertools.chain(examine(config), failed_sweep_checks)))


def _show_checks(checks: Iterable["HealthCheck"]) -> int:
    """Print each check when it is done; return the exit code."""
    is_ok = True
    for check in checks:
        is_ok &= check.ok
        console.show_health_check(check)
    return 0 if is_ok else 2
