"""Serialisation of arrays to the same JSON bytes as `json.dumps`, at least ten times faster.

Like Python, orjson writes the shortest digits that round-trip. Its output differs from Python's in three ways, which
are corrected here: no space after a comma, ``1e-6`` for ``1e-06``, and ``0.00001`` for ``1e-05``.
"""

import json
from typing import Any, Literal

import numpy as np
import orjson
from numpy.typing import NDArray

MAX_EXACT_DECIMALS = 12
"""Maximum number of decimals for which rounding with one product and one division of doubles is exact."""

_EXPONENT_FROM = 1e-4
"""Python writes numbers below this with an exponent, orjson only numbers below a tenth of it."""

_HALF_MARGIN = 1e-2
"""Distance from a half below which the exact value decides how a number is rounded."""
_ZERO, _NINE, _E, _DOT = (np.uint8(code) for code in b"09e.")
_FIXED = b"0.0000"
_MINUS_ZERO, _DELETED, _AFTER_EXPONENT = b"~", b"?", 128  # of no use in JSON numbers


Empty = Literal["null", "nan", "zero"]
"""Value in JSON files for a mean over no image; NaN is not valid JSON, but Python and NumPy can read it."""


def array_text(values: NDArray[Any], round_to: int | None = None, empty: Empty = "null") -> bytes:
    """Return an array of any shape as nested JSON lists, with the bytes of ``json.dumps(values.tolist())``.

    Args:
        values: the array.
        round_to: number of decimals of floats; None writes them exactly.
        empty: replacement for NaN: ``null``, ``NaN`` or ``0.0``.

    Raises:
        ValueError: a number is infinite, which JSON cannot represent.
    """
    if empty == "zero":
        return array_text(np.where(np.isnan(values), 0.0, values), round_to)
    if empty == "nan":
        return array_text(values, round_to).replace(b"null", b"NaN")
    values = np.asarray(values)
    if values.dtype.kind != "f":
        return _serialise(values).replace(b",", b", ")
    values = values.astype(np.float64, copy=False)  # orjson would write fewer digits for a narrower float
    if np.isinf(values).any():
        raise ValueError("expected finite numbers or NaN, got infinity")
    if round_to is not None:
        values = round_array(values, round_to)
    if values.ndim == 0 or not _is_plain(values):
        return _json_dumps(values)
    text = _serialise(values)
    small = values[(values < _EXPONENT_FROM) & (values > 0)]
    if small.size:
        text = _mend_exponents(text)
    return text.replace(b",", b", ")


def array_texts(values: NDArray[Any], round_to: int | None = None, empty: Empty = "null") -> list[bytes]:
    """Return the text of each array of a stack (E, …), as `array_text` does, but in one pass."""
    if not values.size:
        return [array_text(array, round_to, empty) for array in values]
    text, depth = array_text(values, round_to, empty), values.ndim - 1
    opening, closing = b"[" * depth, b"]" * depth
    # This many consecutive brackets occur only between two arrays of the stack.
    pieces = text[1 + depth : len(text) - 1 - depth].split(closing + b", " + opening)
    return [opening + piece + closing for piece in pieces]


def _serialise(values: NDArray[Any]) -> bytes:
    if values.ndim == 0:
        return orjson.dumps(values.item())
    return orjson.dumps(np.ascontiguousarray(values), option=orjson.OPT_SERIALIZE_NUMPY)


def _is_plain(values: NDArray[Any]) -> bool:
    """Return whether every number is at least 0 and below 10, or NaN, as `_mend_exponents` requires."""
    numbers = values[~np.isnan(values)]
    return values.size > 0 and not (numbers.size and (numbers.min() < 0 or numbers.max() >= 10))


def _json_dumps(values: NDArray[Any]) -> bytes:
    if values.ndim == 0:
        return b"null" if np.isnan(values) else json.dumps(values.item()).encode()
    plain = values.astype(object)
    plain[np.isnan(values)] = None
    return json.dumps(plain.tolist(), allow_nan=False).encode()


def _mend_exponents(text: bytes) -> bytes:
    """Turn ``0.000012`` into ``1.2e-05`` and ``1.2e-6`` into ``1.2e-06``.

    Changes that keep the length are made in the array, where placeholder bytes mark the others; `bytes.replace`, which
    is fast, then replaces the placeholders.
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
    source[first_digits] = np.where(ends > first_digits + 1, _DOT, ord(_DELETED))
    for offset in range(-1, len(_FIXED) - 2):
        source[dots + offset] = ord(_DELETED)
    source[ends] += _AFTER_EXPONENT
    mended = source.tobytes().replace(_MINUS_ZERO, b"-0").translate(None, _DELETED)
    for end in b",]":
        mended = mended.replace(bytes([end + _AFTER_EXPONENT]), b"e-05" + bytes([end]))
    return mended


def round_array(values: NDArray[np.float64], decimals: int) -> NDArray[np.float64]:
    """Round doubles or NaN as Python's `round` does: half to even by their exact binary values."""
    if decimals > MAX_EXACT_DECIMALS or not _is_plain(values):
        return _round_each(values, decimals)
    scale = 10.0**decimals
    scaled = values * scale
    whole = np.rint(scaled)
    rounded: NDArray[np.float64] = np.asarray(whole / scale)
    # The product has a rounding error of up to 1e-3 here, so near a half the exact value has to decide.
    doubtful = np.abs(np.abs(scaled - whole) - 0.5) < _HALF_MARGIN
    if doubtful.any():
        rounded[doubtful] = _round_each(values[doubtful], decimals)
    return rounded


def _round_each(values: NDArray[np.float64], decimals: int) -> NDArray[np.float64]:
    flat = [round(value, decimals) for value in np.ravel(values).tolist()]
    return np.array(flat, dtype=np.float64).reshape(values.shape)
