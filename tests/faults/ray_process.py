"""Replacement for the module of the child process that connects to Ray; its actors inject faults."""

from robust201.runtime.executors import ray_process


def run_child(descriptor: int, folder: str) -> None:
    from tests.faults import actors

    actors.install()
    ray_process.run_child(descriptor, folder)
