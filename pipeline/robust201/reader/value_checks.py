"""Validation of a dataset's files: JSON, meta.json and sweep.json, ids of architectures, and measured values."""

import contextlib
import json
import re
from collections.abc import Iterable, Mapping
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from robust201.core.errors import ResultsError
from robust201.core.records import ArchitectureId, show_architecture
from robust201.spaces.cell_space import CellSpace
from robust201.tasks.columns import MEASUREMENTS, Column, match_shapes

CLEAN = "clean"

ADVICE = "Export or download it again."

_MEAN_TOLERANCE = 1e-6
_FLOAT64_ERROR = 1e-9

_FLOAT32_ERROR = 1e-7
"""Error of a fraction in float32."""

_MAX_DECIMALS = 15
"""Numbers with more decimals were not rounded."""


def damaged_file(file: Path, error: Exception) -> ResultsError:
    """Return the exception for a file that cannot be decoded."""
    return ResultsError(
        f"Reading failed for {file}: the file is damaged and cannot be decoded ({error}). "
        "Check the folder with `sha256sum -c SHA256SUMS`, and export or download the file again."
    )


def parse_json(text: bytes) -> Any:
    """Parse JSON, and reject objects with duplicate names, of which parsers silently keep the last value.

    Raises:
        ValueError: the text is not valid JSON, is nested too deeply, or has a duplicate name.
    """
    # orjson drops duplicate names, so the text then has more quotes than the strings in the result. In that case, and
    # for JSON that orjson rejects, such as NaN, use the slower parser, which finds duplicates.
    with contextlib.suppress(ValueError):
        value = orjson.loads(text)
        if text.count(b'"') == 2 * _count_strings(value):
            return value
    try:
        return json.loads(text, object_pairs_hook=_unique_dict)
    except RecursionError as error:
        raise ValueError("brackets nested too deeply") from error


def _count_strings(value: Any) -> int:
    """Count the names and strings in a value; lists whose first item is neither string nor object are skipped."""
    count = 0
    level = [value]
    while level:
        objects = [inner for inner in level if type(inner) is dict]
        lists = [inner for inner in level if type(inner) is list and inner and type(inner[0]) in (dict, str)]
        count += sum(map(len, objects)) + sum(type(inner) is str for inner in level)
        level = list(chain.from_iterable(chain(map(dict.values, objects), lists)))
    return count


