"""The checkpoint store adds, finds and repairs weights, and rejects damaged files and manifests."""

import functools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from robust201.core.errors import CheckpointError
from robust201.networks.nb201 import cells as nasbench201
from robust201.weights.manifest import CheckpointRecord
from robust201.weights.store import CheckpointStore
from tests.support.official_archives import (
    CELLS,
    CHANNELS,
    CLASSES,
    assert_equal_tensors,
    random_weights,
)


def add_weights(store: CheckpointStore, index: int = 3, dataset: str = "cifar10", **changes: Any) -> CheckpointRecord:
    """Add random weights of one trial to a store; keyword arguments replace arguments of `CheckpointStore.add`."""
    fields: dict[str, Any] = {
        "space": nasbench201.SPACE,
        "index": index,
        "spec": nasbench201.specs()[index],
        "dataset": dataset,
        "epochs": 200,
        "seed": 777,
        "channels": CHANNELS,
        "cells": CELLS,
        "n_classes": CLASSES.get(dataset),
        "source": "test",
        "source_sha256": "0" * 64,
    } | changes
    if "state_dict" not in fields:
        fields["state_dict"] = random_weights(index, dataset, fields["seed"], fields["epochs"])
    return store.add(**fields)


def test_store_returns_the_added_weights(tmp_path):
    with CheckpointStore(tmp_path / "store") as store:
        added = [add_weights(store, index, training={"inputs": {"recipe": {"epochs": 2}}}) for index in (21, 3)]
    reopened = CheckpointStore(tmp_path / "store")
    assert reopened.records() == tuple(sorted(added, key=lambda record: record.index))
    for record in reopened.records():
        size = {"channels": CHANNELS, "cells": CELLS, "n_classes": 10}
        assert record.parameters == nasbench201.parameter_count(record.spec, **size)
        assert_equal_tensors(reopened.load(record), random_weights(record.index, "cifar10", 777, 200))


def test_store_add_changes_nothing_for_the_same_weights(tmp_path):
    with CheckpointStore(tmp_path) as store:
        record = add_weights(store)
    original_files = {
        path: (path.stat().st_mtime_ns, path.read_bytes()) for path in tmp_path.rglob("*") if path.is_file()
    }
    with CheckpointStore(tmp_path) as store:
        assert add_weights(store) == record
    assert original_files == {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in original_files}


def test_store_add_repairs_a_damaged_file_and_replaces_old_weights(tmp_path):
    with CheckpointStore(tmp_path) as store:
        record = add_weights(store)
        (tmp_path / record.file).write_bytes(b"cut")
        add_weights(store)
        store.load(record)
        newer = add_weights(store, state_dict=random_weights(3, "cifar10", 1, 1))
    assert newer.sha256 != record.sha256
    assert CheckpointStore(tmp_path).records() == (newer,)


def test_store_find_prefers_200_epochs_and_seed_777(tmp_path):
    with CheckpointStore(tmp_path) as store:
        for epochs, seed in ((12, 111), (12, 777), (200, 888), (200, 777), (300, 5)):
            add_weights(store, epochs=epochs, seed=seed)
        for epochs, seed in ((12, 7), (90, 999), (90, 888)):
            add_weights(store, 21, epochs=epochs, seed=seed)

    def choose(index: int, **requested: int) -> tuple[int, int]:
        record = CheckpointStore(tmp_path).find(index, "cifar10", **requested)
        return record.epochs, record.seed

    assert choose(3) == (200, 777)
    assert choose(3, epochs=12) == (12, 777)
    assert choose(3, seed=888) == (200, 888)
    assert choose(3, seed=111) == (12, 111)
    assert choose(21) == (90, 888)
    assert choose(21, epochs=12, seed=7) == (12, 7)
    with pytest.raises(CheckpointError, match=r"#3 cifar10 .*expected 90 epochs and seed 1, got 12 epochs seed 111, "):
        choose(3, epochs=90, seed=1)
    with pytest.raises(CheckpointError, match=r"#3 cifar100 .*got weights of 2 other networks: #3 on cifar10"):
        CheckpointStore(tmp_path).find(3, "cifar100")
    with pytest.raises(CheckpointError, match=r"#4 cifar10 .*got weights of 2 other networks: #3 on cifar10"):
        choose(4)


def test_error_names_the_missing_manifest_or_file(tmp_path):
    with pytest.raises(CheckpointError, match=r"manifest\.jsonl"):
        CheckpointStore(tmp_path / "absent").find(3, "cifar10")
    with CheckpointStore(tmp_path) as store:
        record = add_weights(store)
        (tmp_path / record.file).unlink()
        with pytest.raises(CheckpointError, match=r"\.safetensors: No such file"):
            store.load(record)


