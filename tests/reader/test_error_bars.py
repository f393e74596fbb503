"""Confidence intervals in DataFrames, computed from the number of images of each folder."""

from pathlib import Path

import numpy as np
import pytest

from robust201.core.errors import ConfigError
from robust201.dataset.reader import RobustnessDataset
from robust201.reader.error_bars import count_evaluated_images
from robust201.reader.frames import FRAME_COLUMNS
from robust201.statistics.intervals import accuracy_intervals
from tests.support.fabricated import N_IMAGES, export, make_plan
from tests.support.small_results import write_results, write_sweep_json


@pytest.mark.parametrize("formats", [("json",), ("parquet",)])
def test_to_frame_adds_intervals_on_request(tmp_path: Path, formats: tuple[str, ...]) -> None:
    export(tmp_path, make_plan((0, 2)), formats=formats)
    dataset = RobustnessDataset(tmp_path)
    frame_without_intervals, frame = dataset.to_frame(), dataset.to_frame(intervals=True)
    assert [*frame.columns] == [*FRAME_COLUMNS, "low", "high"]
    assert frame[[*frame_without_intervals.columns]].equals(frame_without_intervals)
    low, high = accuracy_intervals(frame_without_intervals["value"], N_IMAGES)
    np.testing.assert_array_equal(frame["low"], low)
    np.testing.assert_array_equal(frame["high"], high)
    assert (frame["low"] <= frame["value"]).all()
    assert (frame["value"] <= frame["high"]).all()
    for options in ({"wide": True}, {"measure": "cm"}):
        with pytest.raises(ConfigError, match="intervals are only available for accuracies in the long form"):
            dataset.to_frame(intervals=True, **options)


def test_count_evaluated_images_uses_first_known_source(tmp_path: Path) -> None:
    accuracies = {"clean": {"0": 0.9}, "pgd": {"0": [0.5, 0.25]}}
    published_folder = write_results(tmp_path / "published", accuracies)
    # Without sweep.json, the accuracies are assumed to be on the whole test split.
    assert count_evaluated_images(RobustnessDataset(published_folder).files, "cifar10", "pgd") == 10_000
    write_results(published_folder, {"pgd": {"0": [[[3, 1], [0, 4]]] * 2}}, measure="cm")
    assert count_evaluated_images(RobustnessDataset(published_folder).files, "cifar10", "pgd") == 8
    custom_folder = write_results(tmp_path / "custom", {"pgd": {"0": [0.5, 0.25]}})
    write_sweep_json(custom_folder, {"cifar10": {"pgd": [1, 8]}})
    assert count_evaluated_images(RobustnessDataset(custom_folder).files, "cifar10", "pgd") is None
    assert RobustnessDataset(custom_folder).to_frame(intervals=True)[["low", "high"]].isna().all(axis=None)
    write_sweep_json(custom_folder, {"cifar10": {"pgd": [1, 8]}}, {"images": {"count": 100, "seed": 0}})
    assert count_evaluated_images(RobustnessDataset(custom_folder).files, "cifar10", "pgd") == 100
