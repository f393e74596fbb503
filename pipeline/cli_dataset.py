"""The verbs about finished results: export, verify."""

import json
from pathlib import Path
from typing import Annotated

import typer

from pipeline import console

_ResultsFolder = Annotated[Path, typer.Argument(help="A results folder, as named by `results` in the sweep YAML.")]
_AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]


def add_dataset_verbs(app: typer.Typer) -> None:
    """Add the verbs of this room to the command line."""
    for verb in (export, verify):
        app.command()(verb)


def export(
    results: _ResultsFolder,
    out: Annotated[Path, typer.Argument(help="Folder of the JSON dataset.")],
    key_style: Annotated[str, typer.Option(help="paper (pgd) or published (pgd@Linf).")] = "paper",
    round_to: Annotated[int | None, typer.Option("--round", min=1, max=17, help="Decimals; 3 as published.")] = None,
    compress: Annotated[str | None, typer.Option(help="gz or zst: .json.gz or .json.zst files of results.")] = None,
    parquet: Annotated[
        bool, typer.Option("--parquet/--no-parquet", help="Analysis-ready Parquet files, below parquet/.")
    ] = False,
    json_files: Annotated[bool, typer.Option("--json/--no-json", help="The published layout.")] = True,
    licence: Annotated[str, typer.Option(help="SPDX identifier of the dataset's licence, for its card.")] = "mit",
    partial: Annotated[bool, typer.Option("--partial", help="Write what there is, and say what is missing.")] = False,
    processes: Annotated[
        int | None, typer.Option(min=1, help="Files written at once, one a process (the CPUs, up to 16)")
    ] = None,
) -> None:
    """Write `<dataset>/<key>_<measurement>.json` and meta.json from the shards of a complete sweep."""
    from pipeline.errors import ConfigError
    from pipeline.export import export_dataset, parse_key_style
    from pipeline.export.compression import parse_compression
    from pipeline.export.dataset import Format
    from pipeline.export.pool import default_processes
    from pipeline.plan_file import load_plan
    from pipeline.shards import ShardStore

    style, compression = parse_key_style(key_style), parse_compression(compress)
    asked: dict[Format, bool] = {"json": json_files, "parquet": parquet}
    formats = tuple(name for name, wanted in asked.items() if wanted)
    if not formats:
        raise ConfigError(
            "Exporting failed for --no-json: expected --parquet with it, got neither. Ask for one of them."
        )
    planned, store = load_plan(results), ShardStore.open(results)
    inventory = store.inventory(verify=True, on_damage="raise")
    with console.counting("Exporting rows") as progress:
        report = export_dataset(
            planned,
            store,
            inventory,
            out,
            key_style=style,
            round_to=round_to,
            compression=compression,
            formats=formats,
            licence=licence,
            partial=partial,
            processes=processes or default_processes(),
            progress=progress,
        )
    raise typer.Exit(console.show_export(report))


def verify(results: _ResultsFolder, as_json: _AsJson = False) -> None:
    """Check every shard's hash and every row's invariants, and compare duplicates."""
    from pipeline.shards import ShardStore

    findings = ShardStore.open(results).verify()
    if as_json:
        typer.echo(
            json.dumps(
                [{"shard": found.shard, "kind": found.kind, "message": found.message} for found in findings], indent=2
            )
        )
    for found in findings:
        console.say(f"{found.kind}: {found.message}")
    if not as_json:
        typer.echo(f"{len(findings)} problems found" if findings else "Every shard is sound.")
    raise typer.Exit(4 if findings else 0)
