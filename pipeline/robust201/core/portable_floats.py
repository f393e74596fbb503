"""The exponential function and fused multiply-adds in float64, bit-identical on every processor.

Both consist of additions and multiplications, which IEEE 754 defines to the last bit. `numpy.exp` uses Intel's SVML on
processors with AVX-512 and the C library elsewhere. The last bit of the result is wrong for 4% of arguments with SVML
and for 0.1% with the C library. A wrong last bit can change an image that is truncated to 8 bits: a pixel becomes 254
instead of 255.
"""

from decimal import Context, Decimal
from functools import cache
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

_Floats: TypeAlias = NDArray[np.float64]

_STEPS_PER_OCTAVE = 256
"""Number of table entries per factor of 2."""

_SPLITTER = 2.0**27 + 1
"""Factor that splits a float64 into two halves of 26 bits (Dekker, 1971)."""

_MIN_ARGUMENT = -745.2
"""Below this argument, the exponential is less than half of the smallest float64."""


def exp(x: _Floats) -> _Floats:
    """Compute the exponential function, rounded to the nearest float64.

    It uses exp(x) = 2^n 2^(i/256) exp(r) with |r| < 0.0014, computed with about 80 significant bits. A few results in a
    hundred million are so close to the midpoint of two floats that they may be rounded to the wrong one. Even then,
    the result is the same on every processor.

    Args:
        x: values of at most 709, in an array of any shape.

    Returns:
        An array of the same shape, with 0 for values below -745.2.
    """
    log_step, table, low_table = _exp_tables()
    is_zero = x < _MIN_ARGUMENT
    x = np.where(is_zero, 0.0, x)
    n_steps = np.rint(x * (1 / log_step[0]))
    # The product is exact, because the first part of the step has 32 bits and `n_steps` at most 19.
    reduced = x - n_steps * log_step[0]
    remainder, error = _two_sum(reduced, -(n_steps * log_step[1]))
    error -= n_steps * log_step[2]
    table_steps = n_steps.astype(np.int64)
    factor, low_factor = table[table_steps % _STEPS_PER_OCTAVE], low_table[table_steps % _STEPS_PER_OCTAVE]

    square, square_error = _two_product(remainder, remainder)
    series_tail = remainder * square * (1 / 6 + remainder * (1 / 24 + remainder * (1 / 120 + remainder * (1 / 720))))
    expm1, expm1_error = _two_sum(remainder, square / 2)
    expm1_error += error + square_error / 2 + remainder * error + series_tail
    product, product_error = _two_product(factor, expm1)
    product_error += factor * expm1_error + low_factor * expm1 + low_factor
    result, result_error = _two_sum(factor, product)
    scaled: _Floats = np.ldexp(result + (result_error + product_error), table_steps // _STEPS_PER_OCTAVE)
    return np.where(is_zero, 0.0, scaled)


def fused_multiply_add(a: _Floats, b: _Floats, c: _Floats) -> _Floats:
    """Compute a * b + c (with broadcasting) as if it were rounded only once.

    The rounding errors of the product and the sum are computed exactly and added to the rounded result. Nearly all
    results are correctly rounded; a few in a billion are rounded to the wrong neighbouring float.
    """
    product, product_error = _two_product(a, b)
    total, total_error = _two_sum(product, c)
    return total + (total_error + product_error)


@cache
def _exp_tables() -> tuple[tuple[float, float, float], _Floats, _Floats]:
    """Compute log(2) / 256 as a sum of three floats, and each power 2^(i/256) as a sum of two floats.

    The computation uses decimal arithmetic.
    """
    context = Context(prec=50)
    log_step = context.divide(context.ln(Decimal(2)), Decimal(_STEPS_PER_OCTAVE))
    high_part = float(np.ldexp(np.rint(np.ldexp(float(log_step), 40)), -40))
    middle_part = float(np.ldexp(np.rint(np.ldexp(float(context.subtract(log_step, Decimal(high_part))), 74)), -74))
    low_part = float(context.subtract(context.subtract(log_step, Decimal(high_part)), Decimal(middle_part)))
    powers = [context.exp(context.multiply(log_step, Decimal(i))) for i in range(_STEPS_PER_OCTAVE)]
    high = [float(power) for power in powers]
    low = [float(context.subtract(power, Decimal(high_power))) for power, high_power in zip(powers, high, strict=True)]
    return (high_part, middle_part, low_part), np.array(high), np.array(low)


def _two_sum(a: _Floats, b: _Floats) -> tuple[_Floats, _Floats]:
    """Return the rounded sum and its exact error (Knuth)."""
    total = a + b
    b_rounded = total - a
    return total, (a - (total - b_rounded)) + (b - b_rounded)


def _two_product(a: _Floats, b: _Floats) -> tuple[_Floats, _Floats]:
    """Return the rounded product and its exact error (Dekker)."""
    product = a * b
    a_high, a_low = _split_into_halves(a)
    b_high, b_low = _split_into_halves(b)
    return product, a_low * b_low - (((product - a_high * b_high) - a_low * b_high) - a_high * b_low)


def _split_into_halves(a: _Floats) -> tuple[_Floats, _Floats]:
    scaled = _SPLITTER * a
    high = scaled - (scaled - a)
    return high, a - high
