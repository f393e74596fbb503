"""Compare the singular values of MNIST, CIFAR-10 and their blends (README.md).

    python -m jobs.papers.image_distribution.singular_values --fusion runs/image-distribution-lenet/fusion-digit

The output is a Markdown table with means and standard deviations over the test images of each set, for raw pixels and
after subtracting each channel's mean. Its columns are the effective rank, the number of largest singular values that
hold 99% of the energy, and the fraction of the energy in the largest one. ROBUST201_DATA names a folder with mnist/ and
cifar10/; the blends are test images that `fuse.py` wrote.
"""

import argparse
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from jobs.papers.page import table
from robust201.images import load_images

ENERGY = 0.99

PIXEL_LABELS = {False: "raw pixels", True: "channel means subtracted"}
"""Labels in the table, by whether channel means are subtracted."""


BLOCK_IMAGES = 1_000
"""Number of images per call of the singular value decomposition, to limit memory."""


class Spectra(NamedTuple):
    """Singular values of images (N, C, H, W), with K = min(H, W).

    Attributes:
        energy: (N, K) squared singular values in descending order, as fractions of their sum; mean over channels.
        effective_rank: (N,) exponential of the entropy of the normalised singular values; mean over channels. It is 1
            for a matrix of rank 1, and K if all singular values are equal. Source: Roy and Vetterli, "The
            effective rank: a measure of effective dimensionality", EUSIPCO 2007.

    Channels of zeros have no spectrum and are ignored; for an image of zeros, all numbers are NaN.
    """

    energy: NDArray[np.float64]
    effective_rank: NDArray[np.float64]

    def rank_of_energy(self, fraction: float) -> NDArray[np.float64]:
        """Return how many of each image's largest singular values together have at least this fraction of the energy.

        The result (N,) is NaN for an image of zeros.
        """
        is_reached = np.cumsum(self.energy, axis=1) >= fraction - 1e-12
        return np.where(np.isnan(self.effective_rank), np.nan, is_reached.argmax(axis=1) + 1.0)


def singular_spectra(images: NDArray[np.uint8], *, centred: bool = False) -> Spectra:
    """Compute the singular values of images (N, C, H, W).

    Args:
        images: pixel values in any unit.
        centred: whether to subtract the mean of each channel first. Otherwise, the mean, which is a matrix of rank 1,
            dominates the spectrum of a bright image.
    """
    blocks = [
        _block_spectra(images[start : start + BLOCK_IMAGES], centred) for start in range(0, len(images), BLOCK_IMAGES)
    ]
    return Spectra(*(np.concatenate(block_arrays) for block_arrays in zip(*blocks, strict=True)))


def _block_spectra(images: NDArray[np.uint8], centred: bool) -> Spectra:
    matrices = images.astype(np.float64)
    if centred:
        matrices -= matrices.mean(axis=(2, 3), keepdims=True)
    values = np.linalg.svd(matrices, compute_uv=False)
    with warnings.catch_warnings(), np.errstate(invalid="ignore"):
        warnings.simplefilter("ignore", RuntimeWarning)  # channels of zeros give 0/0; nanmean warns if all are
        energy, fractions = (x / x.sum(axis=-1, keepdims=True) for x in (values**2, values))
        # A fraction of 0 adds 0 to the entropy, which is the limit of x log x.
        entropy = -(fractions * np.log(np.where(fractions == 0, 1, fractions))).sum(axis=-1)
        return Spectra(np.nanmean(energy, axis=1), np.nanmean(np.exp(entropy), axis=1))


def read_sets(fusion: Path | None, count: int | None) -> dict[str, NDArray[np.uint8]]:
    """Read the test images of each set (N, C, H, W); where all channels are equal, only the first is returned."""
    sets = {
        "MNIST, 28×28×1": load_images("mnist-28", count=count).images,
        "MNIST, 32×32×3": load_images("mnist", count=count).images[:, :1],
        "CIFAR-10": load_images("cifar10", count=count).images,
    }
    if fusion is not None:
        sets["fusion"] = load_images("fusion", path=fusion, count=count).images
    return sets


def make_rows(name: str, spectrum_by_centring: Mapping[bool, Spectra]) -> Iterator[list[str]]:
    """Yield the table's rows of a set: means ± standard deviations over images."""
    for is_centred, spectrum in spectrum_by_centring.items():
        columns = (spectrum.effective_rank, spectrum.rank_of_energy(ENERGY), spectrum.energy[:, 0])
        entries = [f"{np.nanmean(column):.2f} ± {np.nanstd(column, ddof=1):.2f}" for column in columns]
        yield [name, PIXEL_LABELS[is_centred], f"{len(spectrum.energy):,}", *entries]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fusion", type=Path, help="folder written by fuse.py")
    parser.add_argument("--count", type=int, help="number of images per set (default: all)")
    arguments = parser.parse_args()
    rows = [
        row
        for name, images in read_sets(arguments.fusion, arguments.count).items()
        for row in make_rows(name, {centred: singular_spectra(images, centred=centred) for centred in PIXEL_LABELS})
    ]
    columns = ["set", "pixels", "images", "effective rank", "values for 99% of the energy", "energy of the largest"]
    print(table(columns, rows, text_columns=2))


if __name__ == "__main__":
    main()
