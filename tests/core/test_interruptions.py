"""What a run does without: a deadline for draining, a Ray that answers, and the files of those that were killed."""

import importlib
import os
import signal
import socket
import sys
import time

import pytest

from robust201.core import interrupts
from robust201.core.files import LEFTOVER_SECONDS, remove_leftovers
from robust201.core.interrupts import (
    DrainDeadlineError,
    SignalInterrupt,
    draining_on_signals,
    ending_signals_as_interrupt,
)
from robust201.runtime.executors import make_executor
from robust201.runtime.executors.base import BundleLost, WorkerLost
from robust201.runtime.executors.watch import Watch, parse_address
from robust201.runtime.scheduler import Scheduler
from robust201.runtime.sweep import run_sweep
from robust201.shards import ShardStore
from tests.runtime.test_scheduler import ScriptedExecutor, make_bundle


class WaitedInVainError(Exception):
    """No interrupt came."""


def wait_for_interrupt() -> None:
    for _ in range(500):
        time.sleep(0.01)
    raise WaitedInVainError


@pytest.fixture
def interrupted_module(tmp_path, monkeypatch) -> str:
    """A module that receives SIGTERM while it is imported."""
    (tmp_path / "interrupted_module.py").write_text("import signal\nsignal.raise_signal(signal.SIGTERM)\nvalue = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "interrupted_module", raising=False)
    return "interrupted_module"


def test_interrupt_waits_for_the_end_of_an_import(interrupted_module) -> None:
    with pytest.raises(SignalInterrupt), ending_signals_as_interrupt():  # noqa: PT012
        assert importlib.import_module(interrupted_module).value == 1
        wait_for_interrupt()
    assert interrupted_module in sys.modules


def test_interrupt_ends_an_import_that_takes_too_long(interrupted_module, monkeypatch) -> None:
    monkeypatch.setattr(interrupts, "_MAX_IMPORT_SECONDS", 0.0)
    with pytest.raises(SignalInterrupt), ending_signals_as_interrupt():
        importlib.import_module(interrupted_module)
    assert interrupted_module not in sys.modules


class Interrupted:
    """Receives a signal while it is deleted."""

    def __del__(self) -> None:
        signal.raise_signal(signal.SIGTERM)


def test_interrupt_in_a_destructor_is_raised_again(capsys) -> None:
    with pytest.raises(SignalInterrupt), ending_signals_as_interrupt():  # noqa: PT012
        interrupted = Interrupted()
        del interrupted
        wait_for_interrupt()
    assert capsys.readouterr().err == ""


def test_second_signal_in_an_import_is_not_replaced_by_the_deadline(tmp_path, monkeypatch) -> None:
    (tmp_path / "stopped_module.py").write_text(
        "import signal, time\nsignal.raise_signal(signal.SIGTERM)\nsignal.raise_signal(signal.SIGTERM)\n"
        "time.sleep(0.2)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with (  # noqa: PT012
        pytest.raises(SignalInterrupt),
        draining_on_signals(lambda _line: None, drain_seconds=0.1) as request,
        request.interruptible(),
    ):
        importlib.import_module("stopped_module")
        wait_for_interrupt()
    monkeypatch.delitem(sys.modules, "stopped_module")


def test_interrupt_replaces_the_error_that_it_became() -> None:
    with pytest.raises(SignalInterrupt) as caught, ending_signals_as_interrupt():  # noqa: PT012
        try:
            signal.raise_signal(signal.SIGTERM)
        except KeyboardInterrupt:
            raise AttributeError("a module that is half imported") from None
    assert isinstance(caught.value.__cause__, AttributeError)


def test_errors_without_a_signal_stay_and_handlers_are_restored() -> None:
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGALRM)
    before = [signal.getsignal(number) for number in numbers], sys.unraisablehook
    with pytest.raises(AttributeError), ending_signals_as_interrupt():
        raise AttributeError("of its own")
    with pytest.raises(SignalInterrupt), ending_signals_as_interrupt():  # noqa: PT012
        interrupted = Interrupted()
        del interrupted
        wait_for_interrupt()
    assert ([signal.getsignal(number) for number in numbers], sys.unraisablehook) == before


def test_a_drain_without_a_deadline_interrupts_nothing() -> None:
    with draining_on_signals(lambda _line: None) as request:
        signal.raise_signal(signal.SIGTERM)
        with request.interruptible():
            assert request()
        assert not request.is_expired


def test_the_deadline_interrupts_what_is_in_progress() -> None:
    with draining_on_signals(lambda _line: None, drain_seconds=0.01) as request:
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(DrainDeadlineError), request.interruptible():
            time.sleep(60)
        assert request.is_expired
        with pytest.raises(DrainDeadlineError), request.interruptible():
            pytest.fail("begun after the deadline")


