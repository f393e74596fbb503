"""A shard that cannot be read now is not a damaged one: nothing is set aside for want of rights, files or a server."""

import errno
import os

import pytest

from robust201.core.errors import ShardDamagedError, StorageError
from robust201.shards import ShardStore
from robust201.shards.backends import LocalBackend
from robust201.shards.parquet import ShardFile
from robust201.shards.row_identity import read_footer, read_shard_rows
from tests.support.shard_support import make_results, make_unit

TRANSIENT = [errno.EACCES, errno.ESTALE, errno.EMFILE, errno.ETIMEDOUT]


@pytest.fixture(params=[False, True], ids=["small", "compacted"])
def store(request, tmp_path):
    """A store of one shard."""
    store = ShardStore.create(tmp_path / "results")
    for architecture in (3, 5) if request.param else (3,):
        store.commit(make_results(make_unit(architecture)))
    if request.param:
        store.compact(grace_seconds=0)
        store.compact(grace_seconds=0)
    return store


def fail_reads(monkeypatch, number, times=1 << 30):
    """Let the first reads of shards by the place fail with an error number."""
    left, path_of = [times], LocalBackend.path

    def path(self, shard):
        if left[0]:
            left[0] -= 1
            raise OSError(number, os.strerror(number), shard)
        return path_of(self, shard)

    monkeypatch.setattr(LocalBackend, "path", path)
    monkeypatch.setattr(LocalBackend, "label", lambda _self, shard: shard)


@pytest.mark.parametrize("number", TRANSIENT)
def test_what_cannot_be_read_now_stays_where_it_is(store, monkeypatch, number):
    (shard,) = store.inventory().shards
    fail_reads(monkeypatch, number)
    for on_damage in ("set_aside", "report"):
        with pytest.raises(StorageError, match=os.strerror(number)) as refused:
            store.inventory(verify="all", on_damage=on_damage)
        assert not isinstance(refused.value, ShardDamagedError)
        assert shard in str(refused.value)
    monkeypatch.undo()
    assert store.inventory(verify="all").shards == (shard,)
    assert not store.folder.damaged.exists()


@pytest.mark.parametrize("number", [*TRANSIENT, errno.EIO])
def test_a_reader_of_parquet_tells_wrong_bytes_from_none(store, monkeypatch, number):
    place = store.folder.backend
    (entry,) = place.entries()
    footer, file = read_footer(place, entry), ShardFile(place, entry.name)

    def fail(*_arguments, **_named):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("pyarrow.parquet.ParquetFile.read_row_group", fail)
    monkeypatch.setattr("pyarrow.parquet.ParquetFile.__init__", fail)
    monkeypatch.setattr("pyarrow.parquet.ParquetFile.__del__", lambda _self: None, raising=False)
    attempts = [lambda: file.read(0), lambda: ShardFile(place, entry.name)]
    if not footer.identity:
        attempts.append(lambda: read_shard_rows(place, entry.name, footer))
    for attempt in attempts:
        with pytest.raises(StorageError, match=os.strerror(number)) as refused:
            attempt()
        assert not isinstance(refused.value, ShardDamagedError)


def test_the_footer_that_cannot_be_read_is_an_error_of_ours(store, monkeypatch):
    (entry,) = store.folder.backend.entries()
    fail_reads(monkeypatch, errno.EACCES)
    with pytest.raises(StorageError, match=os.strerror(errno.EACCES)):
        read_footer(store.folder.backend, entry)


def test_a_disk_that_fails_once_is_asked_again(store, monkeypatch):
    (shard,) = store.inventory().shards
    fail_reads(monkeypatch, errno.EIO, times=1)
    store.folder.verify_hash(shard)
    assert store.inventory(verify="all").damaged == ()


def test_a_disk_that_fails_twice_has_damaged_the_shard(store, monkeypatch):
    (shard,) = store.inventory().shards
    fail_reads(monkeypatch, errno.EIO, times=2)
    with pytest.raises(ShardDamagedError, match="computes its evaluations anew"):
        store.folder.verify_hash(shard)
