"""Validation of the reader's arguments. Each function returns a valid argument, or raises ConfigError."""

import math
import numbers
from collections.abc import Iterable, Sequence

from robust201.core.errors import ConfigError


def as_name(name: object, argument_name: str) -> str:
    """Return a name; raise ConfigError if it is not text."""
    if not isinstance(name, str):
        raise ConfigError(
            f"Reading failed for {argument_name} {name!r}: expected text, got {type(name).__name__}. Use one name."
        )
    return name


def as_names(names: object, argument_name: str) -> list[str]:
    """Return a name or several names as a list; raise ConfigError for anything else."""
    if isinstance(names, str):
        return [names]
    if not isinstance(names, Iterable) or isinstance(names, bytes):
        raise ConfigError(
            f"Reading failed for {argument_name} {names!r}: expected a name or a list of names, got "
            f"{type(names).__name__}. Use names, or omit the argument."
        )
    return [as_name(name, argument_name) for name in names]


def as_strength(strength: object, known_strengths: Sequence[float], error_prefix: str) -> float:
    """Return a strength as a float; raise ConfigError unless it is known, or 0 for clean images."""
    is_number = isinstance(strength, numbers.Real) and not isinstance(strength, bool)
    number = float(strength) if is_number else math.nan  # type: ignore[arg-type]
    if number in known_strengths or number == 0:
        return number
    advice = ""
    if math.isfinite(number) and known_strengths:
        advice = f" The closest is {min(known_strengths, key=lambda known: abs(known - number)):g}."
        matching = [known for known in known_strengths if math.isclose(255 * number, known, rel_tol=0.015)]
        if matching and number < 1:
            advice = f" Epsilons are in units of 1/255: write {matching[0]:g} for {matching[0]:g}/255."
    strengths = ", ".join(f"{known:g}" for known in known_strengths)
    shown = repr(strength) if math.isnan(number) else f"{number:g}"
    raise ConfigError(
        f"{error_prefix}: expected one of the strengths {strengths}, got {shown}.{advice} Choose one of the expected "
        "strengths."
    )
