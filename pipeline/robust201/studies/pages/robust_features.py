"""The pages of the three studies of robust features: our percentages next to the published ones."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from robust201.studies import drawings
from robust201.studies.config import DynamicsStudy, EquivarianceStudy, MixingStudy
from robust201.studies.networks import Exports
from robust201.studies.pages.writer import PageWriter, short_table, show_number, table_lines
from robust201.studies.robust_features import measure_dynamics, measure_equivariance, measure_mixing

_ERROR_BARS = "are 95% intervals over seeds, or the range of two seeds; circles are printed numbers"
"""End of captions: the meaning of bands, bars and circles."""


def _how_to_compare(n_seeds: "pd.Series[int]") -> str:
    """Return the explanation of published and our numbers, for results with these numbers of seeds."""
    text = (
        "Printed numbers (theirs) are from single runs, without error bars. Ours are means over training seeds with "
        "Student's 95% interval (none for a single seed), which covers the seeds, not the choice of test images. "
        "Numbers are percentages; a difference is ours minus theirs."
    )
    if (n_seeds == 2).any():
        text += (
            " Intervals of two seeds are wide and may go beyond 0 and 100; where both seeds happen to agree, they have "
            "no width."
        )
    return text


def _show_three(ours: float, theirs: float, show: Callable[..., str]) -> str:
    """Return our number, the published one and their difference in one cell."""
    return f"{show(ours)} / {show(theirs)} / {show(ours - theirs, signed=True)}"


def _show_percent(value: float, *, signed: bool = False) -> str:
    """Return a fraction as a percentage with two decimals; a dash for NaN."""
    return show_number(100 * value, 2, signed=signed)


def _show_percent_interval(row: Mapping[Any, Any]) -> str:
    """Return the interval from `low` to `high` of a row; a dash if there is none."""
    if math.isnan(row["low"]):
        return "–"
    return f"[{_show_percent(row['low'])}, {_show_percent(row['high'])}]"


def _beside_printed(row: Mapping[Any, Any]) -> list[str]:
    """Return the cells of a row's `mean` with its interval, `printed` and `difference`."""
    return [
        _show_percent(row["mean"]),
        _show_percent_interval(row),
        _show_percent(row["printed"]),
        _show_percent(row["difference"], signed=True),
    ]


def write_dynamics(study: DynamicsStudy, exports: Exports, out: Path) -> list[Path]:
    """Write the page, its tables and figures (see `write_pages`)."""
    numbers = measure_dynamics(study, exports)
    page = PageWriter(study, out, f"{study.name}: accuracy and attack success over training")
    page.table("curves", numbers.curves)
    page.table("trends", numbers.trends)
    page.lead(" ".join(_describe_run(str(run), rows) for run, rows in numbers.trends.groupby("run", sort=False)))
    page.say(_how_to_compare(numbers.curves["n"]))
    page.say(
        "Attack success (asr) is the share of originally correct images that are misclassified under the attack; both "
        f"counts are summed over all {numbers.n_images} images before the division."
    )
    figure = drawings.draw_dynamics(numbers.curves)
    page.figure("dynamics", figure, f"Accuracy and attack success over iterations; bands {_ERROR_BARS}")
    rows = [[f"{row['run']}, {row['curve']}", *_trend_cells(row)] for row in numbers.trends.to_dict("records")]
    page.say(
        "## Over all snapshots\n\nOurs / theirs / difference, theirs over all printed snapshots. Tau is Kendall's, "
        "between a curve's mean and the iteration."
    )
    page.say(table_lines(["run, curve", "first", "last", "lowest", "highest", "tau"], rows))
    columns = ["run, curve", "iteration", "seeds", "ours", "95% interval", "printed iteration", "theirs", "difference"]
    rows = []
    for row in numbers.curves.to_dict("records"):
        ours, interval, *theirs = _beside_printed(row)
        printed = "–" if pd.isna(row["printed_iteration"]) else str(row["printed_iteration"])
        names = [f"{row['run']}, {row['curve']}", str(row["iteration"]), str(row["n"])]
        rows.append([*names, ours, interval, printed, *theirs])
    page.say(f"## Snapshots\n\n{short_table(table_lines(columns, rows), 'curves')}")
    return page.finish()


def _describe_run(run: str, trends: pd.DataFrame) -> str:
    """Return the last value of each curve of a run beside the published one, as a sentence."""
    values = []
    for row in trends.to_dict("records"):
        curve = "clean accuracy" if row["curve"] == "clean" else f"success of {row['curve'].removeprefix('asr ')}"
        printed = "none" if math.isnan(row["printed_last"]) else f"{_show_percent(row['printed_last'])}%"
        values.append(f"{curve} {_show_percent(row['last'])}% (published: {printed})")
    return f"At its last snapshot, {run} has: {', '.join(values)}."


def _trend_cells(row: Mapping[Any, Any]) -> list[str]:
    names = ("first", "last", "lowest", "highest")
    cells = [_show_three(row[name], row[f"printed_{name}"], _show_percent) for name in names]
    return [*cells, _show_three(row["tau"], row["printed_tau"], partial(show_number, digits=2))]


