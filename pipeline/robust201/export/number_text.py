"""Arrays of numbers to JSON text, byte for byte what `json.dumps` gives, at a tenth of its time or less.

orjson writes the shortest digits that give a double back, as Python does, and differs from Python's `repr` in three
ways that are mended here: no space after a comma, ``1e-6`` for ``1e-06``, and ``0.00001`` for ``1e-05``.
"""

import json
from typing import Any, Literal

import numpy as np
import orjson
from numpy.typing import NDArray

MAX_EXACT_DECIMALS = 12
"""Decimals up to which a rounded double follows from one product and one division of doubles."""

_EXPONENT_FROM = 1e-4
"""Python writes smaller numbers with an exponent; orjson does below a tenth of this."""

_HALF_WAY = 1e-2
_ZERO, _NINE, _E, _DOT = (np.uint8(code) for code in b"09e.")
_FIXED = b"0.0000"
_MINUS_ZERO, _NOTHING, _AFTER_EXPONENT = b"~", b"?", 128  # of no use in JSON numbers


Empty = Literal["null", "nan", "zero"]
"""What JSON files say of a mean over no image: null is JSON, NaN is what Python's and NumPy's readers take."""


def array_text(values: NDArray[Any], round_to: int | None = None, empty: Empty = "null") -> bytes:
    """Write an array of any shape as nested JSON lists: the bytes of ``json.dumps(values.tolist())``.

    Of floats, NaN becomes ``null``, ``NaN`` or ``0.0``, and some decimals are kept; None keeps them exactly.
    ValueError: a number is infinite, which JSON cannot say.
    """
    if empty == "zero":
        return array_text(np.where(np.isnan(values), 0.0, values), round_to)
    if empty == "nan":
        return array_text(values, round_to).replace(b"null", b"NaN")
    values = np.asarray(values)
    if values.dtype.kind != "f":
        return _serialise(values).replace(b",", b", ")
    values = values.astype(np.float64, copy=False)  # of a narrower float, orjson would write fewer digits
    if np.isinf(values).any():
        raise ValueError("expected finite numbers or NaN, got infinity")
    if round_to is not None:
        values = round_array(values, round_to)
    if values.ndim == 0 or not _is_plain(values):
        return _slowly(values)
    text = _serialise(values)
    small = values[(values < _EXPONENT_FROM) & (values > 0)]
    if small.size:
        text = _mend_exponents(text)
    return text.replace(b",", b", ")


def array_texts(values: NDArray[Any], round_to: int | None = None, empty: Empty = "null") -> list[bytes]:
    """Write each array of a stack (E, …) as `array_text` does, all at once."""
    if not values.size:
        return [array_text(array, round_to, empty) for array in values]
    text, depth = array_text(values, round_to, empty), values.ndim - 1
    opening, closing = b"[" * depth, b"]" * depth
    # So many brackets meet only where an array of the stack ends.
    pieces = text[1 + depth : len(text) - 1 - depth].split(closing + b", " + opening)
    return [opening + piece + closing for piece in pieces]


def _serialise(values: NDArray[Any]) -> bytes:
    if values.ndim == 0:
        return orjson.dumps(values.item())
    return orjson.dumps(np.ascontiguousarray(values), option=orjson.OPT_SERIALIZE_NUMPY)


def _is_plain(values: NDArray[Any]) -> bool:
    """Whether every number is of the form that the mending below knows: at least 0, below 10, or NaN."""
    held = values[~np.isnan(values)]
    return values.size > 0 and not (held.size and (held.min() < 0 or held.max() >= 10))


def _slowly(values: NDArray[Any]) -> bytes:
    if values.ndim == 0:
        return b"null" if np.isnan(values) else json.dumps(values.item()).encode()
    plain = values.astype(object)
    plain[np.isnan(values)] = None
    return json.dumps(plain.tolist(), allow_nan=False).encode()


def _mend_exponents(text: bytes) -> bytes:
    """Turn ``0.000012`` into ``1.2e-05`` and ``1.2e-6`` into ``1.2e-06``, by bytes that stand for what is to be there.

    What changes no length is done in the array; what does is left to `bytes.replace`, which copies whole stretches.
    """
    source = np.frombuffer(bytearray(text), np.uint8)
    marks = np.flatnonzero(source - _ZERO > _NINE - _ZERO)  # not a digit; below "0" wraps round
    codes = source[marks]
    exponents = np.flatnonzero(codes[:-2] == _E) + 1
    exponents = exponents[marks[exponents + 1] - marks[exponents] == 2]
    points = np.flatnonzero(codes == _DOT)
    points = points[marks[points + 1] - marks[points] >= len(_FIXED) - 1]
    dots = marks[points]
    fixed = np.ones(len(dots), bool)
    for offset in (-1, *range(1, len(_FIXED) - 1)):
        fixed &= source[dots + offset] == _ZERO
    dots, ends = dots[fixed], marks[points[fixed] + 1]
    first_digits = dots + len(_FIXED) - 1
    source[marks[exponents]] = ord(_MINUS_ZERO)
    source[first_digits - 1] = source[first_digits]
    source[first_digits] = np.where(ends > first_digits + 1, _DOT, ord(_NOTHING))
    for offset in range(-1, len(_FIXED) - 2):
        source[dots + offset] = ord(_NOTHING)
    source[ends] += _AFTER_EXPONENT
    mended = source.tobytes().replace(_MINUS_ZERO, b"-0").translate(None, _NOTHING)
    for end in b",]":
        mended = mended.replace(bytes([end + _AFTER_EXPONENT]), b"e-05" + bytes([end]))
    return mended


def round_array(values: NDArray[np.float64], decimals: int) -> NDArray[np.float64]:
    """Round doubles or NaN as Python's `round` does: half to even by their exact values, not by those of a product."""
    if decimals > MAX_EXACT_DECIMALS or not _is_plain(values):
        return _round_each(values, decimals)
    scale = 10.0**decimals
    scaled = values * scale
    whole = np.rint(scaled)
    rounded: NDArray[np.float64] = np.asarray(whole / scale)
    # A product that seems to lie half-way may be rounded itself, by up to 1e-3 here: there the exact value decides.
    doubtful = np.abs(np.abs(scaled - whole) - 0.5) < _HALF_WAY
    if doubtful.any():
        rounded[doubtful] = _round_each(values[doubtful], decimals)
    return rounded


def _round_each(values: NDArray[np.float64], decimals: int) -> NDArray[np.float64]:
    flat = [round(value, decimals) for value in np.ravel(values).tolist()]
    return np.array(flat, dtype=np.float64).reshape(values.shape)
