"""Verification of results folders finds faults, and moves only damaged files aside."""

import numpy as np
import pytest

from robust201.dataset.shard_check import find_contradictions
from robust201.dataset.verify_results import verify_results
from robust201.store.names import shard_name
from robust201.store.packs import contains
from robust201.sweep.filters import Filters
from robust201.sweep.plan import open_results
from tests.support.runs import KilledError, read_shard, run_inline, store_variant

KEYS = {"clean": {}, "fgsm": {"epsilons": ["1/255", "8/255"]}, "brightness": {"severities": [1, 5]}}


@pytest.fixture
def config(make_sweep):
    return make_sweep(keys=KEYS, images={"count": 20, "seed": 0}, execution={"device": "cpu", "gmacs_per_second": 1e-5})


def verify(results, **options):
    return list(verify_results(results, **options).findings)


def find_shards(config):
    _, folder = open_results(config.results)
    return folder, [shard_name("digits", name) for name in folder.list()["digits"]]


def test_valid_results_have_no_findings(config):
    run_inline(config)
    done_counts = []
    assert verify(config.results, on_progress=lambda n_done, _n_files: done_counts.append(n_done)) == []
    assert done_counts[-1] == len(find_shards(config)[1])


def test_missing_parts_are_found(config):
    with pytest.raises(KilledError):
        run_inline(config, killed_after=3)
    findings = verify(config.results)
    assert {finding.kind for finding in findings} == {"missing"}


def test_damaged_and_invalid_files_are_moved_aside_and_computed_again(config):
    run_inline(config)
    folder, names = find_shards(config)
    (folder.storage.root / names[0].path).write_bytes(b"damage")
    store_variant(folder, names[1], lambda values: values | {"accuracy": np.array(0.123)})
    findings = verify(config.results)
    assert [finding.kind for finding in findings] == ["damaged", "damaged", "missing"]
    assert findings[0].subject == names[0].path
    assert run_inline(config).n_parts == 1
    assert verify(config.results) == []


def test_damaged_records_are_found_and_written_again(config):
    run_inline(config)
    folder, names = find_shards(config)
    path = folder.root / "protocols" / f"{names[0].columns}.json"
    path.write_text("[]")
    findings = verify(config.results)
    assert {finding.kind for finding in findings} == {"record", "missing"}
    assert findings[0].subject == f"protocols/{path.name}"
    assert len(find_shards(config)[1]) == len(names)
    assert run_inline(config).n_parts == 0
    assert verify(config.results) == []


def test_shard_with_the_images_of_another_slice_is_moved_aside(config):
    run_inline(config)
    folder, names = find_shards(config)
    content = folder.read(names[0])
    folder.write(names[0]._replace(slice=names[0].slice + 1), content)
    assert {finding.kind for finding in verify(config.results)} == {"damaged"}


def test_differing_duplicates_and_pixels_are_found(config):
    run_inline(config)
    folder, names = find_shards(config)
    corrupted_name = next(name for name in names if read_shard(folder, name).pixels)
    store_variant(folder, corrupted_name, pixels={1.0: "other"})
    assert {finding.kind for finding in verify(config.results)} == {"pixels"}
    first_name, other_name = (
        next(name for name in names if _is_first_slice_of(read_shard(folder, name), architecture))
        for architecture in (0, 21)
    )
    store_variant(folder, first_name)  # an equal duplicate is harmless
    assert {finding.kind for finding in verify(config.results)} == {"pixels"}
    store_variant(folder, first_name, lambda _values: read_shard(folder, other_name).rows[0.0])
    assert {finding.kind for finding in verify(config.results)} == {"duplicate", "pixels"}


def test_merged_folders_with_different_corrupted_images_contradict_each_other(config):
    run_inline(config, Filters(architectures=(0,)))
    folder, first_names = open_results(config.results)[1], find_shards(config)[0].list()
    run_inline(config)
    assert list(find_contradictions(config.results, [first_names, folder.list()])) == []
    for row in folder.list()["digits"]:
        name = shard_name("digits", row)
        if row not in first_names["digits"] and read_shard(folder, name).pixels:
            store_variant(folder, name, pixels={5.0: "other"})
            (folder.storage.root / name.path).unlink()
    names = folder.list()["digits"]
    second_names = {"digits": names[~contains(first_names["digits"], names)]}
    assert {finding.kind for finding in find_contradictions(config.results, [first_names, second_names])} == {"pixels"}


def _is_first_slice_of(shard, architecture):
    return (shard.unit.key, shard.unit.architecture, shard.start) == ("clean", architecture, 0)
