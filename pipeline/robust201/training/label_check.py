"""A check of generated images by an independent network: whose label it reads on them."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from robust201.core.errors import DatasetError
from robust201.core.records import ImageSet
from robust201.models.classifier import Classifier

TRUSTED_FRACTION = 0.5
"""Below this fraction of images whose own label another network reads, they are no images of robust features.

Ours: with a source that resists attacks a natural network reads 79% of digits made for D_R, with one that does not 19%.
"""

_BATCH = 500


class LabelsRead(NamedTuple):
    """What an independent network reads on the images whose own label differs from that of their origin.

    Attributes:
        n_images: such images.
        own: fraction read as the label that they carry.
        origin: fraction read as the label of the training image from which they were made to start.
    """

    n_images: int
    own: float
    origin: float

    @property
    def carries_labels(self) -> bool:
        """Whether the images carry their labels for other networks than the one they were made with."""
        return self.own >= TRUSTED_FRACTION


def read_labels(folder: Path, images: ImageSet, judge: Classifier) -> LabelsRead:
    """Classify generated images by a network that had no part in making them.

    Args:
        folder: of images made by `write_feature_images` with the method ``representation``.
        images: the training images that they were made of.
        judge: the independent network, trained on natural images.

    Raises:
        DatasetError: the folder's images were made by another method, or of other images.
    """
    with np.load(folder / "train.npz", allow_pickle=False) as arrays:
        if "start_rows" not in arrays:
            raise DatasetError(
                f"Checking the images of {folder} failed: only images made by --method representation start from "
                "others. Leave --judge out."
            )
        made, labels, starts = arrays["images"], arrays["labels"], arrays["start_rows"]
    order = np.argsort(images.indices)
    places = order[np.searchsorted(images.indices, starts, sorter=order).clip(max=len(order) - 1)]
    if (images.indices[places] != starts).any():
        raise DatasetError(
            f"Checking the images of {folder} failed: they start from images that are not among the "
            f"{len(images):,} given. Give the same --count and --seed as when they were made."
        )
    origins = images.labels[places]
    differ = origins != labels
    read = _classify(judge, made[differ])
    if not len(read):
        raise DatasetError(
            f"Checking the images of {folder} failed: each starts from an image of its own class, so nothing can be "
            "told apart. Make images of several classes."
        )
    own, origin = (float((read == wanted[differ]).mean()) for wanted in (labels, origins))
    return LabelsRead(len(read), own, origin)


def _classify(judge: Classifier, images: NDArray[np.uint8]) -> NDArray[np.int64]:
    classes = [np.empty(0, np.int64)]
    with torch.no_grad():
        for start in range(0, len(images), _BATCH):
            pixels = torch.from_numpy(images[start : start + _BATCH]).to(judge.device).float() / 255
            classes.append(judge(pixels).argmax(dim=1).cpu().numpy())
    return np.concatenate(classes)
