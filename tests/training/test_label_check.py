"""The check of generated images by an independent network, which here classifies by brightness."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from robust201.core.errors import DatasetError
from robust201.core.records import ImageSet, Normalisation, image_hash
from robust201.models.classifier import Classifier
from robust201.training.label_check import read_labels
from robust201.training.robust_features import FeatureSettings, write_feature_images
from tests.conftest import RunCommand
from tests.support.tiny_networks import tiny_classifier, tiny_images

N_CLASSES = 4
LEVELS = np.array([0, 85, 170, 255], np.uint8)


class BrightnessNetwork(nn.Module):
    """Classify an image by the level of `LEVELS` nearest to its mean."""

    def forward(self, pixels):
        levels = torch.from_numpy(LEVELS).float() / 255
        return -(pixels.mean(dim=(1, 2, 3))[:, None] - levels).abs()


JUDGE = Classifier(BrightnessNetwork(), Normalisation((0,) * 3, (1,) * 3), N_CLASSES)


def plain_images(classes):
    return np.broadcast_to(LEVELS[classes][:, None, None, None], (len(classes), 3, 4, 4)).copy()


def originals():
    """Return twelve images whose row numbers are unsorted and have gaps."""
    labels, rows = np.arange(12) % N_CLASSES, np.arange(100, 124, 2)[::-1].copy()
    pixels = plain_images(labels)
    normalisation = Normalisation((0,) * 3, (1,) * 3)
    return ImageSet("planted", pixels, labels, rows, N_CLASSES, normalisation, image_hash(pixels, labels, rows))


def write_generated(folder: Path, images: ImageSet, shift, classes):
    """Write images of `classes`, each started from the image `shift` rows later."""
    folder.mkdir()
    starts = np.roll(images.indices, -shift)
    np.savez(folder / "train.npz", images=plain_images(classes), labels=images.labels, start_rows=starts)
    return folder


def test_read_labels_counts_images_of_the_own_and_of_the_start_class(tmp_path):
    images = originals()
    origins = np.roll(images.labels, -1)
    classes = np.where(np.arange(12) < 9, images.labels, origins)
    check = read_labels(write_generated(tmp_path / "a", images, 1, classes), images, JUDGE)
    assert (check.n_images, check.own, check.origin) == (12, 0.75, 0.25)
    assert check.carries_labels
    starts_check = read_labels(write_generated(tmp_path / "b", images, 1, origins), images, JUDGE)
    assert (starts_check.own, starts_check.origin, starts_check.carries_labels) == (
        0.0,
        1.0,
        False,
    )


def test_read_labels_rejects_images_of_one_class_and_of_other_origins(tmp_path):
    images = originals()
    with pytest.raises(DatasetError, match="of its own class"):
        read_labels(write_generated(tmp_path / "a", images, N_CLASSES, images.labels), images, JUDGE)
    folder = write_generated(tmp_path / "b", images, 1, images.labels)
    np.savez(
        folder / "train.npz", images=plain_images(images.labels), labels=images.labels, start_rows=images.indices + 1
    )
    with pytest.raises(DatasetError, match="not among the 12 given"):
        read_labels(folder, images, JUDGE)


def test_read_labels_rejects_images_with_a_target(tmp_path):
    images = tiny_images()
    settings = FeatureSettings.of("next-target", steps=1, batch_size=8)
    write_feature_images(tmp_path, images, tiny_classifier(), settings, network={"name": "tiny"})
    with pytest.raises(DatasetError, match="only images made by --method representation"):
        read_labels(tmp_path, images, tiny_classifier())


def test_robustify_warns_of_images_that_do_not_carry_their_labels(robust201: RunCommand, tmp_path: Path) -> None:
    """After a single step, an image still shows its start image."""
    store = "bundled:benchmark_data/demo"
    few = ("--dataset", "digits", "--count", "40", "--steps", "1", "--step-size", "0.01")
    unchecked = robust201("robustify", "13714", *few, "--store", store, "--out", tmp_path / "robust")
    assert unchecked.code == 0
    assert "Not checked" in unchecked.err
    (judge,) = Path("benchmark_data/demo").rglob("000021*.safetensors")
    checked = robust201(
        "robustify", "13714", *few, "--store", store, "--out", tmp_path / "robust",
        "--judge", judge, "--judge-network", "21",
    )  # fmt: skip
    assert checked.code == 0
    assert "not robust features" in checked.err
