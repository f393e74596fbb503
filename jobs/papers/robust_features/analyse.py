"""Numbers, claims and figures of the three questions on robust features, and the generated sections of README.md.

    python -m jobs.papers.robust_features.analyse EXPORT [EXPORT …]   # new tables, then page and figures
    python -m jobs.papers.robust_features.analyse                     # page and figures from tables/

`--folder` writes the output elsewhere. Networks are recognised by architecture and recipe (see the YAMLs). Accuracies
are fractions. The paper's numbers (`published`), which published.json has as percentages, come from single runs.

Source: Wang and Horne, "Understanding (Non-)Robust Feature Disentanglement and the Relationship Between Low- and
High-Dimensional Adversarial Attacks" (ETH Zurich, 2020), figures 1 to 3, tables 1 to 4.
"""

import argparse
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from jobs.papers.figures import draw_lines
from jobs.papers.networks import RunWeights, read_accuracies, read_outcomes, read_trained
from jobs.papers.page import claims_table, fill, number, table, write_table
from jobs.papers.verdicts import UNDECIDED, Claim, Estimate, decide, mean_estimate, tau_estimate

FOLDER = Path(__file__).parent
PUBLISHED = json.loads((FOLDER / "published.json").read_text())
DATASET = "cifar10"

RUNS = {"std": "std", "star": "std*"}
SETTINGS = {"d-std": "D", "dr-std": "D_R", "d-star": "D*", "dr-star": "D_R*"}
"""Training data in the paper's notation (R: robust images, *: rotations), by the prefix of a recipe's name."""

NETWORKS = {
    "resnet": "ResNet",
    "vgg": "VGG",
    "gresnet": "G-ResNet",
    "stn-resnet": "STN-ResNet",
    "ptn-resnet": "PTN-ResNet",
}

SPATIAL_ATTACKS = ("rot30", "grid135", "grid775")
PUBLISHED_ITERATIONS = PUBLISHED["dynamics"]["iterations"]
ITERATIONS_PER_EPOCH = 782


def network_name(architecture: str) -> str:
    """Return the paper's name of an architecture: ``G-ResNet-18`` for ``gresnet18-w1``."""
    family, depth = re.fullmatch(r"([a-z-]+?)(\d+)(?:-\w+)?", architecture).groups()  # type: ignore[union-attr]
    return f"{NETWORKS[family]}-{depth}"


def summarise(values: ArrayLike) -> dict[str, float]:
    """Summarise values over seeds: `n`, `mean`, its interval `low` to `high` (NaN for one seed), `min`, `max`."""
    estimate = mean_estimate(values)
    ends = {"min": float(np.min(values)), "max": float(np.max(values))}
    return {"n": estimate.n, "mean": estimate.value, "low": estimate.low, "high": estimate.high} | ends


# --- Tables, from exports


def measure_dynamics(networks: Sequence[RunWeights]) -> pd.DataFrame:
    """Return clean accuracy and attack success by run, curve and iteration.

    Attack success is the fraction of the correctly classified images that are misclassified under the attack.
    """
    rows = []
    for network in networks:
        iteration = network.steps or ITERATIONS_PER_EPOCH * (network.epochs or 0)
        keys = [("clean", 0.0)] + [
            (key, strength)
            for key in network.reader.keys_all
            if key != "clean"
            for strength in network.reader.strengths(DATASET, key)
        ]
        clean = read_outcomes(network, DATASET, "clean", 0.0)
        for key, strength in keys:
            name = key if strength == 0 else f"{key}:{strength:g}"
            for architecture, correct in read_outcomes(network, DATASET, key, strength).items():
                is_fooled = ~correct[clean[architecture]]
                value = correct.mean() if key == "clean" else is_fooled.mean()
                curve = name if key == "clean" else f"asr {name}"
                rows.append((RUNS[network.recipe], curve, iteration, float(value)))
    frame = pd.DataFrame(rows, columns=["run", "curve", "iteration", "value"])
    return _summarise_groups(frame, ["run", "curve", "iteration"])


