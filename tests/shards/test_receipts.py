"""Shards whose worker died before it told of them."""

from robust201.core.records import Part
from robust201.shards import ShardStore
from tests.support.shard_support import make_results, make_unit, whole


def test_what_a_commit_told_is_found_again(tmp_path):
    store = ShardStore.create(tmp_path / "results")
    told = [
        store.commit(make_results(make_unit(21), strengths=(1.0,))),
        store.commit(make_results(make_unit(21), strengths=(4.0,), start=10, stop=20)),
    ]
    store.commit(make_results(make_unit(22)))
    parts = [whole(make_unit(21)), Part(make_unit(21), (4.0,), 10, 20)]
    assert sorted(store.find_receipts(parts, ("accuracy", "cm"))) == sorted(told)


def test_other_slices_keys_measurements_and_damaged_shards_tell_nothing(tmp_path):
    store = ShardStore.create(tmp_path / "results")
    unit = make_unit(21)
    receipt = store.commit(make_results(unit, measurements=("accuracy", "cm")))
    store.commit(make_results(make_unit(21, key="fgsm")))
    assert [found.shard for found in store.find_receipts([whole(unit)], ("accuracy", "cm"))] == [receipt.shard]
    assert store.find_receipts([whole(unit)], ("accuracy", "confidence", "cm")) == ()
    assert store.find_receipts([Part(unit, unit.strengths, 0, 10)], ("accuracy", "cm")) == ()
    assert store.find_receipts([Part(unit, (2.0,), 0, unit.n_images)], ("accuracy", "cm")) == ()
    path = tmp_path / "results/shards" / receipt.shard
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    assert store.find_receipts([whole(unit)], ("accuracy", "cm")) == ()
