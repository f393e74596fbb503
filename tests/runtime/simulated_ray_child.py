"""Simulation of the child process that connects to Ray.

The environment variable SIMULATED_CHILD_FOLDER names a folder with a file `orders`. Its n-th line is the order that
the n-th child follows, such as "die at a poll"; all later children follow the last line.
"""

import os
import subprocess
import time
from pathlib import Path
from typing import Any

from robust201.core.records import Bundle, Receipt
from robust201.runtime.executors import ray_process
from robust201.runtime.executors.base import BundleDone, Event


class _Executor:
    """Executor that completes its bundles at the second poll, unless its order is to die, to fail or to be slow."""

    gpus_per_worker = 0.0
    n_workers = 2

    def __init__(self, order: str) -> None:
        self.order = order
        self.submitted: list[Bundle] = []
        self.n_polls = 0

    def free_slots(self) -> int:
        return 4 - len(self.submitted)

    def submit(self, bundle: Bundle) -> None:
        self.submitted.append(bundle)

    def drain(self) -> None:
        self.submitted = []

    def close(self) -> None:
        self.submitted = []

    def poll(self, timeout: float) -> list[Event]:
        self.n_polls += 1
        if self.order == "die at a poll" or (self.order == "die after a receipt" and self.n_polls > 2):
            os._exit(1)
        if self.n_polls == 1 or self.order == "be slow":
            time.sleep(timeout)
            return []
        receipts = [Receipt("unit", (1.0,), 0, 10, "shard", 1.0)] if self.order == "die after a receipt" else []
        completed = [] if receipts else [BundleDone(bundle) for bundle in self.submitted]
        self.submitted = self.submitted if receipts else []
        return [*receipts, *completed]


def run_child(descriptor: int, folder: str) -> None:
    """Record the start of a child, and answer the driver's requests with a simulated executor."""
    orders_folder = Path(os.environ["SIMULATED_CHILD_FOLDER"])
    starts = orders_folder / "starts"
    with starts.open("a") as stream:
        stream.write(f"{os.getpid()} {folder}\n")
    order_lines = (orders_folder / "orders").read_text().splitlines()
    order = order_lines[min(len(starts.read_text().splitlines()), len(order_lines)) - 1]
    sleeper = subprocess.Popen(["sleep", "600"], process_group=0)  # in a separate process group, like Ray's workers
    (orders_folder / "sleeper").write_text(str(sleeper.pid))

    def start_executor(messages: Any, folder: Path) -> _Executor:
        del folder
        messages.get()
        if order == "die":
            os._exit(1)
        if order == "raise":
            raise Exception("The current node timed out during startup. This could happen")
        return _Executor(order)

    kill_session = ray_process.kill_session

    def kill_session_late(*arguments: Any, **options: Any) -> None:
        """Delay the first kill of the session by two seconds."""
        ray_process.kill_session = kill_session
        time.sleep(2)
        kill_session(*arguments, **options)

    if order == "be slow":
        ray_process.kill_session = kill_session_late
    ray_process._start_executor = start_executor
    ray_process.run_child(descriptor, folder)
