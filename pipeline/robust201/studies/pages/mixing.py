"""The page of the study of shares of robust images in training."""

from pathlib import Path

from robust201.studies import drawings
from robust201.studies.config import MixingStudy
from robust201.studies.markdown import table_lines
from robust201.studies.networks import Exports
from robust201.studies.pages.percentages import (
    ERROR_BARS,
    beside_printed,
    how_to_compare,
    show_percent,
    show_percent_interval,
)
from robust201.studies.pages.writer import PageWriter
from robust201.studies.robust_features import measure_mixing


def write_mixing(study: MixingStudy, exports: Exports, out: Path) -> list[Path]:
    """Write the page, its tables and figures; see `write_pages`."""
    found = measure_mixing(study, exports)
    page = PageWriter(study, out, f"{study.name}: accuracy over the share of robust images")
    page.table("curves", found.curves)
    page.table("trends", found.trends)
    page.say(how_to_compare(found.curves["n"]))
    figure = drawings.draw_mixing(found.curves, study.panels)
    page.figure("mixing", figure, f"Accuracy over the share of robust images; bands {ERROR_BARS}")
    columns = ["network, curve", "slope", "95 % interval", "printed slope", "difference"]
    columns += ["decreases", "printed decreases"]
    rows = []
    for row in found.trends.to_dict("records"):
        slopes = [show_percent(row["slope"], signed=True), show_percent_interval(row)]
        difference = row["slope"] - row["printed_slope"]
        slopes += [show_percent(row["printed_slope"], signed=True), show_percent(difference, signed=True)]
        falls = [_show_falls(row["fall"], row["steps"]), _show_falls(row["printed_fall"], row["printed_steps"])]
        rows.append([f"{row['network']}, {row['curve']}", *slopes, *falls])
    page.say(
        "## Is it monotonic?\n\nThe slope is the change of accuracy from no robust images to robust images alone; "
        "decreases are counted from one share to the next."
    )
    page.say(table_lines(columns, rows))
    columns = ["network, curve", "α", "seeds", "ours", "95 % interval", "theirs", "difference"]
    rows = [
        [f"{row['network']}, {row['curve']}", f"{row['alpha']:g}", str(row["n"]), *beside_printed(row)]
        for row in found.curves.to_dict("records")
    ]
    page.say(f"## All shares\n\n{table_lines(columns, rows)}")
    return page.finish()


def _show_falls(fall: int, steps: int) -> str:
    return f"{fall} of {steps}" if steps else "–"
