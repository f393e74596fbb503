"""The page of the study of image distribution and task."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from robust201.planning.config import SweepConfig
from robust201.studies import drawings
from robust201.studies.attacked_images import attack_example_images, find_attack_strengths
from robust201.studies.comparisons import GROUPS, LEVEL, check_published_marks
from robust201.studies.config import ImageDistributionStudy
from robust201.studies.image_distribution import (
    ImageDistribution,
    attach_published_decisions,
    measure_image_distribution,
)
from robust201.studies.mixed_effects import MixedEffects, fit_mixed_effects
from robust201.studies.networks import Exports
from robust201.studies.pages.writer import (
    PageWriter,
    format_comparisons,
    format_number,
    format_p_value,
    format_table,
    table_or_link,
)

_EFFECTS_EXPLANATION = (
    "The next table shows effects on R after the last epoch of each architecture. Comparisons are numbered as in "
    "docs/image-distribution.md. In “A > B”, group A is the more robust one according to the paper; “A against B” has "
    "no claimed direction; “A → B” is a group pretrained on A and then trained on B. An estimate is the mean of the "
    "first group minus that of the second."
)


def write_image_distribution(
    study: ImageDistributionStudy, exports: Exports, folder: Path, sweeps: Sequence[SweepConfig]
) -> list[Path]:
    """Write the page, its tables and figures (see `write_pages`)."""
    study_results = measure_image_distribution(study, exports)
    published = check_published_marks()
    comparisons = attach_published_decisions(study, study_results.comparisons, published.comparisons)
    page = PageWriter(study, folder, f"{study.name}: robustness by image distribution and task")
    for name, frame in (
        ("networks", study_results.trained_networks),
        ("robustness", study_results.tables),
        ("curves", study_results.curves),
    ):
        page.add_table(name, frame)
    page.add_table("comparisons", comparisons)
    page.add_lead(_describe_decisions(comparisons, study_results.is_comparable))
    page.add_text(_explain_tables(study_results))
    for network, rows in study_results.tables.groupby("network", sort=False):
        page.add_text(
            f"## {network}\n\n{table_or_link(_format_robustness(rows), 'robustness', 'R by group and epoch')}"
        )
    page.add_figure(
        "robustness",
        drawings.draw_robustness(study_results.tables),
        "R by epoch: means over networks, with bands of one standard deviation",
    )
    first_network = next(iter(study.networks))
    caption = (
        f"{first_network} after its last epoch: areas under the curves of accuracy, unnormalised and normalised by "
        "clean accuracy (figure 1 of the paper)"
    )
    page.add_figure("areas", drawings.draw_areas(study_results.curves, first_network), caption)
    for normalised_figure, groups in ((4, drawings.FROM_SCRATCH_GROUPS), (5, drawings.FINE_TUNED_GROUPS)):
        for normalised in (True, False):
            figure = drawings.draw_accuracy_curves(
                study_results.curves, groups, study_results.chances, normalised=normalised
            )
            scale = "normalised" if normalised else "unnormalised"
            figure_number = normalised_figure if normalised else normalised_figure + 2
            caption = f"Accuracy against epsilon, {scale} (figure {figure_number} of the paper)"
            page.add_figure(f"curves-{normalised_figure}-{scale}", figure, caption)
    if strengths := find_attack_strengths(study, sweeps):
        for network, attacked in attack_example_images(study, sweeps).items():
            figure = drawings.draw_attacked_images(attacked, (0.0, *(strength / 255 for strength in strengths)))
            caption = f"{network}: one attacked image per group, and its change (figures 8 and 9 of the paper)"
            page.add_figure(f"attacked-{network.lower()}", figure, caption)
    page.add_text(f"## Tests\n\n{table_or_link(format_comparisons(comparisons), 'comparisons', 'tests')}")
    if study.mixed_model:
        mixed = fit_mixed_effects(study_results.trained_networks)
        page.add_table("mixed-effects", mixed.effects)
        page.add_table("mixed-variances", mixed.variances)
        page.add_text(f"## Mixed models\n\n{_explain_mixed_models(mixed)}\n\n{_format_variances(mixed.variances)}")
        effects = table_or_link(_format_effects(mixed.effects), "mixed-effects", "effects")
        page.add_text(f"{_EFFECTS_EXPLANATION}\n\n{effects}")
    return page.finish()


def _explain_tables(study_results: ImageDistribution) -> str:
    n_above = int(study_results.tables["above_one"].sum())
    if study_results.is_comparable:
        basis = "over the paper's nine strengths"
    elif study_results.uses_sensitivity:
        basis = "from the sensitivity, so it is not comparable with published R"
    else:
        basis = "over strengths other than the paper's, so it is not comparable with published R"
    return (
        "R is the area under the curve of a network's accuracy against the attack's strength, divided by the area "
        "under a curve that stays at the clean accuracy; R = 1 means that the attack has no effect. "
        f"R is computed for each network {basis}. The tables show means over networks. The lower bound of R, which "
        f"is reached if no attacked image is classified correctly, is {study_results.floor:.4f}. R is not clipped; "
        f"{n_above} of {len(study_results.trained_networks)} networks have R above 1. "
        f"{_describe_networks_at_chance(study_results.trained_networks)}"
        f"{_explain_sensitivity(study_results)}{_compare_fits(study_results.trained_networks)}"
        "Standard deviations have the divisor n - 1. Intervals are 95% intervals over networks (Student's t). "
        "Published means are over 20 networks; p is the p-value of Welch's test of the difference from the published "
        "mean."
    )


def _compare_fits(trained_networks: pd.DataFrame) -> str:
    differences = (trained_networks["r_fitted"] - trained_networks["r"]).abs().dropna()
    if differences.empty:
        return ""
    return (
        "An R computed from psychometric functions fitted to the accuracies differs from this R by "
        f"{format_number(differences.median(), 3)} (median) and by at most {format_number(differences.max(), 3)}. "
    )


def _explain_sensitivity(study_results: ImageDistribution) -> str:
    if not study_results.uses_sensitivity:
        return ""
    return (
        "The groups have different numbers of classes, so R is computed from the sensitivity d' instead of the "
        "accuracy. "
    )


def _describe_networks_at_chance(trained_networks: pd.DataFrame) -> str:
    n_at_chance = int(trained_networks["at_chance"].sum())
    if not n_at_chance:
        return ""
    return (
        f"The clean accuracies of {n_at_chance} networks are not significantly above chance: these networks have no R, "
        "and are omitted from means and tests. "
    )


def _format_robustness(rows: pd.DataFrame) -> str:
    columns = ["group", "epoch", "networks", "clean accuracy", "R", "SD", "95% interval", "networks with R > 1"]
    columns += ["published epoch", "published R", "published SD", "difference", "p"]
    table_rows = []
    for row in rows.to_dict("records"):
        our_cells = [
            format_number(row["clean"]),
            format_number(row["mean"]),
            format_number(row["sd"]),
            _format_interval(row),
            str(row["above_one"]),
        ]
        epoch = row["printed_epoch"]
        published_cells = ["–" if epoch is None or math.isnan(epoch) else str(int(epoch))]
        published_cells += [
            format_number(row["printed_mean"]),
            format_number(row["printed_sd"]),
            format_number(row["difference"], signed=True),
            format_p_value(row["p_printed"]),
        ]
        table_rows.append([GROUPS[row["group"]], str(row["epoch"]), str(row["n"]), *our_cells, *published_cells])
    return format_table(columns, table_rows)


def _format_interval(row: Mapping[Any, Any], decimals: int = 4) -> str:
    return f"[{format_number(row['low'], decimals)}, {format_number(row['high'], decimals)}]"


def _describe_decisions(comparisons: pd.DataFrame, is_comparable: bool) -> str:
    with_published = comparisons[comparisons["printed"].notna()]
    n_agreeing = int((with_published["printed"] == with_published["higher"]).sum())
    n_after_holm = int((comparisons["higher_holm"] != "").sum())
    sentence = (
        "The robustness R (defined below) of two groups of networks differs significantly in "
        f"{int((comparisons['higher'] != '').sum())} of {len(comparisons)} comparisons (Welch's test, 5% level); "
        f"{n_after_holm} of these differences remain significant after Holm's correction for all comparisons"
    )
    if "p_paired_holm" in comparisons:
        n_paired = int((comparisons["p_paired_holm"] < 0.05).sum())
        sentence += (
            f". A test that pairs networks with equal seeds finds {n_paired} significant differences after the same "
            "correction"
        )
    if len(with_published):
        sentence += (
            f". {n_agreeing} of {len(with_published)} decisions (which group has the significantly higher R, if any) "
            "agree with those of the paper (Kunhardt, Deza and Poggio, 2021) for the corresponding epochs"
        )
    return sentence + ("." if is_comparable else ". R is not comparable with the paper's, as explained below.")


def _explain_mixed_models(mixed: MixedEffects) -> str:
    n_significant, n_after_holm = (int((mixed.effects[name] < LEVEL).sum()) for name in ("p", "p_holm"))
    return (
        "There is one model per architecture and epoch, fitted by restricted maximum likelihood (REML). It describes "
        "the R of a trained network as the mean of its group, plus an intercept of its seed (which determines the "
        "initial weights in all groups), plus a residual. The model assumes that the residuals of all groups have the "
        "same variance, so prefer the tests above if standard deviations differ much between groups. Intervals of "
        "effects are 95% intervals (Student's t with Satterthwaite's degrees of freedom); intervals of the seeds' "
        "fraction of the variance use the profile likelihood. Effects on the mean relative change of accuracy are the "
        "same, because this change is R - 1. "
        f"{n_significant} of {len(mixed.effects)} effects differ from 0 at the 5% level, {n_after_holm} after Holm's "
        "correction for all of them."
    )


def _format_variances(variances: pd.DataFrame) -> str:
    columns = ["architecture", "epoch", "trained networks", "seeds", "SD of seeds", "SD of residuals"]
    columns += ["seeds' fraction of variance"]
    rows = []
    for row in variances.to_dict("records"):
        name_cells = [row["network"], *(str(row[name]) for name in ("epoch", "n", "n_seeds"))]
        fraction = [format_number(row[name], 2) for name in ("seed_share", "share_low", "share_high")]
        deviations = [format_number(row[name]) for name in ("seed_sd", "residual_sd")]
        rows.append([*name_cells, *deviations, fraction[0], f"[{fraction[1]}, {fraction[2]}]"])
    return format_table([*columns, "95% interval"], rows)


def _format_effects(effects: pd.DataFrame) -> str:
    """Return a table of effects at each architecture's last epoch and over architectures, ordered by comparison."""
    last_epoch = effects.groupby("network", sort=False)["epoch"].transform("max")
    last_effects = effects[effects["epoch"].isna() | (effects["epoch"] == last_epoch)]
    columns = ["factor", "comparison", "architecture", "estimate", "95% interval", "df", "p", "p (Holm)"]
    rows = []
    for claim in dict.fromkeys(last_effects["claim"]):
        for row in last_effects[last_effects["claim"] == claim].to_dict("records"):
            name_cells = [row["factor"], f"{row['experiment']} {row['claim']}".strip(), row["network"]]
            cells = [
                format_number(row["estimate"], signed=True),
                _format_interval(row),
                format_number(row["degrees"], 1),
            ]
            rows.append([*name_cells, *cells, format_p_value(row["p"]), format_p_value(row["p_holm"])])
    return format_table(columns, rows)
