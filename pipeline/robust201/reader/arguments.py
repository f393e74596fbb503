"""Validation of the reader's arguments, with a ConfigError for each invalid one."""

import math
import numbers
import os
import reprlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from robust201.core.errors import ConfigError
from robust201.tasks.parameters import is_about_255th


def as_folder(path: object) -> Path:
    """Return a folder's path."""
    name = os.fspath(path) if isinstance(path, os.PathLike) else path
    if not isinstance(name, str):
        raise ConfigError(
            f"Opening a dataset failed for {path!r}: expected the name of a folder, got {_describe_type(path)}. Name "
            "the folder that contains meta.json, as text or as a pathlib.Path."
        )
    folder = Path(name)
    try:
        folder.is_dir()
    except OSError as error:
        raise ConfigError(
            f"Opening a dataset failed for {reprlib.repr(name)}: the folder cannot be read ({error.strerror}). "
            "Check the path and its permissions."
        ) from error
    return folder


def as_name(name: object, what: str) -> str:
    """Return a name."""
    if not isinstance(name, str):
        raise ConfigError(
            f"Reading failed for {what} {name!r}: expected text, got {_describe_type(name)}. Give one name."
        )
    return name


def as_names(names: object, what: str) -> list[str]:
    """Return a name or several names as a list."""
    if isinstance(names, str):
        return [names]
    if not isinstance(names, Iterable) or isinstance(names, bytes):
        raise ConfigError(
            f"Reading failed for {what} {names!r}: expected a name or a list of names, got {_describe_type(names)}. "
            "Give names, or leave the argument out."
        )
    return [as_name(name, what) for name in names]


def as_strength(strength: object, known: Sequence[float], where: str) -> float:
    """Return a strength, which must be a known one or 0 for clean images, as a float; `where` begins the error."""
    value = _as_number(strength)
    if value in known or value == 0:
        return value
    shown = repr(strength) if math.isnan(value) else f"{value:g}"
    nearest = ""
    if math.isfinite(value) and known:
        nearest = f" The closest is {min(known, key=lambda number: abs(number - value)):g}."
        scaled = [number for number in known if number and is_about_255th(value, number)]
        if scaled and value < 1:
            nearest = f" Epsilons are in units of 1/255: {scaled[0]:g}/255 is {scaled[0]:g}."
    strengths = ", ".join(f"{number:g}" for number in known)
    raise ConfigError(f"{where}: expected a strength of {strengths}, got {shown}.{nearest} Ask for one of them.")


def _as_number(value: object) -> float:
    """Return a Python or NumPy number as a float, and NaN for anything else."""
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    return float(value) if is_number else math.nan  # type: ignore[arg-type]


def as_level(level: object, what: str) -> float:
    """Return a level of significance; `what` begins the error."""
    value = _as_number(level)
    if not 0 < value < 1:
        shown = reprlib.repr(level) if math.isnan(value) else f"{value:g}"
        raise ConfigError(f"{what}: expected a level of ties between 0 and 1, got {shown}. Try 0.05.")
    return value


def as_draws(n_draws: object, what: str) -> int:
    """Return a number of bootstrap draws, 0 for none; `what` begins the error."""
    is_number = isinstance(n_draws, numbers.Integral) and not isinstance(n_draws, bool)
    number = int(n_draws) if is_number else -1  # type: ignore[call-overload]
    if number < 0 or number == 1:  # a single draw does not vary
        raise ConfigError(f"{what}: expected 0 or at least 2 bootstrap draws, got {reprlib.repr(n_draws)}. Try 1000.")
    return int(number)


def _describe_type(value: Any) -> str:
    return "nothing" if value is None else f"a value of type {type(value).__name__}"
