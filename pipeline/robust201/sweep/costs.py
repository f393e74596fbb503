"""Estimated worker-hours of missing parts, from speeds that were measured, or assumed before there are any."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from robust201.sweep.parts import KeyState, SweepState


class KeyCost(NamedTuple):
    """Cost of the missing parts of one key.

    Attributes:
        hours: estimated worker-hours.
        is_measured: whether parts of the key have been computed; else its speed is that of other keys, or assumed.
    """

    dataset: str
    key: str
    hours: float
    is_measured: bool


class Speeds:
    """Seconds per multiply-accumulate by dataset and key, measured from events (see `store.events`)."""

    def __init__(self, events: Iterable[Mapping[str, Any]]) -> None:
        self._totals: dict[tuple[str, str], tuple[float, float]] = {}
        for event in events:
            if event["event"] == "done" and "macs" in event:
                self.add(event["dataset"], event["key"], event["macs"], event["seconds"])

    def add(self, dataset: str, key: str, macs: float, seconds: float) -> None:
        """Add the measurement of a part."""
        total_macs, total_seconds = self._totals.get((dataset, key), (0.0, 0.0))
        self._totals[dataset, key] = total_macs + macs, total_seconds + seconds

    def estimate_seconds(self, macs: Mapping[tuple[str, str], float]) -> float | None:
        """Return the worker-seconds of multiply-accumulates by dataset and key; None if nothing was measured."""
        if not self._totals:
            return None
        return sum(amount * self._seconds_per_mac(name, 0.0)[0] for name, amount in macs.items())

    def seconds_per_mac(self, state: KeyState, assumed: float) -> tuple[float, bool]:
        """Return the seconds per multiply-accumulate, and whether they were measured for this key."""
        return self._seconds_per_mac((state.key.dataset, state.key.key), assumed)

    def _seconds_per_mac(self, name: tuple[str, str], assumed: float) -> tuple[float, bool]:
        macs, seconds = self._totals.get(name, (0.0, 0.0))
        if macs and seconds:
            return seconds / macs, True
        macs, seconds = (sum(values) for values in zip(*self._totals.values(), strict=True)) if self._totals else (0, 0)
        return (seconds / macs if macs and seconds else assumed), False


def key_costs(state: SweepState, speeds: Speeds, assumed_gmacs: float) -> list[KeyCost]:
    """Return the cost of each key that has missing parts."""
    costs = []
    for key in (key for key in state.keys if key.n_missing_parts):
        seconds, is_measured = speeds.seconds_per_mac(key, 1 / (assumed_gmacs * 1e9))
        costs.append(KeyCost(key.key.dataset, key.key.key, key.missing_macs * seconds / 3600, is_measured))
    return costs
