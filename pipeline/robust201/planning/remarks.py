"""Warnings of plan, run, submit and doctor: what a valid sweep leaves out, and values that may be mistakes."""

from collections.abc import Iterator
from typing import NamedTuple

from robust201.images.specs import UNKNOWN_COUNT
from robust201.planning.config import SweepConfig
from robust201.planning.facts import Facts
from robust201.planning.transfers import TransferParameters

_SHOWN_KEYS = 3


class Remark(NamedTuple):
    """A warning, and what to do if it is right."""

    what: str
    fix: str

    def __str__(self) -> str:
        return f"{self.what}. {self.fix}"


def count_remarks(config: SweepConfig, facts: Facts) -> list[Remark]:
    """List the datasets whose images a plan could not count (see `planning.plan.assumed_facts`)."""
    return [
        Remark(
            f"the images of {dataset} cannot be read from {config.datasets[dataset].path}, so bytes and hours leave "
            f"{dataset} out",
            "`robust201 doctor` says what is wrong with them.",
        )
        for dataset, found in facts.datasets.items()
        if found.n_images == UNKNOWN_COUNT
    ]


def sweep_remarks(config: SweepConfig) -> list[Remark]:
    """List everything worth a warning about a sweep."""
    return [*_left_out(config), *_doubtful_parameters(config)]


def _left_out(config: SweepConfig) -> Iterator[Remark]:
    for dataset, section in config.datasets.items():
        keys = config.keys_left_out(dataset)
        # `corruptions: null` leaves the group out on purpose; a key that is named by itself is still worth a line.
        if keys and ("corruptions" not in section.model_fields_set or any(key in config.keys for key in keys)):
            shown = ", ".join(keys) if len(keys) <= _SHOWN_KEYS else f"{len(keys)} corruptions"
            yield Remark(
                f"not evaluated on {dataset}: {shown}, because datasets.{dataset} names no source of corrupted images",
                "To evaluate them, write `corruptions: {source: generated}` there.",
            )


def _doubtful_parameters(config: SweepConfig) -> Iterator[Remark]:
    for key, parameters in config.parameters.items():
        for caution in (parameters.attack if isinstance(parameters, TransferParameters) else parameters).cautions:
            yield Remark(f"keys.{key}.{caution.field}: {caution.what}", caution.fix)
