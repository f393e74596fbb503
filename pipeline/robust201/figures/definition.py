"""The definition of a figure: its texts, its data and its drawing."""

from collections.abc import Callable
from typing import NamedTuple

import pandas as pd

from robust201.analysis.dataset_results import MEAN_NOTE, DatasetResults
from robust201.figures.panels import Figure

MAX_NAMED_NETWORKS = 11
"""Maximum number of networks in figures of a dataset with a curve per network; more are summarised by box plots."""

MIN_SUMMARISED_NETWORKS = MAX_NAMED_NETWORKS + 1
"""Minimum number of networks for box plots and rank correlations."""


class FigureDefinition(NamedTuple):
    """A figure.

    Attributes:
        name: name on the command line, in file names and in addresses of the page.
        title: short title.
        caption: description in a sentence or two.
        source: the corresponding figures of Jung, Lukasik and Keuper (ICLR 2023), or ``""``.
        needs: results that the figure needs.
        compute: function that returns the figure's numbers, or an empty frame if the results do not suffice.
        draw: function that returns the drawing of a frame, for files and the page.
        is_across_datasets: whether the figure shows all datasets of a folder together. `compute` then receives the
            results of any one of them, whose attribute `folder` contains the results of all datasets.
        shows_means: whether the figure shows means over attacks or corruptions, so that it must state their weighting.
        min_networks: minimum number of networks; distributions and rank correlations need several.
        max_networks: maximum number of networks that the figure can show individually.
    """

    name: str
    title: str
    caption: str
    source: str
    needs: str
    compute: Callable[[DatasetResults], pd.DataFrame]
    draw: Callable[[pd.DataFrame, DatasetResults], Figure]
    is_across_datasets: bool = False
    shows_means: bool = False
    min_networks: int = 1
    max_networks: int | None = None

    def compute_numbers(self, results: DatasetResults) -> pd.DataFrame:
        """Compute the figure's numbers; the frame is empty if the results do not suffice or have too many networks."""
        n_networks = len(results.accuracies)
        if n_networks < self.min_networks or (self.max_networks is not None and n_networks > self.max_networks):
            return pd.DataFrame()
        return self.compute(results)

    @property
    def requirement(self) -> str:
        """Results that the figure needs, including the number of networks."""
        if self.max_networks is not None:
            return f"{self.needs}, and at most {self.max_networks} networks"
        return f"{self.needs}, and at least {self.min_networks} networks" if self.min_networks > 1 else self.needs

    @property
    def description(self) -> str:
        """Caption, with the weighting of means and the paper's corresponding figures."""
        weighting_note = f" {MEAN_NOTE}" if self.shows_means else ""
        source_note = f" After {self.source} of Jung et al., ICLR 2023." if self.source else ""
        return f"{self.caption}{weighting_note}{source_note}"
