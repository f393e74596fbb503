"""The driver in this process: signals, deadlines, notices, and parts that can begin only after other parts."""

import signal
import time
import warnings
from typing import NamedTuple

import pytest
import ray
from ray.exceptions import ActorUnschedulableError, RuntimeEnvSetupError

from robust201.core.errors import ConfigError, RobustWarning
from robust201.core.interrupts import SignalInterrupt
from robust201.run import cluster, driver, worker
from robust201.run.driver import Drain, Run, run_work
from robust201.run.executor_ray import RayExecution
from robust201.run.guard import Attachment
from robust201.run.queue import PartQueue
from robust201.run.work import Outcome, Work
from robust201.store.events import Events
from robust201.sweep.config import ExecutionSection
from tests.support.runs import run_inline


class Part(NamedTuple):
    number: int

    @property
    def id(self):
        return self.number

    @property
    def label(self):
        return f"part {self.number}"

    @property
    def network(self):
        return None

    @property
    def fields(self):
        return {"part": self.label}


class NumberedWork(Work):
    """Work with three parts and three further parts, each of which can begin after one of the first three."""

    precision = "fp32"

    def __init__(self, folder, compute, **execution):
        self.execution = ExecutionSection(executor="inline", **execution)
        self.folder, self.parts = folder, [Part(number) for number in (0, 1, 2)]
        self.n_planned, self.n_done = 6, 0
        self.finished = []
        self.start_worker = lambda _run: NumberWorker(compute)

    def find_stored(self, part):
        return None

    def finish(self, part, outcome):
        self.finished.append(part.number)
        self.n_done += not outcome.failure
        return [Part(part.number + 10)] if part.number < 10 else []

    def seconds_left(self, n_workers):
        return None


class NumberWorker:
    def __init__(self, compute):
        self._compute = compute

    def compute(self, part, should_stop):
        return self._compute(part, should_stop) or Outcome(part.label, notices=("be careful",))

    def close(self):
        pass


def test_dependent_parts_are_computed_and_notices_are_shown_once(tmp_path):
    lines, work = [], NumberedWork(tmp_path, lambda _part, _should_stop: None)
    tally = run_work(work, lines.append)
    assert (sorted(work.finished), tally.is_complete) == ([0, 1, 2, 10, 11, 12], True)
    assert lines == ["warning: be careful"]


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_first_signal_asks_the_part_in_progress_to_stop(tmp_path, signum):
    def compute(part, should_stop):
        assert not should_stop()
        signal.raise_signal(signum)
        assert should_stop()

    handler_before = signal.getsignal(signum)
    tally = run_work(NumberedWork(tmp_path, compute), lambda _line: None)
    assert (tally.n_parts, tally.is_drained, tally.is_out_of_time) == (1, True, signum == signal.SIGUSR1)
    assert signal.getsignal(signum) == handler_before


@pytest.mark.parametrize(("second_signal", "repeat_seconds"), [(signal.SIGINT, 0.0), (signal.SIGTERM, 60.0)])
def test_second_signal_ends_the_run(tmp_path, monkeypatch, second_signal, repeat_seconds):
    def compute(part, should_stop):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(second_signal)

    monkeypatch.setattr(driver, "REPEAT_SECONDS", repeat_seconds)
    with pytest.raises(SignalInterrupt):
        run_work(NumberedWork(tmp_path, compute), lambda _line: None)


def test_signal_that_arrives_directly_and_from_the_guard_counts_once(tmp_path):
    def compute(part, should_stop):
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)

    tally = run_work(NumberedWork(tmp_path, compute), lambda _line: None)
    assert (tally.n_parts, tally.is_drained) == (1, True)


def test_part_that_does_not_end_in_time_is_abandoned(tmp_path):
    def compute(part, should_stop):
        signal.raise_signal(signal.SIGTERM)
        time.sleep(60)

    tally = run_work(NumberedWork(tmp_path, compute, drain_seconds=0.05), lambda _line: None)
    assert (tally.n_parts, tally.n_abandoned, tally.is_drained) == (0, 1, True)


def test_warnings_of_workers_reach_the_user(make_sweep, monkeypatch):
    def warn(*arguments, **options):
        warnings.warn("weak attack.", RobustWarning, stacklevel=1)
        yield from evaluate_part(*arguments, **options)

    evaluate_part = worker.evaluate_part
    monkeypatch.setattr(worker, "evaluate_part", warn)
    outcomes = []
    monkeypatch.setattr(driver.Tally, "count", lambda _tally, outcome, _n_done: outcomes.append(outcome))
    run_inline(make_sweep(keys={"clean": {}}, images={"count": 20, "seed": 0}))
    assert {outcome.notices for outcome in outcomes} == {("weak attack",)}


@pytest.mark.parametrize(
    "error", [RuntimeEnvSetupError("no such package"), ActorUnschedulableError("no such resource")]
)
def test_workers_that_ray_cannot_start_give_a_config_error(monkeypatch, error):
    def fail(*_calls, **_options):
        raise error

    monkeypatch.setattr(ray, "wait", fail)
    workers = object.__new__(cluster.Cluster)  # without a connection to Ray
    workers._slots = []
    with pytest.raises(ConfigError, match="no such"):
        workers.wait(1.0)


def test_heartbeats_cover_only_calls_to_ray_and_output_of_ray_is_hidden(tmp_path, monkeypatch, capsys):
    log = []

    class FakeCluster:
        n_in_flight, n_busy = 0, 1

        def __init__(self, *_arguments):
            log.append("ray")

        def fill(self, take):
            self.part = take(None)

        def wait(self, _seconds):
            log.append("ray")
            print("a message of Ray")
            return [cluster.FinishedPart(self.part, Outcome(self.part.label))]

        close = __init__

    work = NumberedWork(tmp_path, None)
    monkeypatch.setattr(work, "finish", lambda *_arguments: log.append("finish") or [])
    monkeypatch.setattr(cluster, "Cluster", FakeCluster)
    attachment = Attachment(tmp_path, lambda message: log.append(message.decode()))
    run = Run(work, PartQueue(work.parts, 1), lambda _line: None, lambda *_progress: None)
    with Events(tmp_path, "driver") as events:
        RayExecution(run, events, Drain(), attachment).compute()
    last_messages = {entry: set() for entry in log}
    message = None
    for entry in log:
        last_messages[entry].add(message)
        message = entry if entry in {"b", "e"} else message  # heartbeat, end
    assert (last_messages["ray"], last_messages["finish"], message) == ({"b"}, {"e"}, "e")
    assert capsys.readouterr().out == ""
