"""Stored shards: names, atomic writes, and damage."""

import random
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from unittest.mock import Mock

import numpy as np
import pytest

from robust201.core.errors import FormatVersionError, InputError, ShardDamagedError, StorageError
from robust201.core.records import EvaluationResult, Part, Unit
from robust201.store.folder import WRITE_STEPS, ResultsFolder, SliceFormat
from robust201.store.names import ShardName, content_hash, names_of, parse_names, shard_name
from robust201.store.shards import decode, encode
from tests.support.runs import read_shard

SLICES = SliceFormat(slice_gmacs=1.0, batch_size=8, is_cpu=True)
UNIT = Unit("ab" * 16, 21, "digits", "pgd", (1.0, 8.0), 6, "cd" * 16, "0" * 64)


def make_result(strength: float) -> EvaluationResult:
    cm = np.array([[2, 1], [0, 3]], np.int32)
    values = {
        "accuracy": np.array(5 / 6),
        "cm": cm,
        "confidence_label": np.array([[0.75, 0.25], [0.5, 0.5]]) / strength,
        "predictions": np.array([0, 0, 1, 1, 1, 1], np.uint8),
    }
    return EvaluationResult(Part(UNIT, UNIT.strengths, 0, 6), strength, values, 0.5, {"host": "here"})


CONTENT = encode([make_result(1.0), make_result(8.0)], pixels=["ef", "01"])
NAME = ShardName("digits", UNIT.id, "0" * 8, 0, 1, "1" * 8, content_hash(CONTENT))


@pytest.fixture
def folder(tmp_path):
    return ResultsFolder.create(tmp_path / "results", SLICES)


def test_decoded_shard_equals_encoded_results():
    shard = decode(CONTENT)
    assert (shard.unit, shard.start, shard.stop, shard.pixels) == (UNIT, 0, 6, {1.0: "ef", 8.0: "01"})
    assert shard.provenance == {"host": "here"}
    for strength in UNIT.strengths:
        for name, expected in make_result(strength).values.items():
            actual = shard.rows[strength][name]
            assert (actual.dtype, actual.shape, actual.tobytes()) == (
                expected.dtype,
                expected.shape,
                expected.tobytes(),
            )


def test_decode_raises_only_value_errors_for_damaged_content():
    rng = random.Random(0)
    mutations = [CONTENT[: rng.randrange(len(CONTENT))] for _ in range(20)]
    for _ in range(100):
        mutated = bytearray(CONTENT)
        mutated[-rng.randrange(1, 400)] ^= 1 << rng.randrange(8)
        mutations.append(bytes(mutated))
    n_rejected = 0
    for mutation in mutations:
        try:
            decode(mutation)
        except ValueError:
            n_rejected += 1
    assert n_rejected > 50  # the others change at most labels of metadata; the hash in the name reveals them


def test_names_are_parsed_and_other_files_ignored():
    names = [NAME.path.rpartition("/")[2], "notes.txt", ".tmp", NAME.path.rpartition("/")[2].replace("of", "xx")]
    (parsed,) = parse_names(names)
    assert shard_name("digits", parsed) == NAME


def test_written_shard_is_listed_and_read(folder):
    folder.write(NAME, CONTENT)
    assert [shard_name("digits", name) for name in folder.list()["digits"]] == [NAME]
    assert len(folder.list_unit("digits", UNIT.id)["digits"]) == 1
    assert not len(names_of(folder.list_unit("digits", "f" * 32), "digits"))
    assert read_shard(folder, NAME).unit == UNIT


@pytest.mark.parametrize("step", WRITE_STEPS)
def test_kill_while_writing_leaves_a_complete_file_or_none(tmp_path, step):
    class KilledError(BaseException):
        pass

    def kill(reached):
        if reached == step:
            raise KilledError

    folder = ResultsFolder.create(tmp_path / "results", SLICES)
    with pytest.raises(KilledError):
        ResultsFolder(folder.root, SLICES, on_step=kill).write(NAME, CONTENT)
    names = folder.list().get("digits", ())
    assert len(names) == (step == "renamed")
    for name in names:
        assert folder.read(shard_name("digits", name)) == CONTENT


