"""Warnings of plan, run, submit and doctor: what a valid sweep leaves out, and values that may be mistakes."""

from collections.abc import Iterator
from typing import NamedTuple

from robust201.planning.config import SweepConfig
from robust201.tasks.parameters import EpsilonParameters, looks_like_pixels

_SHOWN_KEYS = 3


class Remark(NamedTuple):
    """A warning, and what to do if it is right."""

    what: str
    fix: str

    def __str__(self) -> str:
        return f"{self.what}. {self.fix}"


def sweep_remarks(config: SweepConfig) -> list[Remark]:
    """List everything worth a warning about a sweep."""
    return [*_left_out(config), *_suspicious_epsilons(config)]


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


def _suspicious_epsilons(config: SweepConfig) -> Iterator[Remark]:
    for key, parameters in config.parameters.items():
        if not isinstance(parameters, EpsilonParameters):
            continue
        for epsilon in parameters.epsilons_255:
            k = looks_like_pixels(epsilon)
            if k is not None:
                yield Remark(
                    f"keys.{key}.epsilons_255: {epsilon:g} is in units of 1/255, so it means {epsilon:g}/255",
                    f"If {k}/255 is meant, write `epsilons_255: [{k}]` or `epsilons: [{k}/255]`.",
                )
