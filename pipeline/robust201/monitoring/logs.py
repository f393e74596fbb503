"""Finds the lines about units in the logs of all workers, and sorts them by time (see `runtime.work_log`).

A unit is one network (with one set of weights) on one dataset under one key. A name such as ``21/cifar10/pgd`` refers
to several units if the architecture has several sets of weights.
"""

import json
import re
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from os.path import commonprefix
from pathlib import Path
from typing import Any, BinaryIO

from robust201.core.errors import InputError, StorageError, did_you_mean
from robust201.core.files import IrregularFileError, open_file
from robust201.core.records import Unit, format_architecture
from robust201.runtime.work_log import LOGS_FOLDER, MAX_BYTES, unit_label
from robust201.spaces import DEFAULT_SPACE, SPACES

MAX_LOG_BYTES = 8 * MAX_BYTES
"""Maximum size of a log file; a larger file is rejected as invalid."""

_MAX_CANDIDATES = 5
_LABEL = re.compile(
    r"#?(?P<architecture>[^/\s]+)[/\s]+(?P<dataset>[^/\s]+)[/\s]+(?P<key>[^/\s]+)(?:[/\s]+(?P<weights>\S+))?"
)
_UNIT = re.compile(rb'"unit": "([0-9a-f]{32})"')

LogLine = Mapping[str, Any]


def find_units(unit_name: str, units: Sequence[Unit], results: Path, space: str = DEFAULT_SPACE) -> dict[str, str]:
    """Find the units that a name refers to, and return their labels by id.

    Args:
        unit_name: an id or its beginning, or a label such as ``21/cifar10/pgd``, ``#21 cifar10 pgd`` or
            ``resnet18/cifar10/pgd``. A NAS-Bench-201 architecture can be any index or cell string of its isomorphism
            class. If a network has several sets of weights, a label selects all sets, unless it names one, as in
            ``21/cifar10/pgd/random-s0``.
        units: units of the plan.
        results: results folder, whose logs can contain units of earlier plans.
        space: name of the architectures' space.

    Raises:
        InputError: no unit matches, or an id prefix is ambiguous; the message contains the closest name or the
            candidates.
    """
    label = _LABEL.fullmatch(unit_name.strip())
    if label is not None:
        return _find_by_label(label["architecture"], label["dataset"], label["key"], label["weights"], units, space)
    labels = {unit.id: unit_label(unit) for unit in units}
    if re.fullmatch(r"[0-9a-f]{1,32}", unit_name):
        matches = sorted(unit_id for unit_id in labels if unit_id.startswith(unit_name))
        if not matches:
            labels = dict.fromkeys(_find_logged_ids(results), "of another plan") | labels
            matches = sorted(unit_id for unit_id in labels if unit_id.startswith(unit_name))
        if len(matches) == 1:
            return {matches[0]: labels[matches[0]]}
        if matches:
            candidates = ", ".join(f"{unit_id} ({labels[unit_id]})" for unit_id in matches[:_MAX_CANDIDATES])
            ellipsis = ", …" if len(matches) > _MAX_CANDIDATES else ""
            raise InputError(
                f"Looking up logs failed for {unit_name}: expected the beginning of one id, but {len(matches)} ids "
                f"begin with it: {candidates}{ellipsis}. Add more digits."
            )
    suggestion = _suggest_closest_id(unit_name, labels)
    raise InputError(
        f"Looking up logs failed for {unit_name}: expected the beginning of an id, or ARCHITECTURE/DATASET/KEY such as "
        f"21/cifar10/pgd.{suggestion} Ids are in `robust201 status --json` and in the logs."
    )


