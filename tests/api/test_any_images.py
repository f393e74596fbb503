"""The Python API with grey or float images, class folders, many classes and half precision."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from robust201.api import attack, evaluate
from robust201.comparing import compare
from robust201.core.errors import DatasetError, RobustWarning
from robust201.gallery import show
from robust201.images import load_images
from tests.support.tiny_networks import TinyNetwork, tiny_images

# Networks with random weights classify images at chance level.
pytestmark = pytest.mark.filterwarnings("ignore:.* by chance")

IMAGES = tiny_images()
PIXELS, LABELS = IMAGES.images, IMAGES.labels
KEYS = ["clean", {"pgd": {"epsilons": ["8/255"], "steps": 3, "rel_stepsize": 0.5}}]


def make_network(channels: int, n_classes: int = 5, size: int = 8) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(channels, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * (size - 2) ** 2, n_classes))


# --- one channel


@pytest.mark.parametrize("channel_axis", [1, 3])
def test_evaluate_attack_and_show_accept_grey_images(channel_axis):
    grey_images = PIXELS[:, :1] if channel_axis == 1 else PIXELS[:, :1].transpose(0, 2, 3, 1)
    keys = [*KEYS, {"pgd_l2": {"epsilons": [0.5], "steps": 8}}, {"aa_standard": {"steps": 2, "queries": 4}}]
    result = evaluate(make_network(1), grey_images, LABELS, keys, normalisation=([0.5], [0.25]), progress=False)
    assert set(result.table["key"]) == {"clean", "pgd", "pgd_l2", "aa_standard"}
    attacked = attack(make_network(1), grey_images, LABELS, "fgsm", epsilon=["8/255"])
    assert attacked.shape == (1, len(LABELS), 1, 8, 8)
    largest_change = (attacked[0] - torch.from_numpy(PIXELS[:, :1]) / 255).abs().max()
    assert float(largest_change) == pytest.approx(8 / 255, rel=1e-5)
    show(make_network(1), grey_images[:2], LABELS[:2], epsilon="8/255", steps=2, rel_stepsize=0.5)


def test_corruptions_reject_grey_and_float_images():
    grey = PIXELS[:, :1].repeat(4, 2).repeat(4, 3)
    for images, model, message in (
        (grey, make_network(1, size=32), "'fog': expected RGB images"),
        ((PIXELS / np.float32(255)) * 0.999, TinyNetwork(), "'fog': expected 8-bit pixels"),
    ):
        with pytest.raises(DatasetError, match=message):
            evaluate(model, images, LABELS, ["fog"], progress=False)


# --- floats


def test_attack_does_not_round_float_images():
    float_images = (PIXELS / np.float32(255)) * 0.999
    result = evaluate(TinyNetwork(), float_images, LABELS, KEYS, progress=False)
    assert {protocol["pixels"] for protocol in result.protocols.values()} == {"floats, not multiples of 1/255"}
    with torch.no_grad():
        predicted = TinyNetwork().eval()(torch.from_numpy(float_images)).argmax(dim=1).numpy()
    assert result.table["accuracy"][0] == (predicted == LABELS).mean()
    attacked = attack(TinyNetwork(), float_images, LABELS, "fgsm", epsilon=["2/255"])[0].numpy()
    assert np.abs(attacked - float_images).max() == pytest.approx(2 / 255, rel=1e-4)


# --- image sets


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with the images in one subfolder per class."""
    for index, pixels in enumerate(PIXELS):
        file = tmp_path / f"class{LABELS[index]}" / f"{index:02d}.png"
        file.parent.mkdir(exist_ok=True)
        Image.fromarray(pixels.transpose(1, 2, 0)).save(file)
    return tmp_path


def test_subset_keeps_image_indices_and_random_numbers(folder):
    all_images, selected_images = load_images("mine", path=folder), load_images("mine", path=folder, count=7, seed=3)
    keys = ["clean", {"pgd": {"epsilons": ["8/255"], "steps": 1, "rel_stepsize": 1.0}}, "fog"]
    all_outcomes = evaluate(TinyNetwork(), all_images, keys=keys, progress=False).outcomes
    result = evaluate(TinyNetwork(), selected_images, keys=keys, progress=False)
    assert result.outcomes.index.tolist() == selected_images.indices.tolist()
    assert result.outcomes.equals(all_outcomes.loc[selected_images.indices])
    result_from_arrays = evaluate(
        TinyNetwork(), all_images.images, all_images.labels, keys, count=7, seed=3, progress=False
    )
    result_with_count = evaluate(TinyNetwork(), selected_images, keys=keys, count=7, seed=3, progress=False)
    assert result_with_count.table.drop(columns="seconds").equals(result_from_arrays.table.drop(columns="seconds"))
    assert result_with_count.protocols == result_from_arrays.protocols
    comparison = compare([TinyNetwork(seed=0), TinyNetwork(seed=1)], selected_images, keys=["clean"], progress=False)
    assert comparison.table["n_images"].tolist() == [7]
    with pytest.raises(DatasetError, match="the image set already has labels"):
        evaluate(TinyNetwork(), selected_images, selected_images.labels, ["clean"], progress=False)


def test_evaluate_rejects_class_folders_that_do_not_match_the_network(folder):
    images = load_images("mine", path=folder)
    with pytest.raises(DatasetError, match=r"5 class folders: .* such as \{\".*\": 0"):
        evaluate(make_network(3, n_classes=6), images, keys=["clean"], progress=False)


# --- many classes


def test_evaluate_supports_1000_classes():
    model = make_network(3, n_classes=1000)
    with torch.no_grad():
        labels = model(torch.from_numpy(PIXELS) / 255).argmax(dim=1).numpy()
    assert labels.max() > 255
    labels[:3] = (labels[:3] + 1) % 1000
    keys = [*KEYS, {"aa_apgd-t": {"epsilons": ["1/255"], "steps": 2}}]
    result = evaluate(model, PIXELS, labels, keys, progress=False)
    assert result.table["accuracy"][0] == 18 / 21
    assert result.outcomes["clean", 0.0].tolist() == [False] * 3 + [True] * 18
    assert ((result.table["confidence"] > 0) & (result.table["confidence"] < 1)).all()


# --- half precision


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_protocols_record_half_precision(dtype):
    with pytest.warns(RobustWarning, match="computes in"):
        result = evaluate(make_network(3).to(dtype), PIXELS, LABELS, KEYS, progress=False)
    assert {protocol["precision"] for protocol in result.protocols.values()} == {str(dtype).removeprefix("torch.")}
    assert "precision" not in evaluate(make_network(3), PIXELS, LABELS, ["clean"], progress=False).protocols["clean"]
