"""Helpers for tests of leases: a simulated clock, and leases of killed processes and of other hosts."""

import dataclasses
import time

from robust201.core.host import HostId
from robust201.runtime.lease import LEASE_NAME, Holder, Lease

THIS_HOST = HostId.of_this_process()
OTHER_HOST = HostId("node7", "other-machine", "other-boot", "pid:[1]")
SHORT_INTERVAL = 0.02  # seconds between beats


class Clock:
    """Clock that only advances when it sleeps."""

    def __init__(self, on_sleep=lambda _now: None):
        self.now = 0.0
        self.on_sleep = on_sleep

    def __call__(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds
        self.on_sleep(self.now)


def acquire(root, clock=None, **options):
    clock = clock or Clock()
    return Lease.acquire(root, clock=clock, sleep=clock.sleep, **options)


def write_stale_lease(root, host_id=THIS_HOST, **changes):
    """Write a lease that looks as if its holder had been killed; return the holder."""
    holder = dataclasses.replace(Holder.new(host_id, 5.0), **changes)
    (root / LEASE_NAME).write_bytes(holder.to_bytes())
    return holder


def wait_for(condition):
    for _ in range(1000):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("the condition did not become true within ten seconds")
