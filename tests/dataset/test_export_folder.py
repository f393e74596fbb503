"""Folder of an export: replacement of earlier exports, rejected folders, failed and killed exports, and locks."""

import errno
import itertools
import multiprocessing
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from robust201.core.errors import InputError, StorageError
from robust201.core.files import LOCK_FILE, sha256_of, sole_writer
from tests.conftest import read_tree
from tests.support.fabricated import FabricatedPlan, export, make_plan

ARCHITECTURES = (0, 2, 10, 309)
PLAN = make_plan([0, 2], ["clean", "fog"])
PGD_PROTOCOL, FOG_PROTOCOL = ({"dataset": "cifar10", "key": key, "seed": 0} for key in ("pgd", "fog"))


def test_export_replaces_earlier_export(tmp_path: Path) -> None:
    export(tmp_path / "fresh", make_plan([0], ["clean"]))
    export(tmp_path / "out", make_plan(ARCHITECTURES, datasets=("cifar10", "cifar100")))
    export(tmp_path / "out", make_plan([0], ["clean"]))
    assert read_tree(tmp_path / "out") == read_tree(tmp_path / "fresh")
    assert not (tmp_path / "out/cifar100").exists()


def list_files(out: Path) -> None:
    """Write the listing of all files, as an export does."""
    listing = "".join(f"{sha256_of(path)}  {path.name}\n" for path in sorted(out.iterdir()))
    (out / "SHA256SUMS").write_text(listing)


def write_listed_files(out: Path, sweep: str | None) -> None:
    out.mkdir()
    (out / "train.bin").write_text("data")
    if sweep is not None:
        (out / "sweep.json").write_text(sweep)
    list_files(out)


def write_after_export(out: Path, name: str) -> None:
    export(out, PLAN)
    (out / name).parent.mkdir(exist_ok=True)
    (out / name).write_text("mine")


def plan_with(*protocols: dict[str, Any]) -> FabricatedPlan:
    return replace(PLAN, protocols=protocols)


REJECTED_FOLDERS: dict[str, tuple[Callable[[Path], object], FabricatedPlan]] = {
    "an export of another sweep": (lambda out: export(out, replace(PLAN, name="other")), PLAN),
    "other protocols": (lambda out: export(out, plan_with(PGD_PROTOCOL)), plan_with(FOG_PROTOCOL)),
    "another seed": (lambda out: export(out, plan_with(PGD_PROTOCOL)), plan_with(PGD_PROTOCOL | {"seed": 1})),
    "a file": (lambda out: out.write_text("mine"), PLAN),
    "an unlisted file": (lambda out: (out.mkdir(), (out / "meta.json").write_text("downloaded")), PLAN),
    "an empty listing": (lambda out: (out.mkdir(), (out / "SHA256SUMS").write_text("")), PLAN),
    "files that others listed": (lambda out: write_listed_files(out, None), PLAN),
    "files of an unknown sweep": (lambda out: write_listed_files(out, "{}"), PLAN),
    "a damaged sweep.json": (lambda out: write_listed_files(out, "{"), PLAN),
    "a file of the user": (lambda out: write_after_export(out, "cifar10/notes.txt"), PLAN),
    "a repository of the user": (lambda out: write_after_export(out, ".git/config"), PLAN),
    "a file that was changed": (lambda out: write_after_export(out, "README.md"), PLAN),
}


@pytest.mark.parametrize("case", REJECTED_FOLDERS)
def test_export_rejects_folder_with_other_files(tmp_path: Path, case: str) -> None:
    prepare, plan = REJECTED_FOLDERS[case]
    prepare(tmp_path / "out")
    tree_before = read_tree(tmp_path)
    with pytest.raises(InputError, match=rf"{tmp_path / 'out'}"):
        export(tmp_path / "out", plan)
    assert read_tree(tmp_path) == tree_before


@pytest.mark.parametrize(
    "protocols", [(PGD_PROTOCOL,), (PGD_PROTOCOL, FOG_PROTOCOL), (PGD_PROTOCOL | {"seed": 1}, FOG_PROTOCOL)]
)
def test_export_replaces_export_with_a_common_protocol(tmp_path: Path, protocols: tuple[dict[str, Any], ...]) -> None:
    export(tmp_path, plan_with(*protocols))
    export(tmp_path, plan_with(PGD_PROTOCOL, FOG_PROTOCOL))


def test_export_rejects_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="working directory"):
        export(Path(), PLAN)


@pytest.mark.parametrize("step", [0, 3])
def test_export_that_cannot_be_moved_keeps_earlier_export(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    # Steps 0 and 1 test whether the folder can be moved, 2 moves it, and 3 moves the new export to its place.
    out, moves = tmp_path / "out", itertools.count()
    export(out, make_plan([0]))
    tree_before, rename = read_tree(out), Path.rename

    def fail_once(path: Path, target: Path) -> Path:
        if next(moves) == step:
            raise OSError(errno.EBUSY, "busy", str(path))
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", fail_once)
    with pytest.raises(StorageError, match="busy"):
        export(out, make_plan([0, 2]))
    assert read_tree(out) == tree_before
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("is_link", [False, True])
def test_folder_with_only_user_folders_is_not_replaced(tmp_path: Path, is_link: bool) -> None:
    user_folder = tmp_path / "out" / "mine"
    user_folder.parent.mkdir()
    if is_link:
        user_folder.symlink_to(tmp_path)
    else:
        user_folder.mkdir()
    with pytest.raises(InputError, match="mine"):
        export(tmp_path / "out", PLAN)
    assert user_folder.exists()


def test_only_copy_of_an_export_is_never_deleted(tmp_path: Path) -> None:
    out, earlier_export = tmp_path / "out", tmp_path / ".out.old"
    export(out, PLAN)
    tree = read_tree(out)
    out.rename(earlier_export)
    out.mkdir()
    (out / "notes.txt").write_text("mine")
    with pytest.raises(StorageError):
        export(out, PLAN)
    assert read_tree(earlier_export) == tree
    assert read_tree(out) == {"notes.txt": b"mine"}


class KilledError(BaseException):
    """Raised to simulate the death of the process."""


@pytest.mark.parametrize("step", range(4))
def test_next_export_reverts_replacement_by_killed_export(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    # Steps 0 and 1 test whether the folder can be moved, 2 moves it, and 3 moves the new export to its place.
    out, moves, rename = tmp_path / "out", itertools.count(), Path.rename
    export(out, make_plan([0], ["fog", "pgd"]))
    tree_before = read_tree(out)

    def move(path: Path, target: Path) -> Path:
        if next(moves) == step:
            raise KilledError
        return rename(path, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", move)
        patch.setattr("robust201.dataset.export_folder._complete_replacement", lambda _target: None)
        with pytest.raises(KilledError):
            export(out, PLAN)
    with pytest.raises(InputError, match="an export of 'fabricated'"):
        export(out, replace(PLAN, name="another"))  # reverts the replacement first
    assert read_tree(out) == tree_before
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_second_export_to_same_folder_fails_until_first_ends(tmp_path: Path) -> None:
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


def test_lock_is_released_when_its_process_dies(tmp_path: Path) -> None:
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
