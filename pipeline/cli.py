"""The command line: one thin function a verb. Exit codes: 0 complete, 2 bad input, 3 incomplete or failed, 4 storage."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from pipeline import __version__, console
from pipeline.config import SweepConfig, load_config, select_architectures
from pipeline.errors import RobustError
from pipeline.perturbations import PERTURBATIONS, Parameters, perturbation

app = typer.Typer(
    name="robust201",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Robustness evaluation of the whole NAS-Bench-201 space: sweep, shards, resume, JSON dataset.",
    epilog="Exit codes: 0 complete; 2 bad input, nothing started; 3 incomplete or failed units; 4 storage.",
)

SweepFile = Annotated[Path, typer.Argument(help="The sweep YAML (see jobs/ and docs/configuration.md).")]
ResultsFolder = Annotated[Path, typer.Argument(help="A results folder, as named by `results` in the sweep YAML.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]
Architectures = Annotated[
    str | None, typer.Option(help="Indices, ranges and cell strings, separated by commas, such as 0-99,309.")
]
Datasets = Annotated[str | None, typer.Option(help="Names separated by commas, such as cifar10,cifar100.")]
Keys = Annotated[str | None, typer.Option(help="Keys separated by commas, such as clean,pgd,fog.")]


def main() -> None:
    """Run the command line; errors that robust201 raises on purpose become one line and their exit code."""
    try:
        app(standalone_mode=True)
    except RobustError as error:
        console.say(f"error: {error}")
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        console.say("Interrupted. Finished work is kept; run the same command again to go on.")
        sys.exit(130)
    except BrokenPipeError:
        sys.exit(141)


def _print_json(payload: Any) -> None:
    typer.echo(json.dumps(payload, indent=2))


def _names(text: str | None) -> tuple[str, ...] | None:
    return None if text is None else tuple(name.strip() for name in text.split(",") if name.strip())


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"robust201 {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    del version
