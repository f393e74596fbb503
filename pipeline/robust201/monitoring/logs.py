"""Find and read the log lines of units in the logs of all workers, sorted by time (see `runtime.work_log`).

A name can refer to several units: those of one network with different weights.
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
    """Find the units that a name refers to, and return their labels by id.

    Args:
        name: an id or its beginning, or a label such as ``21/cifar10/pgd``, ``#21 cifar10 pgd`` or
            ``resnet18/cifar10/pgd``; an architecture can be any index or cell string of its isomorphism class. If a
            network has several weights, a label selects all of them unless it names one:
            ``21/cifar10/pgd/random-s0``.
        units: the units of the plan.
        results: the results folder, whose logs can contain units of earlier plans.
        space: name of the architectures' space.

    Raises:
        InputError: no unit or several match; the message names the closest or the candidates.
    """
    label = _LABEL.fullmatch(name.strip())
    if label is not None:
        return _find_by_label(label["architecture"], label["dataset"], label["key"], label["weights"], units, space)
    labels = {unit.id: label_of(unit) for unit in units}
    if re.fullmatch(r"[0-9a-f]{1,32}", name):
        matches = sorted(unit_id for unit_id in labels if unit_id.startswith(name))
        if not matches:
            labels = dict.fromkeys(_logged_ids(results), "of another plan") | labels
            matches = sorted(unit_id for unit_id in labels if unit_id.startswith(name))
        if len(matches) == 1:
            return {matches[0]: labels[matches[0]]}
        if matches:
            candidates = ", ".join(f"{unit_id} ({labels[unit_id]})" for unit_id in matches[:_SHOWN_CANDIDATES])
            more = ", …" if len(matches) > _SHOWN_CANDIDATES else ""
            raise InputError(
                f"Looking up logs failed for {name}: expected the beginning of one id, got that of {len(matches)}: "
                f"{candidates}{more}. Add more digits."
            )
    near = _closest_id(name, labels)
    raise InputError(
        f"Looking up logs failed for {name}: expected the beginning of an id, or ARCHITECTURE/DATASET/KEY such "
        f"as 21/cifar10/pgd, got other text.{near} Ids are in `robust201 status --json` and in the logs."
    )


def _find_by_label(
    architecture: str, dataset: str, key: str, weights: str | None, units: Sequence[Unit], space: str
) -> dict[str, str]:
    is_text = isinstance(units[0].architecture, str)  # As in spaces without indices.
    architecture_id = architecture if is_text else SPACES[space].resolve(architecture)
    datasets = dict.fromkeys(unit.dataset for unit in units)
    keys = dict.fromkeys(unit.key for unit in units if unit.dataset == dataset)
    candidates = [
        unit for unit in units if (unit.architecture, unit.dataset, unit.key) == (architecture_id, dataset, key)
    ]
    matches = {unit.id: label_of(unit) for unit in candidates if weights in {None, unit.weights}}
    if matches:
        return matches
    if candidates:
        what, near = (
            f"weights {weights!r}",
            closest(str(weights), [unit.weights for unit in candidates if unit.weights]),
        )
    elif dataset not in datasets:
        what, near = f"dataset {dataset!r}", closest(dataset, datasets)
    elif key not in keys:
        what, near = f"key {key!r}", closest(key, keys)
    else:
        what = f"architecture {show_architecture(architecture_id)}"
        existing = sorted({unit.architecture for unit in units})
        if isinstance(architecture_id, str):
            near = closest(architecture_id, map(str, existing))
        else:
            near = f" The closest one is {existing[min(bisect_left(existing, architecture_id), len(existing) - 1)]}."
    name = "/".join(filter(None, (architecture, dataset, key, weights)))
    raise InputError(
        f"Looking up logs failed for {name}: expected a network and key of this sweep, got {what}, which it does not "
        f"contain.{near}"
    )


def _closest_id(name: str, ids: Iterable[str]) -> str:
    """Suggest the id with the longest common prefix; other comparisons of 290,970 ids would take a minute."""
    ordered = sorted(ids)
    position = bisect_left(ordered, name)
    neighbours = ordered[max(0, position - 1) : position + 1]
    prefixes = ((len(commonprefix([unit_id, name])), unit_id) for unit_id in neighbours)  # noqa: RUF071
    length, best = max(prefixes, default=(0, ""))
    return f" Did you mean {best!r}?" if length else ""


def _logged_ids(results: Path) -> set[str]:
    ids: set[str] = set()
    for stream in _open_all(results):
        ids.update(match[1].decode() for line in stream if (match := _UNIT.search(line)))
    return ids


_TEXT_FIELDS = ("time", "level", "event", "message")


def log_files(results: Path) -> list[Path]:
    """Return all log files of a results folder, in the order in which their workers started."""
    return sorted((results / LOGS_FOLDER).glob("*.jsonl"))


def _open_all(results: Path) -> Iterator[BinaryIO]:
    """Open the log files one by one, without those deleted since they were listed."""
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
    """Read all lines about some units, sorted by time; the clocks of hosts can differ."""
    return next(_read_repeatedly(results, unit_ids))


def follow_logs(results: Path, unit_ids: Collection[str], *, sleep: Callable[[float], object]) -> Iterator[Line]:
    """Yield all lines about some units, then every second the new ones, until the caller stops."""
    for lines in _read_repeatedly(results, unit_ids):
        yield from lines
        sleep(1.0)


def _read_repeatedly(results: Path, unit_ids: Collection[str]) -> Iterator[list[Line]]:
    """Yield the sorted lines about some units, then each time those added since the previous reading."""
    unit_pattern = re.compile(f'"unit": "(?:{"|".join(unit_ids)})"'.encode())
    offsets: dict[bytes, int] = {}
    while True:
        lines: list[Line] = []
        for stream in _open_all(results):
            first = stream.readline()  # Identifies a file even after a rotation has renamed it.
            stream.seek(offsets.get(first, 0))
            complete_lines = stream.read().rpartition(b"\n")[0]
            if complete_lines:
                offsets[first] = offsets.get(first, 0) + len(complete_lines) + 1
            lines.extend(_parse(line for line in complete_lines.splitlines() if unit_pattern.search(line)))
        yield sorted(lines, key=itemgetter("time"))


def _parse(lines: Iterable[bytes]) -> Iterator[Line]:
    for line in lines:
        try:
            parsed = json.loads(line)
        except (ValueError, RecursionError):
            continue  # The line is incomplete because the process was killed or the disk was full.
        if isinstance(parsed, dict) and all(isinstance(parsed.get(name), str) for name in _TEXT_FIELDS):
            yield parsed
