"""The page of the study of accuracy and attack success over training."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from robust201.studies import drawings
from robust201.studies.config import DynamicsStudy
from robust201.studies.markdown import show_number, table_lines
from robust201.studies.networks import Exports
from robust201.studies.pages.percentages import ERROR_BARS, beside_printed, how_to_compare, show_percent, show_three
from robust201.studies.pages.writer import PageWriter
from robust201.studies.robust_features import measure_dynamics


def write_dynamics(study: DynamicsStudy, exports: Exports, out: Path) -> list[Path]:
    """Write the page, its tables and figures; see `write_pages`."""
    found = measure_dynamics(study, exports)
    page = PageWriter(study, out, f"{study.name}: accuracy and attack success over training")
    page.table("curves", found.curves)
    page.table("trends", found.trends)
    page.say(how_to_compare(found.curves["n"]))
    page.say(
        "Attack success (asr) is the share of originally correct images that are misclassified under the attack; both "
        f"counts are summed over all {found.n_images} images before the division."
    )
    figure = drawings.draw_dynamics(found.curves)
    page.figure("dynamics", figure, f"Accuracy and attack success over iterations; bands {ERROR_BARS}")
    rows = [[f"{row['run']}, {row['curve']}", *_trend_cells(row)] for row in found.trends.to_dict("records")]
    page.say(
        "## Over all snapshots\n\nOurs / theirs / difference, theirs over all printed snapshots. Tau is Kendall's, "
        "between a curve's mean and the iteration."
    )
    page.say(table_lines(["run, curve", "first", "last", "lowest", "highest", "tau"], rows))
    columns = ["run, curve", "iteration", "seeds", "ours", "95 % interval", "printed iteration", "theirs", "difference"]
    rows = []
    for row in found.curves.to_dict("records"):
        ours, interval, *theirs = beside_printed(row)
        printed = "–" if pd.isna(row["printed_iteration"]) else str(row["printed_iteration"])
        names = [f"{row['run']}, {row['curve']}", str(row["iteration"]), str(row["n"])]
        rows.append([*names, ours, interval, printed, *theirs])
    page.say(f"## Snapshots\n\n{table_lines(columns, rows)}")
    return page.finish()


def _trend_cells(row: Mapping[Any, Any]) -> list[str]:
    names = ("first", "last", "lowest", "highest")
    cells = [show_three(row[name], row[f"printed_{name}"], show_percent) for name in names]
    return [*cells, show_three(row["tau"], row["printed_tau"], partial(show_number, digits=2))]
