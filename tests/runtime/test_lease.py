"""The lease allows only one driver at a time: a live holder keeps it, and exactly one driver replaces a dead holder."""

import contextlib
import dataclasses
import errno
import os
import threading

import pytest

from robust201.core.errors import LeaseHeldError
from robust201.runtime.lease import LEASE_NAME, STALE_INTERVALS, Holder
from tests.support.lease_support import (
    OTHER_HOST,
    SHORT_INTERVAL,
    THIS_HOST,
    Clock,
    acquire,
    wait_for,
    write_stale_lease,
)


def leftover_files(root):
    return sorted(path.name for path in root.iterdir() if path.name != LEASE_NAME)


def test_lease_file_exists_until_release(tmp_path):
    with acquire(tmp_path) as lease:
        holder = Holder.read(tmp_path / LEASE_NAME)
        assert holder.pid == os.getpid()
        assert holder.host_id == THIS_HOST
        assert not lease.lost.is_set()
        lease.check()
    assert list(tmp_path.iterdir()) == []
    lease.release()


def test_second_driver_is_rejected_with_name_of_holder(tmp_path):
    with acquire(tmp_path) as lease:
        with pytest.raises(LeaseHeldError) as error:
            acquire(tmp_path)
        message = str(error.value)
        assert error.value.exit_code == 4
        for detail in (f"process {os.getpid()}", THIS_HOST.host, lease.holder.since, "Wait until it ends"):
            assert detail in message
        lease.check()
    assert leftover_files(tmp_path) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"host_id": dataclasses.replace(THIS_HOST, boot_id="an-earlier-boot")},
        {"process_start": 1},
    ],
    ids=["earlier boot", "reused process id"],
)
def test_dead_holder_on_this_host_is_replaced_immediately(tmp_path, changes):
    write_stale_lease(tmp_path, **changes)
    clock = Clock()
    with acquire(tmp_path, clock) as lease:
        assert clock.now == 0
        assert Holder.read(tmp_path / LEASE_NAME).nonce == lease.holder.nonce
        assert leftover_files(tmp_path) == []


def test_silent_holder_on_another_host_is_replaced_after_stale_intervals(tmp_path):
    write_stale_lease(tmp_path, OTHER_HOST, interval_seconds=7.0)
    clock, messages = Clock(), []
    with acquire(tmp_path, clock, on_wait=messages.append):
        assert clock.now == pytest.approx(7.0 * STALE_INTERVALS)
    assert "watching its heartbeat for 42 s" in messages[0]


def test_live_holder_on_another_host_keeps_lease(tmp_path):
    holder = write_stale_lease(tmp_path, OTHER_HOST)

    def beat(seconds):
        if seconds > 20:
            (tmp_path / LEASE_NAME).write_bytes(holder.next_beat().to_bytes())

    with pytest.raises(LeaseHeldError, match="on node7 since"):
        acquire(tmp_path, Clock(beat))
    assert Holder.read(tmp_path / LEASE_NAME) == holder.next_beat()
    assert leftover_files(tmp_path) == []


def test_replaced_holder_notices_and_does_not_remove_new_lease(tmp_path):
    lease = acquire(tmp_path, interval_seconds=SHORT_INTERVAL)
    new_holder = Holder.new(OTHER_HOST, 5.0)
    new_path = tmp_path / "new"
    new_path.write_bytes(new_holder.to_bytes())
    new_path.replace(tmp_path / LEASE_NAME)
    wait_for(lease.lost.is_set)
    with pytest.raises(LeaseHeldError, match=r"is held by process .* on node7"):
        lease.check()
    lease.release()
    assert Holder.read(tmp_path / LEASE_NAME) == new_holder


def test_holder_that_cannot_beat_loses_lease_after_stale_intervals(tmp_path, monkeypatch):
    clock = Clock()
    lease = acquire(tmp_path, clock, interval_seconds=SHORT_INTERVAL)
    failed = threading.Event()

    def fail(*_args):
        failed.set()
        raise OSError(errno.EIO, "the file server is away")

    monkeypatch.setattr(os, "pwrite", fail)
    wait_for(failed.is_set)
    assert not lease.lost.is_set()
    clock.now += SHORT_INTERVAL * STALE_INTERVALS + 1
    wait_for(lease.lost.is_set)
    lease.release()


def test_exactly_one_of_several_drivers_takes_dead_lease(tmp_path):
    for round_number in range(30):
        if round_number:
            write_stale_lease(tmp_path, process_start=1)
        leases, barrier = [], threading.Barrier(4)

        def take(leases=leases, barrier=barrier):
            barrier.wait()
            with contextlib.suppress(LeaseHeldError):
                leases.append(acquire(tmp_path))

        threads = [threading.Thread(target=take) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        (lease,) = leases
        assert Holder.read(tmp_path / LEASE_NAME).nonce == lease.holder.nonce
        assert leftover_files(tmp_path) == []
        lease.release()
