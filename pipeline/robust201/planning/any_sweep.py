"""A sweep by its YAML or by its results folder."""

from pathlib import Path
from typing import Any

from robust201.planning.config import SweepConfig
from robust201.planning.loading import load_config


def load_any_sweep(place: Path, /, **overrides: Any) -> SweepConfig:
    """Read the sweep of a YAML, or the one kept in a results folder (see `planning.loading.load_config`)."""
    if not place.is_dir():
        return load_config(place, **overrides)
    # It comes with the store of results, which takes long to import and which a YAML does not need.
    from robust201.planning.plan_file import load_kept_sweep

    return load_kept_sweep(place, **overrides)
