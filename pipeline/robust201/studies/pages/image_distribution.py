"""The page of the study of image distribution and task."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from robust201.planning.config import SweepConfig
from robust201.studies import drawings
from robust201.studies.attacked_images import attack_examples, strengths_of
from robust201.studies.comparisons import GROUPS, LEVEL, check_published_marks
from robust201.studies.config import ImageDistributionStudy
from robust201.studies.image_distribution import (
    ImageDistribution,
    attach_published_decisions,
    measure_image_distribution,
)
from robust201.studies.mixed_effects import MixedEffects, fit_mixed_effects
from robust201.studies.networks import Exports
from robust201.studies.pages.writer import PageWriter, comparison_lines, short_table, show_number, show_p, table_lines


def write_image_distribution(
    study: ImageDistributionStudy, exports: Exports, folder: Path, sweeps: Sequence[SweepConfig]
) -> list[Path]:
    """Write the page, its tables and figures (see `write_pages`)."""
    numbers = measure_image_distribution(study, exports)
    published = check_published_marks()
    comparisons = attach_published_decisions(study, numbers.comparisons, published.comparisons)
    page = PageWriter(study, folder, f"{study.name}: robustness by image distribution and task")
    for name, frame in (
        ("networks", numbers.models),
        ("robustness", numbers.tables),
        ("curves", numbers.curves),
    ):
        page.add_table(name, frame)
    page.add_table("comparisons", comparisons)
    page.add_lead(_count_decisions(comparisons, numbers.comparable))
    page.add_text(_how_to_read(numbers))
    for network, rows in numbers.tables.groupby("network", sort=False):
        page.add_text(f"## {network}\n\n{short_table(_robustness_lines(rows), 'robustness')}")
    page.add_figure(
        "robustness",
        drawings.draw_robustness(numbers.tables),
        "R by epoch: mean over networks, band of one deviation",
    )
    first_network = next(iter(study.networks))
    caption = (
        f"{first_network} after its last epoch: the area under accuracy, raw and normalised (figure 1 of the paper)"
    )
    page.add_figure("areas", drawings.draw_areas(numbers.curves, first_network), caption)
    for normalised_number, groups in ((4, drawings.UNTUNED_GROUPS), (5, drawings.TUNED_GROUPS)):
        for normalised in (True, False):
            figure = drawings.draw_accuracy_curves(numbers.curves, groups, normalised=normalised)
            scale = "normalised" if normalised else "unnormalised"
            figure_number = normalised_number if normalised else normalised_number + 2
            caption = f"Accuracy over epsilon, {scale} (figure {figure_number} of the paper)"
            page.add_figure(f"curves-{normalised_number}-{scale}", figure, caption)
    if strengths := strengths_of(study, sweeps):
        for network, attacked in attack_examples(study, sweeps).items():
            figure = drawings.draw_attacked_images(attacked, (0.0, *(strength / 255 for strength in strengths)))
            caption = f"{network}: one image per group, attacked, and the change (figures 8 and 9 of the paper)"
            page.add_figure(f"attacked-{network.lower()}", figure, caption)
    page.add_text(f"## Tests\n\n{short_table(comparison_lines(comparisons), 'comparisons')}")
    if study.mixed_model:
        mixed = fit_mixed_effects(numbers.models)
        page.add_table("mixed-effects", mixed.effects)
        page.add_table("mixed-variances", mixed.variances)
        page.add_text(f"## Mixed model\n\n{_explain_mixed_model(mixed)}\n\n{_variance_lines(mixed.variances)}")
        effects = short_table(_effect_lines(mixed.effects), "mixed-effects")
        page.add_text(f"Effects after the last epoch of each network:\n\n{effects}")
    return page.finish()


def _how_to_read(numbers: ImageDistribution) -> str:
    n_above = int(numbers.tables["above_one"].sum())
    strengths = (
        "the paper's nine strengths"
        if numbers.comparable
        else "other strengths than the paper's, or computed from the sensitivity (do not compare R)"
    )
    return (
        f"R is computed for each network over {strengths}, and then averaged. Its floor, reached if no attacked image "
        f"is classified correctly, is {numbers.floor:.4f}. {n_above} of {len(numbers.models)} networks have R above 1; "
        f"R is not clipped. {_count_at_chance(numbers.models)}{_explain_sensitivity(numbers)}"
        f"{_compare_fits(numbers.models)}"
        "Standard deviations divide by n - 1; intervals are Student's 95% over networks. Printed means are over 20 "
        "networks; p is that of Welch's test of the difference."
    )


def _compare_fits(models: pd.DataFrame) -> str:
    differences = (models["r_fitted"] - models["r"]).abs().dropna()
    if differences.empty:
        return ""
    return (
        f"R of fitted psychometric functions differs from R by {show_number(differences.median(), 3)} in the median, "
        f"at most by {show_number(differences.max(), 3)}. "
    )


def _explain_sensitivity(numbers: ImageDistribution) -> str:
    if not numbers.by_sensitivity:
        return ""
    return (
        "The groups have different numbers of classes, so R is computed from the sensitivity d' instead of the "
        "accuracy. "
    )


def _count_at_chance(models: pd.DataFrame) -> str:
    n_at_chance = int(models["at_chance"].sum())
    if not n_at_chance:
        return ""
    return (
        f"{n_at_chance} of them are not above chance on clean images: they have no R, and are left out of means and "
        "tests. "
    )


def _robustness_lines(rows: pd.DataFrame) -> str:
    columns = ["group", "epoch", "networks", "clean", "R", "SD", "95% interval", "above 1"]
    columns += ["printed epoch", "printed R", "printed SD", "difference", "p"]
    table_rows = []
    for row in rows.to_dict("records"):
        our_cells = [
            show_number(row["clean"]),
            show_number(row["mean"]),
            show_number(row["sd"]),
            _interval(row),
            str(row["above_one"]),
        ]
        epoch = row["printed_epoch"]
        published_cells = ["–" if epoch is None or math.isnan(epoch) else str(int(epoch))]
        published_cells += [
            show_number(row["printed_mean"]),
            show_number(row["printed_sd"]),
            show_number(row["difference"], signed=True),
            show_p(row["p_printed"]),
        ]
        table_rows.append([GROUPS[row["group"]], str(row["epoch"]), str(row["n"]), *our_cells, *published_cells])
    return table_lines(columns, table_rows)


def _interval(row: Mapping[Any, Any], digits: int = 4) -> str:
    return f"[{show_number(row['low'], digits)}, {show_number(row['high'], digits)}]"


def _count_decisions(comparisons: pd.DataFrame, comparable: bool) -> str:
    with_published = comparisons[comparisons["printed"].notna()]
    n_equal = int((with_published["printed"] == with_published["higher"]).sum())
    n_after_holm = int((comparisons["higher_holm"] != "").sum())
    sentence = (
        f"{int((comparisons['higher'] != '').sum())} of {len(comparisons)} comparisons differ at the 5% level by "
        f"Welch's test, {n_after_holm} after Holm's correction for all of them"
    )
    if "p_paired_holm" in comparisons:
        in_pairs = int((comparisons["p_paired_holm"] < 0.05).sum())
        sentence += f", {in_pairs} by the paired test over equal seeds, with the same correction"
    if len(with_published):
        sentence += f". {n_equal} of {len(with_published)} decisions agree with the printed ones, at the "
        sentence += "printed epochs of the tables"
    return sentence + ("." if comparable else ". Strengths differ from the paper's.")


def _explain_mixed_model(mixed: MixedEffects) -> str:
    n_significant, n_after_holm = (int((mixed.effects[name] < LEVEL).sum()) for name in ("p", "p_holm"))
    return (
        "R of a trained network is the mean of its group, plus an intercept of its seed (the initial weights, the same "
        "in all groups), plus a residual: one model per network and epoch, fitted by REML. The residuals of all groups "
        "have one variance; where the deviations above differ much, prefer the tests above. Intervals are Student's "
        "95% with Satterthwaite's degrees of freedom, those of the seeds' share by profile likelihood. C has the same "
        f"effects, since its mean is R - 1. {n_significant} of {len(mixed.effects)} effects differ from 0 at the 5% "
        f"level, "
        f"{n_after_holm} after Holm's correction for all of them."
    )


def _variance_lines(variances: pd.DataFrame) -> str:
    columns = ["network", "epoch", "networks", "seeds", "SD of seeds", "SD of residuals", "share of seeds"]
    rows = []
    for row in variances.to_dict("records"):
        names = [row["network"], *(str(row[name]) for name in ("epoch", "n", "n_seeds"))]
        fraction = [show_number(row[name], 2) for name in ("seed_share", "share_low", "share_high")]
        deviations = [show_number(row[name]) for name in ("seed_sd", "residual_sd")]
        rows.append([*names, *deviations, fraction[0], f"[{fraction[1]}, {fraction[2]}]"])
    return table_lines([*columns, "95% interval"], rows)


def _effect_lines(effects: pd.DataFrame) -> str:
    """Return a table of effects at each network's last epoch and over architectures, ordered by comparison."""
    last_epoch = effects.groupby("network", sort=False)["epoch"].transform("max")
    last_effects = effects[effects["epoch"].isna() | (effects["epoch"] == last_epoch)]
    columns = ["factor", "comparison", "network", "estimate", "95% interval", "df", "p", "p (Holm)"]
    rows = []
    for claim in dict.fromkeys(last_effects["claim"]):
        for row in last_effects[last_effects["claim"] == claim].to_dict("records"):
            names = [row["factor"], f"{row['experiment']} {row['claim']}".strip(), row["network"]]
            cells = [show_number(row["estimate"], signed=True), _interval(row), show_number(row["degrees"], 1)]
            rows.append([*names, *cells, show_p(row["p"]), show_p(row["p_holm"])])
    return table_lines(columns, rows)
