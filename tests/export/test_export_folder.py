"""The folder that an export writes: what it replaces, refuses, leaves when it fails or is killed, and never shares."""

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
from robust201.core.files import LOCK_FILE, sole_writer
from robust201.export.folder import STAGING_FOLDER
from tests.conftest import RunCommand, read_tree
from tests.support.fabricated import BrokenStore, export, make_plan

ARCHITECTURES = (0, 2, 10, 309)


def test_a_new_export_leaves_nothing_of_the_old_one_and_nothing_of_the_users_is_touched(tmp_path):
    export(tmp_path / "fresh", make_plan([0], ["clean"]))
    export(tmp_path / "out", make_plan(ARCHITECTURES, datasets=("cifar10", "cifar100")))
    for name in ("notes.txt", "cifar10/notes.txt"):
        (tmp_path / "out" / name).write_text("mine")
    report = export(tmp_path / "out", make_plan([0], ["clean"]))
    left = read_tree(tmp_path / "out")
    assert left.pop("notes.txt") == left.pop("cifar10/notes.txt") == b"mine"
    assert left == read_tree(tmp_path / "fresh")
    assert "cifar100/pgd_cm.json" in report.removed
    assert not (tmp_path / "out/cifar100").exists()


def test_an_export_of_another_sweep_is_refused_and_left_as_it_is(tmp_path):
    mine = make_plan([0], ["clean"])
    other = replace(make_plan(ARCHITECTURES), name="other")
    export(tmp_path / "out", other)
    before = read_tree(tmp_path / "out")
    with pytest.raises(
        InputError, match="earlier export of the sweep 'fabricated', got an export of the sweep 'other'"
    ):
        export(tmp_path / "out", mine)
    assert read_tree(tmp_path / "out") == before
    # The same sweep may replace it, and a sweep.json that tells nothing forbids nothing.
    assert export(tmp_path / "out", other).removed == ()
    (tmp_path / "out/sweep.json").write_text("{")
    assert "cifar10/pgd_cm.json" in export(tmp_path / "out", mine).removed


def test_how_many_files_an_export_removes_is_told(finished, tmp_path, robust201):
    robust201("export", finished, "--out", tmp_path / "out", "--parquet", "--processes", 1)
    ended = robust201("export", finished, "--out", tmp_path / "out", "--processes", 1)
    assert ended.code == 0
    assert "Removed 4 files of an earlier export that this one does not contain, such as parquet/" in ended.err


PGD, FOG = ({"dataset": "cifar10", "key": key, "seed": 0} for key in ("pgd", "fog"))


@pytest.mark.parametrize(
    ("held", "mine", "same"),
    [
        ((PGD,), (PGD, FOG), True),
        ((PGD, FOG), (FOG,), True),
        ((PGD,), (FOG,), False),
        ((PGD,), (PGD | {"seed": 1},), False),
        ((PGD, FOG), (PGD | {"seed": 1}, FOG), True),
    ],
)
def test_a_sweep_of_the_same_name_is_another_one_if_all_its_protocols_are(tmp_path, held, mine, same):
    earlier, later = (replace(make_plan([0], ["clean"]), protocols=protocols) for protocols in (held, mine))
    export(tmp_path, earlier)
    before = read_tree(tmp_path)
    if same:
        export(tmp_path, later)
        return
    with pytest.raises(InputError, match="of the same name but of other protocols"):
        export(tmp_path, later)
    assert read_tree(tmp_path) == before


@pytest.mark.parametrize(
    ("held", "mine", "same"),
    [
        ({0: "a", 2: "a"}, {0: "a", 2: "a", 10: "a"}, True),
        ({0: "a", 2: "a"}, {0: "a", 2: "b"}, True),
        ({0: "a"}, {2: "b"}, True),
        ({0: "a", 2: "a"}, {0: "b", 2: "b"}, False),
        ({0: "a", 2: "a"}, {0: "b", 10: "a"}, False),
    ],
)
def test_a_sweep_of_the_same_protocols_is_another_one_if_all_its_networks_are(tmp_path, held, mine, same):
    def plan_of(weights):
        plan = make_plan(weights, ["clean"])
        units = tuple(replace(unit, checkpoint_sha256=weights[unit.architecture] * 64) for unit in plan.units)
        return replace(plan, units=units, protocols=(PGD,))

    export(tmp_path, plan_of(held))
    before = read_tree(tmp_path)
    if not same:
        with pytest.raises(InputError, match="of the same name and protocols but of other weights"):
            export(tmp_path, plan_of(mine))
        assert read_tree(tmp_path) == before
        (tmp_path / "weights.json").write_text("[]")  # which tells nothing, and forbids nothing
    export(tmp_path, plan_of(mine))


