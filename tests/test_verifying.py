"""Verification names what is wrong, and what is requeued is computed again, it and nothing else."""

import gzip
import json
from pathlib import Path

import pytest

from pipeline.plan_file import load_plan
from pipeline.records import EvaluationResult, Part
from pipeline.shards import ShardStore
from tests.conftest import read_tree
from tests.faults.flip_bits import flip_bits, make_store
from tests.shard_support import make_results, make_unit


def test_flipped_bits_are_found_wherever_they_are(tmp_path):
    assert flip_bits(make_store(tmp_path), 120) == []


COUNTS = ("accuracy", "cm")


def commit_wrong(store: ShardStore, monkeypatch, unit, change) -> str:
    """Commit a result that breaks an invariant, as a defect in a worker would."""
    monkeypatch.setattr("pipeline.shards.store.check_values", lambda *_arguments, **_names: None)
    results = make_results(unit, measurements=COUNTS)
    change(results[0].values)
    return store.commit(results).shard


def wrong_accuracy(values):
    values["accuracy"] = values["accuracy"] + 0.001


def wrong_classes(values):
    """Count an image of one class as one of another, and leave its prediction and the accuracy as they are."""
    cm = values["cm"]
    source, target = next((i, j) for i in range(3) for j in range(3) if i != j and cm[i, j])
    other = 3 - source - target
    cm[source, target] -= 1
    cm[other, target] += 1


WRONG = {"invalid": wrong_accuracy, "unlike others": wrong_classes}


@pytest.mark.parametrize("compacted", [False, True])
@pytest.mark.parametrize("kind", WRONG)
def test_only_what_is_wrong_counts_as_missing_after_requeueing(tmp_path, monkeypatch, kind, compacted):
    store = ShardStore.create(tmp_path)
    units = [make_unit(architecture) for architecture in (0, 2, 10, 21)]
    for unit in (units[0], *units[2:]):
        store.commit(make_results(unit, measurements=COUNTS))
    commit_wrong(store, monkeypatch, units[1], WRONG[kind])
    if compacted:
        store.compact(grace_seconds=0)
    inventory = store.inventory(verify="all")
    findings = store.verify(inventory)
    assert [(found.kind, found.unit) for found in findings] == [(kind, "#2 digits pgd at 1 images 0:30")]
    for moved in store.requeue(inventory, findings):
        assert (tmp_path / "damaged" / moved).exists()
    left = store.inventory(verify="all")
    assert store.verify(left) == []
    complete = {
        (unit.architecture, strength)
        for unit in units
        for strength in unit.strengths
        if left.is_complete(unit, strength, ("accuracy",))
    }
    lost = {(2, 1.0)} if compacted else {(2, 1.0), (2, 4.0)}  # a shard of one unit goes whole
    assert complete == {(unit.architecture, s) for unit in units for s in unit.strengths} - lost
    # What the old shard replaced does not come back by another compaction.
    store.compact(grace_seconds=0)
    store.compact(grace_seconds=0)
    assert not store.inventory().is_complete(units[1], 1.0, ("accuracy",))


def test_unequal_duplicates_are_both_requeued(tmp_path):
    store = ShardStore.create(tmp_path)
    unit, other = make_unit(), make_unit(2)
    for results in (make_results(unit), make_results(unit, seed=1), make_results(other)):
        store.commit(results)
    inventory = store.inventory()
    findings = store.verify(inventory)
    assert {found.kind for found in findings} == {"unequal duplicates"}
    assert len(store.requeue(inventory, findings)) == 2
    left = store.inventory()
    assert not left.is_complete(unit, 1.0, ("accuracy",))
    assert left.is_complete(other, 1.0, ("accuracy",))


def test_a_requeued_unit_is_computed_again_and_nothing_else(finished, tmp_path, write_sweep, robust201):
    robust201("export", finished, tmp_path / "before", "--processes", 1)
    store = ShardStore.open(finished)
    shards = [entry.name for entry in store.folder.place.entries()]
    victim = store.folder.shards / shards[1]
    content = bytearray(victim.read_bytes())
    content[-30] ^= 4
    victim.write_bytes(content)
    assert robust201("verify", finished).code == 4
    ended = robust201("verify", finished, "--requeue", "--json")
    assert ended.code == 3
    assert json.loads(ended.out)["requeued"] == [shards[1]]
    before = read_tree(finished / "shards")
    ended = robust201("run", write_sweep())
    assert ended.code == 0
    assert "4 missing" not in ended.err  # of ten evaluations, those of one unit
    after = read_tree(finished / "shards")
    assert len(after) == len(before) + 1
    assert before.items() <= after.items()
    assert robust201("verify", finished).code == 0
    robust201("export", finished, tmp_path / "after", "--processes", 1)
    assert read_tree(tmp_path / "before") == read_tree(tmp_path / "after")


@pytest.mark.parametrize("compression", [None, "gz", "zst"])
def test_an_export_is_compared_with_its_shards(finished, tmp_path, robust201, compression):
    out = tmp_path / "out"
    options = ["--round", 3, "--key-style", "published", "--parquet", "--processes", 1]
    robust201("export", finished, out, *options, *(["--compress", compression] if compression else []))
    assert robust201("verify", finished, "--export", out).code == 0
    victim = out / ("digits/fgsm@Linf_accuracy.json" + (f".{compression}" if compression else ""))
    if compression == "zst":
        victim.write_bytes(victim.read_bytes()[:-3])
    else:
        opened = gzip.open if compression else Path.open
        with opened(victim, "rb") as stream:
            text = stream.read()
        with opened(victim, "wb") as stream:
            stream.write(text.replace(b'"21": [0', b'"21": [1'))
    ended = robust201("verify", finished, "--export", out)
    assert ended.code == 4
    assert f"{victim}: expected the SHA-256" in ended.err
    if compression != "zst":
        assert "from #21 digits fgsm on" in ended.err


def test_an_export_of_other_results_is_told_apart_though_its_listing_agrees(finished, tmp_path, write_sweep, robust201):
    robust201("export", finished, tmp_path / "out", "--parquet", "--processes", 1)
    other = write_sweep(results=str(tmp_path / "other"), keys={"clean": {}, "fgsm": {"epsilons_255": [2, 8]}})
    assert robust201("run", other).code == 0
    ended = robust201("verify", tmp_path / "other", "--export", tmp_path / "out")
    assert ended.code == 4
    assert "digits/fgsm_cm.json: expected the values of the shards, got others from #0 digits fgsm on" in ended.err
    assert "key=fgsm/part-0.parquet: expected the values of the shards, got others" in ended.err
    assert "brightness_cm.json: expected it as the shards have it, got one that the shards do not have" in ended.err
    assert "expected a whole export" in robust201("verify", finished, "--export", tmp_path).refusal(2)


def test_units_with_gaps_are_named_and_are_no_damage(finished, robust201):
    store = ShardStore.open(finished)
    shard = next(name for name in [entry.name for entry in store.folder.place.entries()] if "000000-fgsm" in name)
    path = store.folder.shards / shard
    inventory = store.inventory()
    unit = next(unit for unit in load_plan(finished).units if (unit.architecture, unit.key) == (0, "fgsm"))
    values = store.values(unit, 8.0, inventory, ("accuracy", "confidence", "cm"))
    path.unlink()
    ShardStore.open(finished).commit([EvaluationResult(Part(unit, (8.0,), 0, unit.n_images), 8.0, values, 1.0)])
    ended = robust201("verify", finished)
    assert (ended.code, ended.out) == (3, "Every shard is sound; 1 gaps.\n")
    assert "unfinished: #0 digits fgsm at 1" in ended.err
