"""The exceptions of robust201, and the exit code of the command line for each.

Most messages read `<what failed> for <unit or file>: <the fault>. <what to do>`.
"""

import difflib
import sys
import warnings
from collections.abc import Iterable

MAX_MESSAGE_LENGTH = 1500
"""Maximum length of a message in characters, because it may quote megabytes of text from a file or a user."""

_MESSAGE_END_CHARACTERS = 400
_MESSAGE_BEGINNING_CHARACTERS = 1050

_MIN_PREFIX_LENGTH = 3
"""Minimum length of an unknown name to suggest a known name that begins with it."""


def shorten(message: str) -> str:
    """Replace the middle of a message longer than `MAX_MESSAGE_LENGTH` with the number of omitted characters."""
    if len(message) <= MAX_MESSAGE_LENGTH:
        return message
    n_omitted = len(message) - _MESSAGE_BEGINNING_CHARACTERS - _MESSAGE_END_CHARACTERS
    beginning, end = message[:_MESSAGE_BEGINNING_CHARACTERS], message[-_MESSAGE_END_CHARACTERS:]
    return f"{beginning}… ({n_omitted:,} characters omitted) …{end}"


def one_line(value: object, max_length: int = 300) -> str:
    """Return the text of an object as one line of at most `max_length` characters, without final full stops.

    For an empty text, return the name of the object's type.
    """
    return " ".join(str(value).split())[:max_length].rstrip(".") or type(value).__name__


def describe_read_error(error: Exception) -> str:
    """Explain in one short line why the content of a file cannot be read."""
    if isinstance(error, UnicodeDecodeError):  # its representation contains the whole file
        return "it is not valid UTF-8"
    return f"it lacks {error}" if isinstance(error, KeyError) else one_line(error)


class RobustError(Exception):
    """Base of every error that robust201 raises on purpose; it shortens long messages (see `shorten`)."""

    exit_code = 3

    def __init__(self, *arguments: object) -> None:
        super().__init__(*(shorten(argument) if isinstance(argument, str) else argument for argument in arguments))


class InputError(RobustError):
    """Invalid input, usually found before anything was started."""

    exit_code = 2


class ConfigError(InputError):
    """A YAML file, a user's Python file or an argument is invalid."""


class ArchitectureError(InputError, KeyError):
    """An index or string is not an architecture of the space.

    It is also a KeyError, because the paper's published helper class raises a KeyError in this case.
    """

    __str__ = Exception.__str__  # KeyError would show the message as a quoted literal


class CheckpointError(InputError):
    """Weights are missing, damaged, in an unknown format, or belong to another network."""


class DatasetError(InputError):
    """Images or labels are missing, damaged or have the wrong format."""


class ResultsError(InputError, FileNotFoundError):
    """Exported results are missing or damaged, or do not suffice for what was requested.

    It is also a FileNotFoundError, because the paper's published helper class raises one for missing results.
    """


class FormatVersionError(InputError):
    """Results or a saved evaluation have a format that this version of robust201 does not know."""


class EvaluationError(RobustError):
    """A unit could not be evaluated, or the sweep is not complete."""

    exit_code = 3


class NetworkError(InputError, EvaluationError):
    """A network must be changed before it can be evaluated.

    It is also an EvaluationError, since a worker of a sweep may detect the problem.
    """


class UnstableNetworkError(EvaluationError):
    """A network's outputs depend on chance, earlier passes or other images, so none of its results can be trusted."""


class UnstableInputError(NetworkError, UnstableNetworkError):
    """The checks before an evaluation found that a network is unstable."""


class PerturbationError(EvaluationError):
    """A perturbation broke its contract (pixel bounds, epsilon ball, one result per image and strength)."""


class WorkerBrokenError(EvaluationError):
    """A worker's device failed, so its process cannot compute anything else."""


class RayLostError(EvaluationError):
    """Ray could not be started, or Ray or the process connected to it ended or stopped responding."""


class IncompleteError(EvaluationError):
    """Evaluations of the plan are missing."""


class StorageError(RobustError):
    """A file cannot be written or read, or the results are locked by another process or damaged."""

    exit_code = 4


class LockHeldError(StorageError):
    """Another driver holds the lock of the results folder."""


class ShardDamagedError(StorageError):
    """A shard is damaged. It was moved aside, and the next run computes its part again."""

    exit_code = 3


class StorageFullError(StorageError):
    """No space is left on the disk."""


class StorageLibraryError(StorageError):
    """The library that the shards' URL requires is not installed.

    It is a StorageError, so that the run stops if a worker lacks the library.
    """

    exit_code = 2


class RobustWarning(UserWarning):
    """Base of every warning that robust201 issues on purpose; the command line prints each as one line."""


def warn_caller(message: str) -> None:
    """Issue a RobustWarning that points to the user's line that called robust201."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_globals["__name__"].partition(".")[0] in {"robust201", "contextlib"}:
        level, frame = level + 1, frame.f_back
    warnings.warn(message, RobustWarning, stacklevel=level)


_MAX_COMPARED_CHARACTERS = 100
"""Number of leading characters of an unknown name that are compared with the known names."""


def did_you_mean(name: str, candidates: Iterable[str]) -> str:
    """Suggest the candidate closest to an unknown name, as a sentence to append to an error message.

    The sentence is, for example, ``" Did you mean 'pgd'?"`` (with the leading space). If no candidate is close, it
    lists up to 25 candidates; it is empty if there are none. Case is ignored. A candidate that begins with the name is
    preferred to a similar one: for ``eps``, ``epsilons`` is preferred to ``steps``.
    """
    known_names = [str(candidate) for candidate in candidates]
    if not known_names:
        return ""
    names_by_folded_name = {candidate.casefold(): candidate for candidate in reversed(known_names)}
    query = name[:_MAX_COMPARED_CHARACTERS].casefold()
    candidates_with_prefix = [
        candidate
        for candidate in names_by_folded_name
        if len(query) >= _MIN_PREFIX_LENGTH and candidate.startswith(query)
    ]
    matches = [query] if query in names_by_folded_name else sorted(candidates_with_prefix, key=len)
    matches_or_similar = matches or difflib.get_close_matches(query, names_by_folded_name, n=1, cutoff=0.6)
    if matches_or_similar:
        return f" Did you mean {names_by_folded_name[matches_or_similar[0]]!r}?"
    name_list = ", ".join(known_names[:25])
    return f" Known: {name_list}{', …' if len(known_names) > 25 else ''}."
