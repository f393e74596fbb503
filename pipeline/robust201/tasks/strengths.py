"""Format and parse strengths with units, and keys at a strength, such as ``pgd:8/255``, ``pgd_l2:0.5`` or ``fog:3``."""

from robust201.core.records import CLEAN_STRENGTH
from robust201.tasks.constraints import Constraint


def unit_of(constraint: Constraint | None, kind: str) -> str:
    """Return the unit of a key's strengths: ``/255``, ``L2``, ``L1``, ``severity``, or none."""
    if constraint is not None:
        return f"/{constraint.divisor:g}" if constraint.divisor != 1 else constraint.name
    return "severity" if kind == "corruption" else ""


def format_strength(strength: float, unit: str) -> str:
    """Return a strength with its unit, such as ``8/255``, ``0.5 L2`` or ``severity 3``; empty if the key has none."""
    if unit == "severity":
        return f"severity {strength:g}"
    if unit:
        return f"{strength:g}{'' if unit.startswith('/') else ' '}{unit}"
    return "" if strength == CLEAN_STRENGTH else f"{strength:g}"


def format_term(key: str, strength: float, unit: str) -> str:
    """Return a key at a strength, such as ``pgd:8/255``, or the key alone if it has no strength."""
    if not unit and strength == CLEAN_STRENGTH:
        return key
    return f"{key}:{strength:g}{unit if unit.startswith('/') else ''}"


def parse_term(term: str) -> tuple[str, str]:
    """Split a key at a strength into the key and the text of the strength, which is empty if there is none."""
    key, colon, text = term.rpartition(":")
    return (key, text.strip()) if colon else (term, "")


def parse_strength(text: str, constraint: Constraint | None) -> float:
    """Parse a strength: an epsilon for pixels in [0, 1] (``8/255``) or, if the key has no norm ball, a number.

    Raises:
        ValueError: the text is not such a strength.
    """
    return float(text) if constraint is None else constraint.strength_of(text)
