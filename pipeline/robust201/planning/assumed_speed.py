"""How fast a worker is assumed to be, for estimates and for cutting long units; no part of any result's identity."""

from robust201.planning.config import ExecutionSection

GPU_GMACS = 2000.0
"""Billion multiply-accumulates a second that one GPU is assumed to sustain."""

CPU_GMACS = 10.0
"""The same of a worker with one thread on a CPU: at the low end, where cells mostly pool, so that parts end in time."""


ANY_GMACS = 100.0
"""The same of a worker of either kind, where nothing may follow from which it is: between the two."""


def is_cpu(execution: ExecutionSection, has_gpu: bool | None = None) -> bool:
    """Whether workers compute on a CPU; a device chosen later counts as a GPU until `has_gpu` says what it is."""
    return execution.device == "cpu" or has_gpu is False


def assumed_gmacs(execution: ExecutionSection, has_gpu: bool | None = None) -> float:
    """Speed of one worker in billion multiply-accumulates a second.

    Without `has_gpu` it follows from the sweep alone, never from the machine that plans: shares divide a sweep by it on
    any machine.
    """
    if execution.gmacs_per_second is not None:
        return execution.gmacs_per_second
    return cpu_gmacs(execution) if is_cpu(execution, has_gpu) else GPU_GMACS


def cpu_gmacs(execution: ExecutionSection) -> float:
    """Speed of one worker on a CPU, as far as the sweep does not say it, in the same unit."""
    return CPU_GMACS * execution.threads


def may_turn_out_slow(execution: ExecutionSection) -> bool:
    """Whether a GPU's speed is assumed of workers that may find none."""
    return execution.gmacs_per_second is None and execution.device == "auto"
