"""Events about one network and key, from the files of all processes (`robust201 status --log NAME`)."""

from operator import itemgetter
from pathlib import Path

from robust201.store.events import Event, event_files, read_events

_MIN_ID_CHARACTERS = 6
"""Minimum length of a prefix of a unit's id; a shorter word, such as ``0``, is an architecture."""


def read_log(results: Path, name: str) -> list[Event]:
    """Return the events about a network and key, with the names of their processes, sorted by their hosts' clocks.

    `name` is an architecture and any other words of a part's label, such as ``21/cifar10/pgd`` or
    ``resnet18/cifar10/pgd/random-s0``; or it is a prefix of a unit's id (at least 6 characters).
    """
    words = name.replace("#", "").replace("/", " ").split()
    events = [
        event | {"process": path.stem}
        for path in event_files(results)
        for event in read_events(path, None)
        if _is_about(event, words)
    ]
    return sorted(events, key=itemgetter("time"))


def _is_about(event: Event, words: list[str]) -> bool:
    label = str(event.get("part", "")).replace("#", "").split()
    is_id = len(words) == 1 and len(words[0]) >= _MIN_ID_CHARACTERS
    if is_id and str(event.get("unit", "")).startswith(words[0]):
        return True
    return bool(words) and label[:1] == words[:1] and set(words) <= set(label)
