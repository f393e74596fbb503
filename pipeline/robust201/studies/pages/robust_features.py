"""The pages of the three studies of robust features, which compare our percentages with published percentages."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from robust201.reader.value_checks import CLEAN
from robust201.studies import drawings
from robust201.studies.config import DynamicsStudy, EquivarianceStudy, MixingStudy
from robust201.studies.networks import Exports
from robust201.studies.pages.writer import PageWriter, format_number, format_table, table_or_link
from robust201.studies.robust_features import (
    count_directions,
    measure_dynamics,
    measure_equivariance,
    measure_mixing,
    published_equivariance,
)

_ROBUST_IMAGES = (
    "Robust images are generated with an adversarially trained network, so that they contain only features that this "
    "network uses."
)

_CURVE_NAMES = (
    "A curve's name is the key of the attack, followed by a colon and the epsilon if the attack has one (in units of "
    "1/255 for Linf). For example, `pgd_l2:0.25` is L2 PGD at epsilon 0.25, and `pgd_linf7:1` is Linf PGD at epsilon "
    "1/255."
)

_SPATIAL_ATTACKS = (
    "The attacks are defined in docs/protocol/attacks.md: `rot…` rotates the image, and `grid…` rotates and shifts it."
)

_ERROR_BARS = "show 95% intervals over seeds, or the range of two seeds; circles show published numbers"
"""End of captions, which explains bands, bars and circles."""


def _explain_numbers(n_seeds: "pd.Series[int]") -> str:
    """Return an explanation of published numbers and our numbers, given the number of seeds of each row."""
    text = (
        "Published numbers are those of the original study (Wang and Horne, 2020). They are from single runs, without "
        "error bars. Our numbers are means over training seeds with 95% intervals (Student's t; none for a single "
        "seed), which describe the variation between seeds, not the choice of test images. Numbers are percentages; a "
        "difference is our number minus the published number."
    )
    if (n_seeds == 2).any():
        text += (
            " Intervals of two seeds are wide and may extend below 0 or above 100; if both seeds have the same value, "
            "their width is 0."
        )
    return text


def _format_comparison(our_number: float, published: float, format_value: Callable[..., str]) -> str:
    """Return the text of a cell: our number, the published number, and their difference."""
    return (
        f"{format_value(our_number)} / {format_value(published)} / {format_value(our_number - published, signed=True)}"
    )


def _format_percent(value: float, *, signed: bool = False) -> str:
    """Return a fraction as a percentage with two decimals; a dash for NaN."""
    return format_number(100 * value, 2, signed=signed)


def _format_percent_interval(row: Mapping[Any, Any]) -> str:
    """Return the interval from `low` to `high` of a row; a dash if there is none."""
    if math.isnan(row["low"]):
        return "–"
    return f"[{_format_percent(row['low'])}, {_format_percent(row['high'])}]"


def _comparison_cells(row: Mapping[Any, Any]) -> list[str]:
    """Return four cells for a row: `mean`, its interval, `printed` and `difference`."""
    return [
        _format_percent(row["mean"]),
        _format_percent_interval(row),
        _format_percent(row["printed"]),
        _format_percent(row["difference"], signed=True),
    ]


def write_dynamics(study: DynamicsStudy, exports: Exports, folder: Path) -> list[Path]:
    """Write the page, its tables and figures (see `write_pages`)."""
    results = measure_dynamics(study, exports)
    page = PageWriter(study, folder, f"{study.name}: accuracy and attack success during training")
    page.add_table("curves", results.curves)
    page.add_table("trends", results.trends)
    run_sentences = [_describe_run(str(run), rows) for run, rows in results.trends.groupby("run", sort=False)]
    page.add_lead(" ".join([*_describe_trends(results.trends), *run_sentences]))
    page.add_text(_explain_numbers(results.curves["n"]))
    page.add_text(
        f"Attack success (asr) is computed on all {results.n_images} images: of those that are classified correctly "
        "without an attack, it is the fraction that is misclassified under the attack. "
        f"{_CURVE_NAMES} {_SPATIAL_ATTACKS}"
    )
    figure = drawings.draw_dynamics_curves(results.curves)
    page.add_figure("dynamics", figure, f"Accuracy and attack success against iterations; bands {_ERROR_BARS}")
    rows = [[f"{row['run']}, {row['curve']}", *_trend_cells(row)] for row in results.trends.to_dict("records")]
    page.add_text(
        "## Summary of all snapshots\n\nEach cell shows ours / published / difference. Published values are taken from "
        "all published snapshots. Tau is Kendall's rank correlation between a curve's mean and the iteration."
    )
    page.add_text(format_table(["run, curve", "first", "last", "lowest", "highest", "tau"], rows))
    columns = ["run, curve", "iteration", "seeds", "ours", "95% interval"]
    columns += ["published iteration", "published", "difference"]
    rows = []
    for row in results.curves.to_dict("records"):
        our_mean, interval, *published_cells = _comparison_cells(row)
        published_iteration = "–" if pd.isna(row["printed_iteration"]) else str(row["printed_iteration"])
        name_cells = [f"{row['run']}, {row['curve']}", str(row["iteration"]), str(row["n"])]
        rows.append([*name_cells, our_mean, interval, published_iteration, *published_cells])
    page.add_text(f"## Snapshots\n\n{table_or_link(format_table(columns, rows), 'curves', 'snapshots')}")
    return page.finish()


def _describe_trends(trends: pd.DataFrame) -> list[str]:
    """Return a sentence that counts curves whose tau has the published sign; none if no published tau is comparable."""
    comparable = trends[trends["tau"].notna() & trends["printed_tau"].notna()]
    if comparable.empty:
        return []
    agrees = comparable["tau"] * comparable["printed_tau"] > 0
    sentence = (
        f"Kendall's tau between curve and iteration has the published sign for {agrees.sum()} of {len(comparable)} "
        "curves"
    )
    others = [f"{row['run']}, {row['curve']}" for row in comparable[~agrees].to_dict("records")]
    return [f"{sentence} (others: {'; '.join(others)})." if others else f"{sentence}."]


def _describe_run(run: str, trends: pd.DataFrame) -> str:
    """Return a sentence with the last value of each published curve of a run; without published curves, of all."""
    is_published = trends["printed_last"].notna()
    descriptions = []
    for row in trends[is_published | (not is_published.any())].to_dict("records"):
        name = row["curve"].removeprefix("asr ")
        curve = "clean accuracy" if row["curve"] == CLEAN else f"attack success under {name}"
        published = "none" if math.isnan(row["printed_last"]) else f"{_format_percent(row['printed_last'])}%"
        descriptions.append(f"{curve} {_format_percent(row['last'])}% (published: {published})")
    return f"At its last snapshot, the run {run} has: {', '.join(descriptions)}."


def _trend_cells(row: Mapping[Any, Any]) -> list[str]:
    columns = ("first", "last", "lowest", "highest")
    cells = [_format_comparison(row[column], row[f"printed_{column}"], _format_percent) for column in columns]
    return [*cells, _format_comparison(row["tau"], row["printed_tau"], partial(format_number, decimals=2))]


def write_mixing(study: MixingStudy, exports: Exports, folder: Path) -> list[Path]:
    """Write the page, its tables and figures (see `write_pages`)."""
    results = measure_mixing(study, exports)
    page = PageWriter(study, folder, f"{study.name}: accuracy by the fraction of robust images in training")
    page.add_table("curves", results.curves)
    page.add_table("trends", results.trends)
    page.add_lead(
        "As the fraction of robust images in training rises from 0 to 1, accuracy rises in "
        f"{(results.trends['slope'] > 0).sum()} of {len(results.trends)} curves (published: "
        f"{(results.trends['printed_slope'] > 0).sum()} of {results.trends['printed_slope'].notna().sum()}). "
        f"Each curve shows one network on clean images or under one attack. {_ROBUST_IMAGES}"
    )
    page.add_text(_explain_numbers(results.curves["n"]))
    figure = drawings.draw_mixing_curves(results.curves, study.panels)
    page.add_figure("mixing", figure, f"Accuracy against the fraction α of robust training images; bands {_ERROR_BARS}")
    columns = ["network, curve", "slope", "95% interval", "published slope", "difference"]
    columns += ["decreases", "published decreases"]
    rows = []
    for row in results.trends.to_dict("records"):
        slopes = [_format_percent(row["slope"], signed=True), _format_percent_interval(row)]
        difference = row["slope"] - row["printed_slope"]
        slopes += [_format_percent(row["printed_slope"], signed=True), _format_percent(difference, signed=True)]
        decreases = [
            _format_decreases(row["fall"], row["steps"]),
            _format_decreases(row["printed_fall"], row["printed_steps"]),
        ]
        rows.append([f"{row['network']}, {row['curve']}", *slopes, *decreases])
    page.add_text(
        "## Is accuracy monotonic?\n\nA line is fitted to each curve. Its slope is the change of accuracy from the "
        "fraction 0 to the fraction 1, in percentage points. A step to the next larger fraction counts as a decrease "
        f"if accuracy falls. {_CURVE_NAMES}"
    )
    page.add_text(format_table(columns, rows))
    columns = ["network, curve", "α", "seeds", "ours", "95% interval", "published", "difference"]
    rows = [
        [f"{row['network']}, {row['curve']}", f"{row['alpha']:g}", str(row["n"]), *_comparison_cells(row)]
        for row in results.curves.to_dict("records")
    ]
    page.add_text(f"## All fractions\n\n{table_or_link(format_table(columns, rows), 'curves', 'all fractions')}")
    return page.finish()


def _format_decreases(n_decreases: int, n_steps: int) -> str:
    return f"{n_decreases} of {n_steps}" if n_steps else "–"


def write_equivariance(study: EquivarianceStudy, exports: Exports, folder: Path) -> list[Path]:
    """Write the page, its tables and figures (see `write_pages`)."""
    results = measure_equivariance(study, exports)
    page = PageWriter(study, folder, f"{study.name}: spatial robustness of equivariant networks")
    for name, frame in (
        ("table-1", results.best),
        ("depths", results.depths),
        ("candidates", results.candidates),
    ):
        page.add_table(name, frame)
    page.add_lead(_describe_directions(results.best))
    page.add_text(
        "D means training on the original images, and D_R training on robust images; * means that the "
        "training images are rotated by larger random angles. "
        f"{_ROBUST_IMAGES} Of the networks with published numbers, G-ResNet is group-equivariant, and STN contains a "
        f"spatial transformer. {_SPATIAL_ATTACKS}"
    )
    page.add_text(
        "A candidate is a network of one depth, trained with one learning rate. Of the "
        f"{results.n_images} images, {results.n_validation} (validation images) are used to select the best candidate, "
        "and the others (test images) to measure its accuracy. The original study selected candidates on the test "
        "images, separately for each attack. Table 1 and the column “selected on test” show the accuracies of "
        "candidates selected in this way, which are compared with the published numbers. The effect of selection is "
        "the accuracy of the candidate selected on the test images minus that of the candidate selected on the "
        "validation images, both measured on the test images."
    )
    page.add_text(_describe_best(results.best))
    page.add_text(_explain_numbers(results.best["n"]))
    caption = (
        "Accuracy by attack, network and setting, of the candidate selected on the validation images; bars "
        f"{_ERROR_BARS}"
    )
    page.add_figure("table-1", drawings.draw_equivariance(results.best), caption)
    page.add_text(
        "## Table 1\n\n"
        "Each cell shows ours / published / difference, for the candidate selected on the test images.\n\n"
        f"{_format_table_1(results.best)}"
    )
    best_table = table_or_link(_format_selections(results.best, "network"), "table-1", "selected candidates")
    depth_table = table_or_link(_format_selections(results.depths, "architecture"), "depths", "candidates by depth")
    page.add_text(f"## Selected candidates\n\n{best_table}")
    page.add_text(f"## By depth\n\n{depth_table}")
    return page.finish()


def _describe_directions(best: pd.DataFrame) -> str:
    """Return how many comparisons agree with each published finding, in our results and in the published ones."""
    findings = {
        "robust": "training on robust images (D_R) lowers accuracy",
        "rotations": "rotations in training (D*, D_R*) raise accuracy under attack",
        "equivariant": "equivariant networks are more accurate under attack than ResNets",
    }
    our_counts, published_counts = count_directions(best), count_directions(published_equivariance())
    clauses = []
    for name, finding in findings.items():
        (n_ours, n), (n_published, n_total) = our_counts[name], published_counts[name]
        if n:
            clauses.append(f"{finding} in {n_ours} of {n} comparisons (published: {n_published} of {n_total})")
    text = "; ".join(clauses)
    return f"{text[:1].upper()}{text[1:]}." if clauses else _describe_best(best)


def _describe_best(best: pd.DataFrame) -> str:
    """Return the most accurate network and setting under each attack, as a sentence."""
    highest = best.dropna(subset=["mean"]).sort_values("mean", ascending=False).drop_duplicates("attack")
    descriptions = []
    for row in highest.sort_index().to_dict("records"):
        images = "on clean images" if row["attack"] == CLEAN else f"under {row['attack']}"
        descriptions.append(f"{row['network']} {row['setting']} {images} ({_format_percent(row['mean'])}%)")
    return (
        f"With candidates selected on the validation images, the most accurate networks are: {', '.join(descriptions)}."
    )


def _format_table_1(best: pd.DataFrame) -> str:
    """Return Table 1 in its published layout: one row per attack, one column per network and setting."""
    networks, settings, attacks = (list(dict.fromkeys(best[name])) for name in ("network", "setting", "attack"))
    indexed = best.set_index(["attack", "network", "setting"]).sort_index()
    columns = ["attack", *(f"{network} {setting}" for network in networks for setting in settings)]
    rows = []
    for attack in attacks:
        cells: list[Any] = [indexed.loc[(attack, network, setting), :] for network in networks for setting in settings]
        rows.append(
            [attack, *(_format_comparison(cell["on_test"], cell["printed"], _format_percent) for cell in cells)]
        )
    return format_table(columns, rows)


def _format_selections(frame: pd.DataFrame, name_column: str) -> str:
    columns: Sequence[str] = [name_column, "setting", "attack", "seeds", "selected on validation", "95% interval"]
    columns = [*columns, "selected on test", "effect of selection", "published", "difference", "candidate"]
    rows = []
    for row in frame.to_dict("records"):
        name_cells = [row[name_column], row["setting"], row["attack"], str(row["n"])]
        our_cells = [_format_percent(row["mean"]), _format_percent_interval(row), _format_percent(row["on_test"])]
        published_cells = [_format_percent(row["printed"]), _format_percent(row["difference"], signed=True)]
        rows.append(
            [*name_cells, *our_cells, _format_percent(row["selection"], signed=True), *published_cells, row["chosen"]]
        )
    return format_table(columns, rows)