@pytest.mark.parametrize("damage", [CONTENT[:-1], CONTENT[:40] + b"x" + CONTENT[41:], b""])
def test_damaged_shard_is_moved_aside(folder, damage):
    folder.write(NAME, CONTENT)
    (folder.storage.root / NAME.path).write_bytes(damage)
    with pytest.raises(ShardDamagedError, match=UNIT.id):
        read_shard(folder, NAME)
    assert not len(folder.list()["digits"])
    assert (folder.root / "damaged" / NAME.path).read_bytes() == damage


def test_damaged_shards_below_a_file_url_are_not_listed_as_a_dataset(tmp_path):
    folder = ResultsFolder.create(tmp_path / "results", SLICES, f"file://{tmp_path / 'shards'}")
    folder.write(NAME, CONTENT)
    (tmp_path / "shards" / NAME.path).write_bytes(b"")
    with pytest.raises(ShardDamagedError):
        read_shard(folder, NAME)
    assert (tmp_path / "shards/damaged" / NAME.path).exists()
    assert list(folder.list()) == ["digits"]


def test_shard_of_another_unit_counts_as_damaged(folder):
    name = NAME._replace(unit="f" * 32)
    folder.write(name, CONTENT)
    with pytest.raises(ShardDamagedError):
        read_shard(folder, name)


def test_existing_folder_keeps_its_slice_format(folder):
    assert ResultsFolder.create(folder.root, SliceFormat(5.0, 1, is_cpu=False)).slices == SLICES


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (None, InputError),
        ("{", InputError),
        ('{"format": "robust201-results", "version": 1}', FormatVersionError),
        ('{"format": "robust201-results", "version": 2, "slices": {}, "shards": ""}', InputError),
    ],
)
def test_folders_without_a_valid_format_file_are_rejected(tmp_path, content, error):
    (tmp_path / "notes.txt").write_text("mine")
    if content is not None:
        (tmp_path / "format.json").write_text(content)
    with pytest.raises(error, match=str(tmp_path)):
        ResultsFolder.create(tmp_path, SLICES)
    assert not (tmp_path / "shards").exists()


@pytest.mark.parametrize("damage", ["[1.0]", "{", "null", ""])
def test_damaged_tuple_counts_as_missing_until_it_is_saved_again(folder, damage):
    digest = folder.save_tuple((1.0, 8.0))
    assert ResultsFolder.open(folder.root).read_tuple(digest) == (1.0, 8.0)
    (folder.root / "protocols" / f"{digest}.json").write_text(damage)
    assert ResultsFolder.open(folder.root).read_tuple(digest) == ()
    folder.save_tuple((1.0, 8.0))
    assert folder.read_tuple(digest) == (1.0, 8.0)


def test_unreadable_tuple_is_an_error(folder, monkeypatch):
    digest = folder.save_tuple((1.0, 8.0))

    def fail(*_arguments):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("robust201.store.folder.load_json", fail)
    with pytest.raises(StorageError, match=digest):
        folder.read_tuple(digest)


def test_unlistable_folder_is_an_error(folder, monkeypatch):
    folder.write(NAME, CONTENT)
    monkeypatch.setattr("os.listdir", Mock(side_effect=PermissionError(13, "Permission denied")))
    with pytest.raises(StorageError, match="digits"):
        folder.storage.names("digits", UNIT.id[:2])


def test_folders_created_at_the_same_time_have_one_format(tmp_path):
    formats = [SliceFormat(float(size), 8, is_cpu=True) for size in range(1, 9)]
    barrier = Barrier(len(formats))

    def create(slices):
        barrier.wait()
        return ResultsFolder.create(tmp_path / "results", slices).slices

    with ThreadPoolExecutor(len(formats)) as pool:
        assert len(set(pool.map(create, formats))) == 1
    assert [path.name for path in (tmp_path / "results").iterdir()] == ["format.json"]
