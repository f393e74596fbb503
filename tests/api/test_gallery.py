"""Figures of attacked images (`robust201.show`)."""

import base64
import io

import numpy as np
import pytest
import torch
from PIL import Image

import robust201
from robust201.core.errors import ConfigError
from tests.support.tiny_networks import NORMALISATION, TinyNetwork, tiny_images

IMAGES = tiny_images()


def read_rows(figure, column):
    """Return the values of a column in the chart's data, in the order of the tiles or labels."""
    tables = figure.to_dict()["datasets"].values()
    return [row[column] for table in tables for row in table if column in row]


def read_drawn_pixels(figure, index):
    content = base64.b64decode(read_rows(figure, "url")[index].partition(",")[2])
    enlarged = np.asarray(Image.open(io.BytesIO(content))).transpose(2, 0, 1)
    return enlarged[:, ::32, ::32] / 255  # images of 8 pixels are enlarged to 256


def test_show_draws_attacked_image_and_prediction():
    network = TinyNetwork()
    figure = robust201.show(
        network, IMAGES.images[:2], IMAGES.labels[:2], "fgsm", epsilon="8/255", normalisation=NORMALISATION
    )
    attacked = robust201.attack(
        network, IMAGES.images[:2], IMAGES.labels[:2], "fgsm:8/255", normalisation=NORMALISATION
    )
    np.testing.assert_allclose(read_drawn_pixels(figure, 2), attacked[0, 0].numpy(), atol=0.5 / 255 + 1e-6)
    np.testing.assert_allclose(read_drawn_pixels(figure, 3), IMAGES.images[1] / 255, atol=1e-6)
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (NORMALISATION.mean, NORMALISATION.std))
    with torch.no_grad():
        logits = network.eval()((attacked[0] - mean) / std)
    confidence, predicted = logits.softmax(dim=1).max(dim=1)
    figure_captions = read_rows(figure, "caption")
    assert figure_captions[2] == f"class {predicted[0]}, {confidence[0]:.0%}"
    assert figure_captions[5] == f"class {predicted[1]}, {confidence[1]:.0%}"
    assert figure_captions[1] == "× 16"  # scales 8/255 to 0.5
    assert {f"class {IMAGES.labels[0]}", "FGSM, ε = 8/255"} <= set(read_rows(figure, "text"))


def test_show_accepts_one_image_and_uses_largest_default_radius():
    figure = robust201.show(TinyNetwork(), IMAGES.images[0], IMAGES.labels[0], "pgd_l2", steps=6)
    change = read_drawn_pixels(figure, 2) - IMAGES.images[0] / 255
    assert 0.4 < np.linalg.norm(change) <= 0.5 + 14 * 0.5 / 255  # 192 values are rounded to 1/255
    assert len(read_rows(figure, "caption")) == 3


def test_show_rejects_too_many_images_and_too_few_class_names():
    images_and_labels = np.repeat(IMAGES.images[:1], 21, axis=0), np.zeros(21, np.int64)
    with pytest.raises(ConfigError, match="a figure has at most 20 images, got 21"):
        robust201.show(TinyNetwork(), *images_and_labels)
    with pytest.raises(ConfigError, match="5 classes, but there are 2 names"):
        robust201.show(TinyNetwork(), IMAGES.images[0], IMAGES.labels[0], "fgsm", class_names=["cat", "dog"])
