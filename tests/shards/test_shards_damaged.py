"""The store and damage: damaged bytes are always detected, and a crash at any step leaves a clean folder."""

import errno
import os

import numpy as np
import pytest

from robust201.core import files
from robust201.core.errors import FormatVersionError, ShardDamagedError, StorageError, StorageFullError
from robust201.shards import ShardStore
from robust201.shards.backends import LocalBackend
from robust201.shards.parquet import ShardFile
from robust201.shards.row_identity import read_footer, read_shard_rows
from tests.support.shard_support import DEFAULT, flip, make_results, make_unit, start_until


@pytest.fixture
def store(tmp_path):
    return ShardStore.create(tmp_path / "results")


# Damage


@pytest.mark.parametrize("n_bytes", [0, 1, 7, 100, -1, -8, -100])
def test_truncated_shard_is_detected(store, n_bytes):
    unit = make_unit()
    path = store.folder.shards.joinpath(store.commit(make_results(unit)).shard)
    path.write_bytes(path.read_bytes()[:n_bytes])
    for verify in ("all", "unverified", "none"):
        with pytest.raises(ShardDamagedError, match="expected"):
            store.inventory(verify=verify)
    (finding,) = store.verify()
    assert finding.kind == "damaged"


def test_verify_finds_rows_that_break_an_invariant(store, monkeypatch):
    monkeypatch.setattr("robust201.shards.store.check_values", lambda *_args, **_named: None)
    unit = make_unit()
    results = make_results(unit)
    results[0].values["cm"][0, 0] += 1
    store.commit(results)
    (finding,) = store.verify()
    assert (finding.kind, finding.unit) == ("invalid", "#21 digits pgd at 1 images 0:30")


@pytest.mark.parametrize("name", ["digits/000022-pgd", "digits/000021-fgsm", "cifar10/000021-pgd"])
def test_verify_finds_misplaced_shards(store, name):
    path = store.folder.shards.joinpath(store.commit(make_results(make_unit())).shard)
    target = store.folder.shards.joinpath(f"{name}-{path.name[-24:]}")
    target.parent.mkdir(exist_ok=True)
    path.rename(target)
    assert {finding.kind for finding in store.verify()} == {"misplaced"}


def test_shard_deleted_after_scan_raises_storage_error(store):
    unit = make_unit()
    shard = store.commit(make_results(unit)).shard
    inventory = store.inventory()
    store.folder.backend.set_aside(shard)
    with pytest.raises(StorageError, match="Run the same command again"):
        store.values(unit, 1.0, inventory, DEFAULT)


# Crashes and full disks


# The steps before and after the rename, which publishes.
@pytest.mark.parametrize(
    "step",
    [
        pytest.param(step, marks=() if step in ("flushed", "renamed") else pytest.mark.slow)
        for step in files.WRITE_STEPS
    ],
)
def test_killed_commit_leaves_all_or_nothing(store, step):
    store.commit(make_results(make_unit(1)))
    assert start_until(step, store, make_results(make_unit(2))).wait() == 9
    inventory = store.inventory(verify="all")
    assert len(inventory.shards) == (2 if step == "renamed" else 1)
    assert inventory.missing(make_unit(1), DEFAULT) == ()
    assert (inventory.missing(make_unit(2), DEFAULT) == ()) == (step == "renamed")
    store.commit(make_results(make_unit(2)))
    assert store.inventory(verify="all").n_evaluations == 4
    assert store.verify() == []


def _fail_at(step_to_fail, error):
    def on_step(step):
        if step == step_to_fail:
            raise OSError(error, os.strerror(error))

    return on_step


@pytest.mark.parametrize("step", files.WRITE_STEPS[:-1])
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT])
def test_full_disk_leaves_no_files(store, step, error):
    full = ShardStore(store.root, on_step=_fail_at(step, error))
    with pytest.raises(StorageFullError, match="Free some space"):
        full.commit(make_results(make_unit()))
    assert [path for path in (store.root / "shards").rglob("*") if path.is_file()] == []


def test_full_disk_during_write_raises_storage_full_error(store, monkeypatch):
    # /dev/full replaces the temporary file: it can be opened, but not flushed.
    temporary = files.Path.open
    monkeypatch.setattr(
        files.Path,
        "open",
        lambda path, *args, **named: (
            open("/dev/full", "wb")  # noqa: SIM115, PTH123
            if path.suffix == ".tmp"
            else temporary(path, *args, **named)
        ),
    )
    with pytest.raises(StorageFullError):
        store.commit(make_results(make_unit()))
    monkeypatch.undo()
    assert store.inventory().shards == ()


