"""Shares of a sweep: what each of several workers without a driver computes, on any machines that see one folder.

Share i of n is every n-th bundle of the plan, from the i-th on. That follows from (plan, i, n) alone, so shares need no
lease and never talk to each other; what is done already is subtracted after the division and moves no bundle to another
share. Bundles are sorted longest first, so the estimated work of two shares differs by one bundle at most.

A share keeps what it reports of itself in a folder of its own, ``shares/<i>-of-<n>/`` in the results folder, with the
files that a driver keeps at the top. These files are for people only: what is done is said by the shards.
"""

import re
import reprlib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from robust201.core.errors import ConfigError
from robust201.core.records import Bundle, Part
from robust201.planning.bundles import make_bundles
from robust201.planning.plan import Plan

_FOLDER = "shares"
_NAME = re.compile(r"(\d+)-of-(\d+)")


@dataclass(frozen=True, slots=True)
class Share:
    """One of several equal shares of a sweep: the index, from 1, and how many there are."""

    index: int
    count: int

    @classmethod
    def parse(cls, text: str) -> "Share":
        """Read a share such as ``3/64``: the third of 64, counted from 1."""
        match = re.fullmatch(r"\s*([0-9]{1,9})\s*/\s*([0-9]{1,9})\s*", text)
        if match is None or not 1 <= int(match[1]) <= int(match[2]):
            raise ConfigError(
                f"Reading --share failed: expected I/N with I from 1 to N, such as 3/64, got {reprlib.repr(text)}. "
                "Number the runs from 1."
            )
        return cls(int(match[1]), int(match[2]))

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"

    @property
    def name(self) -> str:
        """Its name in files, such as ``3-of-64``."""
        return f"{self.index}-of-{self.count}"

    def folder(self, results: Path) -> Path:
        return results / _FOLDER / self.name

    def bundles(self, divided: tuple[Bundle, ...]) -> tuple[Bundle, ...]:
        return divided[self.index - 1 :: self.count]


def all_bundles(plan: Plan) -> tuple[Bundle, ...]:
    """Every bundle of a plan, whatever is done of it, longest first: what shares divide."""
    bundles = make_bundles(plan, (Part(unit, unit.strengths, 0, unit.n_images) for unit in plan.units))
    return tuple(sorted(bundles, key=lambda bundle: -bundle.seconds))


def missing_bundles(bundles: Iterable[Bundle], missing: Iterable[Part]) -> tuple[Bundle, ...]:
    """Keep what is missing of some bundles of a plan, in their order, with what is left of their parts."""
    missing_of: defaultdict[str, list[Part]] = defaultdict(list)
    for part in missing:
        missing_of[part.unit.id].append(part)
    left = (
        (bundle, tuple(rest for part in bundle.parts for rest in intersect(part, missing_of[part.unit.id])))
        for bundle in bundles
    )
    return tuple(bundle.keep(parts) for bundle, parts in left if parts)


def intersect(part: Part, missing: Iterable[Part]) -> Iterator[Part]:
    """What is missing of one part, given missing parts of the same unit."""
    for gap in missing:
        strengths = tuple(strength for strength in part.strengths if strength in gap.strengths)
        start, stop = max(part.start, gap.start), min(part.stop, gap.stop)
        if strengths and start < stop:
            yield Part(part.unit, strengths, start, stop)


def share_folders(results: Path) -> tuple[Path, ...]:
    """Folders of all shares that ever ran in a results folder, by number of shares and index."""
    found = [
        (int(match[2]), int(match[1]), path)
        for path in (results / _FOLDER).glob("*-of-*")
        if (match := _NAME.fullmatch(path.name))
    ]
    return tuple(path for _, _, path in sorted(found))
