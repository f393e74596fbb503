"""The function of the command `corrupt`: the files that it writes, and the lines that it reports."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from robust201.core.errors import DatasetError
from robust201.corruptions.folder import corrupt_dataset
from robust201.images import load_images
from robust201.images.specs import DATASETS
from tests.support.natural_images import image_set


def test_corrupt_dataset_writes_corruptions_of_digits(tmp_path: Path) -> None:
    images = load_images("digits", count=12)
    lines, all_md5s_match = corrupt_dataset(tmp_path, images, keys=["fog", "frost"], seed=3)
    assert all_md5s_match
    assert "2 corruptions of 12 images of digits at 5 severities" in lines[0]
    assert "seed 3, frost synthetic" in lines[0]
    assert np.load(tmp_path / "fog.npy").shape == (60, 32, 32, 3)
    with pytest.raises(DatasetError, match="got 12 images of a dataset without them"):
        corrupt_dataset(tmp_path, images, check_published=True)


def test_corrupt_dataset_reports_differing_md5(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = image_set(6)
    monkeypatch.setitem(DATASETS, "cifar10", replace(DATASETS["cifar10"], n_test=6))
    lines, all_md5s_match = corrupt_dataset(tmp_path / "out", images, keys=["contrast"], check_published=True)
    assert not all_md5s_match
    assert lines[0].startswith("contrast: differs (md5 ")
    assert not (tmp_path / "out").exists()
