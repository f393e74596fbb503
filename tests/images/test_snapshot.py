"""Snapshots of images for workers are complete, equal the planned images, and are replaced if damaged."""

from pathlib import Path

import numpy as np
import pytest

from robust201.core.errors import DatasetError, StorageFullError
from robust201.core.files import atomic_write
from robust201.images import DATASETS, load_images, select
from robust201.images.snapshot import read_snapshot, write_snapshot
from robust201.runtime.executors import make_executor
from robust201.runtime.sweep import run_sweep
from tests.conftest import MakeSweep

IMAGES = select(load_images("digits"), count=20, seed=0)


def test_snapshot_preserves_images(tmp_path: Path) -> None:
    write_snapshot(tmp_path, IMAGES)
    snapshot = read_snapshot(tmp_path, DATASETS["digits"], IMAGES.sha256)
    for array_name in ("images", "labels", "indices"):
        np.testing.assert_array_equal(getattr(snapshot, array_name), getattr(IMAGES, array_name))
    assert (snapshot.n_classes, snapshot.normalisation, snapshot.sha256) == (10, IMAGES.normalisation, IMAGES.sha256)


def test_atomic_write_reports_a_full_disk_for_errors_without_errno(tmp_path: Path) -> None:
    with (
        pytest.raises(StorageFullError, match=r"the disk is full \(\d+ requested"),
        atomic_write(tmp_path / "images.npy"),
        Path("/dev/full").open("wb") as full_device,
    ):
        IMAGES.images.tofile(full_device)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("array_name", ["images", "labels", "indices"])
@pytest.mark.parametrize("damage", ["missing", "truncated", "changed", "pickle"])
def test_read_snapshot_rejects_damaged_images(tmp_path: Path, array_name: str, damage: str) -> None:
    write_snapshot(tmp_path, IMAGES)
    path = tmp_path / f"{array_name}.npy"
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
        read_snapshot(tmp_path, DATASETS["digits"], IMAGES.sha256)


def test_run_replaces_a_damaged_snapshot(make_sweep: MakeSweep) -> None:
    run_sweep(make_sweep(keys={"clean": {}}), make_executor)
    config = make_sweep(keys={"clean": {}, "fgsm": {"epsilons_255": [1]}})
    (snapshot,) = (config.results / "images").rglob("images.npy")
    snapshot.write_bytes(snapshot.read_bytes()[:-1])
    assert run_sweep(config, make_executor).complete
