"""The arrays that workers read equal the sweep's images; damaged arrays are rejected, and a new run replaces them."""

from pathlib import Path

import numpy as np
import pytest

from robust201.core.errors import DatasetError, StorageFullError
from robust201.core.files import atomic_write
from robust201.images import DATASETS, load_images, select
from robust201.images.store import read_image_set, write_image_set
from tests.support.runs import run_sweep

IMAGES = select(load_images("digits"), count=20, seed=0)


def test_image_set_is_preserved(tmp_path):
    write_image_set(tmp_path, IMAGES)
    loaded = read_image_set(tmp_path, DATASETS["digits"], IMAGES.sha256)
    for name in ("images", "labels", "indices", "n_classes", "normalisation", "sha256"):
        np.testing.assert_array_equal(getattr(loaded, name), getattr(IMAGES, name))


def test_atomic_write_reports_a_full_disk_for_errors_without_errno(tmp_path):
    with (
        pytest.raises(StorageFullError),
        atomic_write(tmp_path / "images.npy"),
        Path("/dev/full").open("wb") as full_device,
    ):
        IMAGES.images.tofile(full_device)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["images", "labels", "indices"])
@pytest.mark.parametrize("damage", ["missing", "truncated", "changed", "pickle"])
def test_damaged_image_set_is_rejected(tmp_path, name, damage):
    write_image_set(tmp_path, IMAGES)
    path = tmp_path / f"{name}.npy"
    content = bytearray(path.read_bytes())
    if damage == "missing":
        path.unlink()
    elif damage == "truncated":
        path.write_bytes(content[:-1])
    elif damage == "changed":
        content[-1] ^= 1
        path.write_bytes(content)
    else:
        np.save(path, np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(DatasetError, match="digits"):
        read_image_set(tmp_path, DATASETS["digits"], IMAGES.sha256)


def test_run_replaces_damaged_image_sets(make_sweep):
    run_sweep(make_sweep(keys={"clean": {}}))
    config = make_sweep(keys={"clean": {}, "fgsm": {"epsilons": ["1/255"]}})
    (images_file,) = (config.results / "images").rglob("images.npy")
    images_file.write_bytes(images_file.read_bytes()[:-1])
    assert run_sweep(config).is_complete
