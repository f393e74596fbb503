"""Overlaid folders: each evaluation is read from the last folder that has it, with its number of images."""

import json
from pathlib import Path

import pytest

from robust201.analysis.dataset_results import read_results
from robust201.analysis.ranking import rank_networks
from robust201.core.errors import ArchitectureError, ConfigError, ResultsError
from robust201.dataset.reader import Dataset
from robust201.statistics.intervals import accuracy_intervals
from tests.support.fabricated import export, make_plan
from tests.support.small_results import write_results, write_sweep_json

MATRIX = [[3, 1], [0, 4]]


@pytest.fixture
def published_folder(tmp_path: Path) -> Path:
    accuracies = {"clean": {"0": 0.9, "2": 0.8}, "pgd": {"0": [0.5, 0.4], "2": [0.6, 0.5]}}
    folder = write_results(tmp_path / "published", accuracies)
    return write_results(folder, {"pgd": {"0": [MATRIX] * 2, "2": [MATRIX] * 2}}, measurement="cm")


def write_custom_export(folder: Path, accuracies: dict, strengths: dict, dataset: str = "cifar10") -> Path:
    """Write an export with accuracies by key, and strengths by key in its sweep.json."""
    write_results(folder, accuracies, dataset=dataset)
    return write_sweep_json(folder, {dataset: strengths})


@pytest.fixture
def custom_folder(tmp_path: Path) -> Path:
    accuracies = {"pgd": {"0": [0.1, 0.2], "9": [0.3, 0.4]}, "mine": {"0": [0.7]}}
    return write_custom_export(tmp_path / "custom", accuracies, {"pgd": [8.0, 16.0], "mine": [0.25]})


def test_overlay_reads_evaluation_from_last_folder(published_folder, custom_folder):
    dataset = Dataset(custom_folder, published_folder)
    assert dataset.strengths("cifar10", "pgd") == (1.0, 8.0, 16.0)
    assert dataset.accuracy(0, "cifar10", "pgd") == [0.5, 0.4, 0.2]
    assert dataset.accuracy(2, "cifar10", "pgd@Linf") == [0.6, 0.5, None]
    assert dataset.accuracy(9, "cifar10", "pgd", 16.0) == 0.4
    assert dataset.accuracy(0, "cifar10", "pgd", 0) == 0.9
    assert dataset.query("cifar10", "pgd", "accuracy")["cifar10"]["pgd"]["accuracy"] == {
        "0": [0.5, 0.4, 0.2],
        "2": [0.6, 0.5, None],
        "9": [None, 0.3, 0.4],
    }
    assert dataset.query("cifar10", "pgd", "cm")["cifar10"]["pgd"]["cm"]["2"] == [MATRIX, MATRIX, None]
    assert Dataset(published_folder, custom_folder).accuracy(0, "cifar10", "pgd") == [0.5, 0.1, 0.2]
    with pytest.raises(ArchitectureError):
        dataset.value(21, "cifar10", "pgd")
    with pytest.raises(ResultsError):
        dataset.query("cifar10", "fgsm")


def test_accuracies_of_overlay_come_from_last_folder(published_folder, custom_folder):
    accuracies = Dataset(custom_folder, published_folder).accuracies("cifar10")
    assert accuracies.loc[0].tolist() == [0.9, 0.5, 0.4, 0.2, 0.7]
    assert accuracies.columns.tolist() == [("clean", 0), ("pgd", 1), ("pgd", 8), ("pgd", 16), ("mine", 0.25)]
    assert accuracies.index.tolist() == [0, 2, 9]
    assert accuracies.loc[2].isna().tolist() == [False, False, False, True, True]
    assert accuracies.loc[9].isna().tolist() == [True, True, False, False, True]


def write_measure(folder: Path, values: dict, protocol: dict | None) -> Path:
    """Write an export of a measure with its protocol in sweep.json; clean images have a protocol with its images."""
    write_results(folder, {"clean": {"0": 0.9, "2": 0.8}})
    write_results(folder, {"jacobian": values}, measurement="squared_norm")
    payloads = {"jacobian": protocol, "clean": {"images": protocol["images"]}} if protocol else {}
    protocols = [{"dataset": "cifar10", "key": key, **payload} for key, payload in payloads.items()]
    return write_sweep_json(folder, {"cifar10": {"clean": [0], "jacobian": [0]}}, {"protocols": protocols})


FIRST_PROTOCOL = {"images": {"sha256": "0", "count": 2560}, "parameters": {"projections": 1}}
SECOND_PROTOCOL = {"images": {"sha256": "1", "count": 10}, "parameters": {"projections": "exact"}}