# Shards that cannot be read now are not damaged: nothing is set aside because of permissions, open files or a server

TRANSIENT = [errno.EACCES, errno.ESTALE, errno.EMFILE, errno.ETIMEDOUT]


@pytest.fixture(params=[False, True], ids=["small", "compacted"])
def one_shard(request, tmp_path):
    """A store of one shard."""
    store = ShardStore.create(tmp_path / "results")
    for architecture in (3, 5) if request.param else (3,):
        store.commit(make_results(make_unit(architecture)))
    if request.param:
        store.compact(grace_seconds=0)
        store.compact(grace_seconds=0)
    return store


def test_flipped_bits_raise_no_other_exceptions(one_shard):
    (shard,) = one_shard.inventory().shards
    path = one_shard.folder.shards.joinpath(shard)
    original = path.read_bytes()
    footer = len(original) - 8 - int.from_bytes(original[-8:-4], "little")
    n_detected = 0
    for bit in np.random.default_rng(1).integers(8 * footer, 8 * len(original), 150):
        flip(path, int(bit))
        try:
            n_detected += bool(one_shard.inventory(on_damage="report").damaged)
        except FormatVersionError:
            n_detected += 1
        path.write_bytes(original)
    assert n_detected > 0


def fail_reads(monkeypatch, number, times=1 << 30):
    """Make the first reads of shards by the backend fail with an error number."""
    remaining, path_of = [times], LocalBackend.path

    def path(self, shard):
        if remaining[0]:
            remaining[0] -= 1
            raise OSError(number, os.strerror(number), shard)
        return path_of(self, shard)

    monkeypatch.setattr(LocalBackend, "path", path)
    monkeypatch.setattr(LocalBackend, "label", lambda _self, shard: shard)


@pytest.mark.parametrize("number", TRANSIENT)
def test_unreadable_shard_is_not_set_aside(one_shard, monkeypatch, number):
    (shard,) = one_shard.inventory().shards
    fail_reads(monkeypatch, number)
    for on_damage in ("set_aside", "report"):
        with pytest.raises(StorageError, match=os.strerror(number)) as caught:
            one_shard.inventory(verify="all", on_damage=on_damage)
        assert not isinstance(caught.value, ShardDamagedError)
        assert shard in str(caught.value)
    monkeypatch.undo()
    assert one_shard.inventory(verify="all").shards == (shard,)
    assert not one_shard.folder.damaged.exists()


@pytest.mark.parametrize("number", [*TRANSIENT, errno.EIO])
def test_parquet_readers_distinguish_damage_from_read_errors(one_shard, monkeypatch, number):
    backend = one_shard.folder.backend
    (entry,) = backend.entries()
    footer, file = read_footer(backend, entry), ShardFile(backend, entry.name)

    def fail(*_arguments, **_named):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("pyarrow.parquet.ParquetFile.read_row_groups", fail)
    monkeypatch.setattr("pyarrow.parquet.ParquetFile.__init__", fail)
    monkeypatch.setattr("pyarrow.parquet.ParquetFile.__del__", lambda _self: None, raising=False)
    attempts = [lambda: file.read(0), lambda: ShardFile(backend, entry.name)]
    if not footer.identity:
        attempts.append(lambda: read_shard_rows(backend, entry.name, footer))
    for attempt in attempts:
        with pytest.raises(StorageError, match=os.strerror(number)) as caught:
            attempt()
        assert not isinstance(caught.value, ShardDamagedError)


def test_input_output_error_is_retried(one_shard, monkeypatch):
    (shard,) = one_shard.inventory().shards
    fail_reads(monkeypatch, errno.EIO, times=1)
    one_shard.folder.verify_hash(shard)
    assert one_shard.inventory(verify="all").damaged == ()


def test_repeated_input_output_error_is_damage(one_shard, monkeypatch):
    (shard,) = one_shard.inventory().shards
    fail_reads(monkeypatch, errno.EIO, times=2)
    with pytest.raises(ShardDamagedError, match="recomputes its evaluations"):
        one_shard.folder.verify_hash(shard)
