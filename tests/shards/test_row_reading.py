"""Reading rows of compacted shards: what a reader keeps in memory."""

from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from robust201.shards import ShardStore
from robust201.shards.parquet import ShardFile
from robust201.shards.row_reader import RowReader
from tests.support.shard_support import make_results, make_unit


@pytest.fixture(scope="module")
def compacted_groups(tmp_path_factory):
    """A store of one compacted shard of several row groups, and the shard's name."""
    store = ShardStore.create(tmp_path_factory.mktemp("groups"))
    for architecture in range(6):
        store.commit(make_results(make_unit(architecture=architecture), n_classes=10))
    store.compact(row_group_bytes=2000, grace_seconds=0)
    store.compact(row_group_bytes=2000, grace_seconds=0)
    (shard,) = store.inventory().shards
    return store, shard


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 20_000), st.lists(st.integers(0, 11), min_size=1, max_size=30))
def test_a_reader_makes_room_before_it_reads(compacted_groups, cache_bytes, positions):
    store, shard = compacted_groups
    reader, read = RowReader(store.folder, cache_bytes), ShardFile.read
    held = []

    def read_and_note(file, group, columns=None):
        held.append((reader._held_bytes, file.encoded_bytes(group, columns)))
        return read(file, group, columns)

    with patch.object(ShardFile, "read", read_and_note):
        for position in positions:
            reader.row(shard, position, ("cm", "accuracy"))
    reader.close()
    assert all(kept == 0 or kept + coming <= cache_bytes for kept, coming in held)
    assert len(held) >= len({position // 2 for position in positions}) / 6
