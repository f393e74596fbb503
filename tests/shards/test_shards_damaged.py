"""Storage faults: damaged shards are reported as such, and a crash at any step leaves no partial shard."""

import errno
import os

import pytest

from robust201.core import files
from robust201.core.errors import ShardDamagedError, StorageError, StorageFullError
from robust201.shards import ShardStore
from robust201.shards.backends import LocalBackend
from tests.support.shard_support import DEFAULT_MEASUREMENTS, make_results, make_unit, start_and_die_at


@pytest.fixture
def store(tmp_path):
    return ShardStore.create(tmp_path / "results")


# Damage


@pytest.mark.parametrize("n_bytes", [0, 7, -1, -100])
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
    assert (finding.kind, finding.unit) == ("invalid", "#21 digits pgd at 1, images 0:30")


@pytest.mark.parametrize("name", ["digits/000022-pgd", "digits/000021-fgsm", "cifar10/000021-pgd"])
def test_verify_finds_misplaced_shards(store, name):
    path = store.folder.shards.joinpath(store.commit(make_results(make_unit())).shard)
    target = store.folder.shards.joinpath(f"{name}-{path.name[-24:]}")
    target.parent.mkdir(exist_ok=True)
    path.rename(target)
    assert {finding.kind for finding in store.verify()} == {"misplaced"}


# Crashes and full disks


# The tests of the steps just before and after the rename, which makes the shard visible, always run; others are slow.
@pytest.mark.parametrize(
    "step",
    [
        pytest.param(step, marks=() if step in ("flushed", "renamed") else pytest.mark.slow)
        for step in files.WRITE_STEPS
    ],
)
def test_killed_commit_leaves_no_partial_shard(store, step):
    store.commit(make_results(make_unit(1)))
    assert start_and_die_at(step, store, make_results(make_unit(2))).wait() == 9
    inventory = store.inventory(verify="all")
    assert len(inventory.shards) == (2 if step == "renamed" else 1)
    assert inventory.find_missing_parts(make_unit(1), DEFAULT_MEASUREMENTS) == ()
    assert (inventory.find_missing_parts(make_unit(2), DEFAULT_MEASUREMENTS) == ()) == (step == "renamed")
    store.commit(make_results(make_unit(2)))
    assert store.inventory(verify="all").n_evaluations == 4
    assert store.verify() == []


def _fail_at(step_to_fail, error_number):
    def on_step(step):
        if step == step_to_fail:
            raise OSError(error_number, os.strerror(error_number))

    return on_step


@pytest.mark.parametrize("step", files.WRITE_STEPS[:-1])
@pytest.mark.parametrize("error_number", [errno.ENOSPC, errno.EDQUOT])
def test_full_disk_leaves_no_files(store, step, error_number):
    full_store = ShardStore(store.root, on_step=_fail_at(step, error_number))
    with pytest.raises(StorageFullError, match="Free some space"):
        full_store.commit(make_results(make_unit()))
    assert [path for path in (store.root / "shards").rglob("*") if path.is_file()] == []


# A shard that cannot be read at the moment is not damaged and not set aside. Causes are permissions, too many open
# files, or an unreachable server.

TRANSIENT_ERRNOS = [errno.EACCES, errno.ESTALE, errno.EMFILE, errno.ETIMEDOUT]


@pytest.fixture(params=[False, True], ids=["small", "compacted"])
def one_shard_store(request, tmp_path):
    """Return a store with one small or compacted shard."""
    store = ShardStore.create(tmp_path / "results")
    for architecture in (3, 5) if request.param else (3,):
        store.commit(make_results(make_unit(architecture)))
    if request.param:
        store.compact(grace_seconds=0)
        store.compact(grace_seconds=0)
    return store


def fail_reads(monkeypatch, error_number, n_failures=1 << 30):
    """Make the backend's first `n_failures` reads fail with an error number."""
    n_remaining, original_path = [n_failures], LocalBackend.path

    def path(self, shard):
        if n_remaining[0]:
            n_remaining[0] -= 1
            raise OSError(error_number, os.strerror(error_number), shard)
        return original_path(self, shard)

    monkeypatch.setattr(LocalBackend, "path", path)
    monkeypatch.setattr(LocalBackend, "label", lambda _self, shard: shard)  # the original also calls `path`


@pytest.mark.parametrize("error_number", TRANSIENT_ERRNOS)
def test_unreadable_shard_is_not_set_aside(one_shard_store, monkeypatch, error_number):
    (shard,) = one_shard_store.inventory().shards
    fail_reads(monkeypatch, error_number)
    for on_damage in ("set_aside", "report"):
        with pytest.raises(StorageError, match=os.strerror(error_number)) as error_info:
            one_shard_store.inventory(verify="all", on_damage=on_damage)
        assert not isinstance(error_info.value, ShardDamagedError)
        assert shard in str(error_info.value)
    monkeypatch.undo()
    assert one_shard_store.inventory(verify="all").shards == (shard,)
    assert not one_shard_store.folder.damaged.exists()


def test_input_output_error_is_retried(one_shard_store, monkeypatch):
    (shard,) = one_shard_store.inventory().shards
    fail_reads(monkeypatch, errno.EIO, n_failures=1)
    one_shard_store.folder.verify_hash(shard)
    assert one_shard_store.inventory(verify="all").damaged == ()


def test_repeated_input_output_error_is_damage(one_shard_store, monkeypatch):
    (shard,) = one_shard_store.inventory().shards
    fail_reads(monkeypatch, errno.EIO, n_failures=2)
    with pytest.raises(ShardDamagedError, match="recomputes its evaluations"):
        one_shard_store.folder.verify_hash(shard)
