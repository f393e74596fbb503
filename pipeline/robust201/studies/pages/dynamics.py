"""The page of the study of accuracy and attack success over training."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from robust201.studies import drawings
from robust201.studies.config import DynamicsStudy
from robust201.studies.markdown import show_number, table_lines
from robust201.studies.networks import Exports
from robust201.studies.pages.percentages import SINGLE_RUNS, beside_printed, show_percent
from robust201.studies.pages.writer import PageWriter
from robust201.studies.robust_features import measure_dynamics


def write_dynamics(study: DynamicsStudy, exports: Exports, out: Path) -> list[Path]:
    """Write the page, its tables and figures; see `write_pages`."""
    found = measure_dynamics(study, exports)
    page = PageWriter(study, out, f"{study.name}: accuracy and attack success over training")
    page.table("curves", found.curves)
    page.table("trends", found.trends)
    page.say(SINGLE_RUNS)
    page.say(
        "Attack success is the share of originally correct images that are misclassified under the attack; both counts "
        "are summed over all images before the division."
    )
    page.figure("dynamics", drawings.draw_dynamics(found.curves), "Accuracy and attack success over iterations")
    columns = ["run, curve", "first", "last", "lowest", "highest", "tau"]
    columns += [f"printed {name}" for name in columns[1:]]
    rows = [
        [f"{row['run']}, {row['curve']}", *_trend_cells(row, ""), *_trend_cells(row, "printed_")]
        for row in found.trends.to_dict("records")
    ]
    page.say("## Over all snapshots\n\nTau is Kendall's, between a curve's mean and the iteration.")
    page.say(table_lines(columns, rows))
    columns = ["run, curve", "iteration", "seeds", "ours", "95 % interval", "theirs", "difference"]
    rows = [
        [f"{row['run']}, {row['curve']}", str(row["iteration"]), str(row["n"]), *beside_printed(row)]
        for row in found.curves.to_dict("records")
    ]
    page.say(f"## Snapshots\n\n{table_lines(columns, rows)}")
    return page.finish()


def _trend_cells(row: Mapping[Any, Any], whose: str) -> list[str]:
    cells = [show_percent(row[whose + name]) for name in ("first", "last", "lowest", "highest")]
    return [*cells, show_number(row[f"{whose}tau"], 2)]
