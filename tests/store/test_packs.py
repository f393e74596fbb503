"""Packs and merged folders list and return all undamaged shards, also after kills and deletions."""

import contextlib
import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from robust201.core.errors import InputError, ShardDamagedError, StorageError
from robust201.core.files import write_text
from robust201.core.records import content_digest
from robust201.store.events import EVENTS_FOLDER, FAILURES_FOLDER, read_failures
from robust201.store.folder import WRITE_STEPS, ResultsFolder, SliceFormat
from robust201.store.local import LocalFolder
from robust201.store.names import ShardName, content_hash, names_of, shard_name
from robust201.store.object_store import PUT_STEPS
from robust201.store.packing import merge, pack
from robust201.store.packs import PACKS

SLICES = SliceFormat(slice_gmacs=1.0, batch_size=8, is_cpu=True)
CONTENTS = [f"shard {number}".encode() * 20 for number in range(12)]
PACK_BYTES = 700
WITHOUT_GRACE = {"grace_seconds": 0.0, "pack_bytes": PACK_BYTES}


def name_of(content):
    unit = content_digest(content.decode())
    return ShardName("digits", unit, "0" * 8, 0, 1, "1" * 8, content_hash(content))


NAMES = sorted((name_of(content) for content in CONTENTS), key=lambda name: name.file)


@pytest.fixture(params=["folder", "file", "s3"])
def url(request, tmp_path):
    if request.param == "s3":
        return request.getfixturevalue("s3_url")
    return f"file://{tmp_path / 'elsewhere'}" if request.param == "file" else ""


@pytest.fixture
def folder(url, tmp_path):
    return ResultsFolder.create(tmp_path / "results", SLICES, url)


def write(folder, contents):
    for content in contents:
        folder.write(name_of(content), content)


def list_names(folder):
    return [shard_name("digits", row) for row in folder.list().get("digits", ())]


def check(folder, contents=CONTENTS):
    """Check that a new reader, and `folder` after earlier listings, find exactly `contents`."""
    expected = {name_of(content): content for content in contents}
    for reader in (ResultsFolder.open(folder.root), folder):
        assert {name: reader.read(name) for name in list_names(reader)} == expected
        for name in list(expected)[::5]:  # listing every unit of an object store would take seconds
            assert len(reader.list_unit("digits", name.unit)["digits"]) == 1


def count_files(folder):
    counts = {name: len(names) for _, name, names in folder.storage.folders()}
    return counts.pop(PACKS, 0), sum(counts.values())


def test_shards_stay_readable_while_they_are_packed_and_deleted(folder):
    write(folder, CONTENTS[:6])
    reader = ResultsFolder.open(folder.root)
    assert len(list_names(reader)) == 6
    report = pack(folder, pack_bytes=PACK_BYTES)
    assert (report.n_shards, report.n_packs, report.n_deleted, count_files(folder)) == (6, 2, 0, (2, 6))
    write(folder, CONTENTS[6:])
    assert pack(folder, **WITHOUT_GRACE).n_deleted == 6
    pack(folder, **WITHOUT_GRACE)  # deletes the files that the previous call packed
    assert count_files(folder)[1] == 0
    for content in CONTENTS[:6]:  # the reader's listing is older than the packs
        assert len(names_of(reader.list_unit("digits", name_of(content).unit), "digits")) == 1
    assert {reader.read(name_of(content)) for content in CONTENTS[:6]} == {*CONTENTS[:6]}
    check(folder)
    n_packs = count_files(folder)[0]
    report = pack(folder, **WITHOUT_GRACE)
    assert (report.n_shards, report.n_deleted, count_files(folder)) == (0, 0, (n_packs, 0))


def test_small_packs_are_joined(folder):
    for content in CONTENTS[:5]:
        write(folder, [content])
        pack(folder, grace_seconds=0.0)
    for _ in range(2):
        pack(folder, grace_seconds=0.0)
    assert count_files(folder) == (1, 0)
    check(folder, CONTENTS[:5])


def test_packing_during_writes_and_reads_loses_nothing(folder):
    contents = [f"content {number}".encode() * 10 for number in range(16)]

    def pack_during_writes():
        packer = ResultsFolder.open(folder.root)
        while not write_future.done():
            pack(packer, pack_bytes=1000, grace_seconds=0.0)

    def read_during_writes():
        reader = ResultsFolder.open(folder.root)
        while not write_future.done():
            for name in list_names(reader):
                assert name.matches_content(reader.read(name))

    with ThreadPoolExecutor() as pool:
        write_future = pool.submit(write, folder, contents)
        others = [pool.submit(function) for function in (pack_during_writes, pack_during_writes, read_during_writes)]
    for future in (write_future, *others):
        future.result()
    check(folder, contents)


class KilledError(BaseException):
    pass


