"""What the paper's sweep takes, extrapolated from measured networks.

Seconds per image of the whole suite are fitted as a + b * multiply-accumulates, both at least 0 and the largest
relative error as small as can be; for the fused engine only those count that are left after pruning and merging. All
work is done for each pixel, so an image of 16x16 costs a quarter. Square's active share is that of one CIFAR-10 network
for all three datasets; on the two others more images are fooled early, so the hours are an upper bound there.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.optimize import linprog

from benchmarks.engine_case import CELLS, CHANNELS, IMAGE_SIZE, N_CLASSES, convolutions_of
from robust201.spaces.nasbench201.cells import architecture, multiply_accumulates
from robust201.tasks import CORRUPTIONS
from robust201.tasks.parameters import SEVERITIES

FULL_SIZE = 32


class Dataset(NamedTuple):
    """What of a dataset decides the sweep's cost: images, height and width, and whether the paper corrupts it."""

    n_images: int
    image_size: int
    corrupted: bool


DATASETS = {
    "cifar10": Dataset(10_000, 32, corrupted=True),
    "cifar100": Dataset(10_000, 32, corrupted=True),
    "ImageNet16-120": Dataset(6_000, 16, corrupted=False),
}


def published_macs(index: int) -> int:
    """Multiply-accumulates of the published network, which are those that the reference makes."""
    spec = architecture(index).spec
    return multiply_accumulates(spec, channels=CHANNELS, cells=CELLS, n_classes=N_CLASSES, image_size=IMAGE_SIZE)


def merged_macs(index: int) -> int:
    """Multiply-accumulates of the convolutions that the fused engine makes."""
    return sum(
        number * inputs * outputs * kernel**2 * (size // stride) ** 2
        for (inputs, outputs, kernel, stride, size), number in convolutions_of(architecture(index).spec).items()
    )


class Fit(NamedTuple):
    """Seconds an image as a + b * multiply-accumulates.

    Attributes:
        constant: a, seconds.
        slope: b, seconds for one multiply-accumulate.
        error: largest relative error over the networks that it was made from.
    """

    constant: float
    slope: float
    error: float

    def __call__(self, macs: float) -> float:
        """Seconds an image."""
        return self.constant + self.slope * macs


def fit_cost(macs: Sequence[float], seconds: Sequence[float]) -> Fit:
    """Fit seconds to multiply-accumulates: neither number below 0, the largest relative error as small as can be.

    Args:
        macs: of the measured networks.
        seconds: that they took.

    Raises:
        RuntimeError: the solver gave up.
    """
    scale = max(macs)
    predicted = np.array([np.ones(len(macs)), np.array(macs) / scale]).T / np.array(seconds)[:, None]
    # Unknown: a, b * scale, and the error e: |predicted - 1| <= e for each network.
    column = -np.ones((len(macs), 1))
    rows = np.vstack([np.hstack([predicted, column]), np.hstack([-predicted, column])])
    bounds = np.concatenate([np.ones(len(macs)), -np.ones(len(macs))])
    solved = linprog([0.0, 0.0, 1.0], A_ub=rows, b_ub=bounds, bounds=[(0, None)] * 3)
    if solved.x is None:
        raise RuntimeError(f"Fitting seconds to multiply-accumulates failed for {len(macs)} networks: {solved.message}")
    # The solver keeps its bounds to within a rounding error.
    constant, slope, error = np.maximum(solved.x, 0.0).tolist()
    return Fit(constant, slope / scale, error)


def sweep_seconds(suite: Fit, forward: Fit, macs: Sequence[float], ready_seconds: float = 0.0) -> dict[str, float]:
    """Extrapolate the paper's sweep.

    Args:
        suite: seconds an image of 32x32 for the four attacks at all epsilons.
        forward: seconds an image of 32x32 for one forward pass: clean and corrupted images take one each.
        macs: of every network of the sweep.
        ready_seconds: once a network and dataset.

    Returns:
        Seconds by dataset.
    """
    in_all = {}
    for name, dataset in DATASETS.items():
        passes = 1 + dataset.corrupted * len(CORRUPTIONS) * len(SEVERITIES)
        pixels = (dataset.image_size / FULL_SIZE) ** 2
        an_image = [pixels * (suite(number) + passes * forward(number)) for number in macs]
        in_all[name] = dataset.n_images * sum(an_image) + len(macs) * ready_seconds
    return in_all
