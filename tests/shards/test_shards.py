"""The store returns committed results unchanged, however they are split into parts and folders."""

import itertools

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from robust201.core import files
from robust201.core.errors import (
    EvaluationError,
    FormatVersionError,
    IncompleteError,
    InputError,
)
from robust201.core.records import EvaluationProtocol, Part
from robust201.shards import ShardStore, merge_folders
from robust201.shards.inventory import Slice, choose_slices, find_gaps
from robust201.tasks.columns import COLUMNS, RESERVED, fields_of
from tests.support.shard_support import (
    ALL_MEASUREMENTS,
    DEFAULT_MEASUREMENTS,
    assert_equal_values,
    flip,
    flip_middle_bit,
    make_results,
    make_unit,
    make_values,
    whole_part,
)


@pytest.fixture
def store(tmp_path):
    return ShardStore.create(tmp_path / "results")


def test_committed_values_are_read_unchanged(store):
    unit = make_unit()
    results = make_results(unit, measurements=ALL_MEASUREMENTS)
    receipt = store.commit(results)
    assert receipt[:4] == (unit.id, unit.strengths, 0, unit.n_images)
    assert receipt.seconds == 1.0
    inventory = store.inventory(verify="all")
    assert inventory.shards == (receipt.shard,)
    assert inventory.seconds == pytest.approx(1.0)
    for result in results:
        values = store.values(unit, result.strength, inventory, ALL_MEASUREMENTS)
        assert_equal_values(values, {name: result.values[name] for name in values})
        assert set(values) == set(result.values)
    assert store.verify() == []


def test_shard_is_readable_as_plain_parquet(store):
    unit = make_unit()
    shard = store.commit(make_results(unit, measurements=ALL_MEASUREMENTS)).shard
    frame = pq.read_table(store.folder.shards.joinpath(shard)).to_pandas()
    assert list(frame["strength"]) == [1.0, 4.0]
    assert set(frame["unit_id"]) == {unit.id}
    assert set(frame["checkpoint_sha256"]) == {unit.checkpoint_sha256}
    assert set(frame["provenance"]) == {'{"host":"h"}'}
    assert [len(cell) for cell in frame["cm"]] == [9, 9]


def test_shard_name_contains_hash_of_content(store):
    shard = store.commit(make_results(make_unit())).shard
    sha = files.sha256_of(store.folder.shards.joinpath(shard))
    assert shard == f"digits/000021-pgd-{sha[:16]}.parquet"


@settings(max_examples=25)
@given(cuts=st.sets(st.integers(1, 29), max_size=6), random=st.randoms(use_true_random=False))
def test_parts_merge_to_all_images_for_any_split_and_order(tmp_path_factory, cuts, random):
    store = ShardStore.create(tmp_path_factory.mktemp("parts"))
    unit = make_unit()
    bounds = [0, *sorted(cuts), unit.n_images]
    ranges = list(itertools.pairwise(bounds))
    random.shuffle(ranges)
    for start, stop in ranges:
        store.commit(make_results(unit, start=start, stop=stop, measurements=ALL_MEASUREMENTS))
    inventory = store.inventory()
    assert inventory.find_missing_parts(unit, ALL_MEASUREMENTS) == ()
    assert inventory.n_evaluations == 2
    for strength in unit.strengths:
        expected = make_values(unit, strength, 0, unit.n_images, ALL_MEASUREMENTS)
        assert_equal_values(store.values(unit, strength, inventory, ALL_MEASUREMENTS), expected)


def test_find_missing_parts_returns_one_part_for_strengths_that_lack_the_same_images(store):
    unit = make_unit(strengths=(1.0, 2.0, 3.0, 4.0))
    assert store.inventory().find_missing_parts(unit, DEFAULT_MEASUREMENTS) == (whole_part(unit),)
    store.commit(make_results(unit, strengths=(2.0,)))
    store.commit(make_results(unit, strengths=(3.0,), start=10, stop=20))
    inventory = store.inventory()
    assert inventory.find_missing_parts(unit, DEFAULT_MEASUREMENTS) == (
        Part(unit, (3.0,), 0, 10),
        Part(unit, (1.0, 4.0), 0, 30),
        Part(unit, (3.0,), 20, 30),
    )
    assert inventory.n_evaluations == 1
    complete_strengths = {
        strength for strength in unit.strengths if inventory.is_complete(unit, strength, DEFAULT_MEASUREMENTS)
    }
    assert complete_strengths == {2.0}
    with pytest.raises(IncompleteError, match=r"0:10, 20:30 are missing"):
        store.values(unit, 3.0, inventory, DEFAULT_MEASUREMENTS)


