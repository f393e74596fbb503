"""Checks of generated images by an independent network, which in most of these tests classifies by brightness."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from robust201.core.errors import DatasetError
from robust201.core.records import ImageSet, Normalisation, image_hash
from robust201.models.classifier import Classifier
from robust201.training.label_check import check_generated_labels
from robust201.training.robust_features import FeatureSettings, write_feature_images
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
    with pytest.raises(DatasetError, match="generated with the method `representation`"):
        check_generated_labels(tmp_path, images, tiny_classifier())
