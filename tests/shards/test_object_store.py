"""Storage of shards: the contract of all backends, and the specific behaviour of object stores."""

import errno
import hashlib
import os
from pathlib import Path

import fsspec
import pytest
import s3fs

from robust201.core.errors import ConfigError, StorageError
from robust201.export import export_dataset
from robust201.planning.plan_file import load_plan
from robust201.shards import ShardStore, index, merge_folders
from robust201.shards.backends import LocalBackend, is_compacted
from robust201.shards.folder import ResultsFolder
from robust201.shards.object_store import PUT_STEPS
from robust201.sweep.loading import parse_config
from tests.conftest import read_tree
from tests.support.object_stores import BUCKET, filesystem_of
from tests.support.shard_support import (
    ALL_MEASUREMENTS,
    CLOCK_TWO_HOURS_AHEAD,
    DEFAULT_MEASUREMENTS,
    assert_complete_store,
    compact_while_committing,
    make_results,
    make_unit,
    start_and_die_at,
    whole_part,
)

UNITS = [make_unit(architecture, key=key) for key in ("pgd", "fgsm") for architecture in (5, 3, 1)]


@pytest.fixture(params=["folder", "file", "memory", "s3"])
def url(request, tmp_path):
    """Return the URL of the shards; empty if they are in the results folder."""
    if request.param == "s3":
        return request.getfixturevalue("s3_url")
    return {"folder": "", "file": f"file://{tmp_path / 'elsewhere'}", "memory": f"memory://{tmp_path.name}"}[
        request.param
    ]


@pytest.fixture
def store(url, tmp_path):
    return ShardStore.create(tmp_path / "results", shards=url)


def flip_byte(store, shard, position=1000):
    backend = store.folder.backend
    content = bytearray(backend.read(shard))
    content[position] ^= 1
    if isinstance(backend, LocalBackend):
        backend.path(shard).write_bytes(content)
    else:
        filesystem, root = fsspec.core.url_to_fs(backend.url)
        filesystem.pipe_file(f"{root}/{shard}", bytes(content))


# The contract of all backends


def test_committed_values_are_read_unchanged(store):
    assert store.inventory().shards == ()
    shards = [store.commit(make_results(unit, measurements=ALL_MEASUREMENTS)).shard for unit in UNITS]
    assert assert_complete_store(store, UNITS, ALL_MEASUREMENTS).shards == tuple(sorted(shards))
    # The location of the shards is stored in the folder.
    assert ShardStore.open(store.root).inventory().shards == tuple(sorted(shards))


def test_flipped_byte_is_detected_and_shard_set_aside(store):
    shards = [store.commit(make_results(unit)).shard for unit in UNITS[:2]]
    original = store.folder.backend.read(shards[0])
    flip_byte(store, shards[0])
    assert [finding.kind for finding in store.verify()] == ["damaged"]
    inventory = store.inventory(verify="all", on_damage="set_aside")
    assert inventory.damaged == (shards[0],)
    assert inventory.find_missing_parts(UNITS[0], DEFAULT_MEASUREMENTS) == (whole_part(UNITS[0]),)
    assert store.inventory(verify="all").shards == (shards[1],)
    damaged_content = store.folder.backend.read(f"damaged/{shards[0]}") if store.folder.shards_url else None
    damaged_content = damaged_content or (store.root / "damaged" / shards[0]).read_bytes()
    assert len(damaged_content) == len(original)
    assert damaged_content != original
    store.commit(make_results(UNITS[0]))
    assert_complete_store(store, UNITS[:2])


def test_run_hashes_shards_once(store, monkeypatch):
    monkeypatch.setattr(index, "MIN_ROWS", 1)
    hashed_shards = []
    original_check_hash = ResultsFolder.check_hash
    monkeypatch.setattr(
        ResultsFolder, "check_hash", lambda *args: hashed_shards.append(args[1]) or original_check_hash(*args)
    )
    shards = {store.commit(make_results(unit)).shard for unit in UNITS}
    store.inventory(verify="unverified")
    assert set(hashed_shards) == shards
    hashed_shards.clear()
    store.inventory(verify="unverified")
    assert hashed_shards == []
    damaged_shard = min(shards)
    flip_byte(store, damaged_shard)
    assert store.inventory(verify="unverified", on_damage="set_aside").damaged == (damaged_shard,)


def test_compaction_during_commits_preserves_results(store):
    for unit in UNITS:
        store.commit(make_results(unit))
    new_units = [make_unit(architecture, key="aa_square") for architecture in range(6)]
    compact_while_committing(store, new_units, CLOCK_TWO_HOURS_AHEAD)
    inventory = assert_complete_store(store, UNITS + new_units)
    assert any(map(is_compacted, inventory.shards))


