"""`robust201 corrupt`: the files that it writes, and the line that it prints."""

import numpy as np
from typer.testing import CliRunner

from robust201.cli.app import app


def test_corrupt_writes_corruptions_of_digits(tmp_path):
    arguments = ["--data", "digits", "--images", "12", "--keys", "fog,frost", "--seed", "3", "--out", str(tmp_path)]
    result = CliRunner().invoke(app, ["corrupt", *arguments], catch_exceptions=False)
    assert "2 corruptions of 12 images of digits at 5 severities" in result.stdout
    assert "seed 3, frost synthetic" in result.stdout
    assert np.load(tmp_path / "fog.npy").shape == (60, 32, 32, 3)
