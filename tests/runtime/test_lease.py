"""The lease allows only one driver at a time: a live holder keeps it, and exactly one driver replaces a dead holder."""

import contextlib
import dataclasses
import errno
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from robust201.core.errors import LeaseHeldError, StorageError, StorageFullError
from robust201.core.host import has_ended, process_start
from robust201.runtime.lease import LEASE_NAME, STALE_INTERVALS, Holder
from tests.support.irregular_files import OBSTACLES, replace
from tests.support.lease_support import (
    OTHER_HOST,
    SHORT_INTERVAL,
    THIS_HOST,
    Clock,
    acquire,
    dead_pid,
    wait_for,
    write_stale_lease,
)

REPOSITORY = Path(__file__).resolve().parents[2]


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


def test_lease_that_cannot_be_removed_looks_dead(tmp_path, monkeypatch):
    def raise_error(path, **_options):
        raise OSError(errno.EROFS, "Read-only file system")

    lease = acquire(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", raise_error)
        with pytest.raises(OSError, match="Read-only"):
            lease.release()
    assert (tmp_path / LEASE_NAME).stat().st_mtime == 0


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


def test_heartbeat_updates_lease_file_in_place(tmp_path):
    with acquire(tmp_path, interval_seconds=SHORT_INTERVAL):
        inode = (tmp_path / LEASE_NAME).stat().st_ino
        wait_for(lambda: (Holder.read(tmp_path / LEASE_NAME).heartbeat) >= 3)
        assert (tmp_path / LEASE_NAME).stat().st_ino == inode


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


def test_ended_holder_is_replaced_immediately(tmp_path):
    write_stale_lease(tmp_path, pid=dead_pid())
    clock = Clock()
    with acquire(tmp_path, clock):
        assert clock.now == 0


def test_zombie_process_counts_as_ended():
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        wait_for(lambda: process_start(process.pid) is None)
        assert Path(f"/proc/{process.pid}").exists()
        assert has_ended(process.pid, None)


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


def test_lease_does_not_compare_wall_clocks(tmp_path):
    holder = write_stale_lease(tmp_path, OTHER_HOST, since="1999-01-01T00:00:00+00:00")
    os.utime(tmp_path / LEASE_NAME, (0, 0))
    clock = Clock(lambda _now: (tmp_path / LEASE_NAME).write_bytes(holder.next_beat().to_bytes()))
    with pytest.raises(LeaseHeldError):
        acquire(tmp_path, clock)


def test_holder_in_another_container_is_judged_by_heartbeat(tmp_path):
    write_stale_lease(tmp_path, dataclasses.replace(THIS_HOST, pid_namespace="pid:[1]"), pid=dead_pid())
    clock = Clock()
    with acquire(tmp_path, clock):
        assert clock.now > 0


@pytest.mark.parametrize("content", [b"", b"nonsense", b"[]", b'{"pid": 1}'])
def test_invalid_lease_is_observed_then_replaced(tmp_path, content):
    (tmp_path / LEASE_NAME).write_bytes(content)
    clock = Clock()
    with acquire(tmp_path, clock):
        assert clock.now > 0
    assert list(tmp_path.iterdir()) == []


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


def test_holder_notices_deleted_lease(tmp_path):
    lease = acquire(tmp_path, interval_seconds=SHORT_INTERVAL)
    (tmp_path / LEASE_NAME).unlink()
    wait_for(lease.lost.is_set)
    with pytest.raises(LeaseHeldError, match=r"lease\.json does not exist"):
        lease.check()
    lease.release()


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


def test_dead_successor_is_replaced(tmp_path):
    dead_holder = write_stale_lease(tmp_path, process_start=1)
    dead_successor = dataclasses.replace(Holder.new(THIS_HOST, 5.0), process_start=1)
    (tmp_path / f".lease.{dead_holder.nonce}.successor").write_bytes(dead_successor.to_bytes())
    with acquire(tmp_path) as lease:
        assert Holder.read(tmp_path / LEASE_NAME).nonce == lease.holder.nonce
        assert leftover_files(tmp_path) == []


def test_live_successor_keeps_claim(tmp_path):
    dead_holder = write_stale_lease(tmp_path, process_start=1)
    (tmp_path / f".lease.{dead_holder.nonce}.successor").write_bytes(Holder.new(THIS_HOST, 5.0).to_bytes())
    with pytest.raises(LeaseHeldError):
        acquire(tmp_path)
    assert Holder.read(tmp_path / LEASE_NAME) == dead_holder


def test_late_successor_detects_replaced_lease(tmp_path, monkeypatch):
    """A driver finds the holder dead, but before it can act, another driver replaces the lease."""
    write_stale_lease(tmp_path, process_start=1)
    is_dead_for, winning_leases = Holder.is_dead_for, []

    def judge_late(holder, observer):
        is_dead = is_dead_for(holder, observer)
        if is_dead and not winning_leases:
            winning_leases.append(None)
            winning_leases[0] = acquire(tmp_path)
        return is_dead

    monkeypatch.setattr(Holder, "is_dead_for", judge_late)
    with pytest.raises(LeaseHeldError):
        acquire(tmp_path)
    winning_leases[0].check()
    assert Holder.read(tmp_path / LEASE_NAME).nonce == winning_leases[0].holder.nonce
    assert leftover_files(tmp_path) == []
    winning_leases[0].release()


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


def test_lease_reports_full_disk(tmp_path, monkeypatch):
    def raise_disk_full(*_args):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", raise_disk_full)
    with pytest.raises(StorageFullError, match="Free some space"):
        acquire(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_lease_reports_file_system_without_hard_links(tmp_path, monkeypatch):
    def raise_error(*_args):
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", raise_error)
    with pytest.raises(StorageError, match="does not support hard links"):
        acquire(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_lease_is_acquired_if_reply_to_successful_link_was_lost(tmp_path, monkeypatch):
    link = os.link

    def link_and_lose_reply(*args):
        link(*args)
        raise FileExistsError(errno.EEXIST, "sent again after the reply was lost")

    monkeypatch.setattr(os, "link", link_and_lose_reply)
    with acquire(tmp_path) as lease:
        lease.check()


@pytest.mark.parametrize("obstacle", OBSTACLES)
def test_lease_path_that_is_not_a_small_file_is_rejected(tmp_path, obstacle):
    replace(tmp_path / LEASE_NAME, obstacle)
    clock = Clock()
    with pytest.raises(StorageError, match=r"lease\.json: expected a lease or no file, got .*Move it elsewhere"):
        acquire(tmp_path, clock)
    assert clock.now == 0
    assert [path.name for path in tmp_path.iterdir()] == [LEASE_NAME]


def run_out_of_memory(*_args):
    raise MemoryError


def test_lease_survives_beats_that_run_out_of_memory(tmp_path, monkeypatch):
    clock = Clock()
    with acquire(tmp_path, clock, interval_seconds=SHORT_INTERVAL) as lease:
        with monkeypatch.context() as patch:
            patch.setattr(Holder, "read", run_out_of_memory)
            wait_for(lambda: lease._beat_error is not None)
        n_beats = lease.holder.heartbeat
        wait_for(lambda: lease.holder.heartbeat > n_beats)
        lease.check()


def test_lease_is_lost_if_all_beats_run_out_of_memory(tmp_path, monkeypatch):
    clock = Clock()
    lease = acquire(tmp_path, clock, interval_seconds=SHORT_INTERVAL)
    with monkeypatch.context() as patch:
        patch.setattr(Holder, "read", run_out_of_memory)
        wait_for(lambda: lease._beat_error is not None)
        clock.now += SHORT_INTERVAL * STALE_INTERVALS + 1
        wait_for(lease.lost.is_set)
        with pytest.raises(LeaseHeldError, match=r"its heartbeat fails \(MemoryError"):
            lease.check()
    lease.release()
