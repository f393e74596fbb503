"""The exceptions of robust201, and the exit code of the command line for each.

The tree::

    RobustError
    ├── InputError            exit 2: bad input, nothing started
    │   ├── ConfigError           the sweep YAML or a command-line argument
    │   ├── ArchitectureError     an invalid index or cell string
    │   ├── CheckpointError       weights that are missing, damaged, in an unknown format or for another network
    │   ├── NetworkError          a network that cannot be evaluated as it is (also an EvaluationError)
    │   ├── DatasetError          images that are missing, damaged or have the wrong format
    │   ├── ResultsError          an exported dataset, or a file of it, is missing or damaged
    │   └── FormatVersionError    a results folder in the format of another version
    ├── EvaluationError       exit 3: a unit failed, or the sweep is incomplete
    │   ├── PerturbationError     an attack or corruption broke its contract
    │   ├── WorkerBrokenError     a worker's device failed; only a new process can continue
    │   ├── RayLostError          Ray, or the process connected to it, ended or stopped responding
    │   └── IncompleteError       evaluations of the plan are missing
    └── StorageError          exit 4: disk full, or results locked by another driver or damaged
        ├── LeaseHeldError        another driver is using this results folder
        ├── ShardDamagedError     a shard whose bytes do not match its name
        ├── StorageFullError      no space left on the disk
        └── StorageLibraryError   the library that the shards' URL scheme needs is not installed (exit 2)

Every message reads `<what failed> for <unit or file>: expected X, got Y. <what to do>`.
"""

import difflib
from collections.abc import Iterable

MAX_MESSAGE = 1500
"""Maximum length of a message in characters: text quoted from a file or a user may be megabytes."""

_MESSAGE_END = 400
_MESSAGE_BEGINNING = 1050

_MIN_PREFIX_LENGTH = 3
"""Minimum length of a prefix that identifies a name."""


def shorten(message: str) -> str:
    """Replace the middle of a text that is longer than `MAX_MESSAGE` by the number of characters left out."""
    if len(message) <= MAX_MESSAGE:
        return message
    left_out = len(message) - _MESSAGE_BEGINNING - _MESSAGE_END
    return f"{message[:_MESSAGE_BEGINNING]}… ({left_out:,} characters left out) …{message[-_MESSAGE_END:]}"


def one_line(text: object, max_length: int = 300) -> str:
    """Return a text as one line of at most `max_length` characters without a full stop; if empty, the object's type."""
    return " ".join(str(text).split())[:max_length].rstrip(".") or type(text).__name__


def describe_content(error: Exception) -> str:
    """Describe in one short line why the content of a file cannot be read."""
    if isinstance(error, UnicodeDecodeError):  # its representation contains the whole file
        return "it is not valid UTF-8"
    return f"it lacks {error}" if isinstance(error, KeyError) else one_line(error)


class RobustError(Exception):
    """Base of every error that robust201 raises on purpose; long messages are shortened."""

    exit_code = 3

    def __init__(self, *arguments: object) -> None:
        super().__init__(*(shorten(argument) if isinstance(argument, str) else argument for argument in arguments))


class InputError(RobustError):
    """Bad input: nothing was started."""

    exit_code = 2


class ConfigError(InputError):
    """The sweep YAML or a command-line argument is wrong."""


class ArchitectureError(InputError, KeyError):
    """An index or string is not an architecture of the space (also a KeyError, as in the published helper)."""

    __str__ = Exception.__str__  # KeyError would show the message as a quoted literal


class CheckpointError(InputError):
    """Weights are missing, damaged, in an unknown format, or belong to another network."""


class DatasetError(InputError):
    """Images or labels are missing, damaged or have the wrong format."""


class ResultsError(InputError, FileNotFoundError):
    """An exported dataset or a file of it is missing or damaged (also a FileNotFoundError, as published)."""


class FormatVersionError(InputError):
    """A results folder or shard was written in a format this version does not know."""


class EvaluationError(RobustError):
    """A unit could not be evaluated, or the sweep is not complete."""

    exit_code = 3


class NetworkError(InputError, EvaluationError):
    """A network cannot be evaluated as it is (also an EvaluationError, since a worker of a sweep may find it)."""


class PerturbationError(EvaluationError):
    """A perturbation broke its contract (bounds, epsilon ball or coverage)."""


class WorkerBrokenError(EvaluationError):
    """A worker's device failed, so its process cannot compute anything else."""


class RayLostError(EvaluationError):
    """Ray, or the process connected to it, ended or stopped responding."""


class IncompleteError(EvaluationError):
    """Evaluations of the plan are missing."""


class StorageError(RobustError):
    """The disk is full, or the results folder is locked by another driver or damaged."""

    exit_code = 4


class LeaseHeldError(StorageError):
    """Another driver holds the lease on the results folder."""


class ShardDamagedError(StorageError):
    """A shard's bytes do not match the hash in its name, or its disk has lost them."""


class StorageFullError(StorageError):
    """No space is left on the disk of the results."""


class StorageLibraryError(StorageError):
    """The library for the shards' URL is not installed; a StorageError, so that the run stops if a worker lacks it."""

    exit_code = 2


class RobustWarning(UserWarning):
    """Base of every warning that robust201 gives on purpose; the command line prints each as one line."""


_MAX_NAME = 100
"""Number of leading characters by which names are compared."""


def closest(name: str, candidates: Iterable[str]) -> str:
    """Suggest the candidate closest to an unknown name, as a sentence to append to an error message.

    Returns ``" Did you mean 'pgd'?"`` (with the leading space), or up to 25 known names if no candidate is close.
    Case is ignored, and a candidate that begins with the name (`eps`) is preferred to a similar one (`steps`).
    """
    known = [str(candidate) for candidate in candidates]
    if not known:
        return ""
    folded = {candidate.casefold(): candidate for candidate in reversed(known)}
    query = name[:_MAX_NAME].casefold()
    with_prefix = [
        candidate for candidate in folded if len(query) >= _MIN_PREFIX_LENGTH and candidate.startswith(query)
    ]
    matches = [query] if query in folded else sorted(with_prefix, key=len)
    best = matches or difflib.get_close_matches(query, folded, n=1, cutoff=0.6)
    if best:
        return f" Did you mean {folded[best[0]]!r}?"
    names = ", ".join(known[:25])
    return f" Known: {names}{', …' if len(known) > 25 else ''}."
