"""Robustness R by image distribution and task: our numbers, the paper's numbers, and README.md's claims and figures.

    python -m jobs.papers.image_distribution.analyse EXPORT [EXPORT …]   # new tables, then page and figures
    python -m jobs.papers.image_distribution.analyse                     # page and figures from tables/

`--folder` writes the output elsewhere. R is the area under the curve of a network's accuracy against the strength of
FGSM, divided by the area under a curve that stays at the clean accuracy. R is computed for each network, never clipped,
and averaged over a group: the networks of one architecture, trained on one set of images with one set of labels.

Source: Kunhardt, Deza and Poggio, "The Effects of Image Distribution and Task on Adversarial Robustness", CBMM memo 116
(2021), tables 1 to 18.
"""

import argparse
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import pandas as pd
from scipy.stats import ttest_ind_from_stats

from jobs.papers.figures import draw_lines
from jobs.papers.image_distribution.psychometrics import fit_logistic, logistic_robustness
from jobs.papers.networks import RunWeights, read_accuracies, read_trained
from jobs.papers.page import claims_table, fill, number, p_value, table, write_table
from jobs.papers.verdicts import Claim, Estimate, decide, mean_estimate, welch_estimate
from robust201.statistics.intervals import accuracy_intervals
from robust201.statistics.robustness import relative_changes, robustness_r
from robust201.statistics.significance import holm_adjust

FOLDER = Path(__file__).parent
PUBLISHED = json.loads((FOLDER / "published.json").read_text())
N_IMAGES = 10_000
N_CLASSES = 10
SIGNIFICANCE_LEVEL = 0.05

MAX_CLEAN_DIFFERENCE = 0.05
"""Groups whose mean clean accuracies differ by at most five percentage points count as equally accurate."""

NETWORKS = {"lenet5": "LeNet", "lenet28": "LeNet", "resnet50": "ResNet50", "fc7500": "FullyConnectedNet"}


class Group(NamedTuple):
    """A group: its label, the dataset on which it is attacked, and its training recipe."""

    label: str
    dataset: str
    recipe: str


GROUPS = {
    "mnist": Group("MNIST", "mnist", "plain"),
    "cifar10": Group("CIFAR-10", "cifar10", "plain"),
    "cifar10_to_mnist": Group("CIFAR-10 → MNIST", "mnist", "from-cifar10"),
    "mnist_to_cifar10": Group("MNIST → CIFAR-10", "cifar10", "from-mnist"),
    "fusion_digit": Group("fusion, digit", "fusion-digit", "digit"),
    "fusion_object": Group("fusion, object", "fusion-object", "object"),
    "mnist_28": Group("MNIST, 28×28×1", "mnist-28", "plain"),
}
"""Groups in the order of the paper's tables; the last one is a control, for which the paper has no numbers."""


class Comparison(NamedTuple):
    """Two groups that the paper compares, for every network and epoch.

    Attributes:
        experiment: name of the experiment.
        marker: letter of the paper's significance marker.
        first: the more robust group according to the claim, if the claim has a direction.
        second: the other group.
        is_two_sided: whether the paper marks the second group if that one is more robust.
    """

    experiment: str
    marker: str
    first: str
    second: str
    is_two_sided: bool = False

    @property
    def label(self) -> str:
        relation = "against" if self.is_two_sided else ">"
        return f"{self.experiment} {GROUPS[self.first].label} {relation} {GROUPS[self.second].label}"


COMPARISONS = (
    Comparison("E1", "s", "mnist", "cifar10"),
    Comparison("E2a", "t", "fusion_digit", "fusion_object"),
    Comparison("E2b", "z", "mnist", "fusion_digit"),
    Comparison("E2b", "z", "cifar10", "fusion_object"),
    Comparison("E3a", "d", "cifar10_to_mnist", "mnist", is_two_sided=True),
    Comparison("E3b", "d", "mnist_to_cifar10", "cifar10", is_two_sided=True),
    Comparison("E3c", "b", "cifar10_to_mnist", "mnist_to_cifar10"),
)