@settings(max_examples=25)
@given(data=st.data())
def test_store_rejects_changed_files(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("store")
    with CheckpointStore(folder) as store:
        record = add_weights(store)
    path = folder / record.file
    raw = bytearray(path.read_bytes())
    position = data.draw(st.integers(0, len(raw) - 1))
    is_truncated = data.draw(st.booleans())
    if is_truncated:
        del raw[position:]
    else:
        raw[position] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(raw)
    with pytest.raises(CheckpointError, match="expected SHA-256"):
        store.load(record)
    if is_truncated:
        with pytest.raises(CheckpointError, match=r"truncated or damaged|an empty file"):
            store.load(record, verify=False)


def test_store_rejects_weights_that_are_not_finite(tmp_path):
    from safetensors.torch import save

    state_dict = random_weights(3, "cifar10", 777, 200)
    state_dict["stem.1.running_var"].view(-1)[0] = float("inf")
    with CheckpointStore(tmp_path) as store:
        with pytest.raises(CheckpointError, match=r"stem\.1\.running_var has 1 NaN"):
            add_weights(store, state_dict=state_dict)
        assert list(tmp_path.rglob("*")) == []
        record = add_weights(store)
        (tmp_path / record.file).write_bytes(save({"weight": torch.tensor([1.0, float("nan")])}))
        with pytest.raises(CheckpointError, match="weight has 1 NaN"):
            store.load(record, verify=False)


def test_manifest_with_an_incomplete_last_line_is_read_and_truncated(tmp_path):
    with CheckpointStore(tmp_path) as store:
        first = add_weights(store)
        add_weights(store, 21)
    manifest = tmp_path / "manifest.jsonl"
    manifest.write_bytes(manifest.read_bytes()[:-20])
    with CheckpointStore(tmp_path) as store:
        assert store.records() == (first,)
        second = add_weights(store, 309)
    assert CheckpointStore(tmp_path).records() == (first, second)


@pytest.mark.parametrize(
    ("content", "location"),
    [
        ("{header}9\n{line}\n", ""),
        ("", ""),
        ("{header}\n{line:.40}\n{line}\n", "line 2"),
    ],
)
def test_store_rejects_damaged_and_foreign_manifests(tmp_path, content, location):
    with CheckpointStore(tmp_path) as store:
        add_weights(store)
    header, line = store.manifest.read_text().splitlines()
    store.manifest.write_text(content.format(header=header, line=line))
    with pytest.raises(CheckpointError, match=rf"manifest\.jsonl.*{location}"):
        CheckpointStore(tmp_path).records()


INVALID_VALUES: dict[str, Any] = {
    "space": None,
    "index": True,
    "epochs": -1,
    "seed": "0777",
    "sha256": "0" * 63,
    "training.inputs": [],
    "training.outcome.test_accuracy": 2.5,
    "steps": 1.5,
    "unknown": 1,
}


@pytest.mark.parametrize("field_name", INVALID_VALUES)
def test_error_contains_line_and_field_of_an_invalid_value(tmp_path, field_name):
    with CheckpointStore(tmp_path) as store:
        add_weights(store, training={"inputs": {"recipe": {"epochs": 2}}, "outcome": {"steps": 8}})
        add_weights(store, 21)
    header, line, other_line = store.manifest.read_text().splitlines()
    fields = json.loads(line)
    *parents, key = field_name.split(".")
    functools.reduce(dict.__getitem__, parents, fields)[key] = INVALID_VALUES[field_name]
    store.manifest.write_text(f"{header}\n{json.dumps(fields)}\n{other_line}\n")
    with pytest.raises(CheckpointError, match=rf"manifest\.jsonl line 2: the field '{field_name}"):
        CheckpointStore(tmp_path).records()


def test_store_reads_the_manifest_only_once(tmp_path):
    with CheckpointStore(tmp_path) as store:
        added = {index: add_weights(store, index) for index in (3, 21, 309)}
    store = CheckpointStore(tmp_path)
    assert len(store.records()) == 3
    store.manifest.unlink()
    assert {index: store.find(index, "cifar10") for index in added} == added


def add_snapshots(root: Path) -> CheckpointStore:
    """Add snapshots after steps 4, 6 and 8 of a run (4 steps per epoch), and weights of recipe old without steps."""
    with CheckpointStore(root) as store:
        for epochs, steps, total_steps in ((1, None, 4), (1, 6, 6), (2, None, 8)):
            state = random_weights(3, "cifar10", total_steps, 1)
            outcome = {"outcome": {"steps": total_steps}}
            add_weights(store, epochs=epochs, steps=steps, seed=0, recipe="new", state_dict=state, training=outcome)
        add_weights(store, epochs=2, seed=1, recipe="old", state_dict=random_weights(3, "cifar10", 99, 1))
    return CheckpointStore(root)


def test_snapshots_within_and_after_epochs_are_stored_together(tmp_path):
    store = add_snapshots(tmp_path)
    snapshots = store.find_all(3, "cifar10", recipes=["new"])
    assert [record.file.split("/")[1] for record in snapshots] == [
        f"000003-new-{name}-s0.safetensors" for name in ("e1", "i6", "e2")
    ]
    assert [(record.epochs, record.steps, record.steps_done) for record in snapshots] == [
        (1, None, 4),
        (1, 6, 6),
        (2, None, 8),
    ]
    assert [record.label for record in snapshots[:2]] == [
        "#3 cifar10 new 1 epoch seed 0",
        "#3 cifar10 new 6 steps seed 0",
    ]
    assert store.find(3, "cifar10", recipe="new") == snapshots[2]
    assert store.find(3, "cifar10", recipe="new", epochs=1) == snapshots[0]
    lines = [json.loads(line) for line in store.manifest.read_text().splitlines()[1:]]
    assert ["steps" in line for line in lines] == [False, True, False, False]


def test_snapshots_are_selected_by_epochs_or_steps(tmp_path):
    store = add_snapshots(tmp_path)

    def selected_steps(**selection: Any) -> list[int | None]:
        return [record.steps_done for record in store.find_all(3, "cifar10", recipes=["new"], **selection)]

    assert selected_steps() == [4, 6, 8]
    assert selected_steps(epochs=[1]) == [4]
    assert selected_steps(steps=[6]) == [6]
    assert selected_steps(steps=[8, 4]) == [4, 8]
    assert selected_steps(epochs=[2], steps=[6]) == [6, 8]
    with pytest.raises(
        CheckpointError, match=r"expected recipe new and 5 steps, got new 1 epoch seed 0, .*old 2 epochs seed 1"
    ):
        selected_steps(epochs=[2], steps=[5])
