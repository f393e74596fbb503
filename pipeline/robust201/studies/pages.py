"""The page of a study, with its tables (CSV) and figures (SVG), from the exports of its sweeps."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from robust201.core.files import make_folder, write_text
from robust201.planning.config import SweepConfig
from robust201.studies import drawings
from robust201.studies.attacked_images import attack_examples, strengths_of
from robust201.studies.comparisons import GROUPS, check_printed_marks
from robust201.studies.config import (
    DynamicsStudy,
    EquivarianceStudy,
    ImageDistributionStudy,
    MixingStudy,
    Study,
)
from robust201.studies.image_distribution import (
    ImageDistribution,
    attach_printed_decisions,
    measure_image_distribution,
)
from robust201.studies.markdown import comparison_lines, show_number, table_lines, write_table
from robust201.studies.networks import Exports
from robust201.studies.robust_features import measure_dynamics, measure_equivariance, measure_mixing

PAGE = "study.md"


class _Writer:
    """Collects a page while its tables and figures are written beside it."""

    def __init__(self, study: Study, out: Path, title: str) -> None:
        self._out = out
        self.files: list[Path] = []
        self._parts = [f"# {title}\n"]
        if study.note:
            self.say(study.note)

    def say(self, text: str) -> None:
        self._parts.append(text.rstrip("\n") + "\n")

    def table(self, name: str, frame: pd.DataFrame) -> None:
        self.files.append(write_table(self._out / "tables", name, frame))

    def figure(self, name: str, figure: Figure | None, caption: str) -> None:
        if figure is None:
            return
        self.files.append(drawings.save_figure(figure, self._out / "figures" / f"{name}.svg"))
        self._parts.append(f"![{caption}](figures/{name}.svg)\n\n*{caption}*\n")

    def finish(self) -> list[Path]:
        names = ", ".join(f"[{path.stem}](tables/{path.name})" for path in self.files if path.suffix == ".csv")
        self.say(f"All numbers at full precision: {names}.")
        page = self._out / PAGE
        write_text(page, "\n".join(self._parts))
        return [page, *self.files]


def write_pages(study: Study, exports: Exports, out: Path, sweeps: Sequence[SweepConfig] = ()) -> list[Path]:
    """Write a study's page, tables and figures into a folder; the page is the first of the files.

    The `sweeps` have the weights and images of figures that show attacked images, which are left out without them.

    Raises:
        ResultsError: results that the study names are missing.
    """
    for name in ("tables", "figures"):
        make_folder(out / name)
    writers: Mapping[type[Study], Callable[[Any, Exports, Path], list[Path]]] = {
        ImageDistributionStudy: partial(_write_image_distribution, sweeps=sweeps),
        DynamicsStudy: _write_dynamics,
        MixingStudy: _write_mixing,
        EquivarianceStudy: _write_equivariance,
    }
    return writers[type(study)](study, exports, out)


# --- Image distribution and task


def _write_image_distribution(
    study: ImageDistributionStudy, exports: Exports, out: Path, sweeps: Sequence[SweepConfig]
) -> list[Path]:
    found = measure_image_distribution(study, exports)
    printed = check_printed_marks()
    comparisons = attach_printed_decisions(study, found.comparisons, printed.comparisons)
    page = _Writer(study, out, f"{study.name}: robustness by image distribution and task")
    for name, frame in (("networks", found.models), ("robustness", found.tables), ("curves", found.curves)):
        page.table(name, frame)
    page.table("comparisons", comparisons)
    page.say(_how_to_read(found))
    for network, rows in found.tables.groupby("network", sort=False):
        page.say(f"## {network}\n\n{_robustness_lines(rows)}")
    page.figure(
        "robustness", drawings.draw_robustness(found.tables), "R by epoch: mean over networks, band of one deviation"
    )
    for number, groups in ((4, drawings.PLAIN_GROUPS), (5, drawings.TUNED_GROUPS)):
        for normalised in (True, False):
            figure = drawings.draw_accuracy_curves(found.curves, groups, normalised=normalised)
            kind = "normalised" if normalised else "unnormalised"
            place = number if normalised else number + 2
            caption = f"Accuracy over epsilon, {kind} (figure {place} of the paper)"
            page.figure(f"curves-{number}-{kind}", figure, caption)
    if strengths := strengths_of(study, sweeps):
        for network, attacked in attack_examples(study, sweeps).items():
            figure = drawings.draw_attacked_images(attacked, (0.0, *(strength / 255 for strength in strengths)))
            caption = f"{network}: one image per group, attacked, and the change (figures 8 and 9 of the paper)"
            page.figure(f"attacked-{network.lower()}", figure, caption)
    page.say(f"## Tests\n\n{_count_decisions(comparisons, found.comparable)}\n\n{comparison_lines(comparisons)}")
    return page.finish()


def _how_to_read(found: ImageDistribution) -> str:
    above = int(found.tables["above_one"].sum())
    strengths = (
        "the paper's nine strengths" if found.comparable else "other strengths than the paper's (do not compare R)"
    )
    return (
        f"R is computed for each network over {strengths}, and then averaged. Its floor, reached if no attacked image "
        f"is classified correctly, is {found.floor:.4f}. {above} of {len(found.models)} networks have R above 1; R is "
        "not clipped. Standard deviations divide by n - 1; intervals are Student's 95 % over networks. Printed means "
        "are over 20 networks."
    )


def _robustness_lines(rows: pd.DataFrame) -> str:
    columns = ["group", "epoch", "networks", "clean", "R", "SD", "95 % interval", "above 1"]
    columns += ["printed epoch", "printed R", "printed SD", "difference"]
    lines = []
    for row in rows.to_dict("records"):
        ours = [
            show_number(row["clean"]),
            show_number(row["mean"]),
            show_number(row["sd"]),
            _interval(row),
            str(row["above_one"]),
        ]
        epoch = row["printed_epoch"]
        theirs = ["–" if epoch is None or math.isnan(epoch) else str(int(epoch))]
        theirs += [
            show_number(row["printed_mean"]),
            show_number(row["printed_sd"]),
            show_number(row["difference"], signed=True),
        ]
        lines.append([GROUPS[row["group"]], str(row["epoch"]), str(row["n"]), *ours, *theirs])
    return table_lines(columns, lines)


def _interval(row: Mapping[Any, Any], digits: int = 4) -> str:
    return f"[{show_number(row['low'], digits)}, {show_number(row['high'], digits)}]"


def _count_decisions(comparisons: pd.DataFrame, comparable: bool) -> str:
    beside = comparisons[comparisons["printed"].notna()]
    same = int((beside["printed"] == beside["higher"]).sum())
    left = int((comparisons["higher_holm"] != "").sum())
    text = (
        f"{int((comparisons['higher'] != '').sum())} of {len(comparisons)} comparisons differ at the 5 % level by "
        f"Welch's test, {left} after Holm's correction for all of them"
    )
    if "p_paired_holm" in comparisons:
        in_pairs = int((comparisons["p_paired_holm"] < 0.05).sum())
        text += f", {in_pairs} by the paired test over equal seeds, with the same correction"
    if len(beside):
        text += f". {same} of {len(beside)} decisions agree with the printed ones, at the printed epochs given above"
    return text + ("." if comparable else ". Strengths differ from the paper's.")


# --- Robust features

_REACH = "are 95 % intervals over seeds, or the range of two seeds; circles are printed numbers"


def _how_to_compare(n_seeds: "pd.Series[int]") -> str:
    text = (
        "Printed numbers (theirs) are from single runs, without error bars. Ours are means over training seeds with "
        "Student's 95 % interval (none for a single seed), which covers the seeds, not the choice of test images. "
        "Numbers are percentages; a difference is ours minus theirs."
    )
    if (n_seeds == 2).any():
        text += (
            " Intervals of two seeds are wide and may go beyond 0 and 100; where both seeds happen to agree, they have "
            "no width."
        )
    return text


def _three(ours: float, theirs: float, show: Callable[..., str]) -> str:
    """Write ours / theirs / difference in one cell."""
    return f"{show(ours)} / {show(theirs)} / {show(ours - theirs, signed=True)}"


def _percent(value: float, *, signed: bool = False) -> str:
    return show_number(100 * value, 2, signed=signed)


def _percent_interval(row: Mapping[Any, Any]) -> str:
    if math.isnan(row["low"]):
        return "–"
    return f"[{_percent(row['low'])}, {_percent(row['high'])}]"


def _beside(row: Mapping[Any, Any]) -> list[str]:
    return [
        _percent(row["mean"]),
        _percent_interval(row),
        _percent(row["printed"]),
        _percent(row["difference"], signed=True),
    ]


def _write_dynamics(study: DynamicsStudy, exports: Exports, out: Path) -> list[Path]:
    found = measure_dynamics(study, exports)
    page = _Writer(study, out, f"{study.name}: accuracy and attack success over training")
    page.table("curves", found.curves)
    page.table("trends", found.trends)
    page.say(_how_to_compare(found.curves["n"]))
    page.say(
        "Attack success (asr) is the share of originally correct images that are misclassified under the attack; both "
        f"counts are summed over all {found.n_images} images before the division."
    )
    figure = drawings.draw_dynamics(found.curves)
    page.figure("dynamics", figure, f"Accuracy and attack success over iterations; bands {_REACH}")
    rows = [[f"{row['run']}, {row['curve']}", *_trend_cells(row)] for row in found.trends.to_dict("records")]
    page.say(
        "## Over all snapshots\n\nOurs / theirs / difference, theirs over all printed snapshots. Tau is Kendall's, "
        "between a curve's mean and the iteration."
    )
    page.say(table_lines(["run, curve", "first", "last", "lowest", "highest", "tau"], rows))
    columns = ["run, curve", "iteration", "seeds", "ours", "95 % interval", "printed iteration", "theirs", "difference"]
    rows = []
    for row in found.curves.to_dict("records"):
        ours, interval, *theirs = _beside(row)
        printed = "–" if pd.isna(row["printed_iteration"]) else str(row["printed_iteration"])
        names = [f"{row['run']}, {row['curve']}", str(row["iteration"]), str(row["n"])]
        rows.append([*names, ours, interval, printed, *theirs])
    page.say(f"## Snapshots\n\n{table_lines(columns, rows)}")
    return page.finish()


def _trend_cells(row: Mapping[Any, Any]) -> list[str]:
    cells = [_three(row[name], row[f"printed_{name}"], _percent) for name in ("first", "last", "lowest", "highest")]
    return [*cells, _three(row["tau"], row["printed_tau"], partial(show_number, digits=2))]


def _write_mixing(study: MixingStudy, exports: Exports, out: Path) -> list[Path]:
    found = measure_mixing(study, exports)
    page = _Writer(study, out, f"{study.name}: accuracy over the share of robust images")
    page.table("curves", found.curves)
    page.table("trends", found.trends)
    page.say(_how_to_compare(found.curves["n"]))
    figure = drawings.draw_mixing(found.curves, study.panels)
    page.figure("mixing", figure, f"Accuracy over the share of robust images; bands {_REACH}")
    columns = ["network, curve", "slope", "95 % interval", "printed slope", "difference"]
    columns += ["decreases", "printed decreases"]
    rows = []
    for row in found.trends.to_dict("records"):
        slopes = [_percent(row["slope"], signed=True), _percent_interval(row)]
        difference = row["slope"] - row["printed_slope"]
        slopes += [_percent(row["printed_slope"], signed=True), _percent(difference, signed=True)]
        falls = [_show_falls(row["fall"], row["steps"]), _show_falls(row["printed_fall"], row["printed_steps"])]
        rows.append([f"{row['network']}, {row['curve']}", *slopes, *falls])
    page.say(
        "## Is it monotonic?\n\nThe slope is the change of accuracy from no robust images to robust images alone; "
        "decreases are counted from one share to the next."
    )
    page.say(table_lines(columns, rows))
    columns = ["network, curve", "α", "seeds", "ours", "95 % interval", "theirs", "difference"]
    rows = [
        [f"{row['network']}, {row['curve']}", f"{row['alpha']:g}", str(row["n"]), *_beside(row)]
        for row in found.curves.to_dict("records")
    ]
    page.say(f"## All shares\n\n{table_lines(columns, rows)}")
    return page.finish()


def _show_falls(fall: int, steps: int) -> str:
    return f"{fall} of {steps}" if steps else "–"


def _write_equivariance(study: EquivarianceStudy, exports: Exports, out: Path) -> list[Path]:
    found = measure_equivariance(study, exports)
    page = _Writer(study, out, f"{study.name}: spatial robustness of equivariant networks")
    for name, frame in (("table-1", found.best), ("depths", found.depths), ("candidates", found.candidates)):
        page.table(name, frame)
    page.say(_how_to_compare(found.best["n"]))
    page.say(
        f"Of the {found.n_images} images, {found.n_validation} choose the best candidate (depth and learning rate), "
        "and the others measure it. The original chose on the test images, for each attack; Table 1 and the column "
        "“chosen on test” do the same, and are compared with the printed number. The effect of selection is the "
        "difference from the candidate that was chosen on other images."
    )
    caption = f"Accuracy by attack, network and setting, of the candidate chosen on validation; bars {_REACH}"
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
    return _three(cell["on_test"], cell["printed"], _percent)


def _selection_lines(frame: pd.DataFrame, whose: str) -> str:
    columns: Sequence[str] = [whose, "setting", "attack", "seeds", "chosen on validation", "95 % interval"]
    columns = [*columns, "chosen on test", "effect of selection", "theirs", "difference", "candidate"]
    rows = []
    for row in frame.to_dict("records"):
        names = [row[whose], row["setting"], row["attack"], str(row["n"])]
        ours = [_percent(row["mean"]), _percent_interval(row), _percent(row["on_test"])]
        theirs = [_percent(row["printed"]), _percent(row["difference"], signed=True)]
        rows.append([*names, *ours, _percent(row["selection"], signed=True), *theirs, row["chosen"]])
    return table_lines(columns, rows)
