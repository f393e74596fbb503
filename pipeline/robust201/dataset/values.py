"""Validation of a dataset's files: meta.json, sweep.json, and the values of measurements."""

from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, BaseModel, Field, ValidationError

from robust201.core.errors import ResultsError
from robust201.tasks.columns import COLUMNS, ELEMENT_COLUMNS, MEASUREMENTS, Column

ADVICE = "Export or download it again."

_MEAN_TOLERANCE = 1e-6
"""Maximum distance of a float32 mean of fractions from [0, 1]."""

_ROUNDING_ERROR = 5.1e-4
"""Maximum error of a fraction with three decimals, as published."""


def damaged_file_error(file: Path, error: Exception) -> ResultsError:
    """Return an error for a file that cannot be decoded."""
    return ResultsError(
        f"Reading failed for {file}: the file is damaged and cannot be decoded ({error}). "
        "Check the folder with `sha256sum -c SHA256SUMS`, and export or download the file again."
    )


_Count = Annotated[int, Field(ge=0, lt=1 << 53, strict=True)]
_Strength = Annotated[float, Field(ge=0, allow_inf_nan=False, strict=True)]


def _check_distinct(strengths: list[float]) -> list[float]:
    if len({*strengths}) != len(strengths):
        raise ValueError("a duplicate strength")
    return strengths


_Strengths = Annotated[list[_Strength], AfterValidator(_check_distinct)]


class _Images(BaseModel):
    count: _Count | None = None


class _Protocol(BaseModel):
    dataset: str = ""
    key: str = ""
    parameters: dict[str, Any] = {}


class _SweepRecord(BaseModel):
    space: str = ""
    images: _Images | None = None
    protocols: list[_Protocol] = []


class SweepFile(BaseModel):
    """Fields of sweep.json that are checked."""

    strengths: dict[str, dict[str, _Strengths]]
    measurements: list[str]
    weights: dict[str, Any] = {}
    round_to: _Count | None = None
    sweep: _SweepRecord | None = None


def _check_cell(fields: dict[str, Any]) -> dict[str, Any]:
    if not fields.keys() >= {"nb201-string", "isomorph"}:
        raise ValueError("no nb201-string or isomorph")
    return fields


_Cell = Annotated[dict[str, Any], AfterValidator(_check_cell)]


class CellMetaFile(BaseModel):
    """Fields of meta.json that are checked, in a space of cells."""

    ids: dict[Annotated[str, Field(pattern="^[0-9]+$")], _Cell]
    epsilons: dict[str, _Strengths]


class MetaFile(BaseModel):
    """Fields of meta.json that are checked, in other spaces."""

    ids: dict[Annotated[str, Field(pattern=r"^([A-Za-z][\w.-]*|0|[1-9][0-9]*)$")], dict[str, Any]]
    epsilons: dict[str, _Strengths]


def check_content(file: Path, content: Any, schema: type[BaseModel]) -> None:
    """Raise ResultsError if the content of a file does not match a schema."""
    try:
        schema.model_validate(content)
    except ValidationError as error:
        fault = error.errors()[0]
        field = ".".join(map(str, fault["loc"]))
        raise ResultsError(
            f"Opening a dataset failed for {file}: its field {field} is wrong ({fault['msg']}). Export or download the "
            "dataset again."
        ) from error


def to_array(name: str, entries: Sequence[Any]) -> NDArray[Any]:
    """Convert a column's values, one per row, to an array (rows, …); null becomes NaN.

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
            raise ValueError("lists of different or wrong shapes")
        shape.append(len(numbers[0]))
        numbers = list(chain.from_iterable(numbers))
    if column.is_integer and None in numbers:
        raise ValueError("null instead of a count")
    array = _to_floats(numbers).reshape(shape)
    check_column(name, array)
    return array.astype(np.int64) if column.is_integer and are_counts(array) else array


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
    if name in ELEMENT_COLUMNS and not are_fractions(array):
        raise ValueError("numbers that are not fractions")
    if column is None:
        return
    if not column.fits(array.shape[1:]):
        raise ValueError("an array of the wrong shape")
    if column.is_integer:
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
    noun = "count" if column.is_integer else "fraction"
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
    is_distribution = np.abs(sums - 1) <= array.shape[-1] * _ROUNDING_ERROR
    return bool(are_fractions(array) and is_distribution.any() and (is_distribution | (sums == 0)).all())


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