def write_mixing(study: MixingStudy, exports: Exports, out: Path) -> list[Path]:
    """Write the page, its tables and figures (see `write_pages`)."""
    numbers = measure_mixing(study, exports)
    page = PageWriter(study, out, f"{study.name}: accuracy over the share of robust images")
    page.table("curves", numbers.curves)
    page.table("trends", numbers.trends)
    page.lead(
        f"From no robust images to robust images alone, accuracy rises in {(numbers.trends['slope'] > 0).sum()} of "
        f"{len(numbers.trends)} curves (published: {(numbers.trends['printed_slope'] > 0).sum()} of "
        f"{numbers.trends['printed_slope'].notna().sum()})."
    )
    page.say(_how_to_compare(numbers.curves["n"]))
    figure = drawings.draw_mixing(numbers.curves, study.panels)
    page.figure("mixing", figure, f"Accuracy over the share of robust images; bands {_ERROR_BARS}")
    columns = ["network, curve", "slope", "95% interval", "printed slope", "difference"]
    columns += ["decreases", "printed decreases"]
    rows = []
    for row in numbers.trends.to_dict("records"):
        slopes = [_show_percent(row["slope"], signed=True), _show_percent_interval(row)]
        difference = row["slope"] - row["printed_slope"]
        slopes += [_show_percent(row["printed_slope"], signed=True), _show_percent(difference, signed=True)]
        falls = [_show_falls(row["fall"], row["steps"]), _show_falls(row["printed_fall"], row["printed_steps"])]
        rows.append([f"{row['network']}, {row['curve']}", *slopes, *falls])
    page.say(
        "## Is it monotonic?\n\nThe slope is the change of accuracy from no robust images to robust images alone; "
        "decreases are counted from one share to the next."
    )
    page.say(table_lines(columns, rows))
    columns = ["network, curve", "α", "seeds", "ours", "95% interval", "theirs", "difference"]
    rows = [
        [f"{row['network']}, {row['curve']}", f"{row['alpha']:g}", str(row["n"]), *_beside_printed(row)]
        for row in numbers.curves.to_dict("records")
    ]
    page.say(f"## All shares\n\n{short_table(table_lines(columns, rows), 'curves')}")
    return page.finish()


def _show_falls(fall: int, steps: int) -> str:
    return f"{fall} of {steps}" if steps else "–"


def write_equivariance(study: EquivarianceStudy, exports: Exports, out: Path) -> list[Path]:
    """Write the page, its tables and figures (see `write_pages`)."""
    numbers = measure_equivariance(study, exports)
    page = PageWriter(study, out, f"{study.name}: spatial robustness of equivariant networks")
    for name, frame in (
        ("table-1", numbers.best),
        ("depths", numbers.depths),
        ("candidates", numbers.candidates),
    ):
        page.table(name, frame)
    page.lead(_describe_best(numbers.best))
    page.say(_how_to_compare(numbers.best["n"]))
    page.say(
        f"Of the {numbers.n_images} images, {numbers.n_validation} choose the best candidate (depth and learning "
        "rate), and the others measure it. The original chose on the test images, for each attack; Table 1 and the "
        "column “chosen on test” do the same, and are compared with the printed number. The effect of selection is the "
        "difference from the candidate that was chosen on other images."
    )
    caption = f"Accuracy by attack, network and setting, of the candidate chosen on validation; bars {_ERROR_BARS}"
    page.figure("table-1", drawings.draw_equivariance(numbers.best), caption)
    page.say(f"## Table 1\n\nOurs / theirs / difference, of the candidate chosen on test.\n\n{_layout(numbers.best)}")
    page.say(f"## Candidates chosen\n\n{short_table(_selection_lines(numbers.best, 'network'), 'table-1')}")
    page.say(f"## By depth\n\n{short_table(_selection_lines(numbers.depths, 'architecture'), 'depths')}")
    return page.finish()


def _describe_best(best: pd.DataFrame) -> str:
    """Return the most accurate network and setting under each attack, as a sentence."""
    highest = best.dropna(subset=["mean"]).sort_values("mean", ascending=False).drop_duplicates("attack")
    names = [
        f"{row['network']} {row['setting']} under {row['attack']} ({_show_percent(row['mean'])}%)"
        for row in highest.sort_index().to_dict("records")
    ]
    return f"Most accurate, by candidates chosen on validation: {', '.join(names)}."


def _layout(best: pd.DataFrame) -> str:
    """Return Table 1 in the published layout: one row per attack, one column per network and setting."""
    networks, settings, attacks = (list(dict.fromkeys(best[name])) for name in ("network", "setting", "attack"))
    indexed = best.set_index(["attack", "network", "setting"]).sort_index()
    columns = ["attack", *(f"{network} {setting}" for network in networks for setting in settings)]
    rows = []
    for attack in attacks:
        cells: list[Any] = [indexed.loc[(attack, network, setting), :] for network in networks for setting in settings]
        rows.append([attack, *(_show_three(cell["on_test"], cell["printed"], _show_percent) for cell in cells)])
    return table_lines(columns, rows)


def _selection_lines(frame: pd.DataFrame, name_column: str) -> str:
    columns: Sequence[str] = [name_column, "setting", "attack", "seeds", "chosen on validation", "95% interval"]
    columns = [*columns, "chosen on test", "effect of selection", "theirs", "difference", "candidate"]
    rows = []
    for row in frame.to_dict("records"):
        names = [row[name_column], row["setting"], row["attack"], str(row["n"])]
        ours = [_show_percent(row["mean"]), _show_percent_interval(row), _show_percent(row["on_test"])]
        theirs = [_show_percent(row["printed"]), _show_percent(row["difference"], signed=True)]
        rows.append([*names, *ours, _show_percent(row["selection"], signed=True), *theirs, row["chosen"]])
    return table_lines(columns, rows)
