"""Parsing of the radii of norm balls and of step sizes, as users write them."""

import reprlib
from fractions import Fraction


def parse_radius(epsilon: object) -> Fraction:
    """Return a radius for pixels in [0, 1] as an exact fraction, from a number or text such as ``8/255``.

    Raises:
        ValueError: the value is neither a number nor such text, or is not above 0.
    """
    try:
        numerator, _, denominator = str(epsilon).partition("/")
        radius = Fraction(float(numerator)) / Fraction(float(denominator or 1))
    except (ValueError, ArithmeticError):
        radius = Fraction(0)
    if radius <= 0:
        raise ValueError(f"expected numbers above 0 or text such as 8/255, got {reprlib.repr(epsilon)}.")
    return radius
