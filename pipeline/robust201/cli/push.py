"""`robust201 push`: publish a dataset with its report."""

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from robust201.cli import console
from robust201.core.files import format_bytes


def push(
    dataset: Annotated[Path, typer.Argument(metavar="DATASET", help="A folder written by export.")],
    target: Annotated[
        str,
        typer.Argument(metavar="hf://USER/NAME", help="Dataset repository on the Hugging Face Hub; created if absent."),
    ],
    public: Annotated[
        bool,
        typer.Option("--public", help="If the repository is new, make it public. Default: private."),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List the files; upload nothing.")] = False,
) -> None:
    """Upload a dataset and its report to the Hugging Face Hub in one commit; private unless --public is set.

    Files are checked against SHA256SUMS, and files that are not listed there are not uploaded. The command needs the
    extra `hub` of robust201 (package huggingface_hub) and a login (`hf auth login`).
    """
    from robust201.export.hub import PAGE_FILE, parse_target, prepare_upload
    from robust201.export.hub import push as push_upload
    from robust201.figures.report import write_report
    from robust201.reader.dataset import RobustnessDataset

    repository = parse_target(target)
    with tempfile.TemporaryDirectory(prefix="robust201-push-") as folder:
        page = Path(folder) / PAGE_FILE
        upload = prepare_upload(dataset, target, page)
        write_report(RobustnessDataset(dataset), page)
        size = f"{console.format_count(len(upload.files), 'file')}, {format_bytes(upload.n_bytes)}"
        if dry_run:
            for name, path in sorted(upload.files.items()):
                typer.echo(f"{path.stat().st_size:>14,}  {name}")
            typer.echo(f"{size}; nothing was uploaded to {repository}.")
            return
        url = push_upload(upload, public=public, say=console.say)
    typer.echo(f"Uploaded {size} to {url}")
