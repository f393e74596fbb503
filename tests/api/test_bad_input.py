"""`evaluate` and `attack` reject invalid input with a one-line error, and warn about doubtful input."""

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from robust201.api import attack, evaluate
from robust201.core.errors import ConfigError, DatasetError, EvaluationError, RobustError, RobustWarning
from robust201.core.records import Normalisation
from tests.support.tiny_networks import N_CLASSES, NORMALISATION, TinyNetwork, tiny_classifier, tiny_images

# Networks with random weights classify images at chance level.
pytestmark = pytest.mark.filterwarnings("ignore:.* by chance")

IMAGES = tiny_images()
PIXELS, LABELS = IMAGES.images, IMAGES.labels


def assert_evaluate_raises(expected: type[RobustError], message: str, **changes: Any) -> None:
    options = {"model": TinyNetwork(), "images": PIXELS, "labels": LABELS, "keys": ["clean"], "progress": False}
    with pytest.raises(expected, match=message) as error:
        evaluate(**(options | changes))
    assert "\n" not in str(error.value)


class NetworkWithChangedLogits(nn.Module):
    """A tiny network whose logits are changed by a function."""

    def __init__(self, change: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.network = TinyNetwork()
        self.change = change

    def forward(self, pixels: torch.Tensor) -> Any:
        return self.change(self.network(pixels))


def raise_error(_logits: torch.Tensor) -> None:
    raise RuntimeError("mat1 and mat2\ncannot be multiplied")


def model_with(change: Callable[[torch.Tensor], Any]) -> dict[str, Any]:
    return {"model": NetworkWithChangedLogits(change)}


def make_last_image_infinite(logits: torch.Tensor) -> torch.Tensor:
    return logits.index_fill(0, torch.tensor([len(logits) - 1]), torch.inf)


FLOATS = PIXELS / np.float32(255)
OBLONG = np.full((21, 3, 8, 9), 128, np.uint8)
INVALID_INPUT: dict[str, tuple[dict[str, Any], type[RobustError], str]] = {
    "output without batch axis": (model_with(lambda logits: logits.flatten()), EvaluationError, r"\(1, classes\)"),
    "output for too few images": (model_with(lambda logits: logits[1:]), EvaluationError, r"shape \(0, 5\)"),
    "predicted classes": (model_with(lambda logits: logits.argmax(dim=1)), EvaluationError, "torch.int64"),
    "infinite logits": (model_with(make_last_image_infinite), EvaluationError, "1 of 21 images"),
    "random logits": (model_with(lambda values: values + torch.randn_like(values)), EvaluationError, "second pass"),
    "exception": (model_with(raise_error), EvaluationError, "RuntimeError: mat1 and mat2 cannot"),
    "wrong number of classes": ({"n_classes": 7}, EvaluationError, r"\(1, 7\), got .*\(1, 5\)"),
    "function as network": ({"model": lambda pixels: pixels}, ConfigError, "function"),
    "pixels above 1": ({"images": PIXELS.astype(np.float32)}, DatasetError, "`images`.*0 to 255"),
    "normalised pixels": ({"images": FLOATS * 2 - 1}, DatasetError, "`images`.*-1 to 1"),
    "NaN": ({"images": np.where(PIXELS[4, 1, 2, 3] == PIXELS, np.nan, FLOATS)}, DatasetError, "`images`.*image 0"),
    "8-bit pixels divided by 255": ({"images": (PIXELS / 255).astype(np.uint8)}, DatasetError, "`images`.*above 1"),
    "int64": ({"images": PIXELS.astype(np.int64)}, DatasetError, "`images`.*int64"),
    "two channels": ({"images": PIXELS[:, :2]}, DatasetError, r"`images`.*\(21, 2, 8, 8\)"),
    "no images": ({"images": PIXELS[:0]}, DatasetError, r"`images`.*\(0, "),
    "three columns": ({"images": PIXELS[:, :, :, :3]}, DatasetError, r"`images`.*\(21, 3, 8, 3\)"),
    "labels too large": ({"labels": np.where(np.arange(21) == 4, 5, LABELS)}, DatasetError, "labels 0 to 4, got 5"),
    "no labels": ({"labels": None}, DatasetError, "`labels`: expected the class number of each image, got None"),
    "too few labels": ({"labels": LABELS[:-1]}, DatasetError, r"labels.*\(20,\)"),
    "one-hot labels": ({"labels": np.eye(N_CLASSES, dtype=int)[LABELS]}, DatasetError, r"labels.*argmax"),
    "float labels": ({"labels": LABELS / 1}, DatasetError, "labels.*float64"),
    "unknown key": ({"keys": ["pgdd"]}, ConfigError, "'pgdd'"),
    "several keys in a string": ({"keys": "clean,pgd"}, ConfigError, "list"),
    "strength in the key": ({"keys": ["pgd:16"]}, ConfigError, "16"),
    "network as key": ({"keys": [TinyNetwork()]}, ConfigError, "TinyNetwork"),
    "no keys": ({"keys": []}, ConfigError, "empty"),
    "duplicate key": ({"keys": ["pgd", {"pgd@Linf": {"steps": 3}}]}, ConfigError, "'pgd'"),
    "unknown parameter": ({"keys": [{"pgd": {"step": 3}}]}, ConfigError, "pgd: .*'step'"),
    "invalid parameter value": ({"keys": [{"pgd": {"steps": 0}}]}, ConfigError, "pgd: steps: "),
    "parameter `images` of a measure": ({"keys": [{"jacobian": {"images": 5}}]}, ConfigError, "'images'"),
    "corruption of oblong images": ({"images": OBLONG, "keys": ["clean", "snow"]}, DatasetError, "'snow': .*8x9"),
    "corruption of small images": ({"images": OBLONG[..., :7, :7], "keys": ["snow"]}, DatasetError, "got 7x7"),
    "grid attack on oblong images": ({"images": OBLONG, "keys": ["grid775"]}, DatasetError, "'grid775': .*got 8x9"),
    "unknown engine": ({"engine": "fuse"}, ConfigError, "'fuse'"),
    "parameter unsupported by engine": (
        {"engine": "reference", "keys": [{"pgd_l2": {"iterate": "best"}}]},
        ConfigError,
        "engine: reference",
    ),
    "unknown device": ({"device": "abacus"}, ConfigError, "'abacus'"),
    "zero batch size": ({"batch_size": 0}, ConfigError, "`batch_size`"),
    "normalisation without lists": ({"normalisation": (0.5, 0.5)}, ConfigError, "`normalisation`"),
    "zero deviation": ({"normalisation": ([0.5] * 3, [0, 1, 1])}, ConfigError, r"std: .* got 0, 1, 1"),
    "mean of 8-bit pixels": ({"normalisation": ([125] * 3, [0.2] * 3)}, ConfigError, r"mean: .* got 125"),
    "mean is NaN": (
        {"normalisation": Normalisation((0.5, float("nan"), 0.0), (1.0, 1.0, 1.0))},
        ConfigError,
        r"mean: .* got 0\.5, nan, 0",
    ),
    "two normalisations": (
        {"model": tiny_classifier(), "normalisation": NORMALISATION},
        ConfigError,
        "its own normalisation",
    ),
}


@pytest.mark.parametrize("case", INVALID_INPUT)
def test_invalid_input_raises_a_one_line_error(case):
    changes, error, message = INVALID_INPUT[case]
    assert_evaluate_raises(error, message, **changes)
    if "model" in changes and error is EvaluationError:
        with pytest.raises(EvaluationError, match=message):
            attack(changes["model"], PIXELS, LABELS, "pgd")


def test_evaluate_rejects_nan_in_later_batch():
    images, labels = np.tile(PIXELS, (5, 1, 1, 1)), np.tile(LABELS, 5)
    images[101] = 255  # the network is not checked on this image before the evaluation

    class NetworkWithNanForWhiteImages(nn.Module):
        def forward(self, pixels: torch.Tensor) -> torch.Tensor:
            white = pixels.flatten(1).amin(dim=1, keepdim=True) == 1
            return (2 * pixels - 1).flatten(1)[:, :5].masked_fill(white, torch.nan)

    assert_evaluate_raises(
        EvaluationError,
        r"NetworkWithNanForWhiteImages images clean: .* got NaN or infinity for 1 of 105 images \(image 101\)",
        model=NetworkWithNanForWhiteImages(),
        images=images,
        labels=labels,
    )


def test_evaluate_accepts_attack_on_constant_logits_without_autograd_graph():
    constant_network = NetworkWithChangedLogits(lambda logits: torch.zeros_like(logits).detach())
    with pytest.warns(RobustWarning, match="the gradient of the loss is zero"):
        result = evaluate(constant_network, PIXELS, LABELS, ["clean", "fgsm:8/255"], progress=False)
    assert result.table["accuracy"].nunique() == 1


@pytest.mark.parametrize(("n_copies", "n_labels", "has_warning"), [(50, 5, True), (50, 6, False), (49, 5, False)])
def test_evaluate_warns_if_labels_use_only_the_first_half_of_the_classes(n_copies, n_labels, has_warning):
    images, labels = np.repeat(PIXELS[:1], n_copies, axis=0), np.arange(n_copies) % n_labels
    with warnings.catch_warnings(record=True) as caught_warnings:
        warnings.simplefilter("always")
        evaluate(nn.Sequential(nn.Flatten(), nn.Linear(192, 10)), images, labels, ["clean"], progress=False)
    label_warnings = [warning for warning in caught_warnings if "The model has" in str(warning.message)]
    assert len(label_warnings) == int(has_warning)
    for warning in label_warnings:
        assert str(warning.message).startswith("The model has 10 classes, but all 50 labels are below 5. ")
        assert warning.filename == __file__


def test_evaluate_warns_if_weaker_attack_beats_stronger_one():
    keys = {
        "fgsm": {"epsilons": ["16/255", "32/255"]},
        "pgd": {"epsilons": ["16/255", "32/255"], "rel_stepsize": 0.025},
    }
    with pytest.warns(RobustWarning, match="single step stronger: pgd:16/255 against fgsm:16/255") as caught_warnings:
        result = evaluate(TinyNetwork(), PIXELS, LABELS, keys, progress=False)
    fgsm, pgd = (result.table[result.table["key"] == key]["accuracy"].to_numpy() for key in keys)
    assert (pgd > fgsm).all()
    (message,) = (str(warning.message) for warning in caught_warnings)
    assert f": {pgd[0]:.4f} against {fgsm[0]:.4f}; one step should not beat many" in message
    assert "1 more such sign. See docs/trust.md." in message


def test_evaluate_warns_about_zero_gradients():
    saturated_network = NetworkWithChangedLogits(lambda logits: 1e6 * logits)
    with pytest.warns(RobustWarning, match=r"zero gradients: input_gradient: [01]\.\d+ against 0\.0100; the gradient"):
        result = evaluate(saturated_network, PIXELS, LABELS, ["input_gradient"], progress=False)
    assert result.table["zero_share"].item() > 0.01
    with pytest.warns(RobustWarning, match="the gradient of the loss is zero"):
        evaluate(saturated_network, PIXELS, LABELS, [{"fgsm": {"epsilons": ["8/255"]}}], progress=False)


def test_evaluate_clips_rounding_errors_of_floats_with_a_warning():
    floats = FLOATS.copy()
    floats[0, 0, 0, 0] = 1 + 2e-7
    with pytest.warns(RobustWarning, match=r"to 1\.00000024 were clipped to \[0, 1\]") as caught_warnings:
        result = evaluate(TinyNetwork(), floats, LABELS, ["clean"], progress=False)
    assert caught_warnings[-1].filename == __file__
    clipped = evaluate(TinyNetwork(), floats.clip(0, 1), LABELS, ["clean"], progress=False)
    assert result.table["confidence"].tolist() == clipped.table["confidence"].tolist()
    floats[0, 0, 0, 0] = 1.0002
    assert_evaluate_raises(DatasetError, r"got 0 to 1\.00020003\. Pass pixels divided by 255", images=floats)


def test_attack_rejects_wrong_arguments():
    for key, options, message in (
        ("fog", {}, r"'fog': it is not an attack. Use one of aa_apgd-ce, "),
        ("rot30", {"epsilon": 0.5}, r"'rot30': this attack has no epsilon"),
    ):
        with pytest.raises(ConfigError, match=message):
            attack(TinyNetwork(), PIXELS, LABELS, key, **options)


@pytest.mark.parametrize("key", ["aa_square_l2", "aa_square_l1", "aa_standard_l2", "aa_standard_l1"])
@pytest.mark.parametrize("engine", ["fused", "reference"])
@pytest.mark.slow_combinations
def test_square_rejects_images_below_five_pixels_in_l2_and_l1(key, engine):
    model = nn.Sequential(nn.Flatten(), nn.Linear(48, 5))
    options = {"model": model, "images": PIXELS[:, :, :4, :4], "keys": [key], "engine": engine}
    assert_evaluate_raises(DatasetError, rf"'{key}': .* got 4x4\.", **options)
    evaluate(**options | {"labels": LABELS, "keys": {"aa_square": {"queries": 2}}, "progress": False})