# --- Tables, from exports


def measure(networks: Sequence[RunWeights]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return R of each trained network, and the mean accuracy curves of each group."""
    rows, curves = [], []
    for name, group in GROUPS.items():
        chosen = [network for network in networks if network.recipe == group.recipe and network.epochs is not None]
        if not any(group.dataset in network.reader.data for network in chosen):
            continue
        frames = [read_accuracies(chosen, group.dataset, key) for key in ("clean", "fgsm")]
        columns = ["architecture", "epochs", "seed"]
        wide = pd.concat(frames).pivot_table(index=columns, columns="strength", values="accuracy").dropna()
        strengths = wide.columns.to_numpy(np.float64)
        for (architecture, epoch, seed), accuracies in zip(wide.index, wide.to_numpy(np.float64), strict=True):
            rows.append(
                {"network": NETWORKS[architecture], "group": name, "epoch": int(epoch), "seed": seed}
                | measure_network(strengths, accuracies)
            )
        for key, accuracies_of_group in wide.groupby(["architecture", "epochs"], sort=False):
            architecture, epoch = cast("tuple[str, float]", key)
            values = accuracies_of_group.to_numpy(np.float64)
            normalised = values / values[:, :1]
            curves.append(
                pd.DataFrame(
                    {"network": NETWORKS[architecture], "group": name, "epoch": int(epoch), "strength": strengths}
                    | {"n": len(values), "accuracy": values.mean(0), "accuracy_sd": values.std(0, ddof=1)}
                    | {"normalised": normalised.mean(0), "normalised_sd": normalised.std(0, ddof=1)}
                )
            )
    return pd.DataFrame(rows), pd.concat(curves, ignore_index=True)


def measure_network(strengths: np.ndarray, accuracies: np.ndarray) -> dict[str, float]:
    """Return a network's clean accuracy; R, mean relative change C and fitted R (NaN at chance level); and flags."""
    curve = robustness_r(strengths, accuracies)
    changes = relative_changes(strengths, accuracies)
    at_chance = bool(accuracy_intervals(accuracies[0], N_IMAGES)[0] <= 1 / N_CLASSES)
    fitted = logistic_robustness(fit_logistic(strengths, accuracies), strengths[0], strengths[-1])
    values = {
        "r": float(curve.value),
        "c": float(np.trapezoid(changes, strengths) / (strengths[-1] - strengths[0])),
        "r_fitted": fitted,
    }
    return {
        "clean": float(accuracies[0]),
        **{name: math.nan if at_chance else value for name, value in values.items()},
        "exceeds_one": bool(curve.exceeds_one) and not at_chance,
        "rises": bool(curve.rises),
        "at_chance": at_chance,
    }


def summarise(networks: pd.DataFrame) -> pd.DataFrame:
    """Return one row per network, group and epoch: `n`, `mean`, `sd`, interval of R, `clean`, and the paper's numbers.

    `p_published` is the p-value of Welch's test of the difference from the published mean.
    """
    published = {(row["network"], row["group"], row["epoch"]): row for row in published_tables().to_dict("records")}
    rows = []
    for key, group in networks.groupby(["network", "group", "epoch"], sort=False):
        r = group["r"].dropna().to_numpy()
        estimate = mean_estimate(r)
        sd = float(r.std(ddof=1)) if len(r) > 1 else math.nan
        paper = published.get(cast("tuple[Any, Any, Any]", key), {"mean": math.nan, "sd": math.nan, "n": 20})
        test = ttest_ind_from_stats(estimate.value, sd, len(r), paper["mean"], paper["sd"], paper["n"], equal_var=False)
        rows.append(
            dict(zip(("network", "group", "epoch"), key, strict=True))
            | {"n": len(r), "mean": estimate.value, "sd": sd, "low": estimate.low, "high": estimate.high}
            | {"clean": group["clean"].mean(), "published_mean": paper["mean"], "published_sd": paper["sd"]}
            | {"difference": estimate.value - paper["mean"], "p_published": float(test.pvalue)}
        )
    return pd.DataFrame(rows)


# --- Comparisons of groups


def published_tables() -> pd.DataFrame:
    """Return tables 1 to 18.

    Returns:
        One row per entry: `table`, `network`, `group`, `epoch`, `mean` and `sd` of R (NaN if unpublished), `n` (number
        of networks), `marks` (letters of significance markers) and `certain` (whether the entry's epoch is certain).
    """
    rows = [
        {name: paper_table[name] for name in ("table", "network", "group")}
        | {"n": PUBLISHED["models"], "certain": True}
        | entry
        for paper_table in PUBLISHED["tables"]
        for entry in paper_table["cells"]
    ]
    return pd.DataFrame(rows).astype({"mean": float, "sd": float})


def compare(summaries: pd.DataFrame) -> pd.DataFrame:
    """Perform all comparisons whose two groups are in the summaries, by Welch's two-sided test.

    Returns:
        One row per comparison, network and epoch: `comparison` (its label), `first`, `second`, `network`, `epoch`, the
        means, the `difference` with its 95% interval `low` to `high`, `p` and `p_holm` (over all rows; a row without
        numbers counts as p = 1), and `higher` and `higher_holm`: the side with the significantly higher mean, or "".
    """
    entries = {(row["network"], row["group"], row["epoch"]): row for row in summaries.to_dict("records")}
    rows = []
    for comparison in COMPARISONS:
        for (network, group, epoch), first in entries.items():
            other = entries.get((network, comparison.second, epoch))
            if group != comparison.first or other is None:
                continue
            pair = first, other
            mean, sd, n = ([row[name] for row in pair] for name in ("mean", "sd", "n"))
            estimate = welch_estimate(mean, sd, n)
            p = ttest_ind_from_stats(mean[0], sd[0], n[0], mean[1], sd[1], n[1], equal_var=False).pvalue
            rows.append(
                {"comparison": comparison.label, "first": group, "second": comparison.second, "network": network}
                | {"epoch": epoch, "mean_first": mean[0], "mean_second": mean[1], "difference": estimate.value}
                | {"low": estimate.low, "high": estimate.high, "p": float(p)}
            )
    frame = pd.DataFrame(rows)
    known = frame["p"].notna()
    frame["p_holm"] = np.where(known, holm_adjust(frame["p"].where(known, 1.0)), np.nan)
    for suffix in ("", "_holm"):
        side = np.where(frame["difference"] > 0, "first", "second")
        frame[f"higher{suffix}"] = np.where(frame[f"p{suffix}"] < SIGNIFICANCE_LEVEL, side, "")
    return frame


def published_comparisons() -> pd.DataFrame:
    """Recompute the paper's decisions from its means and standard deviations of 20 networks per group.

    Returns:
        The rows of `compare` for the paper's tables, with the columns `certain` (whether both epochs are certain),
        `published_marker` (the side with the paper's significance marker, or ""), `recomputed_marker` (the side that
        should have it) and `agrees` (whether they are equal).
    """
    tables = published_tables()
    entries = {(row["network"], row["group"], row["epoch"]): row for row in tables.to_dict("records")}
    comparisons = {(comparison.first, comparison.second): comparison for comparison in COMPARISONS}
    frame = compare(tables)
    published_markers, recomputed_markers, certain = [], [], []
    for row in frame.to_dict("records"):
        comparison = comparisons[row["first"], row["second"]]
        first, second = (entries[row["network"], row[side], row["epoch"]] for side in ("first", "second"))
        second_marker = "second" if comparison.is_two_sided and comparison.marker in second["marks"] else ""
        published_markers.append("first" if comparison.marker in first["marks"] else second_marker)
        recomputed_markers.append(row["higher"] if comparison.is_two_sided or row["higher"] == "first" else "")
        certain.append(bool(first["certain"] and second["certain"]))
    frame = frame.assign(certain=certain, published_marker=published_markers, recomputed_marker=recomputed_markers)
    return frame.assign(agrees=frame["published_marker"] == frame["recomputed_marker"])


# --- Claims


def seed_claim(
    claim: str, place: str, published: str, estimates: Mapping[str, Estimate], n: int, network: str = ""
) -> Claim:
    """Return a claim that all estimates are positive; the keys of `estimates` describe them."""
    ours = "; ".join(f"{estimate} {name}" for name, estimate in estimates.items())
    data = f"{f'{network}, ' if network else ''}{n} seeds, {N_IMAGES:,} images"
    return decide(claim, place, published, ours, data, estimates.values(), "seeds")


def judge_claims(networks: pd.DataFrame, curves: pd.DataFrame, summaries: pd.DataFrame) -> Iterator[Claim]:
    decisions = published_comparisons().query("published_marker != ''")
    for network, ours in summaries.groupby("network", sort=False):
        yield from claims_of_tables(ours, decisions[decisions["network"] == network])
    yield from control_claims(summaries)
    for network, ours in summaries.groupby("network", sort=False):
        yield from claim_about_fusion(ours, decisions[decisions["network"] == network])
        yield from claim_at_equal_accuracy(ours, decisions[decisions["network"] == network])
        yield from claim_about_spread(networks[networks["network"] == network])
        yield from claim_about_rebound(curves[curves["network"] == network])


def marked_differences(
    summaries: pd.DataFrame, decisions: pd.DataFrame, comparisons: Sequence[Comparison]
) -> dict[tuple[str, int], Estimate]:
    """Return R of the group that the paper marks as higher, minus R of the other one, by marked group and epoch."""
    entries = summaries.set_index(["group", "epoch"])[["mean", "sd", "n"]]
    chosen = {(comparison.first, comparison.second) for comparison in comparisons}
    pairs = {}
    for row in decisions.to_dict("records"):
        other = "second" if row["published_marker"] == "first" else "first"
        sides = [(row[side], row["epoch"]) for side in (row["published_marker"], other)]
        if (row["first"], row["second"]) in chosen and {*sides} <= {*entries.index}:
            pairs[sides[0]] = entries.loc[sides]
    return {
        marked: welch_estimate(pair["mean"], pair["sd"], pair["n"], n_comparisons=len(pairs))
        for marked, pair in pairs.items()
    }


def list_marks(marked: Iterable[tuple[str, int]]) -> str:
    epochs_by_group: dict[str, list[str]] = {}
    for group, epoch in marked:
        epochs_by_group.setdefault(GROUPS[group].label, []).append(str(epoch))
    return "; ".join(f"R of {name} is higher: epochs {', '.join(at)}" for name, at in epochs_by_group.items())


def claims_of_tables(summaries: pd.DataFrame, decisions: pd.DataFrame) -> Iterator[Claim]:
    """Judge each comparison of two groups at the epochs at which the paper marks a difference as significant."""
    for comparison in COMPARISONS:
        differences = marked_differences(summaries, decisions, [comparison])
        if differences:
            yield seed_claim(
                f"{comparison.label}, {summaries['network'].iloc[0]}",
                "Tables 1 to 18",
                list_marks(differences),
                {f"at epoch {epoch}": estimate for (_, epoch), estimate in differences.items()},
                int(summaries["n"].min()),
            )


def control_claims(summaries: pd.DataFrame) -> Iterator[Claim]:
    """Test the claims that compare MNIST at 28×28×1 and at 32×32×3 (section 3.2, which has no numbers)."""
    entries = summaries.set_index(["network", "group", "epoch"])[["mean", "sd", "n"]]
    epochs = [epoch for network, group, epoch in entries.index if (network, group) == ("LeNet", "mnist_28")]
    if not epochs:
        return
    groups = ["mnist_28", "mnist", "cifar10"]
    rows = {epoch: entries.loc[[("LeNet", group, epoch) for group in groups]] for epoch in epochs}
    for claim, weights in (
        ("R is slightly higher on the original MNIST images (28×28×1) than on the scaled ones (32×32×3).", (1, -1, 0)),
        (
            "This difference is small in comparison to the other differences (here: MNIST minus CIFAR-10 exceeds it).",
            (-1, 2, -1),
        ),
    ):
        estimates = {
            f"at epoch {epoch}": welch_estimate(row["mean"], row["sd"], row["n"], weights, len(epochs))
            for epoch, row in rows.items()
        }
        yield seed_claim(claim, "Section 3.2", "no numbers", estimates, int(entries["n"].min()), "LeNet")


def claim_about_fusion(summaries: pd.DataFrame, decisions: pd.DataFrame) -> Iterator[Claim]:
    """Compare fusion and plain images with the same labels, for both labels together."""
    comparisons = [comparison for comparison in COMPARISONS if comparison.experiment == "E2b"]
    differences = marked_differences(summaries, decisions, comparisons)
    if {group for group, _ in differences} == {comparison.first for comparison in comparisons}:
        yield seed_claim(
            "Both fusion groups have lower R than the plain groups with the same labels.",
            "Tables 1 to 18",
            list_marks(differences),
            {f"below {GROUPS[group].label} at epoch {epoch}": x for (group, epoch), x in differences.items()},
            int(summaries["n"].min()),
            summaries["network"].iloc[0],
        )


def claim_at_equal_accuracy(summaries: pd.DataFrame, decisions: pd.DataFrame) -> Iterator[Claim]:
    """Repeat each comparison whose marks are all on one side, at the epochs of the closest clean accuracies."""
    by_group = dict([*summaries.groupby("group")])
    pairs = {}
    for comparison in COMPARISONS:
        marked = {group for group, _ in marked_differences(summaries, decisions, [comparison])}
        if len(marked) == 1:
            (higher,) = marked
            lower = comparison.second if higher == comparison.first else comparison.first
            rows = by_group[higher].merge(by_group[lower], how="cross", suffixes=("", "_lower"))
            gaps = (rows["clean"] - rows["clean_lower"]).abs()
            if gaps.min() <= MAX_CLEAN_DIFFERENCE:
                pairs[f"{GROUPS[higher].label} minus {GROUPS[lower].label}"] = rows.loc[gaps.idxmin()]
    estimates = {}
    for label, row in pairs.items():
        mean, sd, sizes = (row[[name, f"{name}_lower"]].to_numpy(float) for name in ("mean", "sd", "n"))
        epochs = [f"{row[f'clean{side}']:.3f} at epoch {row[f'epoch{side}']}" for side in ("", "_lower")]
        estimates[f"{label} (clean {' and '.join(epochs)})"] = welch_estimate(mean, sd, sizes, n_comparisons=len(pairs))
    if estimates:
        yield seed_claim(
            "Differences remain between networks of equal clean accuracy (here: of groups that come within 5 points).",
            "Abstract",
            "no numbers",
            estimates,
            int(summaries["n"].min()),
            summaries["network"].iloc[0],
        )


def claim_about_spread(networks: pd.DataFrame) -> Iterator[Claim]:
    """Compare the spread of R at epoch 1 with later epochs, as in the Brown-Forsythe test: |R - median|."""
    r = networks[networks["group"] == "fusion_object"].pivot_table(index="seed", columns="epoch", values="r")
    if 1 not in r or len(r.columns) < 2:
        return
    deviations = (r - r.median()).abs()
    later = deviations.columns.drop([1]).tolist()
    tables = published_tables()
    network = networks["network"].iloc[0]
    paper = tables[(tables["network"] == network) & (tables["group"] == "fusion_object")]
    yield seed_claim(
        "R of fusion networks with object labels varies most at epoch 1 (here: mean deviation from the median).",
        f"Table {paper['table'].iloc[0]}",
        f"SD {paper['sd'].iloc[0]:.3f} at epoch 1, at most {paper['sd'].iloc[1:].max():.3f} later",
        {
            f"epoch 1 minus epoch {epoch}": mean_estimate((deviations[1] - deviations[epoch]).dropna(), len(later))
            for epoch in later
        },
        r.count().min(),
        network,
    )


def claim_about_rebound(curves: pd.DataFrame) -> Iterator[Claim]:
    """Test whether accuracy at the largest epsilon is above its minimum, for networks trained on objects last."""
    groups = ["cifar10", "mnist_to_cifar10", "fusion_object"]
    last = curves[curves["group"].isin(groups) & (curves["epoch"] == curves["epoch"].max())]
    estimates = {}
    for group, rows in last.groupby("group", sort=False):
        pair = rows.iloc[[-1, int(rows["accuracy"].argmin())]]
        # The minimum is chosen by the results, so the intervals at all other strengths must hold jointly.
        n_comparisons = (len(rows) - 1) * last["group"].nunique()
        largest, lowest = pair["strength"]
        estimates[f"from {lowest:g} to {largest:g}/255, {GROUPS[str(group)].label}"] = welch_estimate(
            pair["accuracy"], pair["accuracy_sd"], pair["n"], n_comparisons=n_comparisons
        )
    if estimates:
        yield seed_claim(
            "The accuracy of networks trained on objects rises again at large epsilons (here: at the last epoch).",
            "Figures 4 to 7",
            "no numbers",
            estimates,
            int(last["n"].min()),
            last["network"].iloc[0],
        )


# --- Page


def comparisons_table(frame: pd.DataFrame) -> str:
    labels = {"first": "first", "second": "second", "": "–"}
    rows = [
        [
            row["comparison"],
            row["network"],
            str(row["epoch"]),
            *(number(row[name], 4) for name in ("mean_first", "mean_second")),
            f"{number(row['difference'], 4, signed=True)} [{number(row['low'], 4)}, {number(row['high'], 4)}]",
            *(p_value(row[name]) for name in ("p", "p_holm")),
            *(labels[row[name]] for name in ("higher", "published_marker")),
        ]
        for row in frame.to_dict("records")
    ]
    columns = ["comparison", "network", "epoch", "R, first", "R, second", "difference", "p", "p (Holm)"]
    return table([*columns, "significantly higher R: recomputed", "in the paper"], rows, text_columns=2)


def published_decisions(frame: pd.DataFrame) -> str:
    """Return the sentences and tables on the paper's decisions."""
    certain = frame[frame["certain"]]
    significant = frame[(frame["published_marker"] != "") & frame["p"].notna()]
    still_significant = significant[significant["published_marker"] == significant["higher_holm"]]
    borderline = frame[frame["p"].between(0.01, 0.09)].sort_values("p", kind="stable")
    return (
        f"Of {len(certain)} published decisions whose epochs are known, {int(certain['agrees'].sum())} follow from the "
        f"published means and standard deviations. Of {len(significant)} significant differences whose means the "
        f"paper states, {len(still_significant)} remain significant after Holm's correction for all {len(frame)} "
        "comparisons. This decision cannot be reproduced:\n\n"
        f"{comparisons_table(certain[~certain['agrees']])}\n"
        "Borderline cases, with p between 0.01 and 0.09 (rounding in the paper might change a decision):\n\n"
        f"{comparisons_table(borderline)}"
    )


def robustness_table(summaries: pd.DataFrame) -> str:
    rows = [
        [
            f"{row['network']}, {GROUPS[row['group']].label}",
            str(row["epoch"]),
            *(number(row[name]) for name in ("clean", "mean", "sd")),
            f"[{number(row['low'])}, {number(row['high'])}]",
            *(number(row[name]) for name in ("published_mean", "published_sd")),
            p_value(row["p_published"]),
        ]
        for row in summaries.to_dict("records")
    ]
    columns = ["network, group", "epoch", "clean accuracy", "R", "SD", "95% interval", "R (paper)", "SD (paper)", "p"]
    return table(columns, rows)


def describe_agreement(summaries: pd.DataFrame) -> str:
    """Return a sentence that counts the means of R that differ significantly from the published ones."""
    p = summaries["p_published"].dropna()
    differing = summaries.loc[p.index[holm_adjust(p) < SIGNIFICANCE_LEVEL]]
    names = ", ".join(f"{GROUPS[row['group']].label} at epoch {row['epoch']}" for row in differing.to_dict("records"))
    sentence = (
        f"Significant differences from the {len(p)} published means of R, after Holm's correction: {len(differing)}"
    )
    return f"{sentence}{f' ({names})' if names else ''}."


def draw_figures(folder: Path, networks: pd.DataFrame, curves: pd.DataFrame, summaries: pd.DataFrame) -> None:
    """Draw R by epoch, the accuracy curves (figures 4 to 7) and the areas under them (figure 1)."""
    labels = {name: group.label for name, group in GROUPS.items()}
    summaries, curves = (frame.assign(group=frame["group"].map(labels)) for frame in (summaries, curves))
    curves["epsilon"] = curves["strength"] / 255
    draw = partial(draw_lines, colour="group")
    draw_curves = partial(draw, x="epsilon", panel="panel")
    band = ("low", "high")
    frame = summaries.assign(R=summaries["mean"], epoch=summaries["epoch"].astype(str))
    draw(frame, folder / "robustness.svg", x="epoch", y="R", panel="network", band=band, published="published_mean")
    for figure, names in (
        ("4-and-6", ("mnist", "cifar10", "fusion_digit", "fusion_object")),
        ("5-and-7", ("cifar10_to_mnist", "mnist_to_cifar10")),
    ):
        chosen = curves[curves["group"].isin([labels[name] for name in names])]
        clean = chosen.groupby(["network", "group", "epoch"])["accuracy"].transform("first")
        panels = [
            chosen.assign(
                panel=[f"{row.network}, epoch {row.epoch}, {kind}" for row in chosen.itertuples()],
                y=chosen[column],
                low=chosen[column] - chosen[f"{column}_sd"],
                high=chosen[column] + chosen[f"{column}_sd"],
                chance=1 / N_CLASSES / (clean if kind == "normalised" else 1),
            )
            for kind, column in (("normalised", "normalised"), ("unnormalised", "accuracy"))
        ]
        frame = pd.concat(panels).rename(columns={"y": "accuracy under FGSM", "accuracy": "mean"})
        path = folder / f"curves-{figure}.svg"
        draw_curves(frame, path, y="accuracy under FGSM", band=band, chance="chance", columns=4)
    last = curves[(curves["network"] == networks["network"].iloc[0]) & (curves["epoch"] == curves["epoch"].max())]
    areas = last[last["group"].isin([labels["mnist"], labels["cifar10"]])]
    frame = pd.concat([areas.assign(panel=name, y=areas[name], floor=0.0) for name in ("accuracy", "normalised")])
    draw_curves(frame, folder / "areas.svg", y="y", band=("floor", "y"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("exports", nargs="*", type=Path)
    parser.add_argument("--folder", type=Path, default=FOLDER)
    arguments = parser.parse_args()
    tables = arguments.folder / "tables"
    if arguments.exports:
        for name, frame in zip(("networks", "curves"), measure(read_trained(arguments.exports)), strict=True):
            write_table(tables / f"{name}.csv", frame)
    networks, curves = (pd.read_csv(tables / f"{name}.csv") for name in ("networks", "curves"))
    summaries = summarise(networks)
    published = published_comparisons()
    ours = compare(summaries)
    keys = ["first", "second", "network", "epoch"]
    ours = ours.merge(published[[*keys, "published_marker"]], on=keys, how="left").fillna({"published_marker": ""})
    claims = [*judge_claims(networks, curves, summaries)]
    for name, frame in (("claims", pd.DataFrame(claims)), ("comparisons", ours), ("robustness", summaries)):
        write_table(tables / f"{name}.csv", frame)
    write_table(tables / "published.csv", published)
    agreement = describe_agreement(summaries)
    fill(
        arguments.folder / "README.md",
        {
            "claims": claims_table(claims),
            "published": published_decisions(published),
            "robustness": f"{agreement}\n\n{robustness_table(summaries)}",
        },
    )
    draw_figures(arguments.folder / "figures", networks, curves, summaries)


if __name__ == "__main__":
    main()
