"""Runs handle signals, drain deadlines, lost workers, unresponsive processes and leftover files."""

import os
import signal
import socket
import time

import pytest

from robust201.core.files import LEFTOVER_SECONDS, remove_leftovers
from robust201.core.interrupts import (
    DrainDeadlineError,
    SignalInterrupt,
    draining_on_signals,
    stop_signals_as_interrupt,
)
from robust201.runtime.executors import make_executor
from robust201.runtime.executors.base import BundleLost, WorkerLost
from robust201.runtime.executors.watch import Watch, parse_address
from robust201.runtime.scheduler import Scheduler
from robust201.runtime.sweep import run_sweep
from robust201.shards import ShardStore
from tests.runtime.test_scheduler import ScriptedExecutor, make_bundle


def test_interrupt_replaces_an_error_that_it_caused() -> None:
    with pytest.raises(SignalInterrupt) as error, stop_signals_as_interrupt():  # noqa: PT012
        try:
            signal.raise_signal(signal.SIGTERM)
        except KeyboardInterrupt:
            raise AttributeError("a module that is half imported") from None
    assert isinstance(error.value.__cause__, AttributeError)


def test_errors_without_a_signal_propagate_and_handlers_are_restored() -> None:
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
    original_handlers = [signal.getsignal(signum) for signum in signals]
    with pytest.raises(AttributeError), stop_signals_as_interrupt():
        raise AttributeError("unrelated")
    with pytest.raises(SignalInterrupt), stop_signals_as_interrupt():
        signal.raise_signal(signal.SIGUSR1)
    assert [signal.getsignal(signum) for signum in signals] == original_handlers


def test_drain_without_a_deadline_does_not_interrupt_evaluations() -> None:
    with draining_on_signals(lambda _line: None) as request:
        signal.raise_signal(signal.SIGTERM)
        with request.interruptible():
            assert request()
        assert not request.is_expired


def test_deadline_interrupts_evaluations_in_progress() -> None:
    with draining_on_signals(lambda _line: None, drain_seconds=0.01) as request:
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(DrainDeadlineError), request.interruptible():
            time.sleep(60)
        assert request.is_expired
        with pytest.raises(DrainDeadlineError), request.interruptible():
            pytest.fail("the block was entered after the deadline")


def test_deadline_does_not_interrupt_code_outside_an_interruptible_block() -> None:
    with draining_on_signals(lambda _line: None, drain_seconds=0.01) as request:
        signal.raise_signal(signal.SIGUSR1)
        while not request.is_expired:
            time.sleep(0.01)
        assert request.is_time_limit


def test_second_signal_interrupts_immediately() -> None:
    with draining_on_signals(lambda _line: None, drain_seconds=60) as request:
        signal.raise_signal(signal.SIGTERM)
        assert not request.is_expired
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)


def test_scheduler_counts_completed_parts_after_the_deadline() -> None:
    executor = ScriptedExecutor()

    class DeadlineAfterThreeParts:
        def __enter__(self):
            if len(executor.computed) >= 3:
                raise DrainDeadlineError

        def __exit__(self, *_error):
            return None

    tally = Scheduler(executor, interruptible=DeadlineAfterThreeParts).run([make_bundle(a) for a in range(4)])
    assert tally.drained
    assert tally.parts == 3
    assert tally.remaining == (12 - 3) * 2  # two results per part
    assert tally.abandoned == 2
    assert not tally.complete


def test_scheduler_counts_preemptions_and_deaths_of_workers_lost_at_start() -> None:
    lost_workers = [WorkerLost(True, "preempted"), WorkerLost(False, "no libtorch")]

    class LosingExecutor(ScriptedExecutor):
        def poll(self, timeout):
            return [lost_workers.pop()] if lost_workers else super().poll(timeout)

    tally = Scheduler(LosingExecutor()).run([make_bundle(0)])
    assert (tally.preemptions, tally.deaths) == (1, 1)
    assert tally.complete


