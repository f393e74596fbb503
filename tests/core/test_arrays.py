"""The reader of NumPy files returns the same arrays as NumPy, and raises only ValueError for damaged files."""

import numpy as np
import pytest

from robust201.core.arrays import read_npy

ARRAYS = [
    np.arange(24, dtype=np.int64).reshape(2, 3, 4),
    np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    np.array(3, dtype=np.uint8),
    np.zeros((0, 4), np.float32),
]


@pytest.mark.parametrize("array", ARRAYS, ids=["three axes", "Fortran order", "scalar", "empty"])
@pytest.mark.parametrize("mapped", [False, True])
def test_read_npy_reads_numpy_files(tmp_path, array, mapped):
    np.save(tmp_path / "a.npy", array)
    result = read_npy(tmp_path / "a.npy", mapped=mapped)
    assert (result.dtype, result.shape, result.tolist()) == (array.dtype, array.shape, array.tolist())


def test_read_npy_raises_only_value_error_for_damaged_files(tmp_path):
    path = tmp_path / "labels.npy"
    np.save(path, np.arange(50, dtype=np.uint8))
    original = path.read_bytes()
    rng = np.random.default_rng(0)
    for repetition in range(400):
        content = bytearray(original)
        start = int(rng.integers(128))
        if repetition % 2:
            content[start : start + int(rng.integers(1, 40))] = b""
        else:
            end = min(128, start + int(rng.integers(1, 60)))
            content[start:end] = bytes(end - start)  # NumPy may raise tokenize.TokenError
        path.write_bytes(content)
        try:
            result = read_npy(path)
        except ValueError:
            continue
        assert result.tolist() == list(range(50))  # only bytes that were 0 before were set to 0


@pytest.mark.parametrize("array", [np.array(["text"]), np.array([{}], dtype=object), np.zeros(2, "f8,i4")])
def test_read_npy_rejects_non_numeric_arrays(tmp_path, array):
    np.save(tmp_path / "a.npy", array, allow_pickle=True)
    with pytest.raises(ValueError, match=r"an array of|Object"):
        read_npy(tmp_path / "a.npy")


def test_read_npy_distinguishes_folders_from_missing_files(tmp_path):
    with pytest.raises(IsADirectoryError, match="Is a directory"):
        read_npy(tmp_path)
    with pytest.raises(FileNotFoundError):
        read_npy(tmp_path / "none.npy")
