"""Checks of generated images by an independent network, which in most of these tests classifies by brightness."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from robust201.core.errors import DatasetError
from robust201.core.records import ImageSet, Normalisation, image_hash
from robust201.images import load_images
from robust201.models.classifier import Classifier
from robust201.training.label_check import check_generated_labels
from robust201.training.robust_features import FeatureSettings, write_feature_images
from tests.conftest import RunCommand
from tests.support.tiny_networks import tiny_classifier, tiny_images

N_CLASSES = 4
LEVELS = np.array([0, 85, 170, 255], np.uint8)


class BrightnessNetwork(nn.Module):
    """Classifies an image as the brightness level in `LEVELS` that is nearest to its mean."""

    def forward(self, pixels):
        levels = torch.from_numpy(LEVELS).float() / 255
        return -(pixels.mean(dim=(1, 2, 3))[:, None] - levels).abs()


JUDGE = Classifier(BrightnessNetwork(), Normalisation((0,) * 3, (1,) * 3), N_CLASSES)


def uniform_images(classes):
    return np.broadcast_to(LEVELS[classes][:, None, None, None], (len(classes), 3, 4, 4)).copy()


def training_images():
    """Return twelve uniform images whose row numbers are unsorted and have gaps."""
    labels, rows = np.arange(12) % N_CLASSES, np.arange(100, 124, 2)[::-1].copy()
    pixels = uniform_images(labels)
    normalisation = Normalisation((0,) * 3, (1,) * 3)
    return ImageSet("planted", pixels, labels, rows, N_CLASSES, normalisation, image_hash(pixels, labels, rows))


def write_generated(folder: Path, images: ImageSet, offset, classes):
    """Write images that look like `classes` but have the labels of `images`.

    The recorded starting image of each image is the one `offset` positions after the image's own original.
    """
    folder.mkdir()
    start_rows = np.roll(images.indices, -offset)
    np.savez(folder / "train.npz", images=uniform_images(classes), labels=images.labels, start_rows=start_rows)
    return folder


def test_check_generated_labels_returns_fractions_of_labels_and_start_labels(tmp_path):
    images = training_images()
    start_labels = np.roll(images.labels, -1)
    classes = np.where(np.arange(12) < 9, images.labels, start_labels)
    check = check_generated_labels(write_generated(tmp_path / "a", images, 1, classes), images, JUDGE)
    assert (check.n_images, check.label_fraction, check.start_label_fraction) == (12, 0.75, 0.25)
    assert check.recognises_labels
    failed_check = check_generated_labels(write_generated(tmp_path / "b", images, 1, start_labels), images, JUDGE)
    assert (failed_check.label_fraction, failed_check.start_label_fraction) == (0.0, 1.0)
    assert not failed_check.recognises_labels


def test_check_generated_labels_rejects_equal_start_labels_and_unknown_start_images(tmp_path):
    images = training_images()
    with pytest.raises(DatasetError, match="from an image with the same label"):
        check_generated_labels(write_generated(tmp_path / "a", images, N_CLASSES, images.labels), images, JUDGE)
    folder = write_generated(tmp_path / "b", images, 1, images.labels)
    np.savez(
        folder / "train.npz", images=uniform_images(images.labels), labels=images.labels, start_rows=images.indices + 1
    )
    with pytest.raises(DatasetError, match="not among the 12 training images"):
        check_generated_labels(folder, images, JUDGE)


def test_check_generated_labels_rejects_images_of_a_targeted_attack(tmp_path):
    images = tiny_images()
    settings = FeatureSettings.of("next-target", steps=1, batch_size=8)
    write_feature_images(tmp_path, images, tiny_classifier(), settings, network={"name": "tiny"})
    with pytest.raises(DatasetError, match="generated with --method representation"):
        check_generated_labels(tmp_path, images, tiny_classifier())


def test_robustify_warns_if_judge_does_not_recognise_labels(robust201: RunCommand, tmp_path: Path) -> None:
    """After a single step, an image still looks like its starting image."""
    store = "bundled:benchmark_data/demo"
    few_images_and_steps = ("--dataset", "digits", "--count", "40", "--steps", "1", "--step-size", "0.01")
    unchecked = robust201("robustify", "13714", *few_images_and_steps, "--store", store, "--out", tmp_path / "robust")
    assert unchecked.code == 0
    assert "The labels were not checked: whether another network recognises them" in unchecked.err
    (judge,) = Path("benchmark_data/demo").rglob("000021*.safetensors")
    checked = robust201(
        "robustify", "13714", *few_images_and_steps, "--store", store, "--out", tmp_path / "robust",
        "--judge", judge, "--judge-network", "21",
    )  # fmt: skip
    assert checked.code == 0
    assert "not robust features" in checked.err


def test_robustify_normalises_pixels_for_judge_as_requested(robust201: RunCommand, tmp_path: Path) -> None:
    (tmp_path / "judge.py").write_text(
        """
import torch

class Judge(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("unused", torch.zeros(1))

    def forward(self, images):  # class 1 if the pixels are not normalised, and class 0 otherwise
        is_raw = (images.min() >= 0) & (images.max() <= 1)
        return torch.nn.functional.one_hot(is_raw.long().expand(len(images)), 10).float()

def build():
    return Judge()
"""
    )
    judge_weights = tmp_path / "judge.safetensors"
    save_file({"unused": torch.zeros(1)}, judge_weights)
    arguments = (
        "robustify", "13714", "--dataset", "digits", "--count", "40", "--steps", "1", "--step-size", "0.01",
        "--store", "bundled:benchmark_data/demo", "--out", tmp_path / "robust", "--judge", judge_weights,
        "--judge-network", f"{tmp_path / 'judge.py'}:build",
    )  # fmt: skip
    normalised = robust201(*arguments)
    raw = robust201(*arguments, "--judge-mean", "0,0,0", "--judge-std", "1,1,1")
    assert (normalised.code, raw.code) == (0, 0), normalised.err + raw.err
    with np.load(tmp_path / "robust/train.npz") as arrays:
        labels, start_rows = arrays["labels"], arrays["start_rows"]
    start_labels = load_images("digits", split="train").labels[start_rows]
    labels = labels[labels != start_labels]
    for result, predicted_class in ((normalised, 0), (raw, 1)):
        assert f"intended label for {(labels == predicted_class).mean():.0%} of the images" in " ".join(
            result.err.split()
        )
    assert "--judge-std: only one of them" in robust201(*arguments, "--judge-mean", "0,0,0").error_line(2)
    without_judge = arguments[:-4]
    assert "they need --judge" in robust201(*without_judge, "--judge-mean", "0,0,0", "--judge-std", "1,1,1").error_line(
        2
    )