def _unique_dict(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for name, value in pairs:
        if name in result:
            raise ValueError(f"the name {name!r} twice in one object")
        result[name] = value
    return result


_ID = re.compile(r"[A-Za-z][\w.-]*|0|[1-9][0-9]*")


@cache
def _indices(count: int) -> frozenset[str]:
    return frozenset(map(str, range(count)))


def architecture_of(identifier: str) -> ArchitectureId:
    """Return the architecture of an id in a file: an index, or a name."""
    return int(identifier) if identifier.isdecimal() else identifier


def show_id(identifier: str) -> str:
    """Render an id in a file for people: ``#21``, or ``resnet18``."""
    return show_architecture(architecture_of(identifier))


def is_valid_meta(meta: Any, space: CellSpace | None) -> bool:
    """Return whether the content of meta.json has fields by id, for cells the published ones, and epsilons by key."""
    try:
        ids, epsilons = meta["ids"], meta["epsilons"]
        required = set() if space is None else {"nb201-string", "isomorph"}
        has_fields = all(required <= row.keys() for row in ids.values())
        names_are_valid = all(map(_ID.fullmatch, ids)) if space is None else ids.keys() <= _indices(len(space.specs()))
        return bool(has_fields and names_are_valid and all(map(_are_strengths, epsilons.values())))
    except (KeyError, TypeError, AttributeError):
        return False


def is_valid_sweep(sweep: Mapping[str, Any]) -> bool:
    """Return whether sweep.json's content has strengths by dataset and key, a list of measurements, and a sweep."""
    strengths, measurements = sweep.get("strengths"), sweep.get("measurements")
    if not isinstance(strengths, dict) or not isinstance(measurements, list):
        return False
    by_key = list(strengths.values())
    has_fields = all(isinstance(keys, dict) and all(map(_are_strengths, keys.values())) for keys in by_key)
    names_are_valid = all(isinstance(name, str) for name in measurements) and isinstance(sweep.get("weights", {}), dict)
    return has_fields and names_are_valid and _is_count(sweep.get("round_to")) and _is_valid_origin(sweep.get("sweep"))


def _is_valid_origin(record: Any) -> bool:
    """Return whether the images and protocols that sweep.json records, if any, have the form that exports write."""
    if record is None:
        return True
    if not isinstance(record, dict):
        return False
    images, protocols = record.get("images"), record.get("protocols", [])
    if not isinstance(images, dict | None) or not isinstance(protocols, list):
        return False
    counts = [(images or {}).get("count")]
    for protocol in protocols:
        decimals = protocol.get("decimals", {}) if isinstance(protocol, dict) else None
        if not isinstance(decimals, dict):
            return False
        counts += [protocol.get("n_images"), *decimals.values()]
    return all(map(_is_count, counts))


def _is_count(value: Any) -> bool:
    return value is None or (type(value) is int and 0 <= value < 1 << 53)


def _are_strengths(row: Any) -> bool:
    """Return whether a value is a list of strengths: distinct finite numbers of at least 0."""
    numbers = isinstance(row, list) and all(type(strength) in (float, int) for strength in row)
    return numbers and all(0 <= strength < float("inf") for strength in row) and len({*row}) == len(row)


def check_ids(file: Path, key: str, measure: str, ids: Iterable[str], known: Mapping[str, Any]) -> None:
    """Check that a file's ids are architectures of the dataset.

    Raises:
        ResultsError: an id is unknown.
    """
    for identifier in ids:
        if identifier not in known:
            names = [*known]
            examples = f"{names[0]} to {names[-1]}" if names and names[0].isdecimal() else ", ".join(names)
            raise ResultsError(
                f"Reading {key} {measure} failed for {file}: expected ids of architectures, {examples}, "
                f"got {identifier!r}. {ADVICE}"
            )


def check_json_values(file: Path, key: str, measure: str, rows: Mapping[str, Any], *, of_measure: bool = False) -> None:
    """Check a measurement's values; the number of strengths is checked by `values_by_strength`.

    Raises:
        ResultsError: a value lacks a field of its measurement, has a wrong shape, or contains anything but counts, or
            numbers in [0, 1] and null; or a measure's value is neither a number nor a list of numbers.
    """
    clean = key == CLEAN
    columns = {} if of_measure else MEASUREMENTS.get(measure, {})
    sole_column = columns.get("")
    if not (columns or of_measure) or (sole_column is not None and _are_all_fractions(sole_column, rows, clean=clean)):
        return
    described = ", and ".join(_describe(column) for column in columns.values()) or "a number, or a list of numbers"
    for identifier, row in rows.items():
        is_number = not columns and (row is None or make_array(row, missing_ok=True) is not None)
        if not (is_number or (columns and _has_columns(columns, row, clean))):
            text = repr(row)
            shown = text if len(text) <= 60 else f"{text[:57]}..."
            suffix = "" if clean or of_measure else ", one per strength"
            raise ResultsError(
                f"Reading {show_id(identifier)} {key} {measure} failed for {file}: expected {described}{suffix}, got "
                f"{shown}. {ADVICE}"
            )


def stack_values(measure: str, rows: Iterable[Any], *, single: bool) -> dict[str, NDArray[Any]] | None:
    """Stack a measurement's values in arrays, if they are valid (see `check_json_values`) and have equal shapes.

    Returns:
        Arrays (N, S, …) by field, for N architectures and S strengths; S is 1 for single values. None if values are
        not arrays, have different shapes (each may still be valid), or one of them is invalid.
    """
    columns = MEASUREMENTS.get(measure, {})
    if not all(column.dimensions for column in columns.values()):
        return None
    by_strength = [[row] for row in rows] if single else list(rows)
    if not _are_lists_of_one_length(by_strength):
        return None
    values, n_strengths = list(chain.from_iterable(by_strength)), len(by_strength[0])
    arrays = {}
    for name, column in columns.items():
        if name and not all(type(value) is dict and name in value for value in values):
            return None
        array = _stack([value[name] for value in values] if name else values, column)
        if array is None or not (are_counts(array) if column.is_exact else are_fractions(array)):
            return None
        arrays[name] = array.reshape(len(by_strength), n_strengths, *array.shape[1:])
    sizes = match_shapes({column.name: arrays[name].shape[2:] for name, column in columns.items()})
    return None if not sizes or 0 in sizes.values() else arrays


def _stack(nested: list[Any], column: Column) -> NDArray[np.float64] | None:
    """Convert nested lists of one shape to an array, much faster than NumPy; None if shapes differ."""
    shape = [len(nested)]
    for _ in column.dimensions:
        if not _are_lists_of_one_length(nested):
            return None
        shape.append(len(nested[0]))
        nested = list(chain.from_iterable(nested))
    if not column.is_exact:
        nested = [np.nan if value is None else value for value in nested]
    array = _as_doubles(nested)
    return None if array is None or np.isinf(array).any() else array.reshape(shape)


def _are_lists_of_one_length(values: list[Any]) -> bool:
    return {*map(type, values)} == {list} and len({*map(len, values)}) == 1


def _as_doubles(numbers: list[Any]) -> NDArray[np.float64] | None:
    """Convert numbers to an array; None if an item is not a number or is too large."""
    if not {*map(type, numbers)} <= {int, float}:
        return None
    try:
        return np.array(numbers, dtype=np.float64)
    except OverflowError:  # an integer with hundreds of digits
        return None


def _describe(column: Column) -> str:
    kind = "count" if column.is_exact else "fraction"
    sizes = " x ".join(
        {"classes": "C", "images": "N"}.get(str(dimension), str(dimension)) for dimension in column.dimensions
    )
    return f"{column.field}, an array {sizes} of {kind}s".lstrip(", ") if sizes else f"a {kind}"


def _are_all_fractions(column: Column, rows: Mapping[str, Any], *, clean: bool) -> bool:
    """Return whether all values are valid fractions, in one pass; if False, each value must be checked separately."""
    values = rows.values()
    if column.dimensions or column.is_exact or not (clean or all(type(row) is list for row in values)):
        return False
    numbers = _as_doubles(list(values if clean else chain.from_iterable(values)))
    return numbers is not None and bool(((numbers >= 0) & (numbers <= 1)).all())


def _has_columns(columns: Mapping[str, Column], row: Any, single: bool) -> bool:
    """Return whether a value, or a list of values by strength unless `single`, has a measurement's valid columns."""
    if isinstance(row, list) and not single and "" not in columns:
        return all(_has_columns(columns, value, True) for value in row)
    parts = {"": row} if "" in columns else row
    if not isinstance(parts, dict) or not columns.keys() <= parts.keys():
        return False
    shapes, n_values = {}, set()
    for name, column in columns.items():
        part = parts[name]
        if not column.dimensions:
            numbers = part if isinstance(part, list) and not single else [part]
            if not all(_is_number(column, value) for value in numbers):
                return False
            continue
        array = make_array(part, missing_ok=not column.is_exact)
        if array is None or not (
            _are_counts_or_row_fractions(column, array) if column.is_exact else are_fractions(array)
        ):
            return False
        shapes[column.name] = array.shape if single else array.shape[1:]
        n_values.add(1 if single else len(array) if array.ndim else 0)
    sizes = match_shapes(shapes)
    return sizes is not None and 0 not in sizes.values() and len(n_values) <= 1


def _is_number(column: Column, value: Any) -> bool:
    # NaN fails the comparison, type() excludes bool, which is a subclass of int, and null stands for a missing number.
    if value is None or type(value) not in (float, int):
        return value is None
    return bool(value >= 0 and value == int(value) if column.is_exact else 0 <= value <= 1)


def are_counts(array: NDArray[Any]) -> bool:
    """Return whether finite numbers are counts: integers of at least 0."""
    return bool((array >= 0).all() and (array.dtype.kind != "f" or (array == np.rint(array)).all()))


def are_row_fractions(array: NDArray[Any]) -> bool:
    """Return whether matrices (…, C, C) contain fractions of each row, which sum to 1 within rounding, or to 0.

    Published confusion matrices may contain fractions or counts: the paper and the published helper script do not say.
    """
    sums = array.sum(axis=-1)
    is_distribution = np.abs(sums - 1) <= array.shape[-1] * fraction_rounding(array)
    return bool(are_fractions(array) and is_distribution.any() and (is_distribution | (sums == 0)).all())


def fraction_rounding(fractions: NDArray[Any]) -> float:
    """Return the maximum rounding error of fractions: half a unit of the last decimal, plus floating-point error."""
    if are_counts(fractions):  # integers are not rounded
        return _FLOAT32_ERROR
    fitting = (decimals for decimals in range(1, _MAX_DECIMALS) if (np.round(fractions, decimals) == fractions).all())
    decimals = next(fitting, None)
    return max(_FLOAT32_ERROR, _FLOAT64_ERROR + (0.0 if decimals is None else 0.5 * 10.0**-decimals))


def _are_counts_or_row_fractions(column: Column, array: NDArray[Any]) -> bool:
    is_matrix = len(column.dimensions) == 2 and array.ndim >= 2
    return are_counts(array) or (is_matrix and are_row_fractions(array))


def are_fractions(array: NDArray[Any]) -> bool:
    """Return whether numbers lie in [0, 1] within the error of float32 means; NaN is accepted."""
    return not bool(((array < -_MEAN_TOLERANCE) | (array > 1 + _MEAN_TOLERANCE)).any())


def make_array(nested: Any, *, missing_ok: bool) -> NDArray[Any] | None:
    """Convert nested lists to an array of integers or float64.

    Args:
        nested: the lists.
        missing_ok: whether NaN is accepted, and None as NaN.

    Returns:
        The array, or None if the lists are ragged or contain anything but finite numbers.
    """
    try:
        array = np.array(nested)
        if array.dtype.kind == "O" and missing_ok and {type(value) for value in array.flat} <= {float, int, type(None)}:
            array = array.astype(np.float64)
    except (ValueError, OverflowError):
        return None
    if array.dtype.kind not in "iuf":
        return None
    invalid = np.isinf(array) if missing_ok else ~np.isfinite(array)
    return None if invalid.any() else array
