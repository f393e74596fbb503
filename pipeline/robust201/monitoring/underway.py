"""What is being computed right now, as the workers' logs say, and how rate and time left age until it is finished."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from robust201.core.records import Part, Unit
from robust201.runtime.work_log import LOGS_FOLDER

_TAIL_BYTES = 64 << 10
"""End of a log that is read: some hundred lines, of which the last few count."""

_SKEW_SECONDS = 60.0
"""How far the clocks of two hosts may differ without hiding a worker's log."""

_ENDING = {"shard_written", "part_failed"}
_BREAKING = {"device_failed", "storage_failed"}
_LOSING = {"worker_died", "worker_preempted", "part_given_up"}


@dataclass(frozen=True, slots=True)
class PartUnderway:
    """A part that a worker has begun and not finished.

    Attributes:
        part: what is left of it.
        since: seconds since 1970 at which it began, or committed its last shard, by the worker's clock.
    """

    part: Part
    since: float


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast a sweep gets on.

    Attributes:
        evaluations_per_second: finished ones; None before it is known.
        seconds_left: estimate by work, or None.
    """

    evaluations_per_second: float | None
    seconds_left: float | None


def find_underway(results: Path, units: Mapping[str, Unit], *, since: float) -> tuple[PartUnderway, ...]:
    """Find the parts in progress, for people: logs may be deleted, and a worker that was killed leaves its last line.

    Args:
        results: the results folder.
        units: by id.
        since: seconds since 1970 at which those at work began; what older logs say is over.

    Returns:
        The parts, each once.
    """
    current: dict[str, dict[str, Any]] = {}
    for line in sorted(_read_lines(results / LOGS_FOLDER, since), key=lambda line: str(line["time"])):
        worker, event, unit = line.get("worker"), line.get("event"), line.get("unit")
        if event == "part_started":
            current[str(worker)] = line | {"left": list(line.get("strengths", ()))}
        elif event in _ENDING and (begun := current.get(str(worker))) is not None and begun["unit"] == unit:
            begun["left"] = [strength for strength in begun["left"] if strength not in line.get("strengths", ())]
            begun["time"] = line["time"]
        elif event in _BREAKING:
            current.pop(str(worker), None)
        elif event in _LOSING:  # told by the driver, of the unit that the worker had before it
            current = {name: begun for name, begun in current.items() if begun["unit"] != unit}
    begun_parts = (_parse(begun, units) for begun in current.values() if begun["left"])
    # A part that was begun again, by another worker, is in progress once.
    latest = {(one.part.unit.id, one.part.start): one for one in begun_parts if one is not None}
    return tuple(latest.values())


def _read_lines(folder: Path, since: float) -> Iterable[dict[str, Any]]:
    """Last lines of every log that was begun since; lines that are cut off, or none of ours, are left out."""
    first = datetime.fromtimestamp(max(0.0, since - _SKEW_SECONDS), UTC).strftime("%Y%m%dT%H%M%SZ")
    for path in folder.glob("*.jsonl"):
        if path.name < first:  # names begin with the time at which the log did
            continue
        try:
            with path.open("rb") as stream:
                stream.seek(max(0, path.stat().st_size - _TAIL_BYTES))
                tail = stream.read()
        except OSError:  # deleted, or not ours to read: logs are for people and decide nothing
            continue
        for text in tail.splitlines():
            try:
                line = json.loads(text)
            except (ValueError, RecursionError):
                continue
            if isinstance(line, dict) and {"time", "event"} <= line.keys():
                yield line


def _parse(begun: Mapping[str, Any], units: Mapping[str, Unit]) -> PartUnderway | None:
    unit = units.get(str(begun.get("unit")))
    if unit is None:
        return None
    try:
        start, stop = map(int, str(begun["images"]).split(":"))
        since = datetime.fromisoformat(str(begun["time"])).timestamp()
    except (KeyError, ValueError):
        return None
    return PartUnderway(Part(unit, tuple(begun["left"]), start, stop), since)


def estimate_pace(runs: Sequence[Mapping[str, Any]], now: float, *, work_left: float, work_underway: float) -> Pace:
    """Estimate rate and time left from what runs told when they last finished something.

    Work goes on at the known rate until all that is underway should be done. From then on it counts as late, so that
    the rate falls and the time left grows.

    Args:
        runs: contents of `progress.json` of those at work.
        now: seconds since 1970.
        work_left: multiply-accumulates of all that is not finished.
        work_underway: those of the parts in progress.
    """
    ages = [max(0.0, now - run.get("measured", now)) for run in runs]
    expected = sum((run.get("macs_per_second") or 0.0) * age for run, age in zip(runs, ages, strict=True))
    credited = min(expected, work_underway, work_left)
    on_time = credited / expected if expected else 1.0

    def sum_rates(name: str, fade: Callable[[float, float], float]) -> float | None:
        known = [
            run[name] * fade(run.get("measured_seconds", 0.0), age)
            for run, age in zip(runs, ages, strict=True)
            if run.get(name) is not None
        ]
        return float(sum(known)) if known else None

    macs_rate = sum_rates("macs_per_second", lambda span, age: (span + on_time * age) / (span + age) if age else 1.0)
    evaluations_rate = sum_rates("evaluations_per_second", lambda span, age: span / (span + age) if age else 1.0)
    if not work_left:
        return Pace(evaluations_rate, 0.0)
    return Pace(evaluations_rate, (work_left - credited) / macs_rate if macs_rate else None)
