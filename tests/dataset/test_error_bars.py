"""Confidence intervals in DataFrames, computed from the number of images of each folder."""

from pathlib import Path

import numpy as np
import pytest

from robust201.analysis.dataset_results import read_results
from robust201.analysis.ranking import rank_networks
from robust201.core.errors import ConfigError
from robust201.dataset.reader import Dataset
from robust201.statistics.intervals import accuracy_intervals
from tests.support.fabricated import N_IMAGES, export, make_plan
from tests.support.small_results import write_results, write_sweep_json


@pytest.mark.parametrize("formats", [("json",), ("parquet",)])
def test_to_frame_adds_intervals_on_request(tmp_path: Path, formats: tuple[str, ...]) -> None:
    export(tmp_path, make_plan((0, 2)), formats=formats)
    dataset = Dataset(tmp_path)
    frame_without_intervals, frame = dataset.to_frame(), dataset.to_frame(intervals=True)
    assert [*frame.columns] == [*frame_without_intervals.columns, "low", "high"]
    assert frame[[*frame_without_intervals.columns]].equals(frame_without_intervals)
    low, high = accuracy_intervals(frame_without_intervals["value"], N_IMAGES)
    np.testing.assert_array_equal(frame["low"], low)
    np.testing.assert_array_equal(frame["high"], high)
    assert (frame["low"] <= frame["value"]).all()
    assert (frame["value"] <= frame["high"]).all()
    for options in ({"wide": True}, {"measure": "cm"}):
        with pytest.raises(ConfigError, match="intervals are only available for accuracies in the long form"):
            dataset.to_frame(intervals=True, **options)


def count_images(folder: Path) -> list[float]:
    counts: list[float] = Dataset(folder).read_table("cifar10", "pgd")["n_images"].dropna().unique().tolist()
    return counts


def test_number_of_images_uses_first_known_source(tmp_path: Path) -> None:
    accuracies = {"clean": {"0": 0.9}, "pgd": {"0": [0.5, 0.25]}}
    published_folder = write_results(tmp_path / "published", accuracies)
    # Without sweep.json, the accuracies are assumed to be on the whole test split.
    assert count_images(published_folder) == [10_000]
    write_results(published_folder, {"pgd": {"0": [[[3, 1], [0, 4]]] * 2}}, measure="cm")
    assert count_images(published_folder) == [8]
    custom_folder = write_results(tmp_path / "custom", {"pgd": {"0": [0.5, 0.25]}})
    write_sweep_json(custom_folder, {"cifar10": {"pgd": [1, 8]}})
    assert count_images(custom_folder) == []
    assert Dataset(custom_folder).to_frame(intervals=True)[["low", "high"]].isna().all(axis=None)
    write_sweep_json(custom_folder, {"cifar10": {"pgd": [1, 8]}}, {"images": {"count": 100, "seed": 0}})
    assert count_images(custom_folder) == [100]


def test_merged_folders_keep_each_number_of_images(tmp_path: Path) -> None:
    folders = []
    for name, cell, count in (("small", "0", 100), ("large", "2", 50_000)):
        folder = write_results(tmp_path / name, {"clean": {cell: 0.8}})
        folders.append(write_sweep_json(folder, {"cifar10": {"clean": [0]}}, {"images": {"count": count, "seed": 0}}))
    frame = Dataset(*folders).to_frame(intervals=True)
    assert frame["n_images"].tolist() == [100, 50_000]
    widths = (frame["high"] - frame["low"]).tolist()
    assert widths[0] > 10 * widths[1]
    (results,) = read_results(Dataset(*folders))
    ranking = rank_networks(results, ["clean"])
    assert "on these 100 to 50,000 images" in ranking.basis
    assert ranking.table.sort_values("network")["low"].tolist() == frame["low"].tolist()
    assert results.n_images == 100
