"""`robust201 demo`: the whole pipeline at small scale, with a sweep and weights that ship with robust201."""

from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from robust201.cli import console
from robust201.core.errors import IncompleteError
from robust201.core.files import bundled

DEMO_SWEEP = "jobs/demo.yaml"


def demo(
    out: Annotated[Path, typer.Option("--out", help="Folder for results, dataset and report.")] = Path("runs/demo"),
) -> None:
    """Run the whole pipeline at small scale (one or two minutes).

    The digits ship with scikit-learn, and the networks with robust201.
    """
    from robust201.cli.run import compute, needs_child_process, run_in_child_process
    from robust201.sweep.loading import load_config

    config = load_config(bundled(DEMO_SWEEP), results=str(out / "results"))
    if needs_child_process(config.execution):
        raise typer.Exit(run_in_child_process())
    tally = compute(config)
    if not tally.is_complete:
        raise IncompleteError(
            f"The demo in {out} is incomplete: {console.format_count(len(tally.failures), 'failure')}, and "
            f"{console.format_count(tally.n_planned - tally.n_done, 'missing evaluation')}. "
            f"Resume with: robust201 demo --out {quote(str(out))}"
        )
    from robust201.analysis.dataset_results import read_results
    from robust201.analysis.ranking import rank_networks
    from robust201.dataset.export import export_dataset
    from robust201.dataset.reader import Dataset
    from robust201.figures.report import write_report
    from robust201.sweep.plan import open_results

    console.say("Exporting the dataset")
    dataset = out / "dataset"
    export_dataset(*open_results(config.results), dataset)
    console.say("Writing the report")
    reader = Dataset(dataset)
    report = write_report(reader, out / "report.html")
    for results in read_results(reader):
        typer.echo(rank_networks(results).summary)
    paths = {"results": config.results, "JSON dataset": dataset, "report": report}
    for label, path in paths.items():
        typer.echo(f"{label}: {path}")
