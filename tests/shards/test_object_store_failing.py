"""Shards elsewhere than in the results folder, when something goes wrong: refused, advised, tried again."""

import pytest
import s3fs

from robust201.core.errors import ConfigError, StorageError
from robust201.planning.loading import parse_config
from robust201.shards import ShardStore
from robust201.shards.backends import map_ahead
from robust201.shards.object_store import check_url
from tests.support.object_stores import BUCKET, opened
from tests.support.shard_support import (
    assert_all_there,
    make_results,
    make_unit,
)

UNITS = [make_unit(architecture, key=key) for key in ("pgd", "fgsm") for architecture in (5, 3, 1)]


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("s3://user:secret@host/bucket", "without a user or password"),
        ("bucket/prefix", "such as s3://bucket/prefix"),
        ("s3://", "such as s3://bucket/prefix"),
        ("simplecache::s3://bucket/prefix", "name the store itself"),
        ("s33://bucket/prefix", "Did you mean 's3'?"),
        ("file://relative/path", "file:///FOLDER"),
        ("s3://key:secret@bucket/prefix", "without a user or password"),
        ("s3://key:sec/ret-secret@bucket/prefix", "without a user or password"),
        ("s3://key:secret#@bucket/prefix", "without a user or password"),
        ("s3://secret@bucket/prefix", "without a user or password"),
        ("s3://key:secret/prefix", "without a user or password"),
        ("key:secret@bucket", "without a user or password"),
        ("sftp://user:secret@host/prefix", "without a user or password"),
        ("abfs://user:secret@account.dfs.core.windows.net/paper", "without a user or password"),
        ("s3://bucket/prefix?X-Amz-Signature=secret", "a query"),
        ("s3://bucket/prefix#secret", "a fragment"),
        ("?secret", "a query"),
        ("s3://bucket/pre\nfix-secret", "such a character"),
        ("memory://bucket/prefix", "each process has for itself"),
        ("${NO_SUCH_NAME}/prefix", "NO_SUCH_NAME to be set"),
    ],
)
def test_urls_that_cannot_hold_shards_are_refused(sweep_fields, url, message):
    with pytest.raises(ConfigError, match="shards: expected") as caught:
        parse_config(sweep_fields(shards=url), "test")
    assert message in str(caught.value)
    assert "secret" not in str(caught.value)


def test_urls_are_compared_in_one_form(monkeypatch, sweep_fields):
    monkeypatch.setenv("MY_BUCKET", "s3://sweeps")
    assert parse_config(sweep_fields(shards="${MY_BUCKET}/paper/"), "test").shards == "s3://sweeps/paper"
    assert check_url("abfs://container@account.dfs.core.windows.net/paper").startswith("abfs://container@account")
    assert check_url("sftp://user@host:22/paper") == "sftp://user@host:22/paper"


def test_a_missing_library_of_a_store_is_named_and_nothing_is_started(robust201, write_sweep, tmp_path, monkeypatch):
    def missing(*_args, **_named):
        raise ImportError("Install s3fs to access S3")

    monkeypatch.setattr("robust201.shards.object_store.url_to_fs", missing)
    refusal = robust201("run", write_sweep(shards="s3://bucket/prefix")).refusal(2)
    assert "expected the library for s3://, got none installed. Install it with pip install 'robust201[s3]'." in refusal
    assert not (tmp_path / "results" / "format.json").exists()


def test_a_store_that_cannot_be_reached_is_not_remembered(s3, tmp_path, monkeypatch):
    root = tmp_path / "results"
    with pytest.raises(StorageError, match="Make the bucket") as caught:
        ShardStore.create(root, shards="s3://no-such-bucket/prefix")
    assert "s3://no-such-bucket/prefix" in str(caught.value)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    s3fs.S3FileSystem.clear_instance_cache()
    with pytest.raises(StorageError, match="AWS_ACCESS_KEY_ID"):
        ShardStore.create(root, shards=f"s3://{BUCKET}/prefix")
    assert not (root / "format.json").exists()


def test_a_store_that_refuses_ends_with_its_name_and_advice(s3_url, tmp_path, monkeypatch):
    store = ShardStore.create(tmp_path / "results", shards=s3_url)

    def refuse(*_args, **_named):
        raise PermissionError("Access Denied")

    monkeypatch.setattr(opened(store), "pipe_file", refuse)
    with pytest.raises(StorageError, match=r"may list, read, write and delete") as caught:
        store.commit(make_results(UNITS[0]))
    assert caught.value.exit_code == 4
    assert s3_url in str(caught.value)


def test_a_server_that_is_gone_ends_with_advice(s3, tmp_path, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    monkeypatch.setattr("s3fs.core.S3FileSystem.retries", 1)
    s3fs.S3FileSystem.clear_instance_cache()
    with pytest.raises(StorageError, match="Check the network"):
        ShardStore.create(tmp_path / "results", shards=f"s3://{BUCKET}/prefix")


@pytest.mark.parametrize("error", [NotImplementedError("mode"), OSError(38, "NotImplemented")])
def test_a_store_without_conditions_is_written_to_all_the_same(s3, s3_url, tmp_path, monkeypatch, error):
    store = ShardStore.create(tmp_path / "results", shards=s3_url)
    real = opened(store).pipe_file

    def pipe_file(path, value, mode="overwrite"):
        if mode == "create":
            raise error
        real(path, value)

    monkeypatch.setattr(opened(store), "pipe_file", pipe_file)
    for _ in range(2):
        store.commit(make_results(UNITS[0]))
    assert_all_there(store, UNITS[:1])


def test_two_uploads_at_the_same_moment_are_told_apart_by_trying_again(s3, s3_url, tmp_path, monkeypatch):
    store = ShardStore.create(tmp_path / "results", shards=s3_url)
    real, calls = opened(store).pipe_file, []

    def pipe_file(path, value, mode="overwrite"):
        calls.append(mode)
        if len(calls) == 1:
            conflict = OSError(5, "conflict")
            conflict.__cause__ = Exception()
            conflict.__cause__.response = {"Error": {"Code": "ConditionalRequestConflict"}}
            raise conflict
        real(path, value, mode=mode)

    monkeypatch.setattr(opened(store), "pipe_file", pipe_file)
    store.commit(make_results(UNITS[0]))
    assert calls == ["create", "create"]
    assert_all_there(store, UNITS[:1])


def test_a_folder_whose_shards_lie_elsewhere_is_refused(tmp_path):
    elsewhere = f"file://{tmp_path / 'elsewhere'}"
    ShardStore.create(tmp_path / "away", shards=elsewhere)
    ShardStore.create(tmp_path / "here")
    for root, shards in (("away", ""), ("away", elsewhere + "2"), ("here", elsewhere)):
        for opening in (ShardStore.create, ShardStore.open):
            with pytest.raises(ConfigError, match="shards") as caught:
                opening(tmp_path / root, shards=shards)
            assert str(tmp_path / root) in str(caught.value)
    assert ShardStore.create(tmp_path / "away", shards=elsewhere).folder.shards_url == elsewhere


def test_results_of_threads_come_in_order_and_errors_in_their_place():
    for threads in (1, 3):
        assert list(map_ahead(lambda number: number * 2, range(50), threads)) == [2 * number for number in range(50)]
        found = map_ahead(lambda number: 1 // (3 - number), range(9), threads)
        assert [next(found) for _ in range(3)] == [0, 0, 1]
        with pytest.raises(ZeroDivisionError):
            next(found)
