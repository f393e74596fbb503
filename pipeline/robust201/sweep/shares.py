"""Shares of a sweep (`run --share I/N`): filters that select disjoint sets of its parts.

A part's share is computed from its identifier (such as unit and slice), so all machines agree without communicating.
"""

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from robust201.core.errors import ConfigError
from robust201.core.records import content_digest
from robust201.sweep.parts import KeyState, SweepState
from robust201.sweep.plan import PlannedKey

_HASH_DIGITS = 15


@dataclass(frozen=True)
class Share:
    """Share `index` of `count`, counted from 1."""

    index: int
    count: int

    @classmethod
    def parse(cls, text: str) -> "Share":
        """Parse ``I/N``.

        Raises:
            ConfigError: the text is not a share.
        """
        match = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text, re.ASCII)
        share = cls(int(match[1]), int(match[2])) if match else cls(0, 0)
        if not 1 <= share.index <= share.count:
            raise ConfigError(
                "Reading the command line failed for --share: expected I/N with I from 1 to N, such as 3/64, got "
                f"{text!r}. Correct the option."
            )
        return share

    def restrict(self, state: SweepState) -> tuple[SweepState, int]:
        """Return a state in which the parts of other shares count as stored.

        The second value is the number of evaluations that have no part in the share.
        """
        states, n_outside = [], 0
        for key_state in state.keys:
            key, is_in_share = key_state.key, self._find_own_slices(key_state.key)
            states.append(KeyState(key, key_state.done | ~is_in_share[:, None]))
            has_parts = np.logical_or.reduceat(is_in_share, key.first_slices[:-1])
            n_outside += int((~has_parts).sum()) * len(key.strengths)
        return SweepState(tuple(states)), n_outside

    def _find_own_slices(self, key: PlannedKey) -> NDArray[np.bool_]:
        """Return which slices of a key belong to the share (see `PlannedKey.first_slices`).

        A unit's id (a hash) selects the share of its first slice. The next slices go to the next shares in turn.
        """
        first_shares = np.array([int(unit[:_HASH_DIGITS], 16) for unit in key.units], np.int64) % self.count
        index = np.arange(int(key.n_slices.sum())) - np.repeat(key.first_slices[:-1], key.n_slices)
        shares = (np.repeat(first_shares, key.n_slices) + index) % self.count
        return np.asarray(shares == self.index - 1)

    def has_images(self, *names: str | int) -> bool:
        """Return whether the share generates the corrupted images whose `ImagePart.id` consists of `names`."""
        return int(content_digest(list(names))[:_HASH_DIGITS], 16) % self.count == self.index - 1
