"""Validation of a dataset's files: JSON syntax, meta.json, sweep.json, ids of architectures, and measured values."""

import contextlib
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
from robust201.core.files import parse_unique_json
from robust201.core.records import ArchitectureId, format_architecture
from robust201.spaces import CellSpace
from robust201.tasks.columns import MEASUREMENTS, Column, match_shapes

CLEAN = "clean"

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


def parse_json(text: bytes) -> Any:
    """Parse JSON, and reject objects with duplicate names, for which parsers would return only the last value.

    Raises:
        ValueError: the text is not valid JSON, is nested too deeply, or has a duplicate name.
    """
    # orjson drops duplicate names. The text then has more quotes than the strings in the result need. In this case, and
    # for JSON that orjson rejects, such as NaN, Python's slower parser is used, which detects duplicates.
    with contextlib.suppress(ValueError):
        content = orjson.loads(text)
        if text.count(b'"') == 2 * _count_strings(content):
            return content
    return parse_unique_json(text)


def _count_strings(value: Any) -> int:
    """Return the number of names and strings in a value.

    Lists whose first element is neither a string nor an object are skipped.
    """
    count = 0
    elements = [value]
    while elements:
        objects = [element for element in elements if type(element) is dict]
        lists = [
            element for element in elements if type(element) is list and element and type(element[0]) in (dict, str)
        ]
        count += sum(map(len, objects)) + sum(type(element) is str for element in elements)
        elements = list(chain.from_iterable(chain(map(dict.values, objects), lists)))
    return count


_ID = re.compile(r"[A-Za-z][\w.-]*|0|[1-9][0-9]*")


@cache
def _make_index_names(count: int) -> frozenset[str]:
    return frozenset(map(str, range(count)))


def parse_architecture_id(identifier: str) -> ArchitectureId:
    """Return the architecture for an id in a file: an index (int) or a name."""
    return int(identifier) if identifier.isdecimal() else identifier


def format_id(identifier: str) -> str:
    """Return an id in a file as shown in messages: ``#21``, or ``resnet18``."""
    return format_architecture(parse_architecture_id(identifier))


def is_valid_meta(meta: Any, space: CellSpace | None) -> bool:
    """Return whether the content of meta.json maps ids to fields, and keys to lists of epsilons.

    For a space of cells, each id must have the published fields.
    """
    try:
        ids, epsilons = meta["ids"], meta["epsilons"]
        required_fields = set() if space is None else {"nb201-string", "isomorph"}
        has_fields = all(required_fields <= fields.keys() for fields in ids.values())
        has_valid_ids = (
            all(map(_ID.fullmatch, ids)) if space is None else ids.keys() <= _make_index_names(len(space.specs()))
        )
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


def check_ids(file: Path, key: str, measurement: str, ids: Iterable[str], known_ids: Mapping[str, Any]) -> None:
    """Check that a file's ids are architectures of the dataset.

    Raises:
        ResultsError: an id is unknown.
    """
    for identifier in ids:
        if identifier not in known_ids:
            known_names = [*known_ids]
            examples = (
                f"{known_names[0]} to {known_names[-1]}"
                if known_names and known_names[0].isdecimal()
                else ", ".join(known_names)
            )
            raise ResultsError(
                f"Reading {key} {measurement} failed for {file}: expected ids of architectures, {examples}, "
                f"got {identifier!r}. {ADVICE}"
            )


def check_json_values(
    file: Path, key: str, measurement: str, values_by_id: Mapping[str, Any], *, is_of_measure: bool = False
) -> None:
    """Check a measurement's values, except the number of strengths, which `list_values_per_strength` checks.

    `is_of_measure` is true for the columns of a measure, which may contain any numbers.

    Raises:
        ResultsError: a value lacks a field of its measurement, has a wrong shape, or contains anything other than
            counts, numbers in [0, 1] or null; or a measure's value is neither a number nor a list of numbers.
    """
    is_clean = key == CLEAN
    columns = {} if is_of_measure else MEASUREMENTS.get(measurement, {})
    sole_column = columns.get("")
    if not (columns or is_of_measure) or (
        sole_column is not None and _are_all_fractions(sole_column, values_by_id, is_clean=is_clean)
    ):
        return
    expected = (
        ", and ".join(_describe_column(column) for column in columns.values()) or "a number, or a list of numbers"
    )
    for identifier, value in values_by_id.items():
        is_numeric = not columns and (value is None or make_array(value, missing_ok=True) is not None)
        if not (is_numeric or (columns and _has_valid_columns(columns, value, is_clean))):
            value_text = repr(value)
            shown_value = value_text if len(value_text) <= 60 else f"{value_text[:57]}..."
            suffix = "" if is_clean or is_of_measure else ", one per strength"
            raise ResultsError(
                f"Reading {format_id(identifier)} {key} {measurement} failed for {file}: expected {expected}{suffix}, "
                f"got {shown_value}. {ADVICE}"
            )


