"""Read-only commands: `robust201 status` and `doctor`."""

import itertools
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from robust201.cli import console
from robust201.cli.console_status import Description, Display, describe_sweep, describe_training_runs, show_event
from robust201.cli.options import AsJson, Results, print_json, results_of
from robust201.core.errors import ConfigError, EvaluationError, InputError, RobustError

_SECONDS_BETWEEN_REFRESHES = 10.0
_MAX_IDLE_SECONDS = 15 * 60.0
"""Number of seconds without an active worker after which `--watch` ends."""
_MAX_FAILED_READINGS = 3
"""Maximum number of consecutive readings that may fail: a restarting file server can show empty folders for a while."""


def status(
    path: Results,
    watch: Annotated[
        bool,
        typer.Option(
            "--watch",
            help="Refresh until everything is complete, or no worker has been active for 15 minutes (exit code 3).",
        ),
    ] = False,
    log: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Only print the events of all workers about one network and key, in chronological order: "
            "ARCHITECTURE/DATASET/KEY, such as 21/cifar10/pgd (append /WEIGHTS if there are several), or a unit ID or "
            "its first 6 or more characters.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show progress, workers, failures and remaining time of a sweep.

    For a training YAML or its checkpoint store, show how many epochs and training runs are complete.
    """
    if watch and (as_json or log is not None):
        raise ConfigError(
            "Reading the command line failed for robust201 status: --watch excludes --json and --log. Remove one of "
            "them; scripts can poll `robust201 status --json`."
        )
    if log is not None:
        _show_log(results_of(path), log, as_json=as_json)
        return
    from robust201.run.training_status import has_training_runs
    from robust201.sweep.loading import is_training_yaml

    read, describe = (
        _training_runs_of(path) if is_training_yaml(path) or has_training_runs(path) else _sweep_of(results_of(path))
    )
    if watch:
        raise typer.Exit(_watch(read, Display(describe)))
    current_status = read()
    if as_json:
        print_json(current_status.to_payload())
        return
    line, details = describe(current_status)
    for text in (line, *details):
        console.out.print(text)


def _sweep_of(results: Path) -> "tuple[Callable[[], Any], Callable[[Any], Description]]":
    """Return functions that read and describe the status of a sweep."""
    from robust201.run.status import read_status

    return lambda: read_status(results), describe_sweep


def _training_runs_of(path: Path) -> "tuple[Callable[[], Any], Callable[[Any], Description]]":
    """Return functions that read and describe the status of the training runs of a YAML or checkpoint store."""
    from robust201.run.training_status import read_training_status
    from robust201.sweep.loading import load_training

    store = load_training(path).store if path.is_file() else path
    return lambda: read_training_status(store), describe_training_runs


def _watch(read_status: Callable[[], Any], display: Display) -> int:
    """Watch until everything is complete, workers become inactive or the user quits; return the exit code."""
    last_activity = time.monotonic()
    try:
        with display.showing():
            current_status = read_status()
            while True:
                now = time.monotonic()
                last_activity = now if current_status.running else last_activity
                display.update(current_status, now - last_activity)
                if current_status.complete:
                    return 0
                if now - last_activity >= _MAX_IDLE_SECONDS:
                    break
                time.sleep(_SECONDS_BETWEEN_REFRESHES)
                current_status = _read_with_retries(read_status)
    except KeyboardInterrupt:
        return 0 if display.is_complete else EvaluationError.exit_code
    console.say(
        f"No worker has been active for {_MAX_IDLE_SECONDS / 60:g} minutes. Start or submit the run again to resume."
    )
    return EvaluationError.exit_code


def _read_with_retries(read_status: Callable[[], Any]) -> Any:
    for _ in range(_MAX_FAILED_READINGS):
        try:
            return read_status()
        except (InputError, OSError):
            time.sleep(_SECONDS_BETWEEN_REFRESHES)
    return read_status()


def _show_log(results: Path, name: str, *, as_json: bool) -> None:
    """Print the events about a network and key."""
    from robust201.run.logs import read_log

    events = read_log(results, name)
    if not events:
        raise InputError(
            f"Looking up events failed for {name!r}: no worker has started this network and key in {results}. Wait, or "
            "correct the name, such as 21/cifar10/pgd or the beginning of a unit ID."
        )
    for event in events:
        if as_json:
            typer.echo(json.dumps(event))
        else:
            show_event(event)


def doctor(
    sweep: Annotated[
        Path | None,
        typer.Argument(metavar="SWEEP", help="Also check what this sweep YAML or results folder needs."),
    ] = None,
) -> None:
    """Check the installation, and optionally the inputs of a sweep.

    Every failed check comes with a fix.
    """
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
    is_ok = True
    for check in itertools.chain(examine(config), failed_sweep_checks):
        is_ok &= check.ok
        console.out.print(f"{'ok  ' if check.ok else 'fix '} {check.what}: {check.detail}")
        if not check.ok:
            console.out.print(f"     {check.fix}")
    raise typer.Exit(0 if is_ok else 2)
