"""Serialisation of arrays to the same JSON bytes as `json.dumps`, but several times as fast.

Like Python, orjson writes the shortest digits that round-trip. For numbers in [0, 10), its output differs from
Python's in three ways, which this module corrects: no space after a comma, ``1e-6`` instead of ``1e-06``, and
``0.00001`` instead of ``1e-05``.
"""

import json
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

MAX_EXACT_DECIMALS = 12
"""Maximum number of decimals for which rounding with one multiplication and one division of doubles is exact."""

_MIN_WITHOUT_EXPONENT = 1e-4
"""Python writes smaller numbers with an exponent; orjson does so only below a tenth of this number."""

_HALF_MARGIN = 1e-2
"""Scaled numbers whose fraction is closer than this to a half are rounded by their exact value."""

_ZERO, _NINE, _E, _DOT = (np.uint8(code) for code in b"09e.")
_FIXED_PREFIX = b"0.0000"
# Placeholders for "-0" and for characters to delete, which do not occur in JSON numbers, and an offset: it is added to
# the code of a delimiter before which an exponent must be inserted.
_MINUS_ZERO, _DELETED, _AFTER_EXPONENT = b"~", b"?", 128


def array_text(values: NDArray[Any], round_to: int | None = None) -> bytes:
    """Return an array of any shape as nested JSON lists, with the bytes of ``json.dumps``; NaN becomes ``null``.

    Args:
        values: the array.
        round_to: number of decimals of floats; None writes them exactly.

    Raises:
        ValueError: a number is infinite, which JSON cannot represent.
    """
    values = np.asarray(values)
    if values.dtype.kind != "f":
        return _to_orjson(values).replace(b",", b", ")
    values = values.astype(np.float64, copy=False)  # orjson would write fewer digits for a narrower float
    if np.isinf(values).any():
        raise ValueError("expected finite numbers or NaN, got infinity")
    if round_to is not None:
        values = round_array(values, round_to)
    if values.ndim == 0 or not _are_nonnegative_below_ten(values):
        return _to_json(values)
    json_text = _to_orjson(values)
    if ((values < _MIN_WITHOUT_EXPONENT) & (values > 0)).any():
        json_text = _correct_exponents(json_text)
    return json_text.replace(b",", b", ")


def array_texts(values: NDArray[Any], round_to: int | None = None) -> list[bytes]:
    """Return the text of `array_text` for each array of a stack (evaluations, …), in one pass."""
    if not values.size:
        return [array_text(array, round_to) for array in values]
    json_text, n_brackets = array_text(values, round_to), values.ndim - 1
    opening, closing = b"[" * n_brackets, b"]" * n_brackets
    # `n_brackets` consecutive brackets occur only between two arrays of the stack.
    inner_texts = json_text[1 + n_brackets : len(json_text) - 1 - n_brackets].split(closing + b", " + opening)
    return [opening + inner_text + closing for inner_text in inner_texts]


def _to_orjson(values: NDArray[Any]) -> bytes:
    if values.ndim == 0:
        return orjson.dumps(values.item())
    return orjson.dumps(np.ascontiguousarray(values), option=orjson.OPT_SERIALIZE_NUMPY)


def _are_nonnegative_below_ten(values: NDArray[Any]) -> bool:
    """Return whether every number is NaN or in [0, 10), as `_correct_exponents` requires."""
    finite_values = values[~np.isnan(values)]
    return values.size > 0 and not (finite_values.size and (finite_values.min() < 0 or finite_values.max() >= 10))


def _to_json(values: NDArray[Any]) -> bytes:
    if values.ndim == 0:
        return b"null" if np.isnan(values) else json.dumps(values.item()).encode()
    objects = values.astype(object)
    objects[np.isnan(values)] = None
    return json.dumps(objects.tolist(), allow_nan=False).encode()


def _correct_exponents(text: bytes) -> bytes:
    """Replace numbers such as ``0.000012`` by ``1.2e-05``, and ``1.2e-6`` by ``1.2e-06``.

    Changes that keep the length are made in an array of characters. Where the length changes, placeholders are written
    to the array; the fast methods of `bytes` then replace or delete them.
    """
    characters = np.frombuffer(bytearray(text), np.uint8)
    symbol_positions = np.flatnonzero(characters - _ZERO > _NINE - _ZERO)  # not digits; characters below "0" wrap round
    symbols = characters[symbol_positions]
    exponent_symbols = np.flatnonzero(symbols[:-2] == _E) + 1  # the minus sign after each e
    exponent_symbols = exponent_symbols[
        symbol_positions[exponent_symbols + 1] - symbol_positions[exponent_symbols] == 2
    ]
    point_symbols = np.flatnonzero(symbols == _DOT)
    point_symbols = point_symbols[
        symbol_positions[point_symbols + 1] - symbol_positions[point_symbols] >= len(_FIXED_PREFIX) - 1
    ]
    point_positions = symbol_positions[point_symbols]
    has_fixed_prefix = np.ones(len(point_positions), bool)
    for offset in (-1, *range(1, len(_FIXED_PREFIX) - 1)):
        has_fixed_prefix &= characters[point_positions + offset] == _ZERO
    point_positions, end_positions = (
        point_positions[has_fixed_prefix],
        symbol_positions[point_symbols[has_fixed_prefix] + 1],
    )
    first_digits = point_positions + len(_FIXED_PREFIX) - 1
    characters[symbol_positions[exponent_symbols]] = ord(_MINUS_ZERO)
    characters[first_digits - 1] = characters[first_digits]
    characters[first_digits] = np.where(end_positions > first_digits + 1, _DOT, ord(_DELETED))
    for offset in range(-1, len(_FIXED_PREFIX) - 2):
        characters[point_positions + offset] = ord(_DELETED)
    characters[end_positions] += _AFTER_EXPONENT
    corrected = characters.tobytes().replace(_MINUS_ZERO, b"-0").translate(None, _DELETED)
    for delimiter in b",]":
        corrected = corrected.replace(bytes([delimiter + _AFTER_EXPONENT]), b"e-05" + bytes([delimiter]))
    return corrected


def round_array(values: NDArray[np.float64], decimals: int) -> NDArray[np.float64]:
    """Round doubles like Python's `round`: by their exact binary values, half to even. NaN remains NaN."""
    if decimals > MAX_EXACT_DECIMALS or not _are_nonnegative_below_ten(values):
        return _round_each(values, decimals)
    scale = 10.0**decimals
    scaled = values * scale
    rounded_scaled = np.rint(scaled)
    rounded: NDArray[np.float64] = np.asarray(rounded_scaled / scale)
    # The product has a rounding error of up to 1e-3, so numbers near a half are rounded by their exact value.
    is_near_half = np.abs(np.abs(scaled - rounded_scaled) - 0.5) < _HALF_MARGIN
    if is_near_half.any():
        rounded[is_near_half] = _round_each(values[is_near_half], decimals)
    return rounded


def _round_each(values: NDArray[np.float64], decimals: int) -> NDArray[np.float64]:
    rounded = [round(number, decimals) for number in np.ravel(values).tolist()]
    return np.array(rounded, dtype=np.float64).reshape(values.shape)
