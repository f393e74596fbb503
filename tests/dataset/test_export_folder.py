"""Folder of an export: replacement of earlier exports, rejected folders, failed and killed exports, and locks."""

import errno
import itertools
import multiprocessing
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from robust201.core.errors import InputError, StorageError
from robust201.core.files import LOCK_FILE, sha256_of, sole_writer
from tests.conftest import read_tree
from tests.support.fabricated import BrokenStore, export, make_plan

ARCHITECTURES = (0, 2, 10, 309)


def test_export_replaces_earlier_export_and_keeps_other_files(tmp_path):
    export(tmp_path / "fresh", make_plan([0], ["clean"]))
    export(tmp_path / "out", make_plan(ARCHITECTURES, datasets=("cifar10", "cifar100")))
    for name in ("notes.txt", "cifar10/notes.txt"):
        (tmp_path / "out" / name).write_text("mine")
    report = export(tmp_path / "out", make_plan([0], ["clean"]))
    tree = read_tree(tmp_path / "out")
    assert tree.pop("notes.txt") == tree.pop("cifar10/notes.txt") == b"mine"
    assert tree == read_tree(tmp_path / "fresh")
    assert "cifar100/pgd_cm.json" in report.removed
    assert not (tmp_path / "out/cifar100").exists()


def test_export_rejects_folder_of_another_sweep(tmp_path):
    plan = make_plan([0], ["clean"])
    other_plan = replace(make_plan(ARCHITECTURES), name="other")
    export(tmp_path / "out", other_plan)
    tree_before = read_tree(tmp_path / "out")
    with pytest.raises(InputError, match="earlier export of the sweep 'fabricated', got an export of 'other'"):
        export(tmp_path / "out", plan)
    assert read_tree(tmp_path / "out") == tree_before
    assert export(tmp_path / "out", other_plan).removed == ()


PGD, FOG = ({"dataset": "cifar10", "key": key, "seed": 0} for key in ("pgd", "fog"))


@pytest.mark.parametrize(
    ("earlier_protocols", "later_protocols", "is_same_sweep"),
    [
        ((PGD,), (PGD, FOG), True),
        ((PGD, FOG), (FOG,), True),
        ((PGD,), (FOG,), False),
        ((PGD,), (PGD | {"seed": 1},), False),
        ((PGD, FOG), (PGD | {"seed": 1}, FOG), True),
    ],
)
def test_export_rejects_sweep_with_same_name_if_all_protocols_differ(
    tmp_path, earlier_protocols, later_protocols, is_same_sweep
):
    earlier_plan, later_plan = (
        replace(make_plan([0], ["clean"]), protocols=protocols) for protocols in (earlier_protocols, later_protocols)
    )
    export(tmp_path, earlier_plan)
    tree_before = read_tree(tmp_path)
    if is_same_sweep:
        export(tmp_path, later_plan)
        return
    with pytest.raises(InputError, match="the same name with other protocols"):
        export(tmp_path, later_plan)
    assert read_tree(tmp_path) == tree_before


@pytest.mark.parametrize("name", ["meta.json", "cifar10/pgd_accuracy.json", "SHA256SUMS"])
def test_export_does_not_overwrite_unlisted_files(tmp_path, name):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("downloaded" if name != "SHA256SUMS" else "")
    with pytest.raises(InputError, match="no export listed, such as " + name.split("/")[0]):
        export(tmp_path, make_plan([0]))
    assert list(read_tree(tmp_path)) == [name]


@pytest.mark.parametrize("sweep", [None, "{}", "{"])
def test_export_does_not_replace_listed_files_of_others(tmp_path, sweep):
    names = ["train.bin"] + ["sweep.json"] * (sweep is not None)
    for name in names:
        (tmp_path / name).write_text(sweep or "data")
    listing = "".join(f"{sha256_of(tmp_path / name)}  {name}\n" for name in names)
    (tmp_path / "SHA256SUMS").write_text(listing)
    tree_before = read_tree(tmp_path)
    with pytest.raises(InputError, match="no export listed"):
        export(tmp_path, make_plan([0]))
    assert read_tree(tmp_path) == tree_before


def test_export_does_not_replace_changed_files(tmp_path):
    export(tmp_path, make_plan([0]))
    (tmp_path / "README.md").write_text("mine")
    tree_before = read_tree(tmp_path)
    with pytest.raises(InputError, match=r"README\.md was changed"):
        export(tmp_path, make_plan([0]))
    assert read_tree(tmp_path) == tree_before


