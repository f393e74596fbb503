"""Security curves: the accuracy at every epsilon, computed from each image's smallest perturbation."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from robust201.analysis.tables import format_percent
from robust201.core.files import atomic_write
from robust201.figures.formats import check_figure_name, parse_width
from robust201.statistics.distances import accuracy_curve, half_distance, median_distance
from robust201.statistics.intervals import accuracy_intervals
from robust201.tasks.constraints import Constraint

if TYPE_CHECKING:
    from robust201.figures.panels import Figure

_N_CURVE_POINTS = 400
"""Number of points of a drawn curve."""

_SHOWN_FRACTION = 0.99
"""The horizontal axis covers the distances of at least this fraction of each network's fooled images."""


@dataclass(frozen=True, eq=False, repr=False)
class SecurityCurves:
    """Result of `robust201.curves`.

    Attributes:
        distances_by_network: for each network, distances in the unit of the strengths, with one row per image and one
            column per attack.
        constraint: norm of the distances.
    """

    distances_by_network: Mapping[str, pd.DataFrame]
    constraint: Constraint

    @cached_property
    def table(self) -> pd.DataFrame:
        """One row per network; see `robust201.curves`."""
        columns = self.distances.items()
        return pd.DataFrame([_summarise_network(str(name), column.to_numpy(np.float64)) for name, column in columns])

    @cached_property
    def distances(self) -> pd.DataFrame:
        """Size of each image's smallest perturbation, in the unit of the strengths.

        There is one row per image, and one column per network. The size is 0 for misclassified clean images, and
        infinity for images that no attack fooled.
        """
        return pd.DataFrame({name: frame.min(axis=1) for name, frame in self.distances_by_network.items()})

    @property
    def _attacks(self) -> list[str]:
        return [str(name) for name in next(iter(self.distances_by_network.values()))]

    def accuracy(self, epsilons: Sequence[float] | NDArray[np.float64]) -> pd.DataFrame:
        """Compute accuracies at any epsilons, in the unit of the strengths (Linf: 1/255).

        As in `evaluate`, an image is fooled at an epsilon if its perturbation lies inside the ball, or exceeds it only
        by a float32 rounding error.

        Returns:
            One row per network and epsilon: `network`, `epsilon`, `accuracy`, `low` and `high` (its 95% interval).
        """
        constraint, epsilon_values = self.constraint, np.asarray(epsilons, np.float64)
        tolerated_distances = np.array(
            [constraint.reach(epsilon) * constraint.divisor for epsilon in epsilon_values.tolist()], np.float64
        )
        # Epsilon 0 means clean images, which have no rounding tolerance.
        tolerated_distances[epsilon_values <= 0] = epsilon_values[epsilon_values <= 0]
        frames = []
        for name in self.distances:
            curve = accuracy_curve(self.distances[name], tolerated_distances)
            columns = {"epsilon": epsilon_values, "accuracy": curve.accuracy, "low": curve.low, "high": curve.high}
            frames.append(pd.DataFrame({"network": name, **columns}))
        return pd.concat(frames, ignore_index=True)

    @property
    def summary(self) -> str:
        """One line per network."""
        unit = "/255" if self.constraint.divisor == 255 else ""
        lines = []
        for row in self.table.to_dict("records"):
            if row["clean_accuracy"] == 0:
                half_text = "it classifies no image correctly, so there is no image to fool"
            elif np.isfinite(row["half_distance"]):
                half_text = (
                    f"half of the images that it classifies correctly are fooled at {row['half_distance']:.4g}{unit}"
                )
            else:
                half_text = "fewer than half of the images that it classifies correctly were fooled"
            n_never_fooled = round(row["never_fooled"] * row["n_images"])
            failures = (
                f" The attacks failed on {n_never_fooled:,} of {row['n_images']:,} images." if n_never_fooled else ""
            )
            accuracy = format_percent(row["clean_accuracy"], row["low"], row["high"], unit="%")
            lines.append(
                f"{row['network']}: accuracy {accuracy}; {half_text} "
                f"({self.constraint.name}, {', '.join(self._attacks)}; a stronger attack may find smaller "
                f"perturbations).{failures}"
            )
        return "\n".join(lines)

    def __str__(self) -> str:
        """Return the summary."""
        return self.summary

    __repr__ = __str__

    def figure(self) -> "Figure":
        """Return the figure: one line per network, with a band of pointwise 95% intervals.

        The horizontal axis covers at least 99% of each network's fooled images.
        """
        from robust201.figures.curves import draw_security_curves

        end = self._end()
        note = f"{', '.join(self._attacks)}; {len(self.distances):,} images; bands: 95% intervals"
        rows = self.accuracy(np.linspace(0, end, _N_CURVE_POINTS))
        return draw_security_curves(rows, (0, end), self.constraint.axis_label, note)

    def save(self, out: str | Path, *, width: str | float = "column") -> Path:
        """Write a figure of the curves to a file.

        Args:
            out: file name ending in .pdf, .svg or .png.
            width: ``column``, ``page``, or inches.

        Raises:
            ConfigError: the file name has another ending, or the width is invalid.
        """
        from robust201.figures.vega_files import draw_file

        path = Path(out)
        check_figure_name(path)
        file_format = path.suffix.removeprefix(".")
        with atomic_write(path) as stream:
            stream.write(draw_file(self.figure(), parse_width(width), file_format))
        return path

    def _end(self) -> float:
        distances = self.distances.to_numpy(np.float64)
        ends = [
            np.quantile(column[np.isfinite(column)], _SHOWN_FRACTION)
            for column in distances.T
            if np.isfinite(column).any()
        ]
        return float(max(ends, default=0.0)) or 1.0


def _summarise_network(network: str, distances: NDArray[np.float64]) -> dict[str, Any]:
    accuracy = float((distances > 0).mean())
    low, high = map(float, accuracy_intervals(accuracy, len(distances)))
    median = median_distance(distances)
    return {
        "network": network,
        "clean_accuracy": accuracy,
        "low": low,
        "high": high,
        "median_distance": median.value,
        "median_low": median.low,
        "median_high": median.high,
        "half_distance": half_distance(distances),
        "never_fooled": float(np.isinf(distances).mean()),
        "n_images": len(distances),
    }
