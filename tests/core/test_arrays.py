"""NumPy files: read as NumPy reads them, and any damage is a ValueError."""

from pathlib import Path

import numpy as np
import pytest

from robust201.core.arrays import read_npy

ARRAYS = [
    np.arange(24, dtype=np.int64).reshape(2, 3, 4),
    np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    np.array(3, dtype=np.uint8),
    np.zeros((0, 4), np.float32),
]


@pytest.mark.parametrize("array", ARRAYS, ids=["three axes", "Fortran order", "a number", "nothing"])
@pytest.mark.parametrize("mapped", [False, True])
def test_what_numpy_writes_is_read(tmp_path: Path, array: np.ndarray, mapped: bool) -> None:
    np.save(tmp_path / "a.npy", array)
    got = read_npy(tmp_path / "a.npy", mapped=mapped)
    assert (got.dtype, got.shape, got.tolist()) == (array.dtype, array.shape, array.tolist())


def test_any_damage_is_a_value_error(tmp_path: Path) -> None:
    path = tmp_path / "labels.npy"
    np.save(path, np.arange(50, dtype=np.uint8))
    sound = path.read_bytes()
    draws = np.random.default_rng(0)
    for number in range(400):
        content = bytearray(sound)
        start = int(draws.integers(128))
        if number % 2:
            content[start : start + int(draws.integers(1, 40))] = b""
        else:
            end = min(128, start + int(draws.integers(1, 60)))
            content[start:end] = bytes(end - start)  # NumPy ends in an error of the tokenizer
        path.write_bytes(content)
        try:
            got = read_npy(path)
        except ValueError:
            continue
        assert got.tolist() == list(range(50))  # zeros between header and values


@pytest.mark.parametrize("array", [np.array(["text"]), np.array([{}], dtype=object), np.zeros(2, "f8,i4")])
def test_other_values_than_numbers_are_refused(tmp_path: Path, array: np.ndarray) -> None:
    np.save(tmp_path / "a.npy", array, allow_pickle=True)
    with pytest.raises(ValueError, match="header"):
        read_npy(tmp_path / "a.npy")


def test_a_folder_and_no_file_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError, match="a folder instead of a regular file"):
        read_npy(tmp_path)
    with pytest.raises(FileNotFoundError):
        read_npy(tmp_path / "none.npy")