def test_the_deadline_waits_for_what_must_not_be_interrupted() -> None:
    with draining_on_signals(lambda _line: None, drain_seconds=0.01) as request:
        signal.raise_signal(signal.SIGUSR1)
        while not request.is_expired:
            time.sleep(0.01)
        assert request.is_time_limit


def test_a_second_signal_still_interrupts_at_once() -> None:
    with draining_on_signals(lambda _line: None, drain_seconds=60) as request:
        signal.raise_signal(signal.SIGTERM)
        assert not request.is_expired
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)


def test_a_run_past_its_deadline_keeps_its_tally() -> None:
    executor = ScriptedExecutor()

    class Deadline:
        def __enter__(self):
            if len(executor.computed) >= 3:
                raise DrainDeadlineError

        def __exit__(self, *_error):
            return None

    tally = Scheduler(executor, interruptible=Deadline).run([make_bundle(a) for a in range(4)])
    assert (tally.drained, tally.parts, tally.remaining) == (True, 3, 18)
    assert tally.abandoned == 2
    assert not tally.complete


def test_workers_that_are_lost_before_they_begin_are_counted_by_kind() -> None:
    losses = [WorkerLost(True, "taken away"), WorkerLost(False, "no libtorch")]

    class Restless(ScriptedExecutor):
        def poll(self, timeout):
            return [losses.pop()] if losses else super().poll(timeout)

    tally = Scheduler(Restless()).run([make_bundle(0)])
    assert (tally.preemptions, tally.deaths, tally.complete) == (1, 1, True)


def test_a_bundle_that_only_waited_on_a_lost_machine_is_no_second_preemption() -> None:
    class Cut(ScriptedExecutor):
        lost = False

        def poll(self, timeout):
            if self.lost or len(self.queue) < 2:
                return super().poll(timeout)
            self.lost = True
            queue, self.queue = list(self.queue), type(self.queue)()
            return [BundleLost(bundle, bundle is queue[0], True, "gone") for bundle in queue]

    tally = Scheduler(Cut(), max_attempts=1).run([make_bundle(0), make_bundle(1)])
    assert (tally.preemptions, tally.deaths, tally.complete) == (1, 0, True)


def test_a_process_that_answers_no_more_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as living, socket.create_server(("127.0.0.1", 0)) as dying:
        addresses = {"head": living.getsockname(), "raylet": dying.getsockname()}
        watch = Watch(addresses, patience_seconds=0.05, interval_seconds=0.01)
        try:
            assert (watch.silent(), watch.unanswered()) == (None, None)
            dying.close()
            assert watch.unanswered() == "raylet"
            while watch.silent() is None:
                time.sleep(0.01)
            assert watch.silent() == "raylet"
        finally:
            watch.stop()


@pytest.mark.parametrize(
    ("text", "address"), [("10.0.0.1:6379", ("10.0.0.1", 6379)), ("[fd00::1]:6379", ("fd00::1", 6379))]
)
def test_addresses_of_both_families_are_read(text, address) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize("jump", [0.0, -LEFTOVER_SECONDS, LEFTOVER_SECONDS + 3600])
def test_leftovers_go_when_they_are_old_and_nothing_else_does(tmp_path, jump) -> None:
    old = [".progress.json.0123.tmp", "shards/digits/.000000-clean-0.parquet.0123.tmp", ".lease.0123.successor"]
    kept = ["progress.json", "shards/digits/000000-clean-0.parquet", "shards/digits/.000001-clean-0.parquet.4567.tmp"]
    now = time.time()
    for name in old + kept:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        age = 60.0 if name == kept[-1] else 2 * LEFTOVER_SECONDS
        os.utime(path, (now - age, now - age))
    removed = remove_leftovers(tmp_path, clock=lambda: now + jump)
    # Only a clock that is a day ahead takes a file in the making for one that was left; its writer then fails.
    assert removed == len(old) + (jump > LEFTOVER_SECONDS)
    assert not any((tmp_path / name).exists() for name in old)
    assert all((tmp_path / name).exists() for name in kept[:2])


@pytest.mark.parametrize("is_far", [False, True], ids=["within", "elsewhere"])
def test_a_run_removes_old_leftovers_wherever_its_shards_lie(make_sweep, tmp_path, is_far) -> None:
    far = tmp_path / "far"
    config = make_sweep(keys={"clean": {}}, architectures=[21], **({"shards": far.as_uri()} if is_far else {}))
    ShardStore.create(config.results, shards=config.shards or "")
    root = far if is_far else config.results / "shards"
    old, young = root / "digits/.000000-clean-0.parquet.0123.tmp", root / "digits/.000001-clean-0.parquet.4567.tmp"
    for path, age in ((old, 2 * LEFTOVER_SECONDS), (young, 60.0)):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        os.utime(path, (time.time() - age,) * 2)
    assert run_sweep(config, make_executor).complete
    assert (old.exists(), young.exists()) == (False, True)
