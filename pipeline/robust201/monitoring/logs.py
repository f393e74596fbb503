"""What the logs of all workers say about one unit, in the order of time (see `runtime.work_log`).

Or about several: those of one network by each of its weights.
"""

import json
import re
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from os.path import commonprefix
from pathlib import Path
from typing import Any, BinaryIO

from robust201.core.errors import InputError, StorageError, closest
from robust201.core.files import IrregularFileError, open_file
from robust201.core.records import Unit, show_architecture
from robust201.runtime.work_log import LOGS_FOLDER, MAX_BYTES, label_of
from robust201.spaces import DEFAULT_SPACE, SPACES

MAX_LOG_BYTES = 8 * MAX_BYTES
"""Largest log that is read."""

_SHOWN_CANDIDATES = 5
_LABEL = re.compile(
    r"#?(?P<architecture>[^/\s]+)[/\s]+(?P<dataset>[^/\s]+)[/\s]+(?P<key>[^/\s]+)(?:[/\s]+(?P<weights>\S+))?"
)
_UNIT = re.compile(rb'"unit": "([0-9a-f]{32})"')

Line = Mapping[str, Any]


def find_units(name: str, units: Sequence[Unit], results: Path, space: str = DEFAULT_SPACE) -> dict[str, str]:
    """Find the unit that a user means, or the units of a network by each of its weights: label by id.

    Args:
        name: its id or the beginning of it, or its label, such as ``21/cifar10/pgd`` (``#21 cifar10 pgd`` likewise; any
            index or cell string of the architecture's isomorphism class will do), or ``resnet18/cifar10/pgd``. Where a
            network has several weights, all are meant unless one is named: ``21/cifar10/pgd/random-s0``.
        units: of the plan.
        results: the results folder, whose logs may name units of earlier plans.
        space: name of the architectures' space.

    Raises:
        InputError: no unit is meant, or several are; the closest or the candidates are named.
    """
    label = _LABEL.fullmatch(name.strip())
    if label is not None:
        return _find_by_label(label["architecture"], label["dataset"], label["key"], label["weights"], units, space)
    labels = {unit.id: label_of(unit) for unit in units}
    if re.fullmatch(r"[0-9a-f]{1,32}", name):
        found = sorted(unit_id for unit_id in labels if unit_id.startswith(name))
        if not found:
            labels = dict.fromkeys(_logged_ids(results), "of another plan") | labels
            found = sorted(unit_id for unit_id in labels if unit_id.startswith(name))
        if len(found) == 1:
            return {found[0]: labels[found[0]]}
        if found:
            shown = ", ".join(f"{unit_id} ({labels[unit_id]})" for unit_id in found[:_SHOWN_CANDIDATES])
            more = ", …" if len(found) > _SHOWN_CANDIDATES else ""
            raise InputError(
                f"Looking up logs failed for {name}: expected the beginning of one id, got that of {len(found)}: "
                f"{shown}{more}. Add some digits."
            )
    near = _closest_id(name, labels)
    raise InputError(
        f"Looking up logs failed for {name}: expected the beginning of an id, or ARCHITECTURE/DATASET/KEY such "
        f"as 21/cifar10/pgd, got another text.{near} Ids are in `robust201 status --json` and in the logs."
    )


