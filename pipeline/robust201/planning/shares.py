"""Divide a sweep into job shares: independent jobs (`run --share I/N`) on any machines that see the results folder.

Shares need no driver, the process that otherwise distributes the work among workers.

Job share i of n consists of every n-th bundle (work on one network, see `planning.bundles`) of the plan, starting with
the i-th. It depends only on (plan, i, n), so shares need no lease and no communication. Completed work is subtracted
after the division, so that bundles never move to another share. Bundles are sorted by decreasing estimated time, so the
estimated work of two shares differs by at most one bundle.

Each share writes its progress files to its own folder, ``shares/<i>-of-<n>/`` in the results folder; a driver writes
the same files to the results folder itself. These files are for people only: completion is recorded by the shards.
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

_SHARES_FOLDER = "shares"
_FOLDER_NAME = re.compile(r"(\d+)-of-(\d+)")


@dataclass(frozen=True, slots=True)
class Share:
    """One of `count` equal job shares of a sweep; `index` starts at 1."""

    index: int
    count: int

    @classmethod
    def parse(cls, text: str) -> "Share":
        """Parse the text of a job share, such as ``3/64`` for the third of 64."""
        match = re.fullmatch(r"\s*([0-9]{1,9})\s*/\s*([0-9]{1,9})\s*", text)
        if match is None or not 1 <= int(match[1]) <= int(match[2]):
            raise ConfigError(
                f"Reading --share failed: expected I/N with I from 1 to N, such as 3/64, got {reprlib.repr(text)}. "
                "Number the job shares from 1."
            )
        return cls(int(match[1]), int(match[2]))

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"

    @property
    def name(self) -> str:
        """Name in file paths, such as ``3-of-64``."""
        return f"{self.index}-of-{self.count}"

    def folder(self, results: Path) -> Path:
        """Return the folder of the share's progress files."""
        return results / _SHARES_FOLDER / self.name

    def bundles(self, plan_bundles: tuple[Bundle, ...]) -> tuple[Bundle, ...]:
        """Return the bundles of this share, given all bundles of the plan."""
        return plan_bundles[self.index - 1 :: self.count]


def all_bundles(plan: Plan) -> tuple[Bundle, ...]:
    """Return all bundles of a plan, including completed work, by decreasing estimated time."""
    bundles = make_bundles(plan, (Part(unit, unit.strengths, 0, unit.n_images) for unit in plan.units))
    return tuple(sorted(bundles, key=lambda bundle: -bundle.seconds))


def missing_bundles(bundles: Iterable[Bundle], missing: Iterable[Part]) -> tuple[Bundle, ...]:
    """Reduce bundles to the parts whose results are missing, in the same order; complete bundles are removed."""
    missing_by_unit: defaultdict[str, list[Part]] = defaultdict(list)
    for part in missing:
        missing_by_unit[part.unit.id].append(part)
    remaining_bundles = (
        (
            bundle,
            tuple(
                intersection for part in bundle.parts for intersection in intersect(part, missing_by_unit[part.unit.id])
            ),
        )
        for bundle in bundles
    )
    return tuple(bundle.keep(parts) for bundle, parts in remaining_bundles if parts)


def intersect(part: Part, missing: Iterable[Part]) -> Iterator[Part]:
    """Yield the intersections of a part with missing parts of the same unit."""
    for missing_part in missing:
        strengths = tuple(strength for strength in part.strengths if strength in missing_part.strengths)
        start, stop = max(part.start, missing_part.start), min(part.stop, missing_part.stop)
        if strengths and start < stop:
            yield Part(part.unit, strengths, start, stop)


def share_folders(results: Path) -> tuple[Path, ...]:
    """Return the folders of all shares that have run in a results folder, sorted by number of shares and index."""
    folders = [
        (int(match[2]), int(match[1]), path)
        for path in (results / _SHARES_FOLDER).glob("*-of-*")
        if (match := _FOLDER_NAME.fullmatch(path.name))
    ]
    return tuple(path for _, _, path in sorted(folders))