def test_kill_at_any_step_loses_nothing(folder):
    write(folder, CONTENTS)
    for step in WRITE_STEPS if isinstance(folder.storage, LocalFolder) else PUT_STEPS:
        for n_survived in range(3):
            calls = iter([*[None] * n_survived, KilledError()])

            def kill(reached, step=step, calls=calls):
                if reached == step and next(calls, None):
                    raise KilledError

            victim = ResultsFolder(folder.root, SLICES, folder.url, on_step=kill)
            with contextlib.suppress(KilledError):
                pack(victim, **WITHOUT_GRACE)
            check(folder)
    for _ in range(2):
        pack(folder, **WITHOUT_GRACE)
    assert count_files(folder)[1] == 0
    check(folder)


def damage(folder, path, position):
    content = bytearray(folder.storage.read(path))
    content[position] ^= 1
    folder.storage.delete([path])
    folder.storage.write(path, bytes(content))


def test_damaged_shard_in_a_pack_is_the_only_missing_one(folder):
    write(folder, CONTENTS)
    for _ in range(2):
        pack(folder, grace_seconds=0.0)
    ((path, pack_index),) = folder.packs("digits").items()
    damage(folder, path, int(pack_index.positions[3]) + 5)
    reader = ResultsFolder.open(folder.root)
    damaged = list_names(reader)[3]
    with pytest.raises(ShardDamagedError, match=path):
        reader.read(damaged)
    check(folder, [content for content in CONTENTS if name_of(content) != damaged])
    assert pack(folder, grace_seconds=0.0).damaged == []


def test_loose_shards_of_a_damaged_pack_are_kept(folder):
    write(folder, CONTENTS)
    pack(folder)
    folder.list()
    (path,) = folder.packs("digits")
    damage(folder, path, 3)
    assert len(pack(folder, grace_seconds=0.0).damaged) == 1
    check(folder)
    pack(folder, grace_seconds=0.0)
    check(folder)


@pytest.mark.parametrize("has_callback", [False, True])
def test_damaged_index_is_moved_aside(folder, has_callback):
    write(folder, CONTENTS)
    pack(folder)
    folder.list()
    (path,) = folder.packs("digits")
    damage(folder, path, -3)
    if has_callback:
        messages = []
        assert len(ResultsFolder.open(folder.root).list(messages.append)["digits"]) == len(CONTENTS)
        assert [path in message for message in messages] == [True]
    else:
        with pytest.raises(ShardDamagedError, match=path):
            ResultsFolder.open(folder.root).list()
    check(folder)  # the loose shards still exist


def test_listed_pack_that_cannot_be_opened_raises_storage_error(folder, monkeypatch):
    write(folder, CONTENTS)
    pack(folder)
    reader = ResultsFolder.open(folder.root)

    def vanish(*_location):
        raise FileNotFoundError

    monkeypatch.setattr(reader.storage, "read", vanish)
    with pytest.raises(StorageError, match="packs"):
        reader.list()


def test_packing_ignores_a_pack_that_another_process_replaced(folder, monkeypatch):
    write(folder, CONTENTS)
    pack(folder, **WITHOUT_GRACE)
    check_pack = ResultsFolder.check_pack

    def replace(self, pack):
        self.storage.delete([pack.path])
        check_pack(self, pack)

    monkeypatch.setattr(ResultsFolder, "check_pack", replace)
    assert pack(folder, **WITHOUT_GRACE).n_deleted == 0
    monkeypatch.undo()
    check(folder)


def test_damaged_shard_is_not_packed(folder):
    write(folder, CONTENTS)
    damage(folder, NAMES[2].path, 4)
    assert len(pack(folder).damaged) == 1
    check(folder, [content for content in CONTENTS if name_of(content) != NAMES[2]])


def test_merged_folder_has_the_shards_of_all_sources(folder, tmp_path):
    other = ResultsFolder.create(tmp_path / "other", SLICES)
    write(folder, CONTENTS[:8])
    pack(folder)
    write(other, CONTENTS[6:])
    strengths_digest = other.save_tuple((1.0, 2.0))
    (tmp_path / "all").mkdir()  # may exist
    report, merged = merge([folder, other], tmp_path / "all"), ResultsFolder.open(tmp_path / "all")
    check(merged)
    assert (report.n_shards, report.n_packs, merged.read_tuple(strengths_digest)) == (12, 1, (1.0, 2.0))
    assert merge([folder, other], tmp_path / "all").n_shards == 0
    check(other, CONTENTS[6:])


def test_merging_an_older_copy_keeps_newer_failures(tmp_path):
    older, newer = (ResultsFolder.create(tmp_path / name, SLICES) for name in ("older", "newer"))
    for n_events, source in ((1, older), (2, newer)):
        path = source.root / EVENTS_FOLDER / FAILURES_FOLDER / "1.jsonl"
        write_text(path, '{"time": 1.0, "event": "failed"}\n' * n_events)
    merge([newer], tmp_path / "all")
    merge([older], tmp_path / "all")
    assert len(read_failures(tmp_path / "all")) == 2


def test_folders_with_different_slice_formats_are_not_merged(tmp_path):
    folders = [ResultsFolder.create(tmp_path / str(size), SliceFormat(1.0, size, is_cpu=True)) for size in (1, 2)]
    with pytest.raises(InputError, match="2"):
        merge(folders, tmp_path / "all")
    assert not os.path.lexists(tmp_path / "all")
