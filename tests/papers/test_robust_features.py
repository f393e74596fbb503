"""The study of robust features: generated images, numbers from exports, and verdicts on constructed numbers."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch

from jobs.papers.networks import read_accuracies, read_trained
from jobs.papers.robust_features import analyse, make_images
from jobs.papers.verdicts import FAILS, HOLDS, UNDECIDED
from robust201.images.checks import LabelledImages
from robust201.images.store import ArrayFolder, write_generated_split
from tests.support.trained_exports import make_weights, write_trained

PIXELS = torch.linspace(0, 1, 2 * 3 * 2 * 2).reshape(2, 3, 2, 2)


def save_published(folder, images, labels):
    folder.mkdir()
    torch.save(images, folder / "CIFAR_ims")
    torch.save([*labels.split(1)], folder / "CIFAR_lab")
    return folder


def test_import_rounds_pixels_and_keeps_labels(tmp_path):
    labels = torch.tensor([1, 0])
    make_images.import_published(save_published(tmp_path / "source", PIXELS, labels), tmp_path / "out")
    arrays = ArrayFolder(tmp_path / "out/train")
    np.testing.assert_array_equal(arrays.read("images"), np.round(PIXELS.numpy() * 255))
    np.testing.assert_array_equal(arrays.read("labels"), labels)


def test_judge_labels_ignores_images_with_the_label_of_their_starting_image(tmp_path):
    pixels = np.zeros((4, 3, 1, 1), np.uint8)
    pixels[np.arange(4), [1, 2, 1, 0]] = 255  # the judge returns the brightest channel
    images = LabelledImages(pixels, np.array([1, 2, 0, 1]))
    write_generated_split(tmp_path, "train", images, recipe={}, n_classes=3, start_rows=np.array([4, 4, 7, 7]))
    starts = SimpleNamespace(indices=np.array([4, 7]), labels=np.array([0, 1]))
    fractions = make_images.judge_labels(tmp_path, starts, lambda batch: batch.mean(dim=(2, 3)))
    assert fractions == pytest.approx((2 / 3, 1 / 3))


def test_dynamics_are_measured_on_correctly_classified_images(tmp_path):
    def accuracy(architecture, dataset, weights, key, strength):
        late = weights.steps == 1250
        if key == "clean":
            return 0.8 if late else 0.5
        return 0.2 if key == "rot30" else 0.4 if strength == 0.5 else 0.1

    networks = {"cifar10": {"resnet32-narrow": make_weights("std", (), (0,), steps=(625, 1250))}}
    strengths = {"clean": (), "rot30": (), "pgd_linf7": (0.5, 1.0)}
    export = write_trained(tmp_path / "e", networks, strengths, accuracy, with_outcomes=True)
    curves = (
        analyse.measure_dynamics(read_trained([export])).set_index(["run", "curve", "iteration"])["mean"].sort_index()
    )
    assert curves["std", "clean"].to_dict() == {625: 0.5, 1250: 0.8}
    # Images that are correct under attack are also correct without it.
    assert curves["std", "asr rot30", 1250] == pytest.approx(1 - 0.2 / 0.8)
    assert curves["std", "asr pgd_linf7:0.5", 625] == pytest.approx(1 - 0.4 / 0.5)


def test_mixing_slopes_have_intervals_over_seeds(tmp_path):
    slopes_by_seed = {0: 0.2, 1: 0.3, 2: 0.25}

    def accuracy(architecture, dataset, weights, key, strength):
        alpha = int(weights.recipe.removeprefix("mix-")) / 100
        return 0.8 - 0.1 * alpha if key == "clean" else 0.2 + slopes_by_seed[weights.seed] * alpha

    weights = [item for alpha in (0, 50, 100) for item in make_weights(f"mix-{alpha}", (3,), slopes_by_seed)]
    keys = {"clean": (), "pgd_l2": (0.25,)}
    export = write_trained(tmp_path / "e", {"cifar10": {"resnet18-w8": weights}}, keys, accuracy)
    curves, slopes = analyse.measure_mixing(read_trained([export]))
    slope = slopes.set_index("curve").loc["pgd_l2:0.25"]
    assert slope["slope"] == pytest.approx(0.25, abs=0.005)
    assert slope["low"] < 0.2
    assert curves.set_index(["curve", "alpha"])["n"].unique().tolist() == [3]
    verdicts = [claim.verdict for claim in analyse.claims_on_mixing(slopes)]
    assert verdicts[:2] == [UNDECIDED, HOLDS]  # clean accuracies of all seeds are equal, so there is no interval


@pytest.mark.parametrize(
    ("slope", "low", "high", "verdict"),
    [(0.2, 0.1, 0.3, HOLDS), (-0.2, -0.3, -0.1, FAILS), (0.1, -0.1, 0.3, UNDECIDED), (0.2, 0.2, 0.2, UNDECIDED)],
)
def test_mixing_is_judged_by_the_interval_of_the_slope(slope, low, high, verdict):
    frame = pd.DataFrame([("ResNet-18", "pgd_l2:0.25", 2, slope, low, high)])
    frame.columns = ["network", "curve", "n", "slope", "low", "high"]
    assert next(analyse.claims_on_mixing(frame)).verdict == verdict


def make_dynamics(values_by_curve):
    rows = [
        (run, curve, 100 * (position + 1), 1, value)
        for (run, curve), values in values_by_curve.items()
        for position, value in enumerate(values)
    ]
    return pd.DataFrame(rows, columns=["run", "curve", "iteration", "n", "mean"])


def test_claims_about_flat_curves_are_undecided():
    rising, flat = np.linspace(0.1, 0.9, 8), [0.5, 0.6, 0.4, 0.55, 0.45, 0.61, 0.5, 0.56]
    curves = {("std", f"asr pgd_linf7:{epsilon}"): rising for epsilon in ("0.5", "1", "2")}
    curves |= {(run, f"asr {key}"): flat for run in ("std", "std*") for key in analyse.SPATIAL_ATTACKS}
    curves |= {("std", "clean"): rising - 0.2, ("std*", "clean"): rising - 0.2}
    rises, follows_accuracy, falls, *others = analyse.claims_on_dynamics(make_dynamics(curves))
    assert [claim.verdict for claim in (rises, follows_accuracy, falls)] == [HOLDS, HOLDS, UNDECIDED]
    assert [claim.verdict for claim in others] == [UNDECIDED, UNDECIDED]
    assert falls.would_decide.endswith("snapshots")
    falling = curves | {("std", f"asr pgd_linf7:{epsilon}"): rising[::-1] for epsilon in ("0.5", "1", "2")}
    falling[("std", "clean")] = rising[::-1]
    verdicts = [claim.verdict for claim in analyse.claims_on_dynamics(make_dynamics(falling))]
    assert verdicts[:2] == [FAILS, HOLDS]


def test_transfer_of_robust_images_is_judged_by_the_attacks_on_another_network():
    rows = [(name, curve, 9, 0.2, 0.1, 0.3) for name in ("ResNet-18", "VGG-16") for curve in ("clean", "a", "b")]
    slopes = pd.DataFrame(rows, columns=["network", "curve", "n", "slope", "low", "high"])
    slopes.loc[4, ["slope", "low", "high"]] = [-0.2, -0.3, -0.1]
    assert [claim.verdict for claim in analyse.claims_on_mixing(slopes)][6] == FAILS
    slopes.loc[4, ["slope", "low", "high"]] = [0.2, 0.01, 0.39]  # below 0 with joint coverage
    assert [claim.verdict for claim in analyse.claims_on_mixing(slopes)][6] == UNDECIDED


def plant_candidates(effects, spread=0.01):
    """Return accuracies in which each setting and network family adds an effect."""
    rng = np.random.default_rng(4)
    rows = [
        (attack, setting, name, "r", 2, 0.5 + effects.get(setting, 0) + effects.get(name, 0) + spread * rng.normal())
        for attack in ("clean", "rot30", "grid135")
        for setting in analyse.SETTINGS.values()
        for name in ("ResNet-18", "G-ResNet-18", "STN-ResNet-18")
    ]
    frame = pd.DataFrame(rows, columns=["attack", "setting", "architecture", "recipe", "n", "mean"])
    return frame.assign(validation=frame["mean"])


@pytest.mark.parametrize(
    ("effects", "verdicts"),
    [
        ({"D_R": -0.1, "D_R*": -0.1, "G-ResNet-18": 0.1, "STN-ResNet-18": 0.1}, [HOLDS, UNDECIDED, HOLDS]),
        ({"D*": 0.1, "D_R*": 0.2, "D_R": 0.1, "G-ResNet-18": -0.1, "STN-ResNet-18": -0.1}, [FAILS, HOLDS, FAILS]),
    ],
)
def test_claims_on_equivariance_follow_planted_effects(effects, verdicts):
    claims = [*analyse.claims_on_equivariance(plant_candidates(effects))]
    assert [claim.verdict for claim in claims] == verdicts


def test_best_candidate_differs_between_the_halves_of_the_images():
    rows = [
        ("rot30", "D", "STN-ResNet-18", "d-std-high", 0.5, 0.7),
        ("rot30", "D", "STN-ResNet-34", "d-std-low", 0.6, 0.4),
    ]
    frame = pd.DataFrame(rows, columns=["attack", "setting", "architecture", "recipe", "mean", "validation"])
    assert analyse.best_by_network(frame, "mean")["architecture"].tolist() == ["STN-ResNet-34"]
    assert analyse.best_by_network(frame, "validation")["mean"].tolist() == [0.5]
    assert "raises their accuracy by 10.0 points" in analyse.effect_of_selection(frame)


def test_halves_of_the_images_are_disjoint(tmp_path):
    weights = make_weights("d-std", (3,), (0, 1))
    export = write_trained(
        tmp_path / "e",
        {"cifar10": {"resnet18-w8": weights}},
        {"clean": (), "rot30": ()},
        lambda *arguments: 0.8 if arguments[3] == "clean" else 0.3,
        with_outcomes=True,
    )
    frame = analyse.measure_equivariance(read_trained([export])).set_index("attack")
    assert frame["setting"].unique().tolist() == ["D"]
    assert (frame["validation"] + frame["mean"]).to_dict() == pytest.approx({"clean": 1.6, "rot30": 0.6})


def test_read_accuracies_of_an_attack_has_no_clean_rows(tmp_path):
    networks = {"cifar10": {"resnet18-w8": make_weights("mix-0", (3,), (0,))}}
    export = write_trained(tmp_path / "e", networks, {"clean": (), "pgd_l2": (0.25, 0.5)}, lambda *_: 0.5)
    frame = read_accuracies(read_trained([export]), "cifar10", "pgd_l2")
    assert frame["strength"].tolist() == [0.25, 0.5]
    assert frame[["recipe", "epochs", "seed"]].drop_duplicates().to_numpy().tolist() == [["mix-0", 3, 0]]
