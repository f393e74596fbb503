"""Measured costs of keys, for estimates of the time left: multiply-accumulates alone are wrong by factors."""

import math
from collections import defaultdict
from dataclasses import dataclass


@dataclass
class _Work:
    """An amount of work."""

    macs: float = 0.0
    evaluations: float = 0.0
    seconds: float = 0.0

    def add(self, macs: float, evaluations: float, seconds: float = 0.0) -> None:
        self.macs += macs
        self.evaluations += evaluations
        self.seconds += seconds

    @property
    def macs_per_evaluation(self) -> float:
        return self.macs / self.evaluations


class KeyCosts:
    """Remaining work by dataset and key, and the worker time that finished work of each took."""

    def __init__(self) -> None:
        self._left: defaultdict[tuple[str, str], _Work] = defaultdict(_Work)
        self._measured: defaultdict[tuple[str, str], _Work] = defaultdict(_Work)

    def expect(self, key: tuple[str, str], macs: float, evaluations: float) -> None:
        """Add remaining work of a dataset and key; negative amounts remove it."""
        self._left[key].add(macs, evaluations)

    def finish(self, key: tuple[str, str], macs: float, evaluations: float, seconds: float) -> None:
        """Count expected work as finished, and note the worker time that it took."""
        self._left[key].add(-macs, -evaluations)
        self._measured[key].add(macs, evaluations, seconds)

    @property
    def slowness(self) -> float:
        """Worker time per multiply-accumulate of the remaining work, relative to the finished work; 1 if unknown.

        A key of which nothing is finished counts like the one whose evaluations have the most similar number of
        multiply-accumulates.
        """
        measured = {key: work for key, work in self._measured.items() if min(work.macs, work.seconds) > 0}
        left = {key: work for key, work in self._left.items() if min(work.macs, work.evaluations) > 0}
        if not measured or not left:
            return 1.0

        def seconds_per_mac(key: tuple[str, str], work: _Work) -> float:
            size = work.macs_per_evaluation
            alike = measured.get(key) or min(
                measured.values(), key=lambda other: abs(math.log(other.macs_per_evaluation / size))
            )
            return alike.seconds / alike.macs

        macs_left = sum(work.macs for work in left.values())
        macs_measured = sum(work.macs for work in measured.values())
        seconds_left = sum(work.macs * seconds_per_mac(key, work) for key, work in left.items())
        return (seconds_left / macs_left) / (sum(work.seconds for work in measured.values()) / macs_measured)
