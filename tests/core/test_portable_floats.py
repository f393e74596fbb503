"""Portable floating-point functions return the float64 nearest to the exact value."""

from decimal import Context, Decimal
from fractions import Fraction

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from robust201.core.noise import generator
from robust201.core.portable_floats import exp, fused_multiply_add

DECIMAL_CONTEXT = Context(prec=60)


def correctly_rounded_exp(x: float) -> float:
    return float(DECIMAL_CONTEXT.exp(Decimal(x)))


@given(st.floats(-800, 709.7))
def test_exp_is_correctly_rounded(x):
    assert exp(np.array([x])).tolist() == [correctly_rounded_exp(x)]


def test_exp_is_correctly_rounded_for_many_arguments():
    random_numbers = generator(0, "arguments").random((3, 2000))
    arguments = np.concatenate(
        (-40 * random_numbers[0], -(random_numbers[1] ** 8), 1400 * random_numbers[2] - 700, [0.0, -0.0, -745.13, -1e9])
    )
    expected = [correctly_rounded_exp(float(x)) for x in arguments]
    assert exp(arguments).tolist() == expected
    # NumPy's function is not correctly rounded, so the comparison above would detect an error.
    assert np.exp(arguments).tolist() != expected


def test_fused_multiply_add_is_correctly_rounded():
    a, b, c = (2 * generator(0, "terms").random((3, 2000)) - 1).tolist()
    exact = [float(Fraction(x) * Fraction(y) + Fraction(z)) for x, y, z in zip(a, b, c, strict=True)]
    assert fused_multiply_add(np.array(a), np.array(b), np.array(c)).tolist() == exact
    assert (np.array(a) * b + c).tolist() != exact
