"""The child process that connects to Ray, with injected faults in its actors."""

from robust201.runtime.executors import ray_process


def run_child(descriptor: int, folder: str) -> None:
    from tests.faults import actors

    actors.install()
    ray_process.run_child(descriptor, folder)
