"""Shards in an object store: conditional writes, errors, and numbers of requests (see also `test_packs`)."""

import errno
import os
from collections import Counter

import pytest
import s3fs
from aiobotocore.client import AioBaseClient

from robust201.core.errors import ConfigError, InputError, StorageError
from robust201.store.folder import ResultsFolder, SliceFormat
from robust201.store.names import ShardName, content_hash
from robust201.store.packing import pack
from robust201.store.packs import PACKS, write_packs
from robust201.sweep.loading import parse_config
from tests.conftest import read_tree
from tests.support.object_stores import BUCKET

SLICES = SliceFormat(slice_gmacs=1.0, batch_size=8, is_cpu=True)
CONTENT = b"a shard"
NAME = ShardName("digits", "ab" * 16, "0" * 8, 0, 1, "1" * 8, content_hash(CONTENT))


@pytest.fixture
def folder(s3_url, tmp_path):
    return ResultsFolder.create(tmp_path / "results", SLICES, s3_url)


@pytest.fixture
def object_path(tmp_path):
    return f"{BUCKET}/{tmp_path.name}/{NAME.path}"


def test_object_of_the_first_writer_is_kept_unless_it_is_damaged(s3, folder, object_path):
    folder.write(NAME, CONTENT)
    with pytest.raises(FileExistsError):  # the server checks the condition
        s3.pipe_file(object_path, b"other", mode="create")
    last_modified = s3.info(object_path)["LastModified"]
    folder.write(NAME, CONTENT)
    assert s3.info(object_path)["LastModified"] == last_modified
    s3.pipe_file(object_path, b"damage")
    folder.write(NAME, CONTENT)
    assert folder.read(NAME) == CONTENT


def filesystem_of(folder):
    """Return the file system object to patch; its methods are attributes of the object itself."""
    return folder.storage._filesystem()[0]


def s3_error(code):
    error = OSError(errno.EIO, code)
    error.__cause__ = Exception()
    error.__cause__.response = {"Error": {"Code": code}}
    return error


RESPONSES = {
    "library without conditional writes": [NotImplementedError("mode")],
    "store without conditional writes": [OSError(errno.ENOSYS, "NotImplemented")],
    "concurrent upload": [s3_error("ConditionalRequestConflict")] * 2,
    "lost response, after which the library tried again": [None, s3_error("PreconditionFailed")],
}


@pytest.mark.parametrize("case", RESPONSES)
def test_shard_is_written_once_despite_conflicts_and_lost_responses(s3, folder, object_path, monkeypatch, case):
    responses, pipe_file = list(RESPONSES[case]), filesystem_of(folder).pipe_file

    def respond(path, content, mode="overwrite"):
        error = responses.pop(0) if responses else None
        if error is None:
            pipe_file(path, content, mode=mode)
        if error is not None or responses:
            raise error or responses.pop(0)

    monkeypatch.setattr(filesystem_of(folder), "pipe_file", respond)
    folder.write(NAME, CONTENT)
    assert (responses, s3.cat_file(object_path)) == ([], CONTENT)
    assert len(folder.list()["digits"]) == 1


@pytest.mark.parametrize("error", [PermissionError("Access Denied"), TimeoutError("slow"), OSError("Connection reset")])
def test_failing_request_raises_storage_error_and_changes_nothing(folder, monkeypatch, error):
    folder.write(NAME, CONTENT)

    def fail(*_arguments, **_options):
        raise error

    with monkeypatch.context() as patch:
        for name in ("pipe_file", "cat_file", "find", "ls", "cp_file"):
            patch.setattr(filesystem_of(folder), name, fail)
        for call in (lambda: folder.write(NAME, CONTENT), lambda: folder.read(NAME), folder.list):
            with pytest.raises(StorageError, match=BUCKET):
                call()
    assert folder.read(NAME) == CONTENT


def test_large_pack_is_uploaded_in_parts(s3, folder, monkeypatch):
    # By default, s3fs only splits uploads of more than a hundred MiB. S3's minimum part size is 5 MiB.
    monkeypatch.setattr("s3fs.core.calculate_chunksize", lambda *_args, **_named: 5 << 20)
    contents = {NAME._replace(hash=content_hash(content)): content for content in map(os.urandom, [6 << 20] * 2)}
    shards = sorted(contents.items(), key=lambda item: item[0].file)
    for _ in range(2):
        assert list(write_packs(shards, lambda: folder.storage.new_file("digits", PACKS))) == [2]
    (path,) = s3.ls(f"{BUCKET}/{folder.root.parent.name}/digits/packs")
    assert s3.info(path)["ETag"].endswith('-3"')  # three parts
    assert {name: folder.read(name) for name in contents} == contents
    assert s3.list_multipart_uploads(BUCKET) == []


