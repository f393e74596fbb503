"""Arguments and options that verbs about a sweep share: the sweep, and filters."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from robust201.cli import console
from robust201.core.errors import ConfigError

if TYPE_CHECKING:
    from robust201.planning.config import SweepConfig
    from robust201.planning.filters import Filters

Sweep = Annotated[
    Path,
    typer.Argument(metavar="SWEEP", help="A sweep YAML (see docs/configuration.md), or the results folder of a sweep."),
]
Results = Annotated[Path, typer.Argument(metavar="RESULTS", help="A results folder, or the sweep YAML that names it.")]
Architectures = Annotated[
    str | None, typer.Option(help="Indices, ranges and cell strings, separated by commas, such as 0-99,309.")
]
Datasets = Annotated[str | None, typer.Option(help="Names separated by commas, such as cifar10,cifar100.")]
Keys = Annotated[str | None, typer.Option(help="Keys separated by commas, such as clean,pgd,corruptions.")]
Limit = Annotated[int | None, typer.Option(min=1, metavar="N", help="Only the first N of the architectures.")]


def split_names(text: str | None) -> tuple[str, ...] | None:
    """Read names that are separated by commas, each once; None where the option was not given."""
    if text is None:
        return None
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise ConfigError(
            f"Reading the command line failed for {text!r}: expected names separated by commas, got none. "
            "Name some, or leave the option out."
        )
    return names


def load_sweep(place: Path, /, **overrides: Any) -> SweepConfig:
    """Read the sweep of a YAML, or of a results folder, and warn of what it leaves out or may not mean.

    Overrides are those of `planning.loading.load_config`.
    """
    from robust201.planning.plan_file import load_any_sweep
    from robust201.planning.sweep_warnings import find_sweep_warnings

    config = load_any_sweep(place, **overrides)
    for warning in find_sweep_warnings(config):
        console.say(f"warning: {warning}")
    return config


def results_of(place: Path) -> Path:
    """The results folder itself, or the one that a sweep YAML names."""
    from robust201.planning.loading import load_config

    return load_config(place).results if place.is_file() else place


def make_filters(
    config: SweepConfig, architectures: str | None, datasets: str | None, keys: str | None, limit: int | None
) -> Filters:
    """Read what a command narrows a sweep to."""
    from robust201.planning.filters import Filters

    chosen = None if architectures is None else config.make_space({}).select(architectures)
    if limit is not None:
        in_sweep = config.selected_architectures
        known = set(in_sweep)
        asked = in_sweep if chosen is None else tuple(name for name in chosen if name in known) or chosen
        chosen = asked[:limit]
    named = split_names(keys)
    return Filters(chosen, split_names(datasets), None if named is None else config.keys_named(named))


def narrowing_words(
    architectures: str | None, datasets: str | None, keys: str | None, limit: int | None
) -> tuple[str, ...]:
    """Write out the options that `make_filters` reads, for a command that another machine runs."""
    given = {"--architectures": architectures, "--datasets": datasets, "--keys": keys, "--limit": limit}
    return tuple(word for option, value in given.items() if value is not None for word in (option, str(value)))
