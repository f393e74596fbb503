"""Validation of a dataset's files: meta.json, sweep.json, and the values of measurements."""

import re
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robust201.core.errors import ResultsError
from robust201.networks.spaces import CellSpace
from robust201.tasks.columns import COLUMNS, MEASUREMENTS, Column

ADVICE = "Export or download it again."

_MEAN_TOLERANCE = 1e-6
"""Maximum distance of a float32 mean of fractions from [0, 1]."""

_FLOAT64_ERROR = 1e-9
"""Upper bound of the floating-point error of a rounded fraction in float64."""

_FLOAT32_ERROR = 1e-7
"""Upper bound of the error of a fraction in float32."""

_MIN_EXACT_DECIMALS = 15
"""Numbers with at least this many decimals count as not rounded."""


def damaged_file_error(file: Path, error: Exception) -> ResultsError:
    """Return an error for a file that cannot be decoded."""
    return ResultsError(
        f"Reading failed for {file}: the file is damaged and cannot be decoded ({error}). "
        "Check the folder with `sha256sum -c SHA256SUMS`, and export or download the file again."
    )


_ID = re.compile(r"[A-Za-z][\w.-]*|0|[1-9][0-9]*")


def is_valid_meta(meta: Any, space: CellSpace | None) -> bool:
    """Return whether the content of meta.json maps ids to fields, and keys to lists of epsilons.

    For a space of cells, each id must have the published fields.
    """
    try:
        ids, epsilons = meta["ids"], meta["epsilons"]
        required_fields = set() if space is None else {"nb201-string", "isomorph"}
        has_fields = all(required_fields <= fields.keys() for fields in ids.values())
        has_valid_ids = all(map(_ID.fullmatch if space is None else str.isdecimal, ids))
        return bool(has_fields and has_valid_ids and all(map(_are_strengths, epsilons.values())))
    except (KeyError, TypeError, AttributeError):
        return False


def is_valid_sweep(sweep: Mapping[str, Any]) -> bool:
    """Return whether sweep.json has valid strengths by dataset and key, measurements, and a valid sweep record."""
    strengths, measurements = sweep.get("strengths"), sweep.get("measurements")
    if not isinstance(strengths, dict) or not isinstance(measurements, list):
        return False
    has_valid_strengths = all(
        isinstance(strengths_of_dataset, dict) and all(map(_are_strengths, strengths_of_dataset.values()))
        for strengths_of_dataset in strengths.values()
    )
    has_valid_names = all(isinstance(name, str) for name in measurements) and isinstance(sweep.get("weights", {}), dict)
    return (
        has_valid_strengths
        and has_valid_names
        and _is_count_or_none(sweep.get("round_to"))
        and _is_valid_sweep_record(sweep.get("sweep"))
    )


def _is_valid_sweep_record(record: Any) -> bool:
    """Return whether the images and protocols that sweep.json records, if any, have the form that exports write."""
    if record is None:
        return True
    if not isinstance(record, dict):
        return False
    images, protocols = record.get("images"), record.get("protocols", [])
    if not isinstance(images, dict | None) or not isinstance(protocols, list):
        return False
    image_and_decimal_counts = [(images or {}).get("count")]
    for protocol in protocols:
        decimals = protocol.get("decimals", {}) if isinstance(protocol, dict) else None
        if not isinstance(decimals, dict):
            return False
        image_and_decimal_counts += [protocol.get("n_images"), *decimals.values()]
    return all(map(_is_count_or_none, image_and_decimal_counts))


def _is_count_or_none(value: Any) -> bool:
    return value is None or (type(value) is int and 0 <= value < 1 << 53)


def _are_strengths(strengths: Any) -> bool:
    """Return whether a value is a list of strengths: distinct finite numbers of at least 0."""
    are_numbers = isinstance(strengths, list) and all(type(strength) in (float, int) for strength in strengths)
    return (
        are_numbers
        and all(0 <= strength < float("inf") for strength in strengths)
        and len({*strengths}) == len(strengths)
    )


def to_array(name: str, entries: Sequence[Any]) -> NDArray[Any]:
    """Convert the values of a column, one per row, to an array with one row per value, in which null becomes NaN.

    The values of a measure that are not numbers become an array of objects, because their shapes may differ.

    Raises:
        ValueError: a value is not a number or an array of numbers as the column requires, or shapes differ.
    """
    column = COLUMNS.get(name)
    if column is None:
        if any(make_array(entry) is None for entry in entries if entry is not None):
            raise ValueError("a value that is neither a number nor a list of numbers")
        return _to_floats(entries) if not any(type(entry) is list for entry in entries) else _to_objects(entries)
    shape, numbers = [len(entries)], list(entries)
    for _ in column.dimensions:
        if not numbers or {*map(type, numbers)} != {list} or len({*map(len, numbers)}) != 1:
            raise ValueError("lists of other shapes")
        shape.append(len(numbers[0]))
        numbers = list(chain.from_iterable(numbers))
    if column.is_exact and None in numbers:
        raise ValueError("null instead of a count")
    array = _to_floats(numbers).reshape(shape)
    check_column(name, array)
    return array.astype(np.int64) if column.is_exact and are_counts(array) else array


