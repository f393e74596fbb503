"""Validation of the reader's arguments. Each function returns a valid argument, or raises ConfigError."""

import math
import numbers
import os
import reprlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from robust201.core.errors import ConfigError


def as_folder(path: object) -> Path:
    """Return a folder's path, which need not exist."""
    name = os.fspath(path) if isinstance(path, os.PathLike) else path
    if not isinstance(name, str):
        raise ConfigError(
            f"Opening a dataset failed for {path!r}: expected the path of a folder, got {_describe_type(path)}. Use "
            "the path of the folder that contains meta.json, as text or as a pathlib.Path."
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


def as_name(name: object, argument_name: str) -> str:
    """Return a name, which must be text."""
    if not isinstance(name, str):
        raise ConfigError(
            f"Reading failed for {argument_name} {name!r}: expected text, got {_describe_type(name)}. Use one name."
        )
    return name


def as_names(names: object, argument_name: str) -> list[str]:
    """Return a name or several names as a list."""
    if isinstance(names, str):
        return [names]
    if not isinstance(names, Iterable) or isinstance(names, bytes):
        raise ConfigError(
            f"Reading failed for {argument_name} {names!r}: expected a name or a list of names, got "
            f"{_describe_type(names)}. Use names, or omit the argument."
        )
    return [as_name(name, argument_name) for name in names]


def as_strength(strength: object, known_strengths: Sequence[float], error_prefix: str) -> float:
    """Return a strength as a float; it must be in `known_strengths`, or 0 for clean images.

    `error_prefix` is the beginning of the error message.
    """
    number = _as_number(strength)
    if number in known_strengths or number == 0:
        return number
    strength_text = repr(strength) if math.isnan(number) else f"{number:g}"
    advice = ""
    if math.isfinite(number) and known_strengths:
        advice = f" The closest is {min(known_strengths, key=lambda known: abs(known - number)):g}."
        matching_epsilons = [known for known in known_strengths if math.isclose(255 * number, known, rel_tol=0.015)]
        if matching_epsilons and number < 1:
            advice = (
                f" Epsilons are in units of 1/255: write {matching_epsilons[0]:g} for {matching_epsilons[0]:g}/255."
            )
    strengths = ", ".join(f"{known:g}" for known in known_strengths)
    raise ConfigError(
        f"{error_prefix}: expected one of the strengths {strengths}, got {strength_text}.{advice} Choose one of the "
        "expected strengths."
    )


def _as_number(value: object) -> float:
    """Return a Python or NumPy number as a float, or NaN if the value is not a number."""
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    return float(value) if is_number else math.nan  # type: ignore[arg-type]


def as_level(level: object, error_prefix: str) -> float:
    """Return a significance level as a float; it must be between 0 and 1."""
    number = _as_number(level)
    if not 0 < number < 1:
        level_text = reprlib.repr(level) if math.isnan(number) else f"{number:g}"
        raise ConfigError(
            f"{error_prefix}: the significance level of ties must be between 0 and 1, got {level_text}. Try 0.05."
        )
    return number


def _describe_type(value: Any) -> str:
    return "nothing" if value is None else f"a value of type {type(value).__name__}"
