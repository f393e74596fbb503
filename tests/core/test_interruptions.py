"""Signals end a command with a `SignalInterrupt`, and old temporary files are removed."""

import os
import signal
import time

import pytest

from robust201.core.files import LEFTOVER_SECONDS, remove_leftovers, server_time
from robust201.core.interrupts import (
    SignalInterrupt,
    interrupt_on_stop_signals,
)
from robust201.store.folder import ResultsFolder
from robust201.sweep.plan import choose_slices
from tests.support.runs import run_sweep


def test_interrupt_replaces_an_error_that_it_caused():
    with pytest.raises(SignalInterrupt) as error, interrupt_on_stop_signals():  # noqa: PT012
        try:
            signal.raise_signal(signal.SIGTERM)
        except KeyboardInterrupt:
            raise AttributeError("a module that is half imported") from None
    assert isinstance(error.value.__cause__, AttributeError)


def test_errors_without_a_signal_propagate_and_handlers_are_restored():
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
    original_handlers = [signal.getsignal(signum) for signum in signals]
    with pytest.raises(AttributeError), interrupt_on_stop_signals():
        raise AttributeError("unrelated")
    with pytest.raises(SignalInterrupt), interrupt_on_stop_signals():
        signal.raise_signal(signal.SIGUSR1)
    assert [signal.getsignal(signum) for signum in signals] == original_handlers


def test_remove_leftovers_deletes_only_old_temporary_files(tmp_path, monkeypatch):
    monkeypatch.setattr(time, "time", lambda: 0.0)  # the clock of the file server decides
    ages = {
        "a/.old.0123.tmp": 2 * LEFTOVER_SECONDS,
        "a/.old.tmp/file": 2 * LEFTOVER_SECONDS,
        "a/.new.4567.tmp": 60.0,
        "a/b": 2 * LEFTOVER_SECONDS,
        "shards/.0.tmp": 2 * LEFTOVER_SECONDS,
    }
    now_seconds = server_time(tmp_path)
    for name, age in ages.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        os.utime(path, (now_seconds - age,) * 2)
    os.utime(tmp_path / "a/.old.tmp", (0, 0))
    remove_leftovers(tmp_path, skipped="shards")
    assert [name for name in ages if (tmp_path / name).exists()] == [*ages][2:]


@pytest.mark.parametrize("is_remote", [False, True], ids=["results folder", "URL of shards"])
def test_run_removes_old_leftovers_from_any_shard_storage(make_sweep, tmp_path, is_remote):
    remote_folder = tmp_path / "far"
    config = make_sweep(
        keys={"clean": {}}, architectures=[21], **({"shards": remote_folder.as_uri()} if is_remote else {})
    )
    ResultsFolder.create(config.results, choose_slices(config), config.shards or "")
    root = remote_folder if is_remote else config.results / "shards"
    old_path, recent_path = (
        root / "digits/ab/.000000-clean-0.parquet.0123.tmp",
        root / "digits/ab/.000001-clean-0.parquet.4567.tmp",
    )
    for path, age in ((old_path, 2 * LEFTOVER_SECONDS), (recent_path, 60.0)):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        os.utime(path, (time.time() - age,) * 2)
    assert run_sweep(config).is_complete
    assert not old_path.exists()
    assert recent_path.exists()
