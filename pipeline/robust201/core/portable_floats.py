"""Float64 arithmetic that is bit-identical on every processor: the exponential function and fused multiply-adds.

Both consist of additions and multiplications, which IEEE 754 defines to the last bit. `numpy.exp` uses Intel's SVML on
processors with AVX-512, whose last bit is wrong for 4% of arguments, and elsewhere the C library, whose last bit is
wrong for 0.1%. That bit is visible in images truncated to 8 bits: a blurred grey area is 254 or 255.
"""

from decimal import Context, Decimal
from functools import cache
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

_Floats: TypeAlias = NDArray[np.float64]

_STEPS = 256
"""Table entries per factor of 2."""

_SPLITTER = 2.0**27 + 1
"""Factor that splits a float64 into two halves of 26 bits (Dekker, 1971)."""

_MIN_ARGUMENT = -745.2
"""Below this argument, the exponential is less than half of the smallest float64."""


def exp(x: _Floats) -> _Floats:
    """Compute the exponential function, rounded to the nearest float64.

    exp(x) = 2^n 2^(i/256) exp(r) with |r| < 0.0014, computed with about 80 bits. A few results in a hundred million are
    so close to the midpoint of two floats that they may be rounded to the wrong one; it is the same one everywhere.

    Args:
        x: any shape, at most 709.

    Returns:
        An array of that shape; 0 below -745.2.
    """
    step, table, low_table = _tables()
    is_zero = x < _MIN_ARGUMENT
    x = np.where(is_zero, 0.0, x)
    number = np.rint(x * (1 / step[0]))
    # Exact: the first part of the step has 32 bits, `number` at most 19.
    reduced = x - number * step[0]
    remainder, error = _two_sum(reduced, -(number * step[1]))
    error -= number * step[2]
    whole = number.astype(np.int64)
    factor, low_factor = table[whole % _STEPS], low_table[whole % _STEPS]

    square, square_error = _two_product(remainder, remainder)
    rest = remainder * square * (1 / 6 + remainder * (1 / 24 + remainder * (1 / 120 + remainder * (1 / 720))))
    power, power_error = _two_sum(remainder, square / 2)
    power_error += error + square_error / 2 + remainder * error + rest
    product, product_error = _two_product(factor, power)
    product_error += factor * power_error + low_factor * power + low_factor
    result, result_error = _two_sum(factor, product)
    scaled: _Floats = np.ldexp(result + (result_error + product_error), whole // _STEPS)
    return np.where(is_zero, 0.0, scaled)


def fused_multiply_add(a: _Floats, b: _Floats, c: _Floats) -> _Floats:
    """Compute a * b + c (with broadcasting), adding the errors of product and sum at the end.

    Nearly all results are rounded once; a few in a billion are rounded to the wrong neighbouring float.
    """
    product, product_error = _two_product(a, b)
    total, total_error = _two_sum(product, c)
    return total + (total_error + product_error)


@cache
def _tables() -> tuple[tuple[float, float, float], _Floats, _Floats]:
    """Compute log(2) / 256 in three parts and the powers 2^(i/256) in two, with decimal arithmetic."""
    context = Context(prec=50)
    step = context.divide(context.ln(Decimal(2)), Decimal(_STEPS))
    first = float(np.ldexp(np.rint(np.ldexp(float(step), 40)), -40))
    second = float(np.ldexp(np.rint(np.ldexp(float(context.subtract(step, Decimal(first))), 74)), -74))
    third = float(context.subtract(context.subtract(step, Decimal(first)), Decimal(second)))
    powers = [context.exp(context.multiply(step, Decimal(i))) for i in range(_STEPS)]
    high = [float(power) for power in powers]
    low = [float(context.subtract(power, Decimal(part))) for power, part in zip(powers, high, strict=True)]
    return (first, second, third), np.array(high), np.array(low)


def _two_sum(a: _Floats, b: _Floats) -> tuple[_Floats, _Floats]:
    """Return the rounded sum and its exact error (Knuth)."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def _two_product(a: _Floats, b: _Floats) -> tuple[_Floats, _Floats]:
    """Return the rounded product and its exact error (Dekker)."""
    product = a * b
    a_high, a_low = _split(a)
    b_high, b_low = _split(b)
    return product, a_low * b_low - (((product - a_high * b_high) - a_low * b_high) - a_high * b_low)


def _split(a: _Floats) -> tuple[_Floats, _Floats]:
    scaled = _SPLITTER * a
    high = scaled - (scaled - a)
    return high, a - high
