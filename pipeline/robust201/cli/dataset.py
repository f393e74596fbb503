"""`robust201 export` and `report`."""

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from robust201.cli import console
from robust201.cli.options import DatasetPath, Results, WeightsName, results_of, split_names
from robust201.cli.plot import ShownKeys, ShownNetworks
from robust201.core.errors import ConfigError
from robust201.core.files import resolve_bundled

if TYPE_CHECKING:
    from robust201.dataset.export import ExportReport
    from robust201.dataset.groups import Format


def export(
    results: Results,
    out: Annotated[Path, typer.Option("--out", help="Folder to write; created if absent.")],
    key_style: Annotated[
        Literal["paper", "published"],
        typer.Option("--key-style", help="Names of keys: paper (pgd), or published (with the norm, pgd@Linf)."),
    ] = "paper",
    round_to: Annotated[
        int | None,
        typer.Option("--round", min=1, max=17, metavar="N", help="Decimals in JSON; published files have 3."),
    ] = None,
    parquet: Annotated[bool, typer.Option("--parquet", help="Also write Parquet files, in parquet/.")] = False,
    no_json: Annotated[bool, typer.Option("--no-json", help="Do not write JSON in the published layout.")] = False,
    weights: Annotated[
        str | None,
        typer.Option("--weights-name", metavar="NAME", help="Weights to export; needed for JSON if there are several."),
    ] = None,
    outcomes: Annotated[
        Literal["bits", "classes"] | None,
        typer.Option(
            help="With --parquet: bits writes which images are classified correctly; classes adds the predictions."
        ),
    ] = None,
    partial: Annotated[
        bool, typer.Option("--partial", help="Export an incomplete sweep, and report what is missing.")
    ] = False,
    push: Annotated[
        str | None,
        typer.Option(
            metavar="hf://USER/NAME",
            help="Then upload the dataset and its report to the Hugging Face Hub (extra `hub`, `hf auth login`).",
        ),
    ] = None,
) -> None:
    """Write a sweep's dataset as JSON, Parquet, card and checksums."""
    from robust201.dataset.export import export_dataset
    from robust201.dataset.hub import parse_target
    from robust201.dataset.key_files import choose_n_processes
    from robust201.sweep.plan import open_results

    if push is not None:
        parse_target(push)
    if no_json and not parquet:
        raise ConfigError(
            "Exporting failed for --no-json: without JSON and Parquet, nothing is written. Add --parquet."
        )
    formats: list[Format] = [] if no_json else ["json"]
    formats += ["parquet"] if parquet else []
    plan, folder = open_results(results_of(results))
    with console.showing_progress("Exporting rows") as progress:
        written_export = export_dataset(
            plan,
            folder,
            out,
            key_style=key_style,
            round_to=round_to,
            formats=formats,
            weights=weights,
            outcomes=outcomes,
            partial=partial,
            processes=choose_n_processes(plan.n_evaluations),
            progress=progress,
        )
    _show_export(written_export)
    if push is not None:
        _push(out, push)
    raise typer.Exit(0 if written_export.is_complete else 3)


def _show_export(export_report: "ExportReport") -> None:
    """Print what an export wrote, and which evaluations are missing."""
    files = console.format_count(len(export_report.files), "file")
    evaluations = console.format_count(export_report.n_evaluations, "evaluation")
    console.out.print(f"Wrote {export_report.out}: {files}, {export_report.n_bytes / 1e6:,.1f} MB, {evaluations}.")
    for (dataset, key), count in export_report.missing.items():
        console.say(f"missing: {console.format_count(count, 'evaluation')} of {dataset} {key}")


def _push(dataset: Path, target: str) -> None:
    """Upload an export and its report."""
    from robust201.dataset.hub import PAGE_FILE, push
    from robust201.dataset.reader import Dataset
    from robust201.figures.report import write_report

    with tempfile.TemporaryDirectory(prefix="robust201-push-") as folder:
        page = Path(folder) / PAGE_FILE
        write_report(Dataset(dataset), page)
        typer.echo(f"Uploaded {dataset} to {push(dataset, target, page)}")


def report(
    dataset: DatasetPath,
    out: Annotated[Path | None, typer.Option("--out", help="HTML file to write. Default: DATASET-report.html.")] = None,
    weights: WeightsName = None,
    keys: ShownKeys = None,
    architectures: ShownNetworks = None,
) -> None:
    """Write a report on a dataset as one HTML file.

    It has the best networks, tables and figures, and works offline.
    """
    from robust201.dataset.reader import Dataset
    from robust201.figures.report import write_report

    folder = dataset if dataset.name not in {"", ".."} else dataset.resolve()  # `.` and `..` do not name the folder
    parent = Path() if dataset != resolve_bundled(dataset) else folder.parent
    page = out or parent / f"{folder.name}-report.html"
    reader = Dataset(dataset, weights=weights).select(split_names(architectures), split_names(keys))
    typer.echo(write_report(reader, page))
