"""`robust201 push`: publish a dataset, with a page that shows it."""

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from robust201.cli import console
from robust201.core.files import show_bytes


def push(
    dataset: Annotated[Path, typer.Argument(metavar="DATASET", help="A folder that export wrote.")],
    target: Annotated[
        str, typer.Argument(metavar="hf://USER/NAME", help="A dataset of the Hugging Face hub; made if it is new.")
    ],
    public: Annotated[
        bool, typer.Option("--public", help="Let everybody see a new repository; without it, only you do.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List the files, and upload nothing.")] = False,
) -> None:
    """Upload a dataset and its page to the Hugging Face hub in one commit, privately unless --public.

    Every file is compared with SHA256SUMS first; other files of the folder are left out. The login is that of the
    library (`hf auth login`). Needs `pip install 'robust201[hub]'`.
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
        size = f"{console.show_count(len(upload.files), 'file')}, {show_bytes(upload.n_bytes)}"
        if dry_run:
            for name, path in sorted(upload.files.items()):
                typer.echo(f"{path.stat().st_size:>14,}  {name}")
            typer.echo(f"{size}; nothing was uploaded to {repository}.")
            return
        url = push_upload(upload, public=public, say=console.say)
    typer.echo(f"{url}: {size}.")