@pytest.mark.parametrize("name", ["meta.json", "cifar10/pgd_accuracy.json", "SHA256SUMS"])
def test_files_that_no_export_wrote_are_not_overwritten(tmp_path, name):
    file = tmp_path / name
    file.parent.mkdir(exist_ok=True)
    file.write_text("downloaded" if name != "SHA256SUMS" else "")
    with pytest.raises(InputError, match="no export listed, such as " + name):
        export(tmp_path, make_plan([0]))
    assert list(read_tree(tmp_path)) == [name]


def test_a_listing_that_points_outside_removes_nothing(tmp_path):
    outside = tmp_path / "outside.json"
    outside.write_text("{}")
    export(tmp_path / "out", make_plan([0]))
    with (tmp_path / "out/SHA256SUMS").open("a") as listing:
        listing.write(f"{'0' * 64}  ../outside.json\n{'0' * 64}  {outside}\n")
    export(tmp_path / "out", make_plan([2]))
    assert outside.exists()


def test_out_may_not_be_a_file(tmp_path):
    (tmp_path / "out").write_text("")
    with pytest.raises(InputError, match="expected a folder, got a file"):
        export(tmp_path / "out", make_plan([0]))


def test_an_export_that_fails_leaves_the_earlier_one(tmp_path):
    export(tmp_path, make_plan(ARCHITECTURES, ["snow"]))
    before = read_tree(tmp_path)
    with pytest.raises(StorageError):
        export(tmp_path, make_plan(ARCHITECTURES), BrokenStore())
    assert read_tree(tmp_path) == before


class Killed(BaseException):
    """What stands for the end of a process."""