def _to_floats(numbers: Sequence[Any]) -> NDArray[np.float64]:
    if not {*map(type, numbers)} <= {int, float, type(None)}:
        raise ValueError("a value that is not a number")
    try:
        return np.array(numbers, dtype=np.float64)
    except OverflowError as error:  # an integer with hundreds of digits
        raise ValueError("a number that is too large") from error


def _to_objects(entries: Sequence[Any]) -> NDArray[Any]:
    array = np.empty(len(entries), dtype=object)
    array[:] = list(entries)
    return array


def check_column(name: str, array: NDArray[Any]) -> None:
    """Check the values of a column, (N, …); the values of measures may be any numbers.

    Raises:
        ValueError: a value is not a count, or not a fraction, as the column requires, or has a wrong shape.
    """
    column = COLUMNS.get(name)
    if column is None:
        return
    if not column.fits(array.shape[1:]):
        raise ValueError("an array of another shape")
    if column.is_exact:
        if not np.isfinite(array).all() or not (are_counts(array) or (column.is_matrix and are_row_fractions(array))):
            raise ValueError("a number that is not a count")
    elif not column.dimensions:
        if not ((array >= 0) & (array <= column.largest)).all():
            raise ValueError("a number that is not a fraction")
    elif not are_fractions(array / column.largest):
        raise ValueError("numbers that are not fractions")


def describe_measurement(measurement: str) -> str:
    """Return what a value of a measurement must be, for error messages."""
    columns = MEASUREMENTS.get(measurement, {})
    return ", and ".join(map(_describe_column, columns.values())) or "a number, or a list of numbers"


def _describe_column(column: Column) -> str:
    noun = "count" if column.is_exact else "fraction"
    sizes = " x ".join(
        {"classes": "C", "images": "N"}.get(str(dimension), str(dimension)) for dimension in column.dimensions
    )
    return f"{column.field}, an array {sizes} of {noun}s".lstrip(", ") if sizes else f"a {noun}"


def are_counts(array: NDArray[Any]) -> bool:
    """Return whether an array of finite numbers contains only counts, which are integers of at least 0."""
    return bool((array >= 0).all() and (array.dtype.kind != "f" or (array == np.rint(array)).all()))


def are_row_fractions(array: NDArray[Any]) -> bool:
    """Return whether matrices (…, C, C) contain fractions, and each row sums to 1 within rounding, or to 0.

    At least one row must sum to 1.

    Published confusion matrices are accepted with such fractions or with counts, because neither the paper nor the
    published helper script says which they contain.
    """
    sums = array.sum(axis=-1)
    is_distribution = np.abs(sums - 1) <= array.shape[-1] * max_rounding_error(array)
    return bool(are_fractions(array) and is_distribution.any() and (is_distribution | (sums == 0)).all())


def are_distributions(array: NDArray[Any]) -> bool:
    """Return whether fractions sum to 1 over the last axis within rounding; means over no images are NaN or 0."""
    sums = array.sum(axis=-1)
    deviation = np.abs(sums[(sums != 0) & ~np.isnan(sums)] - 1).max(initial=0.0)
    n_summed = array.shape[-1]
    return bool(deviation <= n_summed * _FLOAT32_ERROR or deviation <= n_summed * max_rounding_error(array))


def max_rounding_error(fractions: NDArray[Any]) -> float:
    """Return the maximum error of rounded fractions: half a unit of the last decimal, plus the floating-point error."""
    if are_counts(fractions):  # integers are not rounded
        return _FLOAT32_ERROR
    matching_decimals = (
        decimals for decimals in range(1, _MIN_EXACT_DECIMALS) if (np.round(fractions, decimals) == fractions).all()
    )
    decimals = next(matching_decimals, None)
    return max(_FLOAT32_ERROR, _FLOAT64_ERROR + (0.0 if decimals is None else 0.5 * 10.0**-decimals))


def are_fractions(array: NDArray[Any]) -> bool:
    """Return whether numbers lie in [0, 1] within the error of float32 means; NaN is accepted."""
    return not bool(((array < -_MEAN_TOLERANCE) | (array > 1 + _MEAN_TOLERANCE)).any())


def make_array(nested: Any) -> NDArray[Any] | None:
    """Convert nested lists of numbers and None, which becomes NaN, to an array; return None for anything else."""
    try:
        array = np.array(nested)
        if array.dtype.kind == "O" and {type(value) for value in array.flat} <= {float, int, type(None)}:
            array = array.astype(np.float64)
    except (ValueError, OverflowError):
        return None
    return None if array.dtype.kind not in "iuf" or np.isinf(array).any() else array
