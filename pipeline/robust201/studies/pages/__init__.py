"""Pages of studies with their tables (CSV) and figures (SVG), computed from exports of the sweeps."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from robust201.core.files import make_folder
from robust201.planning.config import SweepConfig
from robust201.studies.config import (
    DynamicsStudy,
    EquivarianceStudy,
    ImageDistributionStudy,
    MixingStudy,
    Study,
)
from robust201.studies.networks import Exports
from robust201.studies.pages.image_distribution import write_image_distribution
from robust201.studies.pages.robust_features import write_dynamics, write_equivariance, write_mixing


def write_pages(study: Study, exports: Exports, out: Path, sweeps: Sequence[SweepConfig] = ()) -> list[Path]:
    """Write a study's page, tables and figures to a folder; return the files, starting with the page.

    `sweeps` provide the weights and images for figures of attacked images; without them, there are no such figures.

    Raises:
        ResultsError: results of the study are missing.
    """
    for name in ("tables", "figures"):
        make_folder(out / name)
    writers: Mapping[type[Study], Callable[[Any, Exports, Path], list[Path]]] = {
        ImageDistributionStudy: partial(write_image_distribution, sweeps=sweeps),
        DynamicsStudy: write_dynamics,
        MixingStudy: write_mixing,
        EquivarianceStudy: write_equivariance,
    }
    return writers[type(study)](study, exports, out)
