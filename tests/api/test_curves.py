"""Security curves: agreement with `evaluate`, special cases, and files."""

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import robust201
from robust201.core.errors import ConfigError, RobustWarning
from robust201.figures.security_curves import SecurityCurves
from robust201.tasks.constraints import CONSTRAINTS, LINF
from tests.support.tiny_networks import NORMALISATION, Float64Network, TinyNetwork, tiny_images

IMAGES = tiny_images(20)
OPTIONS = {"normalisation": NORMALISATION, "progress": False}
# To save time, attacks have few steps; the warnings that result are ignored.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.* by chance"),  # networks have random weights
    pytest.mark.filterwarnings("ignore:.*steps are few:robust201.core.errors.RobustWarning"),
    pytest.mark.filterwarnings("ignore:.*did not fool:robust201.core.errors.RobustWarning"),
]


def compute_curves(networks, keys, **options):
    return robust201.curves(networks, IMAGES.images, IMAGES.labels, keys, **OPTIONS, **options)


@pytest.mark.parametrize(("norm", "key"), [("Linf", "fmn"), ("L2", "fmn_l2"), ("L1", "fmn_l1")])
def test_curves_match_accuracies_of_evaluate(norm, key):
    curves = compute_curves({"tiny": Float64Network()}, {key: {"steps": 25}})
    distances = curves.distances["tiny"].to_numpy()
    distances = np.sort(distances[np.isfinite(distances) & (distances > 0)])
    epsilons = [float(distances[len(distances) // 3]) * 1.0001, float(distances[-1]) * 1.0001]
    divisor = CONSTRAINTS[norm].divisor
    keys = ["clean", {key: {"steps": 25, "epsilons": [epsilon / divisor for epsilon in epsilons]}}]
    evaluation = robust201.evaluate(Float64Network(), IMAGES.images, IMAGES.labels, keys, **OPTIONS)
    assert curves.accuracy([0, *epsilons])["accuracy"].tolist() == evaluation.table["accuracy"].tolist()
    assert curves.table.loc[0, "clean_accuracy"] == evaluation.table["accuracy"][0]
    # Distances above an evaluation's largest epsilon become infinite; here, there are none.
    np.testing.assert_allclose(evaluation.distances[key], curves.distances["tiny"], rtol=1e-6)
    assert curves.table.loc[0, "n_images"] == 20


def test_l2_curves_fool_a_linear_network_on_all_images():
    """With `projection: ball`, FMN stalls on some of these images (docs/protocol/attacks.md)."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 5))
    predicted = network(torch.from_numpy(IMAGES.images) / 255).argmax(dim=1).numpy()
    fractions = [
        float(robust201.curves(network, IMAGES.images, predicted, keys, **OPTIONS).table["never_fooled"][0])
        for keys in ("fmn_l2", {"fmn_l2": {"projection": "ball"}})
    ]
    assert fractions[0] == 0.0 < fractions[1]


def test_curves_take_smallest_distance_over_attacks():
    distances = pd.DataFrame({"first": [0.0, 1.0, np.inf], "second": [0.0, 2.0, 3.0]})
    curves = SecurityCurves({"tiny": distances}, LINF)
    assert curves.distances["tiny"].tolist() == [0.0, 1.0, 3.0]
    assert "(Linf, first, second; a stronger attack may find smaller perturbations)" in curves.summary


@pytest.mark.filterwarnings("ignore:zero gradients")
def test_curves_of_constant_network_have_infinite_distances(tmp_path):
    class ConstantNetwork(nn.Module):
        def forward(self, pixels):
            return 0.0 * pixels.flatten(1)[:, :5] + torch.arange(5.0)

    labels = np.full(len(IMAGES), 4)
    with pytest.warns(RobustWarning, match="constant: fmn_l2 did not fool 20 of 20 images at any distance"):
        curves = robust201.curves({"constant": ConstantNetwork()}, IMAGES.images, labels, "fmn_l2", progress=False)
    row = curves.table.iloc[0]
    assert (row["median_distance"], row["half_distance"], row["never_fooled"]) == (np.inf, np.inf, 1.0)
    assert "fewer than half of the images that it classifies correctly were fooled" in curves.summary
    assert curves.summary.endswith("The attacks failed on 20 of 20 images.")
    assert curves.accuracy([55.0])["accuracy"].tolist() == [1.0]
    assert curves.save(tmp_path / "flat.svg").stat().st_size > 1000


def test_curves_of_network_without_correct_predictions_have_distance_zero():
    curves = SecurityCurves({"wrong": pd.DataFrame({"fmn": np.zeros(6)})}, LINF)
    row = curves.table.iloc[0]
    assert (row["clean_accuracy"], row["median_distance"]) == (0, 0)
    assert np.isnan(row["half_distance"])
    assert "wrong: accuracy 0.0%" in curves.summary
    assert "it classifies no image correctly, so there is no image to fool" in curves.summary
    assert curves.accuracy([0, 1])["accuracy"].tolist() == [0, 0]


def test_curve_files_show_every_network_and_are_reproducible(tmp_path):
    networks = {"one": Float64Network(), "two": TinyNetwork(seed=1)}
    curves = compute_curves(networks, {"fmn": {"steps": 10}})
    svg = curves.save(tmp_path / "curves.svg").read_text()
    assert all(f">{label}<" in svg for label in ("one", "two", "epsilon in 1/255", "accuracy"))
    assert "fmn; 20 images; bands: 95% intervals" in svg
    assert curves.save(tmp_path / "again.svg").read_text() == svg
    assert curves.save(tmp_path / "curves.pdf").read_bytes().startswith(b"%PDF")
    assert curves.save(tmp_path / "curves.png", width="page").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ConfigError, match=r"the file name must end in \.png, \.svg, \.pdf"):
        curves.save(tmp_path / "curves.jpg")


def test_evaluate_warns_about_few_steps_of_minimum_norm_attack():
    with pytest.warns(RobustWarning, match=r"fmn\.steps: 4 steps are few.*Take 50 or more"):
        robust201.evaluate(Float64Network(), IMAGES.images, IMAGES.labels, {"fmn": {"steps": 4}}, **OPTIONS)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_accuracy_counts_images_at_distance_equal_to_epsilon_as_fooled(dtype):
    epsilons = np.arange(1, 256)
    distances = (epsilons / 255).astype(dtype).astype(np.float64) * 255
    curves = SecurityCurves({"tiny": pd.DataFrame({"fmn": distances})}, LINF)
    expected = [(255 - epsilon) / 255 for epsilon in (0, *epsilons.tolist())]
    rows = curves.accuracy([0, *epsilons.tolist()])
    assert rows["accuracy"].tolist() == expected
    assert rows["epsilon"].tolist() == list(range(256))


class SumNetwork(nn.Module):
    """Network for images of any shape.

    Its logits are the sums of columns 0 and 1, and the mean of the sums of all other columns.
    """

    def forward(self, pixels):
        sums = pixels.sum(dim=(1, 2))
        return torch.stack([sums[:, 0], sums[:, 1], sums[:, 2:].mean(dim=1)], dim=1)


@pytest.mark.parametrize("norm", ["L2", "L1"])
@pytest.mark.parametrize("shape", [(3, 8, 4), (3, 4, 8), (1, 6, 4)])
def test_curves_accept_non_square_images(norm, shape):
    images = np.random.default_rng(0).integers(0, 256, (6, *shape), dtype=np.uint8)
    labels = SumNetwork()(torch.from_numpy(images) / 255).argmax(dim=1).numpy()
    key = {"L2": "fmn_l2", "L1": "fmn_l1"}[norm]
    curves = robust201.curves({"sums": SumNetwork()}, images, labels, {key: {"steps": 30}}, progress=False)
    assert curves.table.loc[0, "clean_accuracy"] == 1.0
    assert 0 < curves.distances["sums"].min() < np.inf