def test_overlay_rejects_measure_with_two_protocols(tmp_path):
    first_folder = write_measure(tmp_path / "first", {"0": 3.0}, FIRST_PROTOCOL)
    second_folder = write_measure(tmp_path / "second", {"2": 5.0}, SECOND_PROTOCOL)
    dataset = Dataset(first_folder, second_folder)
    message = (
        rf"jacobian of cifar10 failed for {first_folder} and {second_folder}: their protocols differ "
        r"\(images\.count: 2560 → 10, images\.sha256: 0 → 1, parameters\.projections: 1 → exact\)"
    )
    for read_measure in (
        lambda: dataset.query("cifar10", "jacobian"),
        lambda: dataset.value(0, "cifar10", "jacobian", "squared_norm"),
        lambda: dataset.value(2, "cifar10", "jacobian", "squared_norm"),
        lambda: dataset.read_table("cifar10", "jacobian", "squared_norm"),
        lambda: list(dataset.iter_rows("cifar10", "jacobian", "squared_norm")),
        lambda: read_results(dataset)[0].measures,
    ):
        with pytest.raises(ConfigError, match=message):
            read_measure()
    assert dataset.accuracy(0, "cifar10", "clean") == 0.9


@pytest.mark.parametrize(
    "fields", [{"parameters": {"steps": 3}}, {"network": {"channels": 4}}, {"corruption": {"source": "generated"}}]
)
def test_overlay_rejects_results_of_different_attacks_cells_or_images(tmp_path, fields):
    protocols = {"parameters": {"steps": 40}, "network": {"channels": 16}, "corruption": {"source": "published"}}
    for name, changes in {"first": {}, "other": fields, "engine": {"engine": "reference"}}.items():
        write_results(tmp_path / name, {"pgd": {"0": [0.5, 0.1]}})
        record = {"protocols": [{"dataset": "cifar10", "key": "pgd", **protocols, **changes}]}
        write_sweep_json(tmp_path / name, {"cifar10": {"pgd": [1, 8]}}, record)
    assert len(Dataset(tmp_path / "first", tmp_path / "engine", tmp_path / "first").table) == 2
    with pytest.raises(ConfigError, match=f"other: .*{next(iter(fields))}"):
        Dataset(tmp_path / "first", tmp_path / "other").accuracies("cifar10")


def test_overlay_rejects_different_spaces(tmp_path, published_folder):
    folder_of_other_space = write_results(tmp_path / "other", {"clean": {"0": 0.5}})
    meta = json.loads((folder_of_other_space / "meta.json").read_text())
    del meta["ids"]["15624"]
    (folder_of_other_space / "meta.json").write_text(json.dumps(meta))
    with pytest.raises(ConfigError, match=r"failed for .*other: .*another space"):
        Dataset(published_folder, folder_of_other_space)


def test_overlay_equals_single_folder_for_all_formats(tmp_path):
    keys = ("clean", "fgsm", "pgd", "fog")
    complete_folder = tmp_path / "complete"
    export(complete_folder, make_plan([0, 2, 10, 309], keys))
    folders = [tmp_path / name for name in ("some", "others", "keys")]
    export(folders[0], make_plan([0, 10], keys[:3]), formats=("parquet",))
    export(folders[1], make_plan([2, 309], keys[:3]))
    export(folders[2], make_plan([0, 2, 10, 309], keys[3:]), key_style="published")
    expected, dataset = Dataset(complete_folder), Dataset(*folders)
    assert dataset.query() == expected.query()
    assert (dataset.data, dataset.keys_all, dataset.measures) == (expected.data, expected.keys_all, expected.measures)
    order = ["dataset", "key", "network", "strength"]
    assert dataset.table.sort_values(order)[[*order, "accuracy"]].astype({"key": str}).to_numpy().tolist() == (
        expected.table.sort_values(order)[[*order, "accuracy"]].astype({"key": str}).to_numpy().tolist()
    )


def count_images(folder: Path) -> list[float]:
    counts: list[float] = Dataset(folder).read_table("cifar10", "pgd")["n_images"].dropna().unique().tolist()
    return counts


def test_number_of_images_comes_from_matrices_or_sweep_json_or_the_test_split(tmp_path: Path) -> None:
    accuracies = {"clean": {"0": 0.9}, "pgd": {"0": [0.5, 0.25]}}
    published_folder = write_results(tmp_path / "published", accuracies)
    # Without sweep.json, the accuracies are assumed to be on the whole test split.
    assert count_images(published_folder) == [10_000]
    write_results(published_folder, {"pgd": {"0": [[[3, 1], [0, 4]]] * 2}}, measurement="cm")
    assert count_images(published_folder) == [8]
    custom_folder = write_results(tmp_path / "custom", {"pgd": {"0": [0.5, 0.25]}})
    write_sweep_json(custom_folder, {"cifar10": {"pgd": [1, 8]}})
    assert count_images(custom_folder) == []
    assert Dataset(custom_folder).table["standard_error"].isna().all()
    write_sweep_json(custom_folder, {"cifar10": {"pgd": [1, 8]}}, {"images": {"count": 100, "seed": 0}})
    assert count_images(custom_folder) == [100]


def test_overlaid_folders_keep_their_own_numbers_of_images(tmp_path: Path) -> None:
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
