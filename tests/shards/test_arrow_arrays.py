"""Conversions from and to Arrow arrays match pyarrow's conversions, but do not import pandas."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from robust201.shards.arrow_arrays import from_numpy, to_numpy


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
