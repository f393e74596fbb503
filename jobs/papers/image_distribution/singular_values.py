"""Compare the singular values of MNIST, CIFAR-10 and their blends (README.md).

    python -m jobs.papers.image_distribution.singular_values --fusion runs/image-distribution-lenet/fusion-digit

The output is a Markdown table with means and standard deviations over the test images of each set, for raw pixels and
after subtracting each channel's mean. Its columns are the effective rank, the number of largest singular values that
hold 99% of the energy, and the fraction of the energy in the largest one. ROBUST201_DATA names a folder with mnist/ and
cifar10/; the blends are test images that `fuse.py` wrote.
"""

import argparse
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from jobs.papers.image_distribution.spectra import Spectra, singular_spectra
from robust201.images import load_images

ENERGY = 0.99

PIXEL_LABELS = {False: "raw pixels", True: "channel means subtracted"}
"""Labels in the table, by whether channel means are subtracted."""


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


def print_table(spectra: Mapping[str, Mapping[bool, Spectra]]) -> None:
    """Print means ± standard deviations over images."""
    print("| set | images | pixels | effective rank | values for 99% of the energy | energy of the largest |")
    print("| --- | --: | --- | --: | --: | --: |")
    for name, spectrum_by_centring in spectra.items():
        for is_centred, spectrum in spectrum_by_centring.items():
            columns = (spectrum.effective_rank, spectrum.rank_of_energy(ENERGY), spectrum.energy[:, 0])
            entries = [f"{np.nanmean(column):.2f} ± {np.nanstd(column, ddof=1):.2f}" for column in columns]
            print(f"| {name} | {len(spectrum.energy):,} | {PIXEL_LABELS[is_centred]} | {' | '.join(entries)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fusion", type=Path, help="folder written by fuse.py")
    parser.add_argument("--count", type=int, help="number of images per set (default: all)")
    arguments = parser.parse_args()
    spectra = {
        name: {is_centred: singular_spectra(images, centred=is_centred) for is_centred in PIXEL_LABELS}
        for name, images in read_sets(arguments.fusion, arguments.count).items()
    }
    print_table(spectra)


if __name__ == "__main__":
    main()
