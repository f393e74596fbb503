"""Validation of the reader's arguments. Each function returns a valid argument, or raises ConfigError."""

import math
import numbers
from collections.abc import Iterable, Sequence

from robust201.core.errors import ConfigError


def as_names(names: str | Iterable[str]) -> list[str]:
    """Return a name or several names as a list."""
    return [names] if isinstance(names, str) else [*names]


def as_strength(strength: object, known_strengths: Sequence[float], error_prefix: str) -> float:
    """Return a strength as a float; raise ConfigError unless it is known, or 0 for clean images."""
    is_number = isinstance(strength, numbers.Real) and not isinstance(strength, bool)
    number = float(strength) if is_number else math.nan  # type: ignore[arg-type]
    if number in known_strengths or number == 0:
        return number
    matching = [known for known in known_strengths if math.isclose(255 * number, known, rel_tol=0.015)]
    advice = ""
    if matching and number < 1:
        advice = f" Epsilons are in units of 1/255: write {matching[0]:g} for {matching[0]:g}/255."
    strengths = ", ".join(f"{known:g}" for known in known_strengths)
    raise ConfigError(
        f"{error_prefix}: expected one of the strengths {strengths}, got {strength!r}.{advice} Choose one of the "
        "expected strengths."
    )