def test_additional_measurement_counts_as_missing(store):
    unit = make_unit()
    store.commit(make_results(unit, measurements=("accuracy",)))
    assert store.inventory().find_missing_parts(unit, ("accuracy", "cm")) == ()
    assert store.inventory().find_missing_parts(unit, ("accuracy", "confidence")) == (whole_part(unit),)
    store.commit(make_results(unit, measurements=DEFAULT_MEASUREMENTS))
    inventory = store.inventory()
    assert inventory.find_missing_parts(unit, DEFAULT_MEASUREMENTS) == ()
    assert "confidence_label" in store.values(unit, 1.0, inventory, DEFAULT_MEASUREMENTS)


@pytest.mark.parametrize("measurement", [None, "accuracy", "confidence", "predictions"])
def test_iter_batches_returns_stored_values_across_row_groups_and_parts(store, measurement):
    units = [make_unit(architecture, strengths=(1.0, 2.0, 4.0)) for architecture in range(12)]
    for unit in units[:9]:
        store.commit(make_results(unit, measurements=ALL_MEASUREMENTS))
    row_bytes = sum(array.nbytes for array in make_values(units[0], 1.0, 0, 30, ALL_MEASUREMENTS).values())
    store.compact(grace_seconds=0, row_group_bytes=20 * row_bytes)
    for start, stop in ((0, 12), (12, 30)):
        store.commit(make_results(units[9], start=start, stop=stop, measurements=ALL_MEASUREMENTS))
    for unit in units[10:]:
        store.commit(make_results(unit, measurements=ALL_MEASUREMENTS))
    ordered_units = [*units[4:], *units[3::-1]]
    batches = list(store.select(ordered_units, store.inventory(), ALL_MEASUREMENTS).iter_batches(measurement))
    assert [unit for batch in batches for unit in batch.units] == ordered_units
    assert max(len(batch.units) for batch in batches) > 1
    for batch in batches:
        assert sum(batch.bytes_by_unit()) == sum(column.nbytes for column in batch.columns.values())
        for unit, values in [
            *batch.by_unit(),
            *(pair for index in range(len(batch.units)) for pair in batch[index : index + 1].by_unit()),
        ]:
            for strength in unit.strengths:
                all_values = make_values(unit, strength, 0, 30, ALL_MEASUREMENTS)
                columns = [*all_values] if measurement is None else [*fields_of(measurement).values()]
                assert_equal_values(values[strength], {name: all_values[name] for name in columns})


@given(
    st.lists(st.tuples(st.integers(0, 11), st.integers(1, 12)).filter(lambda pair: pair[0] < pair[1]), max_size=8),
)
def test_choose_slices_returns_maximum_disjoint_cover(pairs):
    slices = [Slice(start, stop, row) for row, (start, stop) in enumerate(sorted(pairs))]
    chosen_slices = choose_slices(slices)
    covered = [position for image_slice in chosen_slices for position in range(image_slice.start, image_slice.stop)]
    assert len(covered) == len(set(covered))
    possible_choices = [frozenset()]
    for image_slice in slices:
        slice_images = frozenset(range(image_slice.start, image_slice.stop))
        possible_choices += [
            slice_images | images_of_choice
            for images_of_choice in possible_choices
            if not slice_images & images_of_choice
        ]
    assert len(covered) == max(map(len, possible_choices))
    uncovered = [position for start, stop in find_gaps(chosen_slices, 12) for position in range(start, stop)]
    assert sorted(uncovered + covered) == list(range(12))
    if (0, 12) in pairs:
        assert len(chosen_slices) == 1


def test_verify_finds_unequal_duplicates(store):
    unit = make_unit()
    store.commit(make_results(unit, seed=0))
    store.commit(make_results(unit, strengths=(4.0,), seed=1))
    (finding,) = store.verify()
    assert finding.kind == "unequal duplicates"
    assert finding.unit == "#21 digits pgd at 4, images 0:30"


def test_verify_finds_parts_that_differ_from_result_for_all_images(store):
    unit = make_unit(strengths=(1.0,))
    store.commit(make_results(unit))
    store.commit(make_results(unit, start=0, stop=10))
    store.commit(make_results(unit, start=10, stop=30, measurements=ALL_MEASUREMENTS))
    assert store.verify() == []
    store.folder.backend.set_aside(
        next(shard for shard in store.inventory().shards if _is_default_shard_with_all_images(store, shard))
    )
    store.commit(make_results(unit, seed=5))
    assert [finding.kind for finding in store.verify()] == ["unequal duplicates"]


def _is_default_shard_with_all_images(store, shard):
    return (
        pq.read_table(store.folder.shards.joinpath(shard))["stop"][0].as_py() == 30
        and "predictions" not in pq.read_schema(store.folder.shards.joinpath(shard)).names
    )


# Folder and versions


def test_open_rejects_folders_without_results_and_suggests_run(tmp_path):
    with pytest.raises(InputError, match="robust201 run"):
        ShardStore.open(tmp_path / "nothing")
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError):
        ShardStore.open(tmp_path / "file")


