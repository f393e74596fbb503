"""`robust201 submit`: hand a sweep to a cluster. One thin function a kind of cluster."""

import typer

from pipeline.cli_slurm import slurm

submit_app = typer.Typer(name="submit", help="Hand a sweep to a cluster.", no_args_is_help=True)
submit_app.command()(slurm)