def _die_at(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let an export end before one of the steps, from 0, by which it takes the place of another."""
    steps = itertools.count()

    def counting(method):
        def run(path, *arguments, **options):
            moves_out = bool(arguments) and STAGING_FOLDER in str(path) and STAGING_FOLDER not in str(arguments[0])
            removes_stale = not arguments and STAGING_FOLDER not in str(path) and path.suffix == ".json"
            if (moves_out or removes_stale) and next(steps) >= step:
                raise Killed
            return method(path, *arguments, **options)

        return run

    monkeypatch.setattr(Path, "replace", counting(Path.replace))
    monkeypatch.setattr(Path, "unlink", counting(Path.unlink))


@pytest.mark.parametrize("step", [0, 1, 5, 12, 13, 15, 16])
def test_an_export_killed_while_it_replaces_another_is_finished_by_the_next(tmp_path, monkeypatch, step):
    out, plan, other = tmp_path / "out", make_plan([0, 2], ["clean", "fog"]), make_plan([0], ["fog", "pgd"])
    export(tmp_path / "fresh", plan)
    export(tmp_path / "other", other)
    export(out, other)
    (out / "cifar10/notes.txt").write_text("mine")
    with monkeypatch.context() as killed:
        _die_at(step, killed)
        with pytest.raises(Killed):
            export(out, plan)
    if step == 0:
        of_export = {name for name in read_tree(out) if not name.startswith(STAGING_FOLDER)}
        assert of_export == {*read_tree(tmp_path / "other"), "cifar10/notes.txt"}
    with pytest.raises(InputError, match="an export of the sweep 'fabricated'"):
        export(out, replace(plan, name="another"))  # which finishes the other before it looks
    left = read_tree(out)
    assert left.pop("cifar10/notes.txt") == b"mine"
    assert left == read_tree(tmp_path / "fresh")


def test_the_results_of_a_staging_folder_that_lists_nothing_replace_nothing(tmp_path):
    export(tmp_path / "fresh", make_plan([0]))
    export(tmp_path / "out", make_plan([2]))
    staging = tmp_path / "out" / STAGING_FOLDER
    staging.mkdir()
    (staging / "SHA256SUMS").write_text("")
    (staging / "meta.json").write_text("{")
    export(tmp_path / "out", make_plan([0]))
    assert read_tree(tmp_path / "out") == read_tree(tmp_path / "fresh")


@pytest.mark.parametrize("what", ["folder", "file"])
def test_what_has_the_name_of_a_file_or_folder_to_come_is_told_before_anything_is_written(tmp_path, what):
    export(tmp_path, make_plan([0], ["clean"]))
    name = "cifar10/pgd_cm.json" if what == "folder" else "cifar100"
    (tmp_path / name).mkdir() if what == "folder" else (tmp_path / name).write_text("mine")
    before = read_tree(tmp_path)
    with pytest.raises(InputError, match=f"no export listed, such as {name}"):
        export(tmp_path, make_plan([0], ["clean", "pgd"], datasets=("cifar10", "cifar100")))
    assert read_tree(tmp_path) == before


def test_two_exports_never_write_into_one_folder(tmp_path, finished, robust201):
    """The second ends before it changes anything, with one line; once the first has ended, it goes through."""
    out = tmp_path / "out"
    export(out, make_plan(ARCHITECTURES))
    before = read_tree(out)
    with sole_writer(out, "Testing"):
        with pytest.raises(StorageError, match=r"Exporting failed for .*out: another process is writing"):
            export(out, make_plan([0]))
        ended = robust201("export", finished, "--out", out)
    assert (ended.code, ended.err.count("\n")) == (4, 1)
    assert read_tree(out) == before
    export(out, make_plan([0]))
    assert LOCK_FILE not in read_tree(out)


def _hold_and_die(folder: Path, ready: Any) -> None:
    with sole_writer(folder, "Testing"):
        ready.set()
        os.kill(os.getpid(), signal.SIGKILL)


def test_a_lock_dies_with_its_process_and_waits_for_no_file_to_be_removed(tmp_path):
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    holder = context.Process(target=_hold_and_die, args=(tmp_path, ready))
    holder.start()
    holder.join()
    assert ready.is_set()
    assert holder.exitcode == -signal.SIGKILL
    assert (tmp_path / LOCK_FILE).exists()
    export(tmp_path, make_plan([0]))
    assert LOCK_FILE not in read_tree(tmp_path)


def test_a_lock_on_a_file_that_was_removed_meanwhile_is_taken_anew(tmp_path, monkeypatch):
    """Between opening the file and locking it, whoever held the lock may remove the file: then two would hold one."""
    taken = []

    def flock(stream, operation):
        if not taken:
            (tmp_path / LOCK_FILE).unlink()
        taken.append(operation)

    monkeypatch.setattr("robust201.core.files.fcntl.flock", flock)
    with sole_writer(tmp_path, "Testing"):
        assert len(taken) == 2
        assert (tmp_path / LOCK_FILE).exists()


def test_where_no_lock_can_be_had_an_export_goes_on(tmp_path, monkeypatch):
    def flock(stream, operation):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("robust201.core.files.fcntl.flock", flock)
    assert export(tmp_path, make_plan([0])).complete


def test_verify_names_an_export_that_never_finished(tmp_path: Path, robust201: RunCommand) -> None:
    (tmp_path / "out" / STAGING_FOLDER).mkdir(parents=True)
    refusal = robust201("verify", tmp_path / "out").refusal(2)
    assert f"for {tmp_path / 'out'}: expected a finished one, got one that was killed or still goes on" in refusal
    plan = make_plan([0], ["clean"])
    export(tmp_path / "out", plan)
    (tmp_path / "out" / STAGING_FOLDER).mkdir()  # a second export was killed; the first is whole
    assert robust201("verify", tmp_path / "out").code == 0
    (tmp_path / "out" / STAGING_FOLDER / "SHA256SUMS").write_bytes((tmp_path / "out/SHA256SUMS").read_bytes())
    assert "killed" in robust201("verify", tmp_path / "out").refusal(2)  # some of its files may have been moved