def test_create_rejects_shards_without_format(store):
    store.commit(make_results(make_unit()))
    (store.root / "format.json").unlink()
    with pytest.raises(InputError, match=r"no format\.json"):
        ShardStore.create(store.root)


@pytest.mark.parametrize(
    "format_json", ['{"format":"robust201-results","version":2}', '{"format":"other","version":1}']
)
def test_folder_of_unknown_version_is_rejected(store, format_json):
    (store.root / "format.json").write_text(format_json)
    for open_store in (ShardStore.open, ShardStore.create):
        with pytest.raises(FormatVersionError, match="Use the version"):
            open_store(store.root)


def test_shard_of_unknown_version_is_rejected(store, monkeypatch):
    monkeypatch.setattr("robust201.shards.parquet.FORMAT_VERSION", 2)
    store.commit(make_results(make_unit()))
    monkeypatch.undo()
    with pytest.raises(FormatVersionError, match="expected format version 1, got 2"):
        store.inventory(on_damage="set_aside")


def test_commit_rejects_inconsistent_results(store):
    unit = make_unit()
    different_units = [make_results(unit)[0], make_results(make_unit(1))[1]]
    different_columns = [make_results(unit)[0], make_results(unit, measurements=ALL_MEASUREMENTS)[1]]
    wrong_counts = make_results(unit)
    wrong_counts[0].values["cm"][0, 0] += 1
    repeated_strength = [make_results(unit)[0]] * 2
    for results in ([], different_units, different_columns, wrong_counts, repeated_strength):
        with pytest.raises(EvaluationError, match="failed"):
            store.commit(results)
    assert store.inventory().shards == ()


# Shards whose worker died before it reported them


def test_find_receipts_ignores_other_and_damaged_shards(store):
    unit = make_unit(21)
    receipt = store.commit(make_results(unit, measurements=("accuracy", "cm")))
    store.commit(make_results(make_unit(21, key="fgsm")))
    found_receipts = store.find_receipts([whole_part(unit)], ("accuracy", "cm"))
    assert [found_receipt.shard for found_receipt in found_receipts] == [receipt.shard]
    assert store.find_receipts([whole_part(unit)], ("accuracy", "confidence", "cm")) == ()
    assert store.find_receipts([Part(unit, unit.strengths, 0, 10)], ("accuracy", "cm")) == ()
    assert store.find_receipts([Part(unit, (2.0,), 0, unit.n_images)], ("accuracy", "cm")) == ()
    flip_middle_bit(store, receipt.shard, keep_time=False)
    assert store.find_receipts([whole_part(unit)], ("accuracy", "cm")) == ()


# Several folders


def test_merge_folders_copies_shards_and_protocols(tmp_path):
    a, b = (ShardStore.create(tmp_path / name) for name in "ab")
    units = [make_unit(architecture) for architecture in range(3)]
    a.commit(make_results(units[0]))
    protocol = EvaluationProtocol.of({"key": "pgd"})
    a.save_protocol(protocol)
    for unit in units[:2]:
        b.commit(make_results(unit))
    b.commit(make_results(units[2], stop=10))
    a.commit(make_results(units[2], start=10))
    report = merge_folders([a.root, b.root], tmp_path / "all")
    # Equal results of the same unit have the same bytes, so the duplicate is one shard.
    assert (report.added, report.present, report.protocols, report.findings) == (4, 1, 1, ())
    target = ShardStore.open(tmp_path / "all")
    inventory = target.inventory(verify="all")
    assert all(inventory.find_missing_parts(unit, DEFAULT_MEASUREMENTS) == () for unit in units)
    assert_equal_values(
        target.values(units[2], 4.0, inventory, DEFAULT_MEASUREMENTS), make_values(units[2], 4.0, 0, 30)
    )
    assert inventory.protocol(protocol.digest) == {"key": "pgd"}
    second_report = merge_folders([a.root, b.root], tmp_path / "all")
    assert (second_report.added, second_report.present) == (0, 5)


def test_merge_folders_reports_damage_and_unequal_duplicates(tmp_path):
    a, b = (ShardStore.create(tmp_path / name) for name in "ab")
    damaged_shard = a.commit(make_results(make_unit(1))).shard
    flip(a.folder.shards.joinpath(damaged_shard), 2000)
    a.commit(make_results(make_unit(2), seed=1))
    b.commit(make_results(make_unit(2), seed=2))
    report = merge_folders([a.root], b.root)
    assert {finding.kind for finding in report.findings} == {"damaged", "unequal duplicates"}
    assert not b.folder.shards.joinpath(damaged_shard).exists()


def test_stored_column_names_are_reserved(tmp_path):
    ShardStore.create(tmp_path).commit(make_results(make_unit(key="pgd")))
    (shard,) = (tmp_path / "shards").rglob("*.parquet")
    assert set(pq.read_schema(shard).names) <= RESERVED | set(COLUMNS)
