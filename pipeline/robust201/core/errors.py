"""The one tree of exceptions, and the exit code each of them ends the command line with.

::

    RobustError
    ├── InputError            exit 2: bad input, nothing started
    │   ├── ConfigError           the sweep YAML or a command-line argument
    │   ├── ArchitectureError     an index or cell string that names no architecture
    │   ├── CheckpointError       weights missing, damaged, foreign or of another network
    │   ├── NetworkError          a network that cannot be evaluated as it is (an EvaluationError, too)
    │   ├── DatasetError          images missing, damaged or of the wrong form
    │   ├── ResultsError          an exported dataset, or a file of it, is missing or damaged
    │   └── FormatVersionError    a results folder that another version wrote
    ├── EvaluationError       exit 3: a unit failed, or the sweep is incomplete
    │   ├── PerturbationError     an attack or corruption broke its contract
    │   ├── WorkerBrokenError     a worker's device failed; only a new process can go on
    │   ├── RayLostError          Ray, or the process connected to it, ended or fell silent
    │   └── IncompleteError       evaluations of the plan are missing
    └── StorageError          exit 4: results full, held by another driver, or damaged
        ├── LeaseHeldError        another driver works in this results folder
        ├── ShardDamagedError     a shard whose bytes do not match its name
        ├── StorageFullError      no space left on the device
        └── StorageLibraryError   the library of the shards' URL is not installed (exit 2)

Every message reads `<what failed> for <unit or file>: expected X, got Y. <what to do>`.
"""

import difflib
from collections.abc import Iterable

MAX_MESSAGE = 1500
"""Characters of a message; what a file or a user said is in its middle, and may be megabytes."""

_MESSAGE_END = 400
_MESSAGE_BEGINNING = 1050

_SHORTEST_BEGINNING = 3
"""Minimum length of a beginning that identifies a name."""


def shorten(message: str) -> str:
    """Leave the middle of a text out that is longer than `MAX_MESSAGE`, and say how much that is."""
    if len(message) <= MAX_MESSAGE:
        return message
    left_out = len(message) - _MESSAGE_BEGINNING - _MESSAGE_END
    return f"{message[:_MESSAGE_BEGINNING]}… ({left_out:,} characters left out) …{message[-_MESSAGE_END:]}"


def one_line(said: object, most: int = 300) -> str:
    """What others said, on one line, with at most so many characters and no full stop; its type if that is nothing."""
    return " ".join(str(said).split())[:most].rstrip(".") or type(said).__name__


def describe_content(error: Exception) -> str:
    """Describe on one short line what is wrong with the content of a file that could not be read."""
    if isinstance(error, UnicodeDecodeError):  # its representation holds the whole file
        return "it is no text"
    return f"it lacks {error}" if isinstance(error, KeyError) else one_line(error)


class RobustError(Exception):
    """Base of every error that robust201 raises on purpose; a message that is too long is shortened."""

    exit_code = 3

    def __init__(self, *arguments: object) -> None:
        super().__init__(*(shorten(argument) if isinstance(argument, str) else argument for argument in arguments))


class InputError(RobustError):
    """Bad input: nothing was started."""

    exit_code = 2


class ConfigError(InputError):
    """The sweep YAML or a command-line argument is wrong."""


class ArchitectureError(InputError, KeyError):
    """An index or string names no architecture of the space (also a KeyError, as with the published helper)."""

    __str__ = Exception.__str__  # KeyError would show the message as a quoted literal


class CheckpointError(InputError):
    """Weights are missing, damaged, of a foreign format, or belong to another network."""


class DatasetError(InputError):
    """Images or labels are missing, damaged or of the wrong form."""


class ResultsError(InputError, FileNotFoundError):
    """An exported dataset or a file of it is missing or damaged (also a FileNotFoundError, as once published)."""


class FormatVersionError(InputError):
    """A results folder or shard was written in a format this version does not know."""


class EvaluationError(RobustError):
    """A unit could not be evaluated, or the sweep is not complete."""

    exit_code = 3


class NetworkError(InputError, EvaluationError):
    """A network cannot be evaluated as it is (also an EvaluationError, as of one that a sweep's worker finds)."""


class PerturbationError(EvaluationError):
    """A perturbation broke its contract (bounds, epsilon ball or coverage)."""


class WorkerBrokenError(EvaluationError):
    """A worker's device failed, so that nothing else can be computed in its process."""


class RayLostError(EvaluationError):
    """Ray, or the process connected to it, ended or fell silent."""


class IncompleteError(EvaluationError):
    """Evaluations of the plan are missing."""


class StorageError(RobustError):
    """The results folder is full, held by another driver, or damaged."""

    exit_code = 4


class LeaseHeldError(StorageError):
    """Another driver holds the lease on the results folder."""


class ShardDamagedError(StorageError):
    """A shard's bytes do not match the hash in its name, or that its disk has lost."""


class StorageFullError(StorageError):
    """No space is left on the device that holds the results."""


class StorageLibraryError(StorageError):
    """The library for the shards' URL is not installed: a StorageError, so that a worker without it ends the run."""

    exit_code = 2


class RobustWarning(UserWarning):
    """Base of every warning that robust201 gives on purpose; the command line prints each as one line."""


_MAX_NAME = 100
"""Characters by which names are compared."""


def closest(name: str, candidates: Iterable[str]) -> str:
    """Name the candidate nearest to an unknown name, ready to append to an error message.

    ``" Did you mean 'pgd'?"`` (with its leading space), or the list of up to 25 known names where nothing is near.
    Case does not count, and a name that begins a candidate (`eps`) is nearer than one that resembles it (`steps`).
    """
    known = [str(candidate) for candidate in candidates]
    if not known:
        return ""
    folded = {candidate.casefold(): candidate for candidate in reversed(known)}
    wanted = name[:_MAX_NAME].casefold()
    begun = [candidate for candidate in folded if len(wanted) >= _SHORTEST_BEGINNING and candidate.startswith(wanted)]
    near = [wanted] if wanted in folded else sorted(begun, key=len)
    match = near or difflib.get_close_matches(wanted, folded, n=1, cutoff=0.6)
    if match:
        return f" Did you mean {folded[match[0]]!r}?"
    shown = ", ".join(known[:25])
    return f" Known: {shown}{', …' if len(known) > 25 else ''}."
