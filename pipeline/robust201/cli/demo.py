"""The demo: the whole job in small, from a sweep and weights that ship with robust201 to a dataset and its figures."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from shlex import quote

from robust201.core.errors import IncompleteError
from robust201.core.files import bundled
from robust201.dataset import export_dataset
from robust201.figures.plots import save_plots
from robust201.figures.report import write_report
from robust201.planning.config import SweepConfig
from robust201.planning.loading import load_config
from robust201.planning.plan_file import load_plan
from robust201.reader.dataset import RobustnessDataset
from robust201.runtime.executors import make_executor
from robust201.runtime.executors.base import Event
from robust201.runtime.progress import RunProgress
from robust201.runtime.sweep import RunPreview, run_sweep
from robust201.shards import ShardStore

DEMO_SWEEP = "jobs/demo.yaml"
DEMO_FIGURES = ("attacks", "corruptions", "rank-correlation", "clean-vs-robust")
"""The figures that are drawn as files; the report has them all."""


@dataclass(frozen=True)
class DemoOutcome:
    """Where the demo left what.

    Attributes:
        results: results folder with the shards.
        dataset: the exported JSON dataset.
        report: the HTML report.
        plots: figures.
    """

    results: Path
    dataset: Path
    report: Path
    plots: tuple[Path, ...]


def demo_config(out: Path) -> SweepConfig:
    """The demo's sweep, with its results below a folder."""
    return load_config(bundled(DEMO_SWEEP), results=str(out / "results"))


def run_demo(
    out: Path,
    *,
    on_preview: Callable[[RunPreview], None],
    on_progress: Callable[[RunProgress, Event | None], None],
    say: Callable[[str], None],
) -> DemoOutcome:
    """Run the demo's sweep, or what is left of it, then export and draw it."""
    config = demo_config(out)
    tally = run_sweep(config, make_executor, on_preview=on_preview, on_progress=on_progress, say=say)
    if not tally.complete:
        raise IncompleteError(
            f"The demo ended early for {out}: expected every evaluation, got {len(tally.failures)} failed parts and "
            f"{tally.remaining} evaluations not done. Go on with: robust201 demo --out {quote(str(out))}"
        )
    say("Exporting")
    plan, store = load_plan(config.results), ShardStore.open(config.results)
    dataset = out / "dataset"
    export_dataset(plan, store, store.inventory(verify="all"), dataset)
    say("Drawing")
    reader = RobustnessDataset(dataset)
    plots = tuple(save_plots(reader, out / "plots", figures=DEMO_FIGURES))
    return DemoOutcome(config.results, dataset, write_report(reader, out / "report.html"), plots)