def _find_by_label(
    architecture: str, dataset: str, key: str, weights: str | None, units: Sequence[Unit], space: str
) -> dict[str, str]:
    is_text = isinstance(units[0].architecture, str)  # as in spaces without indices
    wanted = architecture if is_text else SPACES[space].resolve(architecture)
    datasets = dict.fromkeys(unit.dataset for unit in units)
    keys = dict.fromkeys(unit.key for unit in units if unit.dataset == dataset)
    there_are = [unit for unit in units if (unit.architecture, unit.dataset, unit.key) == (wanted, dataset, key)]
    found = {unit.id: label_of(unit) for unit in there_are if weights in {None, unit.weights}}
    if found:
        return found
    if there_are:
        what, near = f"weights {weights!r}", closest(str(weights), [unit.weights for unit in there_are if unit.weights])
    elif dataset not in datasets:
        what, near = f"dataset {dataset!r}", closest(dataset, datasets)
    elif key not in keys:
        what, near = f"key {key!r}", closest(key, keys)
    else:
        what = f"architecture {show_architecture(wanted)}"
        there = sorted({unit.architecture for unit in units})
        if isinstance(wanted, str):
            near = closest(wanted, map(str, there))
        else:
            near = f" The closest one is {there[min(bisect_left(there, wanted), len(there) - 1)]}."
    asked = "/".join(filter(None, (architecture, dataset, key, weights)))
    raise InputError(
        f"Looking up logs failed for {asked}: expected a network and key of this sweep, got {what}, which it lacks."
        f"{near}"
    )


def _closest_id(name: str, ids: Iterable[str]) -> str:
    """Name the id that shares the longest beginning; comparing 290,970 of them in any other way takes a minute."""
    ordered = sorted(ids)
    place = bisect_left(ordered, name)
    around = ordered[max(0, place - 1) : place + 1]
    shared, best = max(((len(commonprefix([unit_id, name])), unit_id) for unit_id in around), default=(0, ""))  # noqa: RUF071
    return f" Did you mean {best!r}?" if shared else ""


def _logged_ids(results: Path) -> set[str]:
    found: set[str] = set()
    for stream in _open_all(results):
        found.update(match[1].decode() for line in stream if (match := _UNIT.search(line)))
    return found


_TEXTS_OF_A_LINE = ("time", "level", "event", "message")


def log_files(results: Path) -> list[Path]:
    """All log files of a results folder, in the order in which their workers began."""
    return sorted((results / LOGS_FOLDER).glob("*.jsonl"))


def _open_all(results: Path) -> Iterator[BinaryIO]:
    """Open one log file after the other; what went since it was listed is left out, for logs may go at any time."""
    for path in log_files(results):
        try:
            stream = open_file(path, MAX_LOG_BYTES)
        except FileNotFoundError:
            continue
        except (IsADirectoryError, IrregularFileError) as error:
            raise StorageError(
                f"Reading logs failed for {path}: expected a log file, got {error.strerror}. Move it away."
            ) from error
        with stream:
            yield stream


def read_logs(results: Path, unit_ids: Collection[str]) -> list[Line]:
    """Read every line about some units, by time; the clocks of hosts may differ."""
    return next(_looks(results, unit_ids))


def follow_logs(results: Path, unit_ids: Collection[str], *, sleep: Callable[[float], object]) -> Iterator[Line]:
    """Read every line about some units, then, each second, those that are added, until the caller stops."""
    for lines in _looks(results, unit_ids):
        yield from lines
        sleep(1.0)


def _looks(results: Path, unit_ids: Collection[str]) -> Iterator[list[Line]]:
    """Give all lines about some units, then those that are added between one look and the next, each time sorted."""
    wanted = re.compile(f'"unit": "(?:{"|".join(unit_ids)})"'.encode())
    offsets: dict[bytes, int] = {}
    while True:
        found: list[Line] = []
        for stream in _open_all(results):
            first = stream.readline()  # tells files apart, whatever a rotation calls them
            stream.seek(offsets.get(first, 0))
            whole = stream.read().rpartition(b"\n")[0]
            if whole:
                offsets[first] = offsets.get(first, 0) + len(whole) + 1
            found.extend(_parse(line for line in whole.splitlines() if wanted.search(line)))
        yield sorted(found, key=itemgetter("time"))


def _parse(lines: Iterable[bytes]) -> Iterator[Line]:
    for line in lines:
        try:
            parsed = json.loads(line)
        except (ValueError, RecursionError):
            continue  # a process that was killed, or a disk that was full, in the middle of a line
        if isinstance(parsed, dict) and all(isinstance(parsed.get(name), str) for name in _TEXTS_OF_A_LINE):
            yield parsed
