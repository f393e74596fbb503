"""Conversions from and to Arrow arrays match pyarrow's conversions, but do not import pandas."""

import subprocess
import sys
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from robust201.shards.arrow_arrays import empty_table, from_bytes, from_numpy, from_strings, to_numpy, true_indices


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint8, np.float32, np.float64, np.bool_])
@given(elements=st.lists(st.integers(0, 1), max_size=40), step=st.integers(1, 3))
def test_from_numpy_and_to_numpy_match_pyarrow(dtype: Any, elements: list[int], step: int) -> None:
    values = np.array(elements, dtype)[::step]
    array = from_numpy(values)
    array.validate(full=True)
    assert array.equals(pa.array(values))
    if dtype is not np.bool_:
        result = to_numpy(array)
        assert result.dtype == dtype
        assert np.array_equal(result, values)
        assert not result.flags.writeable


@given(elements=st.lists(st.none() | st.integers(-5, 5), max_size=40), start=st.integers(0, 20))
def test_to_numpy_supports_nulls_and_slices(elements: list[int | None], start: int) -> None:
    array = pa.array(elements, pa.int32())[start:]
    expected = [-9 if element is None else element for element in elements[start:]]
    assert to_numpy(array, fill=-9).tolist() == expected
    if array.null_count:
        with pytest.raises(ValueError, match="expected no nulls"):
            to_numpy(array)
    else:
        assert to_numpy(array).tolist() == expected


@given(st.lists(st.text(st.characters(codec="utf-8"), max_size=5), max_size=20))
def test_from_strings_matches_pyarrow(strings: list[str]) -> None:
    array = from_strings(strings)
    array.validate(full=True)
    assert array.equals(pa.array(strings, pa.string()))


@pytest.mark.parametrize("byte_strings", [[], [b"ab", b"cd"], [b"ab", b"c", b""]])
def test_from_bytes_supports_any_length(byte_strings: list[bytes]) -> None:
    array = from_bytes(np.array(byte_strings, dtype="S2"))
    array.validate(full=True)
    assert array.equals(pa.array(byte_strings, pa.binary()))


def test_true_indices_returns_positions_and_empty_table_has_schema() -> None:
    assert true_indices([True, False, True]).to_pylist() == [0, 2]
    assert true_indices([]).to_pylist() == []
    schema = pa.schema({"name": pa.string(), "starts": pa.list_(pa.int32()), "known": pa.bool_()})
    assert empty_table(schema).equals(schema.empty_table())


def test_conversions_reject_unsupported_arrays() -> None:
    for values in (np.ones((2, 3)), np.array([1, 2], ">i4")):
        with pytest.raises(ValueError, match="expected one dimension in native byte order"):
            from_numpy(values)
    with pytest.raises(ValueError, match="expected numbers, got booleans"):
        to_numpy(pa.array([True]))


def test_arrow_arrays_does_not_import_pandas() -> None:
    program = """
import sys
import numpy as np
import pyarrow as pa
from robust201.shards.arrow_arrays import empty_table, from_bytes, from_numpy, from_strings, to_numpy, true_indices
to_numpy(from_numpy(np.arange(3)).take(true_indices([True, False, True])), fill=0)
from_strings(["a"]), from_bytes(np.array([b"ab"])), empty_table(pa.schema({"name": pa.string()}))
sys.exit("pandas" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