def test_merge_folders_supports_all_backends(store, tmp_path):
    for unit in UNITS:
        store.commit(make_results(unit))
    store.compact()
    damaged_shard = store.commit(make_results(make_unit(99))).shard
    flip_byte(store, damaged_shard)
    report = merge_folders([store.root], tmp_path / "copy")
    assert (report.added, [finding.shard for finding in report.findings]) == (1, [damaged_shard])
    copy = ShardStore.open(tmp_path / "copy")
    assert_complete_store(copy, UNITS)
    new_unit = make_unit(50)
    copy.commit(make_results(new_unit))
    store.folder.backend.set_aside(damaged_shard)
    assert merge_folders([copy.root], store.root).added == 1
    assert_complete_store(store, [*UNITS, new_unit])


# Object stores only


def test_publish_keeps_object_of_first_writer(s3, s3_url, tmp_path):
    stores = [ShardStore.create(tmp_path / name, shards=s3_url) for name in "ab"]
    backend = stores[0].folder.backend
    shards = {store.commit(make_results(UNITS[0])).shard for store in stores}
    (shard,) = shards
    path = f"{BUCKET}/{tmp_path.name}/{shard}"
    # The server checks the condition, and rejects another object with the same name.
    with pytest.raises(FileExistsError):
        s3.pipe_file(path, b"other", mode="create")
    modification_time = s3.info(path)["LastModified"]
    backend.publish(shard, backend.read(shard))
    assert s3.info(path)["LastModified"] == modification_time
    # A shard is only overwritten if it was damaged afterwards.
    flip_byte(stores[0], shard)
    stores[1].commit(make_results(UNITS[0]))
    assert_complete_store(stores[0], UNITS[:1])


def test_large_shard_is_uploaded_in_parts(s3, s3_url, tmp_path, monkeypatch):
    # By default, s3fs only splits uploads of more than a hundred MiB. S3's minimum part size is 5 MiB.
    monkeypatch.setattr("s3fs.core.calculate_chunksize", lambda *_args, **_named: 5 << 20)
    backend = ShardStore.create(tmp_path / "results", shards=s3_url).folder.backend
    content = os.urandom(11 << 20)
    name = f"compact-{hashlib.sha256(content).hexdigest()[:16]}.parquet"
    for _ in range(2):
        with backend.open_new_shard("digits") as new_file:
            new_file.stream.write(content)
            new_file.name = name
    (entry,) = backend.entries()
    assert (entry.name, entry.n_bytes) == (f"digits/{name}", len(content))
    assert entry.change_marker.endswith('-3"')  # three parts
    assert backend.read(entry.name) == content
    assert s3.list_multipart_uploads(BUCKET) == []


@pytest.mark.parametrize(
    "step", [pytest.param(step, marks=() if step == "put" else pytest.mark.slow) for step in PUT_STEPS]
)
def test_killed_writer_leaves_no_partial_object(s3_url, tmp_path, step):
    store = ShardStore.create(tmp_path / "results", shards=s3_url)
    for unit in UNITS[:2]:
        store.commit(make_results(unit))
    for results in (make_results(make_unit(77)), ()):
        assert start_and_die_at(step, store, results).wait() == 9
    complete_units = [*UNITS[:2], make_unit(77)] if step == "put" else UNITS[:2]
    assert any(map(is_compacted, assert_complete_store(store, complete_units).shards)) == (step == "put")
    store.commit(make_results(make_unit(77)))
    store.compact()
    assert_complete_store(store, [*UNITS[:2], make_unit(77)])


# Whole sweeps


def export_tree(results: Path, out: Path) -> dict[str, bytes]:
    store = ShardStore.open(results)
    export_dataset(load_plan(results), store, store.inventory(verify="all"), out)
    return read_tree(out)


def test_sweep_on_s3_exports_same_bytes_as_sweep_in_folder(robust201, write_sweep, s3, s3_url, tmp_path):
    local_results, s3_results = tmp_path / "results", tmp_path / "results-on-s3"
    assert robust201("run", write_sweep()).code == 0
    sweep = write_sweep(shards=s3_url, results=str(s3_results))
    # `run --share` computes one half of a prepared sweep, and a driver computes the other half.
    assert robust201("plan", "--save", sweep).code == 0
    assert robust201("run", sweep, "--share", "1/2", "--executor", "inline").code == 0
    assert robust201("run", sweep).code == 0
    assert not (s3_results / "shards").exists()
    for command in ("status", "verify", "merge --compact"):
        assert robust201(*command.split(), s3_results).code == 0, command
    expected = export_tree(local_results, tmp_path / "one")
    assert export_tree(s3_results, tmp_path / "two") == expected
    assert robust201("merge", s3_results, "--out", tmp_path / "joined").code == 0
    assert export_tree(tmp_path / "joined", tmp_path / "three") == expected
    assert robust201("run", write_sweep(results=str(s3_results))).error_line(2)
    sweep_without_bucket = write_sweep(shards="s3://no-such-bucket/sweep", results=str(tmp_path / "nowhere"))
    assert "s3://no-such-bucket/sweep" in robust201("run", sweep_without_bucket).error_line(4)
    for path in s3_results.rglob("*.json"):
        assert "not-a-secret" not in path.read_text()