def _find_by_label(
    architecture: str, dataset: str, key: str, weights: str | None, units: Sequence[Unit], space: str
) -> dict[str, str]:
    has_text_names = isinstance(units[0].architecture, str)  # in spaces whose architectures are not numbered
    architecture_id = architecture if has_text_names else SPACES[space].resolve(architecture)
    datasets = dict.fromkeys(unit.dataset for unit in units)
    keys = dict.fromkeys(unit.key for unit in units if unit.dataset == dataset)
    candidates = [
        unit for unit in units if (unit.architecture, unit.dataset, unit.key) == (architecture_id, dataset, key)
    ]
    matches = {unit.id: unit_label(unit) for unit in candidates if weights in {None, unit.weights}}
    if matches:
        return matches
    if candidates:
        unknown_name, suggestion = (
            f"weights {weights!r}",
            did_you_mean(str(weights), [unit.weights for unit in candidates if unit.weights]),
        )
    elif dataset not in datasets:
        unknown_name, suggestion = f"dataset {dataset!r}", did_you_mean(dataset, datasets)
    elif key not in keys:
        unknown_name, suggestion = f"key {key!r}", did_you_mean(key, keys)
    else:
        unknown_name = f"architecture {format_architecture(architecture_id)}"
        known_architectures = sorted({unit.architecture for unit in units})
        if isinstance(architecture_id, str):
            suggestion = did_you_mean(architecture_id, map(str, known_architectures))
        else:
            position = min(bisect_left(known_architectures, architecture_id), len(known_architectures) - 1)
            suggestion = f" The closest one is {known_architectures[position]}."
    name = "/".join(filter(None, (architecture, dataset, key, weights)))
    raise InputError(
        f"Looking up logs failed for {name}: expected a network and key of this sweep, but it does not contain "
        f"{unknown_name}.{suggestion}"
    )


def _suggest_closest_id(name: str, ids: Iterable[str]) -> str:
    """Return a sentence that suggests the id with the longest common prefix; a fuzzy search would take a minute."""
    sorted_ids = sorted(ids)
    position = bisect_left(sorted_ids, name)
    neighbours = sorted_ids[max(0, position - 1) : position + 1]
    prefixes = ((len(commonprefix([unit_id, name])), unit_id) for unit_id in neighbours)  # noqa: RUF071
    prefix_length, closest_id = max(prefixes, default=(0, ""))
    return f" Did you mean {closest_id!r}?" if prefix_length else ""


def _find_logged_ids(results: Path) -> set[str]:
    ids: set[str] = set()
    for stream in _open_logs(results):
        ids.update(match[1].decode() for line in stream if (match := _UNIT.search(line)))
    return ids


_TEXT_FIELDS = ("time", "level", "event", "message")


def list_log_files(results: Path) -> list[Path]:
    """Return all log files of a results folder, in the order in which their workers started."""
    return sorted((results / LOGS_FOLDER).glob("*.jsonl"))


def _open_logs(results: Path) -> Iterator[BinaryIO]:
    """Open the log files one by one, except files that were deleted after they were listed."""
    for path in list_log_files(results):
        try:
            stream = open_file(path, MAX_LOG_BYTES)
        except FileNotFoundError:
            continue
        except (IsADirectoryError, IrregularFileError) as error:
            raise StorageError(
                f"Reading logs failed for {path}: expected a log file, got {error.strerror}. Move the file away."
            ) from error
        with stream:
            yield stream


def read_logs(results: Path, unit_ids: Collection[str]) -> list[LogLine]:
    """Read all lines about the given units, sorted by their times, which come from the clocks of different hosts."""
    return next(_read_repeatedly(results, unit_ids))


def follow_logs(results: Path, unit_ids: Collection[str], *, sleep: Callable[[float], object]) -> Iterator[LogLine]:
    """Yield all lines about the given units, and then new lines every second, until the caller stops."""
    for lines in _read_repeatedly(results, unit_ids):
        yield from lines
        sleep(1.0)


def _read_repeatedly(results: Path, unit_ids: Collection[str]) -> Iterator[list[LogLine]]:
    """Yield the sorted lines about the given units; each later list has the lines added since the previous list."""
    unit_pattern = re.compile(f'"unit": "(?:{"|".join(unit_ids)})"'.encode())
    offsets: dict[bytes, int] = {}
    while True:
        lines: list[LogLine] = []
        for stream in _open_logs(results):
            first_line = stream.readline()  # identifies a file even after a rotation has renamed it
            stream.seek(offsets.get(first_line, 0))
            complete_lines = stream.read().rpartition(b"\n")[0]
            if complete_lines:
                offsets[first_line] = offsets.get(first_line, 0) + len(complete_lines) + 1
            lines.extend(_parse(line for line in complete_lines.splitlines() if unit_pattern.search(line)))
        yield sorted(lines, key=itemgetter("time"))


def _parse(encoded_lines: Iterable[bytes]) -> Iterator[LogLine]:
    for encoded_line in encoded_lines:
        try:
            parsed = json.loads(encoded_line)
        except (ValueError, RecursionError):
            continue  # the line is incomplete because the process was killed or the disk was full
        if isinstance(parsed, dict) and all(isinstance(parsed.get(name), str) for name in _TEXT_FIELDS):
            yield parsed
