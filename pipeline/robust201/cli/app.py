"""The command line: a thin function per command. Exit codes: see `help_texts.EPILOG`."""

import sys
from typing import Annotated

import typer

from robust201 import __version__
from robust201.cli.analyse import analyse_app
from robust201.cli.compare import compare, curves
from robust201.cli.dataset import export, report
from robust201.cli.demo import demo
from robust201.cli.evaluate import evaluate
from robust201.cli.exits import run_to_exit_code
from robust201.cli.help_texts import ABOUT, EPILOG, HELP_OPTIONS, GroupedCommands, add_commands
from robust201.cli.images_and_weights import corrupt, fetch, import_
from robust201.cli.merge import merge
from robust201.cli.monitoring import doctor, status
from robust201.cli.plan import plan
from robust201.cli.plot import plot
from robust201.cli.rank import rank
from robust201.cli.run import run
from robust201.cli.search import search
from robust201.cli.submit import submit_app
from robust201.cli.verify import verify

app = typer.Typer(
    name="robust201",
    cls=GroupedCommands,
    context_settings=HELP_OPTIONS,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    add_completion=False,
    help=ABOUT,
    epilog=EPILOG,
)


def main() -> None:
    """Run the command line (see `cli.exits`)."""
    sys.exit(run_to_exit_code(app))


def _show_version(is_requested: bool) -> None:
    if is_requested:
        typer.echo(f"robust201 {__version__}")
        raise typer.Exit


@app.callback()
def _read_global_options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    del version


add_commands(app, demo, doctor, fetch, import_, corrupt, plan, run, status, merge, verify, export)
add_commands(app, report, plot, rank, search, evaluate, compare, curves)
app.add_typer(submit_app)
app.add_typer(analyse_app)
