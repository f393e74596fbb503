"""Numbers of images, from which intervals follow, of each folder."""

from pathlib import Path

from robust201.analysis.dataset_results import read_results
from robust201.analysis.ranking import rank_networks
from robust201.dataset.reader import Dataset
from robust201.statistics.intervals import accuracy_intervals
from tests.support.small_results import write_results, write_sweep_json


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
    assert Dataset(custom_folder).table["standard_error"].isna().all()
    write_sweep_json(custom_folder, {"cifar10": {"pgd": [1, 8]}}, {"images": {"count": 100, "seed": 0}})
    assert count_images(custom_folder) == [100]


def test_merged_folders_keep_each_number_of_images(tmp_path: Path) -> None:
    folders = []
    for name, cell, count in (("small", "0", 100), ("large", "2", 50_000)):
        folder = write_results(tmp_path / name, {"clean": {cell: 0.8}})
        folders.append(write_sweep_json(folder, {"cifar10": {"clean": [0]}}, {"images": {"count": count, "seed": 0}}))
    table = Dataset(*folders).table
    assert table["n_images"].tolist() == [100, 50_000]
    low, _ = accuracy_intervals(table["accuracy"].to_numpy(), table["n_images"].to_numpy())
    (results,) = read_results(Dataset(*folders))
    ranking = rank_networks(results, ["clean"])
    assert "on these 100 to 50,000 images" in ranking.basis
    assert ranking.table.sort_values("network")["low"].tolist() == low.tolist()
    assert results.n_images == 100
