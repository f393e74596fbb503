"""`robust201 merge`: join results folders, or pack the small files of one."""

from pathlib import Path
from typing import Annotated

import typer

from robust201.cli import console
from robust201.cli.options import results_of
from robust201.core.errors import ConfigError


def merge(
    sources: Annotated[
        list[Path],
        typer.Argument(metavar="RESULTS...", help="Results folders to join, or sweep YAMLs that name them."),
    ],
    out: Annotated[Path | None, typer.Option("--out", help="Results folder to write; created if absent.")] = None,
    compact: Annotated[
        bool,
        typer.Option(
            "--compact",
            help="Instead pack the small result files of one folder into large ones; this is safe while the sweep is "
            "running. The small files are deleted by a later call, after 24 hours.",
        ),
    ] = False,
) -> None:
    """Join results folders into one, or pack the small files of one."""
    if compact == (out is not None) or (compact and len(sources) > 1):
        raise ConfigError(
            "Reading the command line failed for robust201 merge: expected --out FOLDER, or --compact with one results "
            f"folder, got {len(sources)} folders, {'--compact' if compact else 'no --compact'} and "
            f"{'no --out' if out is None else '--out'}. Join folders first, then pack the result."
        )
    folders = [results_of(source) for source in sources]
    raise typer.Exit(_pack(folders[0]) if out is None else _merge(folders, out))


def _pack(results: Path) -> int:
    from robust201.store.folder import ResultsFolder
    from robust201.store.packing import pack

    report = pack(ResultsFolder.open(results))
    files, packs = console.format_count(report.n_shards, "result file"), console.format_count(report.n_packs, "pack")
    deleted = console.format_count(report.n_deleted, "file")
    typer.echo(f"Packed {files} into {packs}; deleted {deleted} that older packs contain.")
    console.say_each(report.damaged)
    return 3 if report.damaged else 0


def _merge(folders: list[Path], out: Path) -> int:
    from robust201.dataset.shard_check import find_contradictions
    from robust201.store.folder import ResultsFolder
    from robust201.store.packing import merge
    from robust201.sweep.facts import load_plan, merge_plans

    load_plan(folders[0])
    sources = [ResultsFolder.open(folder) for folder in folders]
    listings = [ResultsFolder.open(folder).list() for folder in (*folders, out) if folder.exists()]
    report = merge(sources, out)
    merge_plans(folders, out)
    findings = list(find_contradictions(out, listings))
    typer.echo(f"Joined {console.format_count(report.n_shards, 'result file')}.")
    console.say_each(report.damaged)
    console.say_each([str(finding) for finding in findings])
    if any(finding.kind != "damaged" for finding in findings):
        return 4
    return 3 if findings or report.damaged else 0
