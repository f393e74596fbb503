"""Compare the singular values of MNIST, CIFAR-10 and their blends (docs/image-spectra.md).

    python -m benchmarks.singular_values --fusion runs/image-distribution-lenet/fusion-digit
    python -m benchmarks.singular_values --figure docs/images/singular-values.svg

The output is a Markdown table with means and standard deviations over the test images of each set, for raw pixels and
after subtracting each channel's mean. Its columns are the effective rank, how many of the largest singular values hold
99% of the energy, and the fraction that the largest one holds. The figure shows the mean spectra. ROBUST201_DATA names
a folder with mnist/ and cifar10/; the blends are test images that `robust201 fuse` wrote.
"""

import argparse
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from matplotlib.lines import Line2D
from matplotlib.ticker import LogFormatterSciNotation
from numpy.typing import NDArray

from robust201.figures import matplotlib_parts as parts
from robust201.figures.panels import TEXT_SIZE, TITLE_SIZE
from robust201.images import load_images
from robust201.spaces.cell_space import INK
from robust201.statistics.singular_values import Spectra, singular_spectra
from robust201.studies.drawings import SERIES_COLOURS, save_figure

ENERGY = 0.99

PIXEL_LABELS = {False: "raw pixels", True: "channel means subtracted"}
"""Labels in tables and figures, by whether channel means are subtracted."""


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
            cells = [f"{np.nanmean(column):.2f} ± {np.nanstd(column, ddof=1):.2f}" for column in columns]
            print(f"| {name} | {len(spectrum.energy):,} | {PIXEL_LABELS[is_centred]} | {' | '.join(cells)} |")


def draw_spectra(spectra: Mapping[str, Mapping[bool, Spectra]], path: Path) -> None:
    """Draw the mean spectra in two panels: for raw pixels, and with channel means subtracted."""
    figure, panels = parts.make_axes_grid(
        2, 7.2, 3.0, 2.2, label="fraction of the energy", limits=(1e-7, 2), extra_height=0.5
    )
    for axes, is_centred in zip(panels, PIXEL_LABELS, strict=True):
        for (_, spectrum_by_centring), colour in zip(spectra.items(), SERIES_COLOURS, strict=False):
            mean = np.nanmean(spectrum_by_centring[is_centred].energy, axis=0)
            axes.plot(np.arange(1, len(mean) + 1), mean, color=colour, linewidth=1.1)
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(LogFormatterSciNotation())
        axes.minorticks_off()
        axes.set_title(PIXEL_LABELS[is_centred], fontsize=TITLE_SIZE, color=INK)
        axes.set_xlabel("singular value, largest first", fontsize=TEXT_SIZE, color=INK)
    colours = zip(spectra, SERIES_COLOURS, strict=False)
    parts.draw_legend(figure, [Line2D([], [], color=colour, linewidth=1.4, label=name) for name, colour in colours])
    save_figure(figure, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fusion", type=Path, help="folder written by `robust201 fuse`")
    parser.add_argument("--count", type=int, help="number of images per set (default: all)")
    parser.add_argument("--figure", type=Path, help="SVG file for a figure of the mean spectra")
    arguments = parser.parse_args()
    spectra = {
        name: {is_centred: singular_spectra(images, centred=is_centred) for is_centred in PIXEL_LABELS}
        for name, images in read_sets(arguments.fusion, arguments.count).items()
    }
    print_table(spectra)
    if arguments.figure is not None:
        draw_spectra(spectra, arguments.figure)


if __name__ == "__main__":
    main()