def test_calls_make_the_expected_numbers_of_requests(folder, monkeypatch):
    counts, call = Counter(), AioBaseClient._make_api_call

    async def count_call(client, operation, arguments):
        counts[operation] += 1
        return await call(client, operation, arguments)

    def count_requests(function, *arguments):
        counts.clear()
        function(*arguments)
        return dict(counts)

    monkeypatch.setattr(AioBaseClient, "_make_api_call", count_call)
    other_content = b"another shard"
    other_name = NAME._replace(unit="cd" * 16, hash=content_hash(other_content))
    assert count_requests(folder.write, NAME, CONTENT) == {"PutObject": 1}
    folder.write(other_name, other_content)
    assert count_requests(folder.list) == {"ListObjectsV2": 1}
    assert count_requests(folder.read, NAME) == {"GetObject": 1}
    assert count_requests(folder.list_unit, "digits", NAME.unit)["ListObjectsV2"] <= 3
    pack(folder)
    assert count_requests(ResultsFolder.open(folder.root).list) == {"ListObjectsV2": 1, "GetObject": 1}
    assert count_requests(folder.read, NAME) == {"GetObject": 1}
    assert count_requests(pack, folder)["PutObject"] == 1  # probes the store's clock for the pack's age


def test_sweep_in_an_object_store_exports_the_same_bytes(robust201, write_sweep, s3, s3_url, tmp_path):
    def call(*arguments):
        result = robust201(*arguments)
        assert result.code == 0, (arguments, result.err)

    def export(results):
        call("export", results, "--out", tmp_path / f"{results.name}-export")
        return read_tree(tmp_path / f"{results.name}-export")

    local, remote = tmp_path / "results", tmp_path / "remote"
    call("run", write_sweep(), "--executor", "inline")
    expected = export(local)
    sweep = write_sweep(shards=s3_url, results=str(remote))
    call("plan", "--save", sweep)
    call("run", sweep, "--share", "1/2")  # a share computes one half, and the next run the other
    call("run", sweep, "--executor", "inline")
    assert not (remote / "shards").exists()
    for command in ("status", "verify", "merge --compact", "verify"):
        call(*command.split(), remote)
    assert export(remote) == expected
    pack(ResultsFolder.open(remote), grace_seconds=0.0)
    assert export(remote) == expected
    call("merge", remote, "--out", tmp_path / "merged")
    assert export(tmp_path / "merged") == expected
    robust201("run", write_sweep(results=str(remote))).error_line(exit_code=2)  # without the URL
    for path in remote.rglob("*.json"):
        assert "not-a-secret" not in path.read_text()


def test_inaccessible_url_is_not_saved(s3, s3_url, tmp_path, monkeypatch):
    root = tmp_path / "results"
    with pytest.raises(StorageError, match=r"s3://no-such-bucket/prefix.* Create the bucket"):
        ResultsFolder.create(root, SLICES, "s3://no-such-bucket/prefix")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    s3fs.S3FileSystem.clear_instance_cache()
    with pytest.raises(StorageError, match="AWS_ACCESS_KEY_ID"):
        ResultsFolder.create(root, SLICES, s3_url)
    assert not (root / "format.json").exists()


def test_folder_rejects_another_url_for_its_shards(tmp_path):
    url = f"file://{tmp_path / 'elsewhere'}"
    ResultsFolder.create(tmp_path / "away", SLICES, url)
    ResultsFolder.create(tmp_path / "here", SLICES)
    for root, other_url in (("away", ""), ("away", url + "2"), ("here", url)):
        with pytest.raises(InputError, match=str(tmp_path / root)):
            ResultsFolder.create(tmp_path / root, SLICES, other_url)
    assert ResultsFolder.open(tmp_path / "away").url == url


@pytest.mark.parametrize(
    "url",
    [
        "s3://user:secret@host/bucket",
        "s3://",
        "file://relative/path",
        "s3://key:sec/ret-secret@bucket/prefix",
        "key:secret@bucket",
        "abfs://user:secret@account.dfs.core.windows.net/paper",
        "s3://bucket/prefix?X-Amz-Signature=secret",
        "s3://bucket/prefix#secret",
        "s3://bucket/pre\nfix-secret",
        "memory://bucket/prefix",
        "simplecache::s3://bucket/prefix",
        "s4://bucket/prefix",
        "${NO_SUCH_NAME}/prefix",
    ],
)
def test_unsuitable_urls_are_rejected(sweep_fields, url):
    with pytest.raises(ConfigError, match="shards: expected") as error_info:
        parse_config(sweep_fields(shards=url), "test")
    assert "secret" not in str(error_info.value)
