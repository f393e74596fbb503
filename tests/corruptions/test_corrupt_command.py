"""The function of the command `corrupt`: the files that it writes, and the lines that it reports."""

import numpy as np

from robust201.corruptions.folder import corrupt_dataset
from robust201.images import load_images


def test_corrupt_dataset_writes_corruptions_of_digits(tmp_path):
    images = load_images("digits", count=12)
    line = corrupt_dataset(tmp_path, images, keys=["fog", "frost"], seed=3)
    assert "2 corruptions of 12 images of digits at 5 severities" in line
    assert "seed 3, frost synthetic" in line
    assert np.load(tmp_path / "fog.npy").shape == (60, 32, 32, 3)
