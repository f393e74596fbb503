"""Check of the labels of generated images with an independent network."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from robust201.core.errors import DatasetError
from robust201.core.records import ImageSet
from robust201.models.classifier import Classifier

TRUSTED_FRACTION = 0.5
"""Minimum fraction of images that another network must classify as labelled for them to have robust features.

Our choice: a natural network classified 79% of digits made for D_R as labelled if the source was robust, else 19%.
"""

_BATCH = 500


class LabelsRead(NamedTuple):
    """Predictions of an independent network for images whose label differs from that of their starting image.

    Attributes:
        n_images: number of such images.
        own: fraction classified as their label.
        origin: fraction classified as the label of the training image from which they started.
    """

    n_images: int
    own: float
    origin: float

    @property
    def carries_labels(self) -> bool:
        """Whether other networks recognise the images' labels, too."""
        return self.own >= TRUSTED_FRACTION


def read_labels(folder: Path, images: ImageSet, judge: Classifier) -> LabelsRead:
    """Classify generated images with a network that was not used to generate them.

    Args:
        folder: folder of images by `write_feature_images` with the method ``representation``.
        images: the training images from which they were generated.
        judge: the independent network, trained on natural images.

    Raises:
        DatasetError: the folder's images were generated with another method, or from other images.
    """
    with np.load(folder / "train.npz", allow_pickle=False) as arrays:
        if "start_rows" not in arrays:
            raise DatasetError(
                f"Checking the images of {folder} failed: only images made by --method representation start from "
                "others. Leave --judge out."
            )
        generated, labels, starts = arrays["images"], arrays["labels"], arrays["start_rows"]
    order = np.argsort(images.indices)
    positions = order[np.searchsorted(images.indices, starts, sorter=order).clip(max=len(order) - 1)]
    if (images.indices[positions] != starts).any():
        raise DatasetError(
            f"Checking the images of {folder} failed: they start from images that are not among the "
            f"{len(images):,} given. Give the same --count and --seed as when they were made."
        )
    origins = images.labels[positions]
    has_other_label = origins != labels
    predictions = _classify(judge, generated[has_other_label])
    if not len(predictions):
        raise DatasetError(
            f"Checking the images of {folder} failed: each starts from an image of its own class, so the labels "
            "cannot be distinguished. Generate images of several classes."
        )
    own, origin = (float((predictions == expected[has_other_label]).mean()) for expected in (labels, origins))
    return LabelsRead(len(predictions), own, origin)


def _classify(judge: Classifier, images: NDArray[np.uint8]) -> NDArray[np.int64]:
    classes = [np.empty(0, np.int64)]
    with torch.no_grad():
        for start in range(0, len(images), _BATCH):
            pixels = torch.from_numpy(images[start : start + _BATCH]).to(judge.device).float() / 255
            classes.append(judge(pixels).argmax(dim=1).cpu().numpy())
    return np.concatenate(classes)
