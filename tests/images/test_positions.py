"""Files of positions select test images, and invalid files are rejected."""

import json

import numpy as np
import pytest

from robust201.core.errors import DatasetError
from robust201.images import load_images
from robust201.images.selection import select_listed


@pytest.fixture(scope="module")
def digits():
    return load_images("digits")


@pytest.mark.parametrize("form", ["list", "object", "npy"])
def test_files_select_images_in_ascending_order(digits, tmp_path, form):
    path = tmp_path / ("rows.npy" if form == "npy" else "rows.json")
    if form == "npy":
        np.save(path, np.array([7, 2], np.uint16))
    else:
        path.write_text(json.dumps([7, 2] if form == "list" else {"images": [7, 2], "key": "pgd"}))
    images = select_listed(digits, path)
    assert images.indices.tolist() == [2, 7]
    np.testing.assert_array_equal(images.images, digits.images[[2, 7]])
    np.testing.assert_array_equal(images.labels, digits.labels[[2, 7]])
    assert images.sha256 != digits.sha256


@pytest.mark.parametrize("content", ["", "[]", "[1, 1]", "[-1]", "[100000]", "[0.5]", "[true]", '{"image": [1]}', "3"])
def test_invalid_positions_are_rejected(digits, tmp_path, content):
    path = tmp_path / "rows.json"
    path.write_text(content)
    with pytest.raises(DatasetError, match=r"rows\.json: expected distinct positions of test images, 0 to"):
        select_listed(digits, path)


@pytest.mark.parametrize("array", [None, np.array([0.5]), np.array([[1]]), np.array([True])])
def test_invalid_or_missing_arrays_are_rejected(digits, tmp_path, array):
    if array is not None:
        np.save(tmp_path / "rows.npy", array)
    with pytest.raises(DatasetError, match=r"rows\.npy"):
        select_listed(digits, tmp_path / "rows.npy")