# Errors: rejected URLs, advice, and retries


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("s3://user:secret@host/bucket", "without a user or password"),
        ("s3://", "such as s3://bucket/prefix"),
        ("file://relative/path", "file:///FOLDER"),
        ("s3://key:sec/ret-secret@bucket/prefix", "without a user or password"),
        ("key:secret@bucket", "without a user or password"),
        ("abfs://user:secret@account.dfs.core.windows.net/paper", "without a user or password"),
        ("s3://bucket/prefix?X-Amz-Signature=secret", "a query"),
        ("s3://bucket/prefix#secret", "a fragment"),
        ("?secret", "a query"),
        ("s3://bucket/pre\nfix-secret", "an unprintable character"),
        ("memory://bucket/prefix", "separate in each process"),
        ("${NO_SUCH_NAME}/prefix", "NO_SUCH_NAME to be set"),
    ],
)
def test_check_url_rejects_unsuitable_urls(sweep_fields, url, message):
    with pytest.raises(ConfigError, match="shards: expected") as error_info:
        parse_config(sweep_fields(shards=url), "test")
    assert message in str(error_info.value)
    assert "secret" not in str(error_info.value)


def test_unreachable_url_is_not_saved(s3, tmp_path, monkeypatch):
    root = tmp_path / "results"
    with pytest.raises(StorageError, match="Create the bucket") as error_info:
        ShardStore.create(root, shards="s3://no-such-bucket/prefix")
    assert "s3://no-such-bucket/prefix" in str(error_info.value)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    s3fs.S3FileSystem.clear_instance_cache()
    with pytest.raises(StorageError, match="AWS_ACCESS_KEY_ID"):
        ShardStore.create(root, shards=f"s3://{BUCKET}/prefix")
    assert not (root / "format.json").exists()


@pytest.mark.parametrize("error", [NotImplementedError("mode"), OSError(errno.ENOSYS, "NotImplemented")])
def test_store_without_conditional_writes_is_supported(s3, s3_url, tmp_path, monkeypatch, error):
    store = ShardStore.create(tmp_path / "results", shards=s3_url)
    original_pipe_file = filesystem_of(store).pipe_file

    def pipe_file(path, content, mode="overwrite"):
        if mode == "create":
            raise error
        original_pipe_file(path, content)

    monkeypatch.setattr(filesystem_of(store), "pipe_file", pipe_file)
    for _ in range(2):
        store.commit(make_results(UNITS[0]))
    assert_complete_store(store, UNITS[:1])


def test_conflicting_upload_is_retried(s3, s3_url, tmp_path, monkeypatch):
    store = ShardStore.create(tmp_path / "results", shards=s3_url)
    original_pipe_file, modes = filesystem_of(store).pipe_file, []

    def pipe_file(path, content, mode="overwrite"):
        modes.append(mode)
        if len(modes) == 1:
            conflict = OSError(errno.EIO, "conflict")
            conflict.__cause__ = Exception()
            conflict.__cause__.response = {"Error": {"Code": "ConditionalRequestConflict"}}
            raise conflict
        original_pipe_file(path, content, mode=mode)

    monkeypatch.setattr(filesystem_of(store), "pipe_file", pipe_file)
    store.commit(make_results(UNITS[0]))
    assert modes == ["create", "create"]
    assert_complete_store(store, UNITS[:1])


def test_opening_with_different_shards_url_is_rejected(tmp_path):
    elsewhere = f"file://{tmp_path / 'elsewhere'}"
    ShardStore.create(tmp_path / "away", shards=elsewhere)
    ShardStore.create(tmp_path / "here")
    for root, shards in (("away", ""), ("away", elsewhere + "2"), ("here", elsewhere)):
        for open_store in (ShardStore.create, ShardStore.open):
            with pytest.raises(ConfigError, match="shards") as error_info:
                open_store(tmp_path / root, shards=shards)
            assert str(tmp_path / root) in str(error_info.value)
    assert ShardStore.create(tmp_path / "away", shards=elsewhere).folder.shards_url == elsewhere
