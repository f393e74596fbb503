"""Check whether an independent network recognises the labels of generated images."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from robust201.core.errors import DatasetError
from robust201.core.records import ImageSet
from robust201.models.classifier import Classifier

TRUSTED_FRACTION = 0.5
"""Minimum fraction of generated images whose label an independent network must predict.

The threshold is our choice. A network trained on natural digits assigned the intended label to 79% of the digits
that the method ``representation`` generated with a network that resists attacks at 40/255, and to 19% of those
generated with a less robust network (trained adversarially at 8/255 on only 320 digits).
"""

_BATCH_SIZE = 500


class LabelCheck(NamedTuple):
    """Predictions of an independent network on generated images whose label differs from the starting image's label.

    Attributes:
        n_images: number of these images.
        label_fraction: fraction that the network classifies as the image's label.
        start_label_fraction: fraction that the network classifies as the label of the starting image.
    """

    n_images: int
    label_fraction: float
    start_label_fraction: float

    @property
    def recognises_labels(self) -> bool:
        """Whether the independent network recognises enough labels (`TRUSTED_FRACTION`)."""
        return self.label_fraction >= TRUSTED_FRACTION


def check_generated_labels(folder: Path, images: ImageSet, judge: Classifier) -> LabelCheck:
    """Classify generated images with a network that was not used to generate them.

    Args:
        folder: folder that `write_feature_images` wrote with the method ``representation``.
        images: the training images from which they were generated.
        judge: the independent network, trained on natural images.

    Raises:
        DatasetError: the folder's images were generated with another method, from other images, or all of them from
            images with the same label.
    """
    with np.load(folder / "train.npz", allow_pickle=False) as arrays:
        if "start_rows" not in arrays:
            raise DatasetError(
                f"Checking the images of {folder} failed: expected images that were generated with the "
                "method `representation`, got others. Check only such images."
            )
        generated, labels, start_rows = arrays["images"], arrays["labels"], arrays["start_rows"]
    order = np.argsort(images.indices)
    positions = order[np.searchsorted(images.indices, start_rows, sorter=order).clip(max=len(order) - 1)]
    if (images.indices[positions] != start_rows).any():
        raise DatasetError(
            f"Checking the images of {folder} failed: their starting images are not among the "
            f"{len(images):,} training images. Pass the images from which they were generated."
        )
    start_labels = images.labels[positions]
    has_other_label = start_labels != labels
    predictions = _classify(judge, generated[has_other_label])
    if not len(predictions):
        raise DatasetError(
            f"Checking the images of {folder} failed: every image started from an image with the same label, so "
            "the check is impossible. Generate images of several classes."
        )
    label_fraction, start_label_fraction = (
        float((predictions == expected[has_other_label]).mean()) for expected in (labels, start_labels)
    )
    return LabelCheck(len(predictions), label_fraction, start_label_fraction)


def _classify(judge: Classifier, images: NDArray[np.uint8]) -> NDArray[np.int64]:
    predictions = [np.empty(0, np.int64)]  # concatenation needs at least one array
    with torch.no_grad():
        for start in range(0, len(images), _BATCH_SIZE):
            pixels = torch.from_numpy(images[start : start + _BATCH_SIZE]).to(judge.device).float() / 255
            predictions.append(judge(pixels).argmax(dim=1).cpu().numpy())
    return np.concatenate(predictions)
