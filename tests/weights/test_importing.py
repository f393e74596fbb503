"""Imports compare each network with the cell of its index, and keep the networks imported before an error."""

from pathlib import Path
from typing import Any

import pytest

from robust201.core.errors import CheckpointError
from robust201.networks.nb201 import cells as nasbench201
from robust201.networks.nb201.network import Network
from robust201.weights.importing import ImportReport, import_weights
from robust201.weights.store import CheckpointStore
from tests.support.official_archives import (
    CELLS,
    CHANNELS,
    CLASSES,
    assert_equal_tensors,
    iter_weights,
    make_records,
    random_weights,
    write_nats,
    write_split_tar,
)

INDICES = (3, 309)
TRIALS = {"12": [("cifar10", 111)], "200": [("cifar10", 888), ("cifar10", 777), ("cifar100", 888)]}
"""Dataset and seed of each trial, by number of epochs."""


@pytest.fixture(scope="module")
def nats(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_nats(tmp_path_factory.mktemp("nats") / "NATS-tss-v1_0-3ffb9-full", INDICES, trials=TRIALS)


def import_to_store(source: Path, root: Path, **options: Any) -> ImportReport:
    with CheckpointStore(root) as store:
        return import_weights(source, store, **options)


def write_edited_record(folder: Path, index: int, edit: Any, trials: Any = None) -> None:
    """Write a NATS-Bench record of a network after `edit` has changed it."""
    from nats_bench import api_utils

    records = make_records(index, api_utils, trials=trials or {"200": [("cifar10", 777)]})
    edit(records["200"], records["200"]["all_results"]["cifar10", 777])
    folder.mkdir(exist_ok=True)
    api_utils.pickle_save(records, folder / f"{index:06d}.pickle")


def test_import_adds_the_selected_networks_to_the_store(nats, tmp_path):
    progress_calls: list[tuple[int, int]] = []
    report = import_to_store(
        nats, tmp_path, progress=lambda n_finished, total: progress_calls.append((n_finished, total))
    )
    assert progress_calls == [(1, 2), (2, 2)]
    assert report.rejected == ()
    store = CheckpointStore(tmp_path)
    assert sorted(report.imported, key=lambda record: (record.dataset, record.index)) == list(store.records())
    assert [(record.dataset, record.index, record.epochs, record.seed) for record in store.records()] == [
        *(("cifar10", index, 200, 777) for index in INDICES),
        *(("cifar100", index, 200, 888) for index in INDICES),
    ]
    for record in store.records():
        size = {"channels": CHANNELS, "cells": CELLS, "n_classes": CLASSES[record.dataset]}
        assert record.spec == nasbench201.specs()[record.index]
        assert record.parameters == nasbench201.parameter_count(record.spec, **size)
        assert record.source == f"{nats.name}/{record.index:06d}.pickle.pbz2"
        weights = random_weights(record.index, record.dataset, record.seed, 200)
        assert_equal_tensors(store.load(record), weights)
        Network(record.spec, **size).load_state_dict(store.load(record), strict=True)


def test_import_is_repeatable_and_gives_equal_weights_for_a_split_tar(nats, tmp_path):
    parts = write_split_tar(tmp_path / "download", nats, 20_000)
    report = import_to_store(nats, tmp_path / "a")
    original_files = {path.name: path.read_bytes() for path in (tmp_path / "a").rglob("*") if path.is_file()}
    assert import_to_store(nats, tmp_path / "a") == report
    assert original_files == {path.name: path.read_bytes() for path in (tmp_path / "a").rglob("*") if path.is_file()}
    tar_report = import_to_store(parts[0], tmp_path / "b", indices=[309, 3])
    assert [record.sha256 for record in tar_report.imported] == [record.sha256 for record in report.imported]


def test_import_selects_networks_datasets_epochs_and_seeds(nats, tmp_path):
    def imported_trials(**options: Any) -> set[tuple[int, str, int, int]]:
        store_name = "-".join(map(str, options.values()))
        report = import_to_store(nats, tmp_path / store_name, **options)
        return {(record.index, record.dataset, record.epochs, record.seed) for record in report.imported}

    assert imported_trials(indices=[309], datasets=["cifar10"]) == {(309, "cifar10", 200, 777)}
    assert imported_trials(indices=[3], datasets=["cifar10"], seed=888) == {(3, "cifar10", 200, 888)}
    assert imported_trials(indices=[3], epochs=12) == {(3, "cifar10", 12, 111)}
    assert imported_trials(indices=[3], seed=None) == {
        (3, "cifar10", 200, 777),
        (3, "cifar10", 200, 888),
        (3, "cifar100", 200, 888),
    }


def replace_weights(_results: Any, trial: Any) -> None:
    trial["net_state_dict"] = random_weights(309, "cifar10", 777, 200)


EDITS: dict[str, Any] = {
    "weights of another cell": replace_weights,
    "another cell": lambda results, _: results.update(arch_str=nasbench201.specs()[309]),
    "NaN": lambda _, trial: trial["net_state_dict"]["stem.0.weight"].view(-1)[:1].fill_(float("nan")),
    "a missing buffer": lambda _, trial: trial["net_state_dict"].pop("stem.1.running_mean"),
    "another number of classes": lambda _, trial: trial["arch_config"].update(class_num=100),
    "an absurd size": lambda _, trial: trial["arch_config"].update(channel=10**9),
}


@pytest.mark.parametrize("edit", EDITS)
def test_import_rejects_edited_records(tmp_path, edit):
    write_edited_record(tmp_path / "source", 3, EDITS[edit])
    with pytest.raises(CheckpointError, match="#3 cifar10 seed 777 in "):
        import_to_store(tmp_path / "source", tmp_path / "store")
    assert not (tmp_path / "store").exists()


def test_import_reports_networks_rejected_after_the_first(nats, tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    (source / "000003.pickle.pbz2").write_bytes((nats / "000003.pickle.pbz2").read_bytes())
    (source / "000309.pickle.pbz2").write_bytes((nats / "000003.pickle.pbz2").read_bytes()[:200])
    write_edited_record(source, 21, replace_weights, {"200": [("cifar10", 777), ("cifar100", 777)]})
    (source / "999999.pickle.pbz2").write_bytes((nats / "000003.pickle.pbz2").read_bytes())
    report = import_to_store(source, tmp_path / "store", indices=[3, 5, 21, 309, 999_999])
    assert {record.index for record in report.imported} == {3, 21}
    assert report.imported[-1].dataset == "cifar100"
    assert len(report.rejected) == 4
    for message, expected_text in zip(report.rejected, ("#5", "#21 cifar10", "truncated", "999999"), strict=True):
        assert expected_text in message
    assert CheckpointStore(tmp_path / "store").find(21, "cifar100").seed == 777


def test_import_ignores_recorded_seed_and_parameter_count(tmp_path):
    # The fields next to the weights may belong to another network (NATS-Bench issue 36).
    write_edited_record(tmp_path / "source", 3, lambda _, trial: trial.update(params=99.0, flop=1.0, seed="0888"))
    (record,) = import_to_store(tmp_path / "source", tmp_path / "store").imported
    size = {"channels": CHANNELS, "cells": CELLS, "n_classes": 10}
    assert (record.seed, record.parameters) == (777, nasbench201.parameter_count(record.spec, **size))


# --- data in the folder ROBUST201_DATA

README_PARAMETERS = {0: 129_306, 9: 316_346, 21: 372_346, 309: 129_306, 991: 615_386, 13_714: 1_073_466}
"""Numbers of parameters by index, from the README of the shared checkpoints."""


@pytest.mark.shared
@pytest.mark.slow
def test_import_reads_the_shared_checkpoints(shared_data, tmp_path):
    source = shared_data / "checkpoints" / "NATS-tss-v1_0-3ffb9-full"
    if not source.is_dir():
        pytest.skip(f"no checkpoints in {shared_data}")
    report = import_to_store(source, tmp_path)
    assert {record.index: record.parameters for record in report.imported} == README_PARAMETERS
    sizes = {(record.dataset, record.epochs, record.seed, record.channels, record.cells) for record in report.imported}
    assert sizes == {("cifar10", 200, 777, 16, 5)}
    store = CheckpointStore(tmp_path)
    record = store.find(21, "cifar10")
    network = Network(record.spec, channels=16, cells=5, n_classes=10)
    network.load_state_dict(store.load(record), strict=True)
    with pytest.raises(CheckpointError, match="expected weights of cifar100"):
        import_to_store(source, tmp_path, indices=[21], datasets=["cifar100"])


@pytest.mark.shared
def test_shared_checkpoints_equal_the_weights_read_by_the_official_package(shared_data):
    from nats_bench import api_utils

    source = shared_data / "checkpoints" / "NATS-tss-v1_0-3ffb9-full"
    if not source.is_dir():
        pytest.skip(f"no checkpoints in {shared_data}")
    (weights,) = iter_weights(source, indices=[9])
    records = api_utils.pickle_load(str(source / "000009.pickle.pbz2"))
    official = api_utils.ArchResults.create_from_state_dict(records["200"])
    assert_equal_tensors(weights.state_dict, official.get_net_param("cifar10", 777))


@pytest.mark.shared
def test_official_records_without_weights_are_rejected(shared_data, tmp_path):
    source = shared_data / "nats-official"
    if not source.is_dir():
        pytest.skip(f"no nats-official in {shared_data}")
    with pytest.raises(CheckpointError, match="records without weights"):
        import_to_store(source, tmp_path)
