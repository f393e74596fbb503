"""Leases for tests: a manual clock, and holders that are dead or on other hosts."""

import dataclasses
import subprocess
import sys
import time

from robust201.core.host import HostId
from robust201.runtime.lease import LEASE_NAME, Holder, Lease

HERE = HostId.of_this_process()
ELSEWHERE = HostId("node7", "other-machine", "other-boot", "pid:[1]")
QUICK = 0.02


class Clock:
    """A clock that only advances when it sleeps."""

    def __init__(self, on_sleep=lambda _now: None):
        self.now = 0.0
        self.on_sleep = on_sleep

    def __call__(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds
        self.on_sleep(self.now)


def acquire(root, clock=None, **named):
    clock = clock or Clock()
    return Lease.acquire(root, clock=clock, sleep=clock.sleep, **named)


def write_stale_lease(root, host_id=HERE, **changes):
    """Write the lease of a killed holder."""
    holder = dataclasses.replace(Holder.new(host_id, 5.0), **changes)
    (root / LEASE_NAME).write_bytes(holder.to_bytes())
    return holder


def wait_for(condition):
    for _ in range(1000):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("the condition was still false after ten seconds")


def dead_pid():
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid
