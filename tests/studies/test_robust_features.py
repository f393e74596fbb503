"""The three questions of the study of robust features, on invented networks with planted accuracies."""

import numpy as np
import pytest

from robust201.core.records import Weights
from robust201.studies.config import DynamicsStudy, EquivarianceStudy, MixingStudy
from robust201.studies.networks import Exports
from robust201.studies.robust_features import (
    measure_dynamics,
    measure_equivariance,
    measure_mixing,
    printed_numbers,
)
from tests.support.planted_studies import N_IMAGES, correct_images, make_weights, write_study

SEEDS = (0, 1)


def test_printed_numbers_are_complete_and_in_percent():
    printed = printed_numbers()
    assert len(printed["dynamics"]["iterations"]) == 29
    curves = [curve for run in printed["dynamics"]["runs"].values() for curve in run.values()]
    assert {len(curve) for curve in curves} == {29}
    mixing = [curve for network in printed["mixing"]["networks"].values() for curve in network.values()]
    assert {len(curve) for curve in mixing} == {11} == {len(printed["mixing"]["alphas"])}
    tables = [
        row for name in ("best", "by_depth") for t in printed["equivariance"][name].values() for row in t.values()
    ]
    assert {len(row) for row in tables} == {4}
    values = np.concatenate([np.ravel(rows) for rows in (curves, mixing, tables)])
    assert ((values >= 0) & (values <= 100)).all()
    assert np.median(values) > 1


def test_each_printed_cell_of_table_1_is_the_best_of_its_depths():
    """The table is said to be the best of depth and learning rate, attack by attack; the appendix has the depths."""
    printed = printed_numbers()["equivariance"]
    others = [
        (network, attack, place)
        for network, depths in (
            ("G-ResNet", ("G-ResNet-18", "G-ResNet-34")),
            ("STN", ("STN-ResNet-18", "STN-ResNet-34")),
        )
        for attack, row in printed["best"][network].items()
        for place, value in enumerate(row)
        if value != max(printed["by_depth"][depth][attack][place] for depth in depths)
    ]
    assert others == []


# --- Dynamics

DYNAMICS = DynamicsStudy.model_validate(
    {
        "name": "planted",
        "study": "robust-features-dynamics",
        "sweeps": ["sweep.yaml"],
        "dataset": "cifar10",
        "architecture": "resnet32-narrow",
        "runs": {"std": "plain", "tiny": "other"},
        "attacks": ["rot30", "pgd_linf7"],
        "iterations_per_epoch": 625,
    }
)


def growing(architecture: str, dataset: str, weights: Weights, key: str, strength: float) -> float:
    """Clean accuracy is .8; rotations leave half of the right images at every snapshot, PGD fewer and fewer."""
    done = (weights.epochs or 0) * 625 if weights.steps is None else weights.steps
    left = {"clean": 1.0, "rot30": 0.5}.get(key, 1 - done / 2500 * strength)
    return 0.8 * left


@pytest.fixture(scope="module")
def dynamics(tmp_path_factory):
    plain = make_weights("plain", (1, 2), SEEDS, steps=(100,))
    other = make_weights("other", (1,), (0,))
    networks = {"cifar10": {"resnet32-narrow": [*plain, *other]}}
    strengths = {"clean": (), "rot30": (), "pgd_linf7": (0.5, 1.0)}
    out = write_study(tmp_path_factory.mktemp("dynamics"), networks, strengths, growing, outcomes=True)
    return measure_dynamics(DYNAMICS, Exports([out], iterations_per_epoch=625))


def test_success_is_of_the_originally_correct_images_by_iteration(dynamics):
    held = dynamics.curves.set_index(["run", "curve", "iteration"]).sort_index()
    assert held.loc[("std", "clean"), "mean"].to_dict() == {100: 0.8, 625: 0.8, 1250: 0.8}
    assert held.loc[("std", "asr rot30"), "mean"].tolist() == [0.5] * 3
    assert held.loc[("std", "asr pgd_linf7:1"), "mean"].tolist() == pytest.approx([0.04, 0.25, 0.5], abs=2 / N_IMAGES)
    assert held.loc["std", "n"].unique().tolist() == [2]
    assert np.isnan(held.loc[("tiny", "clean", 625), "low"])  # one seed has no interval


def test_printed_curves_stand_beside_equal_iterations(dynamics):
    held = dynamics.curves.set_index(["run", "curve", "iteration"]).sort_index()
    assert held.loc[("std", "clean", 625), "printed"] == pytest.approx(0.5616)
    assert held.loc[("std", "clean", 625), "difference"] == pytest.approx(0.8 - 0.5616)
    assert np.isnan(held.loc[("std", "clean", 100), "printed"])
    assert held.loc["tiny", "printed"].isna().all()
    trends = dynamics.trends.set_index(["run", "curve"]).sort_index()
    assert trends.loc[("std", "asr pgd_linf7:1"), "tau"] == 1
    assert trends.loc[("std", "asr rot30"), "printed_lowest"] == pytest.approx(0.6530)
    assert np.isnan(trends.loc[("std", "asr rot30"), "tau"])  # it does not change


# --- Mixing

MIXING = MixingStudy.model_validate(
    {
        "name": "planted",
        "study": "robust-features-mixing",
        "sweeps": ["sweep.yaml"],
        "dataset": "cifar10",
        "networks": {"ResNet-50": "resnet50", "VGG-16": "vgg16"},
        "alphas": {0.0: "mix-0", 0.5: "mix-5", 1.0: "mix-10"},
        "epochs": 3,
        "panels": {"L2": ["pgd_l2"]},
    }
)
SHARE = {"mix-0": 0.0, "mix-5": 0.5, "mix-10": 1.0}


def mixed(architecture: str, dataset: str, weights: Weights, key: str, strength: float) -> float:
    """Robust images add accuracy under attack and cost some of the clean; VGG-16 has a dip in the middle."""
    alpha = SHARE[weights.recipe]
    if key == "clean":
        return 0.9 - 0.1 * alpha + 0.01 * weights.seed
    dip = 0.1 if architecture == "vgg16" and alpha == 0.5 else 0.0
    return 0.2 + 0.4 * alpha + 0.02 * alpha * weights.seed - dip


@pytest.fixture(scope="module")
def mixing(tmp_path_factory):
    several = [one for recipe in SHARE for one in make_weights(recipe, (1, 3), SEEDS)]
    networks = {"cifar10": {"resnet50": several, "vgg16": several}}
    out = write_study(tmp_path_factory.mktemp("mixing"), networks, {"clean": (), "pgd_l2": (0.25,)}, mixed)
    return measure_mixing(MIXING, Exports([out]))


def test_accuracy_over_alpha_stands_beside_the_printed(mixing):
    held = mixing.curves.set_index(["network", "curve", "alpha"])
    assert len(held) == 2 * 2 * 3
    row = held.loc[("ResNet-50", "pgd_l2:0.25", 0.5)]
    assert row["mean"] == pytest.approx(0.405)
    assert row["printed"] == pytest.approx(0.2664)
    assert row["low"] < row["mean"] < row["high"]
    assert held.loc[("VGG-16", "clean", 1.0), "printed"] == pytest.approx(0.8399)


def test_slopes_and_falls_over_alpha(mixing):
    held = mixing.trends.set_index(["network", "curve"])
    rising, dipping = held.loc[("ResNet-50", "pgd_l2:0.25")], held.loc[("VGG-16", "pgd_l2:0.25")]
    assert rising["slope"] == pytest.approx(0.41)
    assert rising["low"] < 0.41 < rising["high"]
    assert (rising["steps"], rising["fall"], dipping["fall"]) == (2, 0, 0)  # the dip of .1 still leaves a rise
    assert held.loc[("ResNet-50", "clean"), "fall"] == 2
    assert (rising["printed_steps"], rising["printed_fall"]) == (10, 1)  # .1 to .2


# --- Equivariance

EQUIVARIANCE = EquivarianceStudy.model_validate(
    {
        "name": "planted",
        "study": "robust-features-equivariance",
        "sweeps": ["sweep.yaml"],
        "dataset": "cifar10",
        "networks": {
            "ResNet-50": {"ResNet-50": "resnet50"},
            "STN": {"STN-ResNet-18": "stn-resnet18", "STN-ResNet-34": "stn-resnet34"},
        },
        "settings": {"D": ["d-1", "d-2"], "D*": ["d*-1", "d*-2"]},
        "attacks": ["rot30"],
        "epochs": 3,
    }
)


def spatial(architecture: str, dataset: str, weights: Weights, key: str, strength: float) -> float:
    """Depth 34 is better by a little, rates are equal but for noise, and training on rotations helps."""
    draws = np.random.default_rng([len(architecture), int(architecture[-1]), *weights.name.encode(), len(key)])
    return 0.5 + 0.2 * ("*" in weights.recipe) + 0.05 * architecture.endswith("34") + 0.02 * draws.random()


@pytest.fixture(scope="module")
def equivariance(tmp_path_factory):
    recipes = [recipe for several in EQUIVARIANCE.settings.values() for recipe in several]
    weights = [one for recipe in recipes for one in make_weights(recipe, (3,), SEEDS)]
    networks = {"cifar10": dict.fromkeys(("resnet50", "stn-resnet18", "stn-resnet34"), weights)}
    out = write_study(
        tmp_path_factory.mktemp("equivariance"), networks, {"clean": (), "rot30": ()}, spatial, outcomes=True
    )
    return measure_equivariance(EQUIVARIANCE, Exports([out]))


def test_the_best_is_chosen_on_other_images_than_it_is_measured_on(equivariance):
    assert (equivariance.n_validation, equivariance.n_images) == (N_IMAGES // 2, N_IMAGES)
    held = equivariance.best.set_index(["attack", "network", "setting"])
    assert len(held) == 2 * 2 * 2
    assert (held["selection"] >= 0).all()
    assert held.loc[("rot30", "STN", "D"), "chosen"].startswith("STN-ResNet-34")
    assert held.loc[("rot30", "STN", "D"), "candidates"] == 4
    assert held.loc[("rot30", "STN", "D*"), "printed"] == pytest.approx(0.861)
    assert held.loc[("clean", "ResNet-50", "D"), "printed"] == pytest.approx(0.9484)
    depth = equivariance.depths.set_index(["attack", "architecture", "setting"])
    assert depth.loc[("rot30", "STN-ResNet-18", "D"), "printed"] == pytest.approx(0.3866)
    assert depth.loc[("rot30", "STN-ResNet-18", "D"), "candidates"] == 2


def test_every_candidate_is_listed_with_its_accuracy_on_all_images(equivariance):
    rows = equivariance.candidates.query("attack == 'rot30' and architecture == 'STN-ResNet-34' and recipe == 'd-2'")
    weights = make_weights("d-2", (3,), SEEDS)
    wanted = [correct_images(spatial("stn-resnet34", "cifar10", one, "rot30", 0)).mean() for one in weights]
    assert rows["mean"].item() == pytest.approx(np.mean(wanted))
