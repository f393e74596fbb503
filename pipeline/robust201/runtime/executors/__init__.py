"""Executors, which compute bundles in this process or on Ray actors; add a new one to `start_executor`."""

import math
import os
from functools import partial

from robust201.core.errors import ConfigError
from robust201.core.input_facts import InputFacts
from robust201.planning.plan import Plan
from robust201.runtime.executors.base import BundleWorker, Executor, StartWorker, WorkSettings, count_fitting_workers
from robust201.sweep.config import ExecutionSection, SweepConfig


def check_device(config: WorkSettings) -> None:
    """Check this machine's cores and device before anything is written.

    Nothing is checked for a cluster, whose workers check their devices when they start.
    """
    execution = config.execution
    if execution.executor == "ray" and not execution.ray_address:
        _check_cores(execution)
    is_local = execution.executor == "inline" or not execution.ray_address
    if is_local and (execution.requires_gpu or config.precision != "fp32"):
        from robust201.models.device import choose_device

        choose_device(execution.device, config.precision)


def _check_cores(execution: ExecutionSection) -> None:
    n_cores, n_workers = len(os.sched_getaffinity(0)), execution.workers or 1
    max_workers = count_fitting_workers(n_cores, execution.cpus_per_worker)
    if n_workers <= max_workers:
        return
    max_cores_per_worker = math.floor(100 * n_cores / n_workers) / 100
    remedies = [f"execution.workers: {max_workers}"] if max_workers > 0 else []
    if max_cores_per_worker > 0:
        remedies.append(f"execution.cpus_per_worker: {max_cores_per_worker:g}")
    if not remedies:
        remedies.append(f"execution.workers: {n_cores} and execution.cpus_per_worker: 1")
    workers = "1 worker" if n_workers == 1 else f"{n_workers:,} workers"
    raise ConfigError(
        f"Starting {workers} failed for this machine: each needs {execution.cpus_per_worker:g} CPU cores "
        f"(execution.cpus_per_worker), but the machine has {n_cores} in total. Set {' or '.join(remedies)}."
    )


def make_executor(plan: Plan) -> Executor:
    """Start a sweep's executor, which the caller must close; its workers check the hashes of the inputs."""
    return start_executor(plan.config, partial(start_worker, plan.config, plan.facts))


def start_executor(config: WorkSettings, start_worker: StartWorker) -> Executor:
    """Start the executor chosen in the settings, which the caller must close; `start_worker` creates its workers."""
    execution = config.execution
    if execution.executor == "inline":
        from robust201.models.device import choose_device, is_gpu
        from robust201.runtime.executors.inline import InlineExecutor

        worker = start_worker()
        is_on_gpu = is_gpu(choose_device(execution.device, config.precision))
        return InlineExecutor(
            worker.run, on_drain=worker.drain, gpus_per_worker=execution.gpus_per_worker if is_on_gpu else 0.0
        )
    from robust201.runtime.executors.ray_process import RayProcess

    return RayProcess(config, start_worker)


def start_worker(config: SweepConfig, facts: InputFacts) -> BundleWorker:
    """Create a sweep's worker; torch is imported here, so that a driver with remote workers never imports it."""
    from robust201.runtime.worker import Worker

    return Worker(config, facts.without_weights())