def stack_values(
    measurement: str, values_of_architectures: Iterable[Any], *, is_single: bool
) -> dict[str, NDArray[Any]] | None:
    """Stack a measurement's values as arrays, if all values are valid (see `check_json_values`) and have equal shapes.

    Returns:
        Arrays (N, S, …) by field, for N architectures and S strengths; S is 1 for single values. None if the values are
        not arrays, a value is invalid, or shapes differ (in which case all values may be valid).
    """
    columns = MEASUREMENTS.get(measurement, {})
    if not all(column.dimensions for column in columns.values()):
        return None
    values_by_strength = [[value] for value in values_of_architectures] if is_single else list(values_of_architectures)
    if not _are_lists_of_equal_length(values_by_strength):
        return None
    flat_values, n_strengths = list(chain.from_iterable(values_by_strength)), len(values_by_strength[0])
    arrays = {}
    for field, column in columns.items():
        if field and not all(type(flat_value) is dict and field in flat_value for flat_value in flat_values):
            return None
        array = _stack_column([flat_value[field] for flat_value in flat_values] if field else flat_values, column)
        if array is None or not (are_counts(array) if column.is_exact else are_fractions(array / column.largest)):
            return None
        arrays[field] = array.reshape(len(values_by_strength), n_strengths, *array.shape[1:])
    sizes = match_shapes({column.name: arrays[field].shape[2:] for field, column in columns.items()})
    return None if not sizes or 0 in sizes.values() else arrays


def _stack_column(nested: list[Any], column: Column) -> NDArray[np.float64] | None:
    """Convert nested lists to an array, much faster than NumPy; return None if their shapes differ."""
    shape = [len(nested)]
    for _ in column.dimensions:
        if not _are_lists_of_equal_length(nested):
            return None
        shape.append(len(nested[0]))
        nested = list(chain.from_iterable(nested))
    if not column.is_exact:
        nested = [np.nan if value is None else value for value in nested]
    array = _as_doubles(nested)
    return None if array is None or np.isinf(array).any() else array.reshape(shape)


def _are_lists_of_equal_length(lists: list[Any]) -> bool:
    return {*map(type, lists)} == {list} and len({*map(len, lists)}) == 1


def _as_doubles(numbers: list[Any]) -> NDArray[np.float64] | None:
    """Convert numbers to an array; return None if an element is not a number or is too large."""
    if not {*map(type, numbers)} <= {int, float}:
        return None
    try:
        return np.array(numbers, dtype=np.float64)
    except OverflowError:  # an integer with hundreds of digits
        return None


def _describe_column(column: Column) -> str:
    noun = "count" if column.is_exact else "fraction"
    sizes = " x ".join(
        {"classes": "C", "images": "N"}.get(str(dimension), str(dimension)) for dimension in column.dimensions
    )
    return f"{column.field}, an array {sizes} of {noun}s".lstrip(", ") if sizes else f"a {noun}"


def _are_all_fractions(column: Column, values_by_id: Mapping[str, Any], *, is_clean: bool) -> bool:
    """Return whether all values are valid fractions, which is checked in one pass.

    If the result is false, each value must be checked separately.
    """
    values = values_by_id.values()
    if column.dimensions or column.is_exact or not (is_clean or all(type(value) is list for value in values)):
        return False
    numbers = _as_doubles(list(values if is_clean else chain.from_iterable(values)))
    return numbers is not None and bool(((numbers >= 0) & (numbers <= column.largest)).all())


def _has_valid_columns(columns: Mapping[str, Column], value: Any, is_single: bool) -> bool:
    """Return whether a value has all columns of a measurement, with valid contents.

    Unless `is_single` is true, the value is a list of values by strength, or has lists of values by strength as
    fields.
    """
    if isinstance(value, list) and not is_single and "" not in columns:
        return all(_has_valid_columns(columns, value_at_strength, True) for value_at_strength in value)
    fields = {"": value} if "" in columns else value
    if not isinstance(fields, dict) or not columns.keys() <= fields.keys():
        return False
    shapes, lengths = {}, set()
    for name, column in columns.items():
        field_value = fields[name]
        if not column.dimensions:
            numbers = field_value if isinstance(field_value, list) and not is_single else [field_value]
            if not all(_is_valid_number(column, number) for number in numbers):
                return False
            continue
        array = make_array(field_value, missing_ok=not column.is_exact)
        if array is None or not (
            _are_counts_or_row_fractions(column, array) if column.is_exact else are_fractions(array / column.largest)
        ):
            return False
        shapes[column.name] = array.shape if is_single else array.shape[1:]
        lengths.add(1 if is_single else len(array) if array.ndim else 0)
    sizes = match_shapes(shapes)
    return sizes is not None and 0 not in sizes.values() and len(lengths) <= 1


def _is_valid_number(column: Column, value: Any) -> bool:
    # Comparisons with NaN are false. type() excludes bool, which is a subclass of int. None means a missing number.
    if value is None or type(value) not in (float, int):
        return value is None
    return bool(value >= 0 and value == int(value) if column.is_exact else 0 <= value <= column.largest)


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


def max_rounding_error(fractions: NDArray[Any]) -> float:
    """Return the maximum error of rounded fractions: half a unit of the last decimal, plus the floating-point error."""
    if are_counts(fractions):  # integers are not rounded
        return _FLOAT32_ERROR
    matching_decimals = (
        decimals for decimals in range(1, _MIN_EXACT_DECIMALS) if (np.round(fractions, decimals) == fractions).all()
    )
    decimals = next(matching_decimals, None)
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
        nested: nested lists of numbers.
        missing_ok: whether NaN and None are accepted; None is converted to NaN.

    Returns:
        The array, or None if the lists are ragged or contain anything other than numbers.
    """
    try:
        array = np.array(nested)
        if array.dtype.kind == "O" and missing_ok and {type(value) for value in array.flat} <= {float, int, type(None)}:
            array = array.astype(np.float64)
    except (ValueError, OverflowError):
        return None
    if array.dtype.kind not in "iuf":
        return None
    is_invalid = np.isinf(array) if missing_ok else ~np.isfinite(array)
    return None if is_invalid.any() else array