def test_scheduler_counts_one_preemption_per_lost_machine() -> None:
    class LosingExecutor(ScriptedExecutor):
        has_lost_machine = False

        def poll(self, timeout):
            if self.has_lost_machine or len(self.queue) < 2:
                return super().poll(timeout)
            self.has_lost_machine = True
            queue, self.queue = list(self.queue), type(self.queue)()
            return [BundleLost(bundle, bundle is queue[0], True, "gone") for bundle in queue]

    tally = Scheduler(LosingExecutor(), max_attempts=1).run([make_bundle(0), make_bundle(1)])
    assert (tally.preemptions, tally.deaths) == (1, 0)
    assert tally.complete


def test_watch_returns_the_name_of_an_unresponsive_process() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as responsive_server,
        socket.create_server(("127.0.0.1", 0)) as closed_server,
    ):
        addresses = {"head": responsive_server.getsockname(), "raylet": closed_server.getsockname()}
        watch = Watch(addresses, patience_seconds=0.05, interval_seconds=0.01)
        try:
            assert (watch.find_silent_process(), watch.probe_all()) == (None, None)
            closed_server.close()
            assert watch.probe_all() == "raylet"
            while watch.find_silent_process() is None:
                time.sleep(0.01)
            assert watch.find_silent_process() == "raylet"
        finally:
            watch.stop()


@pytest.mark.parametrize(
    ("text", "address"), [("10.0.0.1:6379", ("10.0.0.1", 6379)), ("[fd00::1]:6379", ("fd00::1", 6379))]
)
def test_parse_address_reads_ipv4_and_ipv6(text, address) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize("clock_error_seconds", [0.0, -LEFTOVER_SECONDS, LEFTOVER_SECONDS + 3600])
def test_remove_leftovers_deletes_only_old_temporary_files(tmp_path, clock_error_seconds) -> None:
    old_names = [".progress.json.0123.tmp", "shards/digits/.000000-clean-0.parquet.0123.tmp", ".lease.0123.successor"]
    remaining_names = [
        "progress.json",
        "shards/digits/000000-clean-0.parquet",
        "shards/digits/.000001-clean-0.parquet.4567.tmp",
    ]
    now_seconds = time.time()
    for name in old_names + remaining_names:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        age = 60.0 if name == remaining_names[-1] else 2 * LEFTOVER_SECONDS
        os.utime(path, (now_seconds - age, now_seconds - age))
    n_removed = remove_leftovers(tmp_path, clock=lambda: now_seconds + clock_error_seconds)
    # A clock that is a day ahead makes an unfinished file look abandoned; its writer then fails.
    assert n_removed == len(old_names) + (clock_error_seconds > LEFTOVER_SECONDS)
    assert not any((tmp_path / name).exists() for name in old_names)
    assert all((tmp_path / name).exists() for name in remaining_names[:2])


@pytest.mark.parametrize("is_remote", [False, True], ids=["results folder", "other storage"])
def test_run_removes_old_leftovers_from_any_shard_storage(make_sweep, tmp_path, is_remote) -> None:
    remote_folder = tmp_path / "far"
    config = make_sweep(
        keys={"clean": {}}, architectures=[21], **({"shards": remote_folder.as_uri()} if is_remote else {})
    )
    ShardStore.create(config.results, shards=config.shards or "")
    root = remote_folder if is_remote else config.results / "shards"
    old_path, recent_path = (
        root / "digits/.000000-clean-0.parquet.0123.tmp",
        root / "digits/.000001-clean-0.parquet.4567.tmp",
    )
    for path, age in ((old_path, 2 * LEFTOVER_SECONDS), (recent_path, 60.0)):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        os.utime(path, (time.time() - age,) * 2)
    assert run_sweep(config, make_executor).complete
    assert not old_path.exists()
    assert recent_path.exists()
