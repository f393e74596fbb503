"""Serialisation of arrays to the same JSON bytes as `json.dumps`, but several times as fast.

Like Python, orjson writes the shortest digits that round-trip. Its output differs from Python's in three ways, which
this module corrects: no space after a comma, ``1e-6`` instead of ``1e-06``, and ``0.00001`` instead of ``1e-05``.
"""

import json
import re
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

_CORRECTIONS = (
    (re.compile(rb"0\.0000(\d)(\d+)"), rb"\1.\2e-05"),
    (re.compile(rb"0\.0000(\d)"), rb"\1e-05"),
    (re.compile(rb"e-(\d)(?!\d)"), rb"e-0\1"),
)
"""Patterns in orjson's texts of numbers in [0, 10), such as ``0.000012`` and ``1.2e-6``, and Python's spelling."""


def array_text(values: NDArray[Any], round_to: int | None = None) -> bytes:
    """Return an array of any shape as nested JSON lists, with the bytes of ``json.dumps``; NaN becomes ``null``.

    Args:
        values: the array.
        round_to: number of decimals of floats; None writes them exactly.

    Raises:
        ValueError: a number is infinite, which JSON cannot represent.
    """
    values = np.asarray(values)
    if values.ndim == 0:
        return array_text(values[None], round_to)[1:-1]
    if values.dtype.kind != "f":
        return _to_orjson(values).replace(b",", b", ")
    values = values.astype(np.float64, copy=False)  # orjson would write fewer digits for a narrower float
    if np.isinf(values).any():
        raise ValueError("expected finite numbers or NaN, got infinity")
    if round_to is not None:
        values = round_array(values, round_to)
    if not _are_nonnegative_below_ten(values):
        return _to_json(values)
    json_text = _to_orjson(values)
    if ((values < _MIN_WITHOUT_EXPONENT) & (values > 0)).any():
        for pattern, replacement in _CORRECTIONS:
            json_text = pattern.sub(replacement, json_text)
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
    return orjson.dumps(np.ascontiguousarray(values), option=orjson.OPT_SERIALIZE_NUMPY)


def _are_nonnegative_below_ten(values: NDArray[Any]) -> bool:
    """Return whether every number is NaN or in [0, 10), as `_CORRECTIONS` requires."""
    finite_values = values[~np.isnan(values)]
    return values.size > 0 and not (finite_values.size and (finite_values.min() < 0 or finite_values.max() >= 10))


def _to_json(values: NDArray[Any]) -> bytes:
    objects = values.astype(object)
    objects[np.isnan(values)] = None
    return json.dumps(objects.tolist(), allow_nan=False).encode()


def round_array(values: NDArray[np.float64], decimals: int) -> NDArray[np.float64]:
    """Round doubles like Python's `round`: by their exact binary values, with halves to even. NaN remains NaN."""
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
