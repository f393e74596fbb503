"""Leases with holders whose process is hidden, and with holders whose heartbeat hangs."""

import os
import threading

import pytest

from robust201.core import host
from robust201.core.errors import LeaseHeldError
from robust201.runtime import lease as lease_module
from robust201.runtime.lease import LEASE_NAME, STALE_INTERVALS
from tests.support.lease_support import SHORT_INTERVAL, THIS_HOST, Clock, acquire, dead_pid, wait_for, write_stale_lease


@pytest.mark.parametrize("changes", [{}, {"process_start": -1}], ids=["known start", "unknown start"])
@pytest.mark.parametrize("error", [None, PermissionError], ids=["process of the same user", "process of another user"])
def test_live_holder_with_hidden_process_is_judged_by_heartbeat(tmp_path, monkeypatch, changes, error):
    """The process is hidden if /proc is mounted with hidepid=2, or if there is no /proc."""
    holder = write_stale_lease(tmp_path, **changes)
    monkeypatch.setattr(host, "_PROC", tmp_path / "hidden")
    if error is not None:
        monkeypatch.setattr(os, "kill", lambda _pid, _signal: (_ for _ in ()).throw(error()))
    clock = Clock(lambda _now: (tmp_path / LEASE_NAME).write_bytes(holder.next_beat().to_bytes()))
    with pytest.raises(LeaseHeldError, match="which is alive"):
        acquire(tmp_path, clock, host_id=THIS_HOST)
    holder = write_stale_lease(tmp_path, **changes)
    clock = Clock()
    with acquire(tmp_path, clock, host_id=THIS_HOST):
        assert clock.now > 0


def test_live_holder_with_unknown_start_is_judged_by_heartbeat(tmp_path):
    write_stale_lease(tmp_path, process_start=-1)
    clock = Clock()
    with acquire(tmp_path, clock, host_id=THIS_HOST):
        assert clock.now > 0


@pytest.mark.parametrize("process_start", [-1, 1])
def test_lease_of_ended_holder_is_taken_at_once_even_if_processes_are_hidden(tmp_path, monkeypatch, process_start):
    write_stale_lease(tmp_path, pid=dead_pid(), process_start=process_start)
    monkeypatch.setattr(host, "_PROC", tmp_path / "hidden")
    clock = Clock()
    with acquire(tmp_path, clock, host_id=THIS_HOST):
        assert clock.now == 0


def test_holder_with_hanging_beat_stops_after_stale_intervals(tmp_path, monkeypatch):
    clock = Clock()
    lease = acquire(tmp_path, clock, interval_seconds=SHORT_INTERVAL)
    hanging, resume = threading.Event(), threading.Event()

    def hang(*_args):
        hanging.set()
        resume.wait()

    monkeypatch.setattr(os, "fsync", hang)
    wait_for(hanging.is_set)
    lease.check()
    clock.now += SHORT_INTERVAL * STALE_INTERVALS + 1
    with pytest.raises(LeaseHeldError, match="stops"):
        lease.check()
    assert lease.lost.is_set()
    resume.set()
    lease.release()


def test_release_does_not_wait_for_hanging_beat(tmp_path, monkeypatch):
    lease = acquire(tmp_path, interval_seconds=SHORT_INTERVAL)
    hanging, resume = threading.Event(), threading.Event()

    def hang(*_args):
        hanging.set()
        resume.wait()

    monkeypatch.setattr(os, "fsync", hang)
    monkeypatch.setattr(lease_module, "_JOIN_SECONDS", 0.05, raising=False)
    wait_for(hanging.is_set)
    release_thread = threading.Thread(target=lease.release, daemon=True)
    release_thread.start()
    release_thread.join(10)
    is_released = not release_thread.is_alive()
    resume.set()
    release_thread.join()
    assert is_released
