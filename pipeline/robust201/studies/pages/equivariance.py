"""The page of the study of equivariant networks under spatial attacks."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from robust201.studies import drawings
from robust201.studies.config import EquivarianceStudy
from robust201.studies.markdown import table_lines
from robust201.studies.networks import Exports
from robust201.studies.pages.percentages import (
    ERROR_BARS,
    how_to_compare,
    show_percent,
    show_percent_interval,
    show_three,
)
from robust201.studies.pages.writer import PageWriter
from robust201.studies.robust_features import measure_equivariance


def write_equivariance(study: EquivarianceStudy, exports: Exports, out: Path) -> list[Path]:
    """Write the page, its tables and figures; see `write_pages`."""
    found = measure_equivariance(study, exports)
    page = PageWriter(study, out, f"{study.name}: spatial robustness of equivariant networks")
    for name, frame in (("table-1", found.best), ("depths", found.depths), ("candidates", found.candidates)):
        page.table(name, frame)
    page.say(how_to_compare(found.best["n"]))
    page.say(
        f"Of the {found.n_images} images, {found.n_validation} choose the best candidate (depth and learning rate), "
        "and the others measure it. The original chose on the test images, for each attack; Table 1 and the column "
        "“chosen on test” do the same, and are compared with the printed number. The effect of selection is the "
        "difference from the candidate that was chosen on other images."
    )
    caption = f"Accuracy by attack, network and setting, of the candidate chosen on validation; bars {ERROR_BARS}"
    page.figure("table-1", drawings.draw_equivariance(found.best), caption)
    page.say(f"## Table 1\n\nOurs / theirs / difference, of the candidate chosen on test.\n\n{_layout(found.best)}")
    page.say(f"## Candidates chosen\n\n{_selection_lines(found.best, 'network')}")
    page.say(f"## By depth\n\n{_selection_lines(found.depths, 'architecture')}")
    return page.finish()


def _layout(best: pd.DataFrame) -> str:
    """Lay Table 1 out as printed: a row per attack, a column per network and setting, ours / theirs / difference."""
    networks, settings, attacks = (list(dict.fromkeys(best[name])) for name in ("network", "setting", "attack"))
    held = best.set_index(["attack", "network", "setting"]).sort_index()
    columns = ["attack", *(f"{network} {setting}" for network in networks for setting in settings)]
    rows = []
    for attack in attacks:
        cells: list[Any] = [held.loc[(attack, network, setting), :] for network in networks for setting in settings]
        rows.append([attack, *(_layout_cell(cell) for cell in cells)])
    return table_lines(columns, rows)


def _layout_cell(cell: "pd.Series[Any]") -> str:
    return show_three(cell["on_test"], cell["printed"], show_percent)


def _selection_lines(frame: pd.DataFrame, whose: str) -> str:
    columns: Sequence[str] = [whose, "setting", "attack", "seeds", "chosen on validation", "95 % interval"]
    columns = [*columns, "chosen on test", "effect of selection", "theirs", "difference", "candidate"]
    rows = []
    for row in frame.to_dict("records"):
        names = [row[whose], row["setting"], row["attack"], str(row["n"])]
        ours = [show_percent(row["mean"]), show_percent_interval(row), show_percent(row["on_test"])]
        theirs = [show_percent(row["printed"]), show_percent(row["difference"], signed=True)]
        rows.append([*names, *ours, show_percent(row["selection"], signed=True), *theirs, row["chosen"]])
    return table_lines(columns, rows)
