"""Security curves: accuracy at every epsilon, from the smallest perturbation of each image, as a table and a figure."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from robust201.core.errors import ConfigError
from robust201.core.files import atomic_write, check_output_file
from robust201.figures.marks import band_layers, fraction_axis, named_colours
from robust201.figures.palette import NETWORK_COLOURS
from robust201.figures.panels import Figure, Panel, PanelPlace, Spec
from robust201.figures.plots import DRAWN_FORMATS, parse_width
from robust201.figures.vega_files import draw_file
from robust201.statistics.distances import accuracy_curve, half_distance, median_distance
from robust201.statistics.intervals import accuracy_intervals
from robust201.statistics.optimality import global_optimality, local_optimalities
from robust201.tasks.constraints import Constraint

_POINTS = 400
"""Epsilons at which a drawn curve has its accuracy."""

_SHOWN = 0.99
"""Share of the fooled images of the most robust network whose distances the horizontal axis shows."""

_PANEL_HEIGHT = 120.0
_PANEL_WIDTH = 150.0


class SecurityCurves(pd.DataFrame):
    """One row per network; see `robust201.curves`. A part of the table is a plain DataFrame."""

    _metadata = ["_distances", "_constraint", "_by_attack"]  # noqa: RUF012 - pandas reads a list
    _distances: pd.DataFrame
    _constraint: Constraint
    _by_attack: dict[str, pd.DataFrame]

    @classmethod
    def of(
        cls, by_attack: Mapping[str, pd.DataFrame], constraint: Constraint, further: Mapping[str, Sequence[Any]]
    ) -> "SecurityCurves":
        """Make the table.

        Args:
            by_attack: by network, distances in units of the axis of strengths: a column per attack, a row per image.
            constraint: the norm of the distances.
            further: columns of the table behind those that follow from the distances.
        """
        distances = pd.DataFrame({name: frame.min(axis=1) for name, frame in by_attack.items()})
        table = cls([_row(str(name), distances[name].to_numpy(np.float64)) for name in distances])
        for column, values in further.items():
            table[column] = list(values)
        table._distances, table._constraint, table._by_attack = distances, constraint, dict(by_attack)
        return table

    @property
    def _constructor(self) -> type[pd.DataFrame]:
        return pd.DataFrame

    @property
    def distances(self) -> pd.DataFrame:
        """The smallest perturbation of each image: one row per image, one column per network, as strengths are written.

        0 for images that are wrong as they are, infinity for those that no attack fooled.
        """
        return self._distances

    @property
    def optimality(self) -> pd.DataFrame:
        """How near each attack comes to the smallest distance of every image by any of the attacks.

        A row per attack: its local optimality on each network, and their mean, `global` (Cinà et al., "AttackBench",
        AAAI 2025; see `robust201.statistics.optimality`). With one attack, it is 1.
        """
        frame = pd.DataFrame(
            {
                name: local_optimalities({str(attack): by_image[attack].to_numpy(np.float64) for attack in by_image})
                for name, by_image in self._by_attack.items()
            }
        )
        means = [global_optimality(row) for row in frame.to_numpy().tolist()]
        return frame.assign(**{"global": means}).rename_axis("attack")

    @property
    def _attacks(self) -> list[str]:
        return [str(name) for name in next(iter(self._by_attack.values()))]

    def accuracy(self, epsilons: Sequence[float] | NDArray[np.float64]) -> pd.DataFrame:
        """Compute accuracies at any epsilons, as strengths are written (Linf: in units of 1/255).

        An image is fooled at an epsilon where its perturbation counts as in the ball, as in `evaluate`: rounding to
        float32 may leave it a little outside.

        Returns:
            One row per network and epsilon: `network`, `epsilon`, `accuracy`, `low` and `high` (its 95% interval).
        """
        constraint, shown = self._constraint, np.asarray(epsilons, np.float64)
        reached = np.array([constraint.reach(epsilon) * constraint.divisor for epsilon in shown.tolist()], np.float64)
        # At epsilon 0 the images are the clean ones.
        reached[shown <= 0] = shown[shown <= 0]
        frames = []
        for name in self._distances:
            curve = accuracy_curve(self._distances[name], reached)
            columns = {"epsilon": shown, "accuracy": curve.accuracy, "low": curve.low, "high": curve.high}
            frames.append(pd.DataFrame({"network": name, **columns}))
        return pd.concat(frames, ignore_index=True)

    @property
    def summary(self) -> str:
        """A sentence about each network."""
        unit = "/255" if self._constraint.divisor == 255 else ""
        lines = []
        for row in self.to_dict("records"):
            if row["clean_accuracy"] == 0:
                half = "it classifies no image correctly, so that there is none to fool"
            elif np.isfinite(row["half_distance"]):
                half = f"half of the images that it classifies correctly are fooled at {row['half_distance']:.4g}{unit}"
            else:
                half = "fewer than half of the images that it classifies correctly were fooled"
            count = round(row["never_fooled"] * row["n_images"])
            failed = f" The attacks failed on {count:,} of {row['n_images']:,} images." if count else ""
            lines.append(
                f"{row['network']}: accuracy {row['clean_accuracy']:.1%} ({row['low']:.1%} to {row['high']:.1%}); "
                f"{half} "
                f"({self._constraint.name}, {', '.join(self._attacks)}; a stronger attack may need less).{failed}"
            )
        return "\n".join(lines)

    def figure(self, largest: float | None = None) -> Figure:
        """Specify the figure: a line per network with a band of 95% intervals, each epsilon by itself.

        Args:
            largest: end of the horizontal axis; by default it shows 99 percent of the fooled images.
        """
        end = self._usual_end() if largest is None else largest
        rows = self.accuracy(np.linspace(0, end, _POINTS))
        names = [str(name) for name in self._distances]
        colours = {name: NETWORK_COLOURS[place % len(NETWORK_COLOURS)] for place, name in enumerate(names)}

        def draw(place: PanelPlace) -> Spec:
            scale = {"domain": [0, end], "nice": False}
            encoding = {
                "x": {"type": "quantitative", "scale": scale, "axis": {"title": self._constraint.axis, "tickCount": 6}},
                "y": fraction_axis(place, "accuracy"),
                "color": named_colours(colours, symbolType="stroke"),
            }
            layers = band_layers(rows, {"field": "epsilon"}, ("low", "accuracy", "high"), {"field": "network"})
            return {"width": place.width, "height": _PANEL_HEIGHT, "encoding": encoding, "layer": layers}

        n_images = len(self._distances)
        note = f"{', '.join(self._attacks)}; {n_images:,} images; bands: 95% intervals"
        return Figure([Panel("", draw)], _PANEL_WIDTH, notes=(note,))

    def save(self, out: str | Path, *, width: str | float = "column", largest: float | None = None) -> Path:
        """Draw the curves into a file.

        Args:
            out: a name that ends in .pdf, .svg or .png.
            width: ``column``, ``page``, or inches.
            largest: see `figure`.

        Raises:
            ConfigError: the name has another ending, or no such width.
        """
        path = Path(out)
        check_figure_name(path)
        kind = path.suffix.removeprefix(".")
        with atomic_write(path) as stream:
            stream.write(draw_file(self.figure(largest), parse_width(width), kind))
        return path

    def _usual_end(self) -> float:
        found = self._distances.to_numpy(np.float64)
        ends = [np.quantile(column[np.isfinite(column)], _SHOWN) for column in found.T if np.isfinite(column).any()]
        return float(max(ends, default=0.0)) or 1.0


def check_figure_name(out: Path) -> None:
    """Reject a file that curves cannot be drawn into, before anything is computed."""
    if out.suffix.removeprefix(".") not in DRAWN_FORMATS:
        raise ConfigError(
            f"Drawing curves failed for {out}: expected a name that ends in .{', .'.join(DRAWN_FORMATS)}, got "
            f"{out.suffix or 'none'}. Name the file otherwise."
        )
    check_output_file(out)


def _row(network: str, distances: NDArray[np.float64]) -> dict[str, Any]:
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