@pytest.mark.parametrize("step", [0, 3])
def test_export_that_cannot_be_moved_keeps_earlier_export(tmp_path, monkeypatch, step):
    # Steps 0 and 1 test whether the folder can be moved, 2 moves it, and 3 moves the new export to its place.
    out, moves = tmp_path / "out", itertools.count()
    export(out, make_plan([0]))
    tree_before, rename = read_tree(out), Path.rename

    def fail_once(path, target):
        if next(moves) == step:
            raise OSError(errno.EBUSY, "busy", str(path))
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", fail_once)
    with pytest.raises(StorageError, match="busy"):
        export(out, make_plan([0, 2]))
    assert read_tree(out) == tree_before
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("content", [None, "mine"])
def test_only_copy_of_an_export_is_never_deleted(tmp_path, content):
    out, earlier = tmp_path / "out", tmp_path / ".out.old"
    export(out, make_plan([0]))
    tree = read_tree(out)
    out.rename(earlier)
    out.mkdir()
    if content is None:
        with pytest.raises(InputError, match="'fabricated'"):
            export(out, replace(make_plan([0]), name="another"))
        assert read_tree(out) == tree
        return
    (out / "notes.txt").write_text(content)
    with pytest.raises(StorageError):
        export(out, make_plan([0]))
    assert read_tree(earlier) == tree
    assert read_tree(out) == {"notes.txt": b"mine"}


def test_export_rejects_folder_that_lists_paths_outside(tmp_path):
    outside_path = tmp_path / "outside.json"
    outside_path.write_text("{}")
    export(tmp_path / "out", make_plan([0]))
    with (tmp_path / "out/SHA256SUMS").open("a") as listing:
        listing.write(f"{'0' * 64}  ../outside.json\n{'0' * 64}  {outside_path}\n")
    with pytest.raises(InputError):
        export(tmp_path / "out", make_plan([2]))
    assert outside_path.exists()


def test_failed_export_keeps_earlier_export(tmp_path):
    export(tmp_path, make_plan(ARCHITECTURES, ["snow"]))
    tree_before = read_tree(tmp_path)
    with pytest.raises(StorageError):
        export(tmp_path, make_plan(ARCHITECTURES), BrokenStore())
    assert read_tree(tmp_path) == tree_before


class KilledError(BaseException):
    """Raised to simulate the death of the process."""


@pytest.mark.parametrize("step", range(5))
def test_next_export_completes_or_reverts_replacement_by_killed_export(tmp_path, monkeypatch, step):
    # The steps are: move the earlier export and back, which tests that it can be moved; move it; move the new one in
    # its place; move the user's file to it.
    out, plan, other_plan = tmp_path / "out", make_plan([0, 2], ["clean", "fog"]), make_plan([0], ["fog", "pgd"])
    export(tmp_path / "fresh", plan)
    export(out, other_plan)
    (out / ".git").mkdir()
    (out / ".git/config").write_text("mine")
    (out / "cifar10/notes.txt").write_text("mine")
    trees = [read_tree(out)] * 4 + [read_tree(tmp_path / "fresh")]
    moves = itertools.count()

    def with_kill(original_method):
        def move(path, target):
            if path.suffix != ".tmp" and next(moves) == step:
                raise KilledError
            return original_method(path, target)

        return move

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", with_kill(Path.rename))
        patch.setattr(Path, "replace", with_kill(Path.replace))
        with pytest.raises(KilledError):
            export(out, plan)
    with pytest.raises(InputError, match="an export of 'fabricated'"):
        export(out, replace(plan, name="another"))  # completes or reverts the replacement first
    own_files = {".git/config": b"mine", "cifar10/notes.txt": b"mine"}
    assert read_tree(out) == trees[step] | own_files
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_export_rejects_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="working directory"):
        export(Path(), make_plan([0], ["clean"]))


def test_second_export_to_same_folder_fails_until_first_ends(tmp_path):
    out = tmp_path / "out"
    export(out, make_plan(ARCHITECTURES))
    tree_before = read_tree(out)
    with sole_writer(tmp_path / ".out.new", "Testing"), pytest.raises(StorageError, match="another process is writing"):
        export(out, make_plan([0]))
    assert read_tree(out) == tree_before
    export(out, make_plan([0]))


def _lock_folder_and_die(folder: Path, is_locked: Any) -> None:
    with sole_writer(folder, "Testing"):
        is_locked.set()
        os.kill(os.getpid(), signal.SIGKILL)


def test_lock_is_released_when_its_process_dies(tmp_path):
    context = multiprocessing.get_context("spawn")
    is_locked = context.Event()
    process = context.Process(target=_lock_folder_and_die, args=(tmp_path / ".out.new", is_locked))
    process.start()
    process.join()
    assert is_locked.is_set()
    assert process.exitcode == -signal.SIGKILL
    assert (tmp_path / ".out.new" / LOCK_FILE).exists()
    export(tmp_path / "out", make_plan([0]))
    assert LOCK_FILE not in read_tree(tmp_path / "out")