def _summarise_groups(frame: pd.DataFrame, names: Sequence[str]) -> pd.DataFrame:
    groups = frame.groupby([*names], sort=False)["value"]
    rows = [dict(zip(names, key, strict=True)) | summarise(values.to_numpy()) for key, values in groups]
    return pd.DataFrame(rows)


def measure_mixing(networks: Sequence[RunWeights]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return accuracies by network, curve and fraction alpha of robust images, and slopes over alpha."""
    frames = []
    for key in networks[0].reader.keys_all:
        frame = read_accuracies(networks, DATASET, key)
        names = [key if strength == 0 else f"{key}:{strength:g}" for strength in frame["strength"]]
        frames.append(frame.assign(curve=names))
    frame = pd.concat(frames).rename(columns={"accuracy": "value"})
    frame["network"] = [network_name(architecture) for architecture in frame["architecture"]]
    frame["alpha"] = frame["recipe"].str.removeprefix("mix-").astype(int) / 100
    slopes = []
    for (network, curve), rows in frame.groupby(["network", "curve"], sort=False):
        by_seed = rows.pivot_table(index="seed", columns="alpha", values="value").dropna()
        slope = mean_estimate([float(np.polyfit(by_seed.columns, values, 1)[0]) for values in by_seed.to_numpy()])
        slopes.append((network, curve, slope.n, slope.value, slope.low, slope.high))
    slope_columns = ["network", "curve", "n", "slope", "low", "high"]
    return _summarise_groups(frame, ["network", "curve", "alpha"]), pd.DataFrame(slopes, columns=slope_columns)


def measure_equivariance(networks: Sequence[RunWeights], seed: int = 0) -> pd.DataFrame:
    """Return accuracies by attack, setting, architecture and recipe, averaged over seeds, on each half of the images.

    `validation` is the accuracy on a random half of the images, which can be used for selection; the other columns are
    from the other half.
    """
    rows = []
    for network in networks:
        (setting,) = [name for prefix, name in SETTINGS.items() if re.fullmatch(rf"{prefix}(-\w+)?", network.recipe)]
        for key in network.reader.keys_all:
            for architecture, correct in read_outcomes(network, DATASET, key, 0.0).items():
                order = np.random.default_rng(seed).permutation(len(correct))
                halves = correct[order[: len(order) // 2]].mean(), correct[order[len(order) // 2 :]].mean()
                rows.append((key, setting, network_name(architecture), network.recipe, *halves))
    names = ["attack", "setting", "architecture", "recipe"]
    frame = pd.DataFrame(rows, columns=[*names, "validation", "value"])
    validation = frame.groupby(names, sort=False)["validation"].mean().to_numpy()
    return _summarise_groups(frame, names).assign(validation=validation)


# --- Claims


def trends(curves: pd.DataFrame) -> pd.DataFrame:
    """Return one row per curve: first, last, lowest and highest mean, and tau with its interval, ours and published."""
    rows = []
    for (run, curve), ours in curves.groupby(["run", "curve"], sort=False):
        published = PUBLISHED["dynamics"]["runs"].get(run, {}).get(curve, [])
        row: dict[str, Any] = {"run": run, "curve": curve}
        for prefix, x, y in (
            ("", ours["iteration"], ours["mean"].to_numpy()),
            ("published_", PUBLISHED_ITERATIONS, np.array(published) / 100),
        ):
            known = len(y) > 0
            tau = tau_estimate(x, y) if known else Estimate(math.nan, math.nan, math.nan, 0)
            extremes = (y[0], y[-1], y.min(), y.max()) if known else (math.nan,) * 4
            names = ("first", "last", "lowest", "highest", "tau", "tau_low", "tau_high")
            row |= dict(zip((prefix + name for name in names), (*extremes, *tau[:3]), strict=True))
        rows.append(row | {"snapshots": len(ours), "seeds": int(ours["n"].min())})
    return pd.DataFrame(rows)


def claims_on_dynamics(curves: pd.DataFrame) -> Iterator[Claim]:
    """Judge trends of attack success over snapshots: against the iteration, and against clean accuracy."""
    ours = {
        str(run): rows.pivot_table(index="iteration", columns="curve", values="mean")
        for run, rows in curves.groupby("run")
    }
    published = {
        run: pd.DataFrame(by_curve, index=PUBLISHED_ITERATIONS) / 100
        for run, by_curve in PUBLISHED["dynamics"]["runs"].items()
    }
    linf = [curve for curve in PUBLISHED["dynamics"]["runs"]["std"] if "pgd_linf7" in curve]
    spatial = [f"asr {key}" for key in SPATIAL_ATTACKS]

    def data(run: str) -> str:
        return f"{int(curves['n'].min())} training run(s), {len(ours[run])} snapshots"

    def taus(frames: dict[str, pd.DataFrame], run: str, names: Sequence[str], x: str) -> dict[str, Estimate]:
        frame = frames[run].reset_index(names="iteration")
        return {name.removeprefix("asr "): tau_estimate(frame[x], frame[name], len(names)) for name in names}

    def describe(run: str, names: Sequence[str], estimates: Mapping[str, Estimate]) -> str:
        values = 100 * ours[run][[*names]].to_numpy()
        return f"{list_taus(estimates)}; success {values.min():.0f} to {values.max():.0f}%"

    def list_taus(estimates: Mapping[str, Estimate]) -> str:
        return "tau: " + ", ".join(f"{name} {tau.value:+.2f}" for name, tau in estimates.items())

    for run, curves_of_claim, x, sign, claim in (
        ("std", linf, "iteration", 1, "With std, the success of Linf PGD rises during training."),
        ("std", linf, "clean", 1, "With std, the success of Linf PGD is higher at snapshots of higher clean accuracy."),
        ("std*", spatial, "iteration", -1, "With std*, the success of spatial attacks falls during training."),
    ):
        names = [name for name in curves_of_claim if run in ours and name in ours[run]]
        if names:
            estimates = taus(ours, run, names, x)
            yield decide(
                claim,
                "Figures 1, 2",
                list_taus(taus(published, run, names, x)),
                describe(run, names, estimates),
                data(run),
                [tau if sign > 0 else -tau for tau in estimates.values()],
                "snapshots",
            )
    if "std" not in ours or not {*spatial} <= {*ours["std"]}:
        return
    estimates = taus(ours, "std", spatial, "iteration")
    widest = max(max(abs(tau.low), abs(tau.high)) for tau in estimates.values())
    yield Claim(
        "With std, the success of spatial attacks stays about constant during training.",
        "Figure 1",
        "rot30 65 to 81%, grid135 81 to 91%, grid775 87 to 94%",
        f"{describe('std', spatial, estimates)}; trends up to ±{widest:.2f} cannot be excluded",
        data("std"),
        UNDECIDED,
        "several training runs: one curve cannot rule out a relevant trend",
    )
    highest = max(frame["clean"].max() for frame in ours.values())
    yield Claim(
        "The success of Linf PGD stays constant once clean accuracy is about 80%.",
        "Figure 2",
        "about 50, 85 and 100% at 0.5, 1 and 2/255",
        f"clean accuracy stays below {math.ceil(100 * highest)}%",
        data("std"),
        UNDECIDED,
        "training to a clean accuracy above 80%",
    )


def claims_on_mixing(slopes: pd.DataFrame) -> Iterator[Claim]:
    estimates = {}
    for row in slopes.to_dict("records"):
        # Two seeds with equal slopes have no spread, so the spread over other seeds is unknown.
        known = row["high"] - row["low"] > 1e-9
        low, high = (row["low"], row["high"]) if known else (-math.inf, math.inf)
        slope = estimates[row["network"], row["curve"]] = Estimate(row["slope"], low, high, int(row["n"]))
        is_clean = row["curve"] == "clean"
        published_slope = fit_published_slope(row["network"], row["curve"])
        yield decide(
            f"{row['network']}, {row['curve']}: accuracy {'falls' if is_clean else 'rises'} with the fraction of "
            "robust images.",
            "Figure 3",
            "not measured for this network" if published_slope is None else f"slope {published_slope:+.1f} points",
            f"slope {points(slope)}",
            f"{slope.n} seeds",
            [-slope if is_clean else slope],
            "seeds",
        )
    networks = {name for name, _ in estimates}
    source = "ResNet-50" if "ResNet-50" in networks else "ResNet-18"  # the robust images of full/ and of cifar10/
    transfers = {key: slope for key, slope in estimates.items() if key[0] != source and key[1] != "clean"}
    joint = {" ".join(key): slope.joint(len(transfers)) for key, slope in transfers.items()}
    published = [fit_published_slope(name, "pgd_l2:0.25") for name in ("ResNet-18", "VGG-16")]
    if joint:
        yield decide(
            "Robust images that were made with one network also make other networks robust.",
            "Figure 3",
            f"made with ResNet-50; slopes of L2 PGD at 0.25: ResNet-18 {published[0]:+.1f}, VGG-16 {published[1]:+.1f}",
            f"made with {source}; slopes: {', '.join(f'{name} {points(slope)}' for name, slope in joint.items())}",
            f"{min(slope.n for slope in joint.values())} seeds",
            joint.values(),
            "seeds",
        )
    yield Claim(
        "Replacing 10% of the robust images by natural ones raises clean accuracy by about four points.",
        "Figure 3",
        "85.1 to 90.0% (ResNet-50)",
        "the fraction 0.9 was not trained",
        "–",
        UNDECIDED,
        "networks trained with 90% robust images",
    )


def points(slope: Estimate) -> str:
    interval = (
        f"[{100 * slope.low:+.1f}, {100 * slope.high:+.1f}]" if slope.high < math.inf else "[equal for all seeds]"
    )
    return f"{100 * slope.value:+.1f} points {interval}"


def fit_published_slope(network: str, curve: str) -> float | None:
    """Return the slope of a published accuracy over alpha, in percentage points."""
    values = PUBLISHED["mixing"]["networks"].get(network, {}).get(curve)
    return float(np.polyfit(PUBLISHED["mixing"]["alphas"], values, 1)[0]) if values else None


def select(candidates: pd.DataFrame, column: str, criterion: str) -> pd.DataFrame:
    """Return the candidate with the highest `criterion` (the first if tied) per attack, setting and `column`."""
    best = candidates.loc[candidates.groupby(["attack", "setting", column], sort=False)[criterion].idxmax()]
    return best.set_index(["attack", "setting", column])


def best_by_network(candidates: pd.DataFrame, criterion: str) -> pd.DataFrame:
    """Return the best candidate of each entry of table 1; the depths of an equivariant network share an entry."""
    families = candidates["architecture"].str.replace(r"^(STN|PTN).*|^(G-ResNet)-\d+$", r"\1\2", regex=True)
    return select(candidates.assign(network=families), "network", criterion)


def claims_on_equivariance(candidates: pd.DataFrame) -> Iterator[Claim]:
    """Compare settings and networks, by accuracies averaged over attacks; the samples are pairs of trained networks."""
    best = best_by_network(candidates, "mean")["mean"].unstack("attack")
    attacks = [attack for attack in best.columns if attack != "clean"]
    networks = [*dict.fromkeys(best.index.get_level_values("network"))]
    resnets = [name for name in networks if name.startswith("ResNet")]
    others = [name for name in networks if name not in resnets]
    comparisons = (
        (
            "Training on robust images (D_R) lowers accuracy, clean and under attack.",
            "38 of 38 comparisons",
            [((high, name), (low, name)) for name in networks for high, low in (("D", "D_R"), ("D*", "D_R*"))],
            ["clean", *attacks],
        ),
        (
            "Rotations in training (D*, D_R*) raise accuracy under attack.",
            "30 of 30 comparisons",
            [((high, name), (low, name)) for name in networks for high, low in (("D*", "D"), ("D_R*", "D_R"))],
            attacks,
        ),
        (
            "Equivariant networks are more accurate under attack than ResNets.",
            "40 of 40 comparisons",
            [
                ((setting, other), (setting, resnet))
                for other in others
                for resnet in resnets
                for setting in SETTINGS.values()
            ],
            attacks,
        ),
    )
    for claim, published, pairs, columns in comparisons:
        differences = np.array([best.loc[high, columns] - best.loc[low, columns] for high, low in pairs], np.float64)
        estimate = mean_estimate(differences.mean(axis=1))
        ours = f"mean difference {estimate}; {(differences > 0).sum()} of {differences.size} comparisons agree"
        data = f"{len(pairs)} pairs of networks, {int(candidates['n'].min())} seeds"
        yield decide(claim, "Table 1", published, ours, data, [estimate], "pairs of networks")


# --- Page


def percent(value: float, *, signed: bool = False) -> str:
    return number(100 * value, 1, signed=signed)


def trends_table(frame: pd.DataFrame) -> str:
    rows = []
    for row in frame.to_dict("records"):
        entries = [
            f"{percent(row[name])} / {percent(row[f'published_{name}'])}"
            for name in ("first", "last", "lowest", "highest")
        ]
        tau = f"{number(row['tau'], 2, signed=True)} [{number(row['tau_low'], 2)}, {number(row['tau_high'], 2)}]"
        rows.append([f"{row['run']}, {row['curve']}", *entries, tau, number(row["published_tau"], 2, signed=True)])
    return table(["run, curve", "first", "last", "lowest", "highest", "tau", "published tau"], rows)


def mixing_table(curves: pd.DataFrame) -> str:
    means = curves.pivot_table(index=["network", "curve"], columns="alpha", values="mean", sort=False)
    rows = [
        [f"{network}, {curve}", *map(percent, values)]
        for (network, curve), values in zip(means.index, means.to_numpy(), strict=True)
    ]
    return table(["network, curve", *(f"α = {alpha:g}" for alpha in means.columns)], rows)


def equivariance_table(candidates: pd.DataFrame) -> str:
    """Return table 1 in the paper's layout: ours / published, for the candidate that is best on the test images."""
    best = best_by_network(candidates, "mean")["mean"]
    attacks, settings, networks = ([*dict.fromkeys(best.index.get_level_values(level))] for level in range(3))
    published = PUBLISHED["equivariance"]
    rows = []
    for attack in attacks:
        entries = []
        for network in networks:
            for setting in settings:
                values = published["best"].get(network, {}).get(attack)
                published_text = "–" if values is None else f"{values[published['settings'].index(setting)]:.1f}"
                entries.append(f"{percent(best[attack, setting, network])} / {published_text}")
        rows.append([attack, *entries])
    return table(["attack", *(f"{network} {setting}" for network in networks for setting in settings)], rows)


def effect_of_selection(candidates: pd.DataFrame) -> str:
    """Return a sentence on how much selection on the test images overestimates accuracy."""
    by_test, by_validation = (best_by_network(candidates, criterion)["mean"] for criterion in ("mean", "validation"))
    n_candidates = candidates.groupby(["attack", "setting", "architecture"]).size().max()
    if n_candidates == 1 and (by_test == by_validation).all():
        return "Each network has one candidate here, so nothing was selected."
    return (
        "Selecting candidates on the test images instead of on other images raises their accuracy by "
        f"{percent((by_test - by_validation).mean())} points on average."
    )


def published_points() -> Iterator[pd.DataFrame]:
    """Yield the published percentages (`published`) with columns of our tables of dynamics, mixing and equivariance."""
    dynamics, mixing, equivariance = (PUBLISHED[name] for name in ("dynamics", "mixing", "equivariance"))
    for curves_by_name, positions, names in (
        (dynamics["runs"], PUBLISHED_ITERATIONS, ("run", "curve", "position")),
        (mixing["networks"], mixing["alphas"], ("network", "curve", "alpha")),
        (equivariance["best"], equivariance["settings"], ("network", "attack", "setting")),
    ):
        rows = [
            (name, curve, position, value)
            for name, curves in curves_by_name.items()
            for curve, values in curves.items()
            for position, value in zip(positions, values, strict=True)
        ]
        yield pd.DataFrame(rows, columns=[*names, "published"])


def draw_figures(folder: Path, dynamics: pd.DataFrame, mixing: pd.DataFrame, candidates: pd.DataFrame) -> None:
    fraction = dynamics["iteration"] / dynamics.groupby("run")["iteration"].transform("max")
    best = best_by_network(candidates, "mean").reset_index()
    ours = (
        dynamics.assign(fraction=fraction, position=round(fraction * PUBLISHED_ITERATIONS[-1]).astype(int)),
        mixing,
        best,
    )
    curves, fractions, settings = (
        frame.merge(published, "left", on=[*published.columns[:3]]).assign(
            percent=100 * frame["mean"], low=100 * frame["min"], high=100 * frame["max"]
        )
        for frame, published in zip(ours, published_points(), strict=True)
    )
    curves = curves.rename(columns={"fraction": "fraction of training"})
    settings = settings.rename(columns={"setting": "training set"})
    draw = partial(draw_lines, y="percent", published="published")
    band = ("low", "high")
    draw(curves, folder / "dynamics.svg", x="fraction of training", colour="run", panel="curve")
    draw(fractions, folder / "mixing.svg", x="alpha", colour="network", panel="curve", band=band, columns=4)
    draw(settings, folder / "equivariance.svg", x="training set", colour="network", panel="attack", band=band)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("exports", nargs="*", type=Path)
    parser.add_argument("--folder", type=Path, default=FOLDER)
    arguments = parser.parse_args()
    tables = arguments.folder / "tables"
    networks = read_trained(arguments.exports)
    for question in ("dynamics", "mixing", "equivariance"):
        prefixes = {"dynamics": RUNS, "mixing": {"mix": ""}, "equivariance": SETTINGS}[question]
        chosen = [
            network for network in networks if any(re.match(rf"{prefix}\b", network.recipe) for prefix in prefixes)
        ]
        if not chosen:
            continue
        if question == "dynamics":
            write_table(tables / "dynamics.csv", measure_dynamics(chosen))
        elif question == "mixing":
            curves, slopes = measure_mixing(chosen)
            write_table(tables / "mixing.csv", curves)
            write_table(tables / "mixing-slopes.csv", slopes)
        else:
            write_table(tables / "equivariance.csv", measure_equivariance(chosen))
    dynamics, mixing, slopes, candidates = (
        pd.read_csv(tables / f"{name}.csv") for name in ("dynamics", "mixing", "mixing-slopes", "equivariance")
    )
    claims = [*claims_on_dynamics(dynamics), *claims_on_mixing(slopes), *claims_on_equivariance(candidates)]
    write_table(tables / "claims.csv", pd.DataFrame(claims))
    fill(
        arguments.folder / "README.md",
        {
            "claims": claims_table(claims),
            "dynamics": trends_table(trends(dynamics)),
            "mixing": mixing_table(mixing),
            "equivariance": f"{equivariance_table(candidates)}\n{effect_of_selection(candidates)}",
        },
    )
    draw_figures(arguments.folder / "figures", dynamics, mixing, candidates)


if __name__ == "__main__":
    main()
