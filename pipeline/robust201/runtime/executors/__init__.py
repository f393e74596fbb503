"""Where bundles are computed: in this process, or on Ray actors. To add one, add a branch to `make_executor`."""

import math
import os
from functools import partial

from robust201.core.errors import ConfigError
from robust201.planning.config import ExecutionSection, SweepConfig
from robust201.planning.input_facts import InputFacts
from robust201.planning.plan import Plan
from robust201.runtime.executors.base import BundleWorker, Executor, StartWorker, WorkSettings, fitting_workers
from robust201.runtime.metrics import Metrics


def check_device(config: WorkSettings) -> None:
    """Refuse work that this process could not do, before anything is written; a cluster's workers check later."""
    execution = config.execution
    if execution.executor == "ray" and not execution.ray_address:
        _check_cores(execution)
    is_here = execution.executor == "inline" or not execution.ray_address
    if is_here and (execution.device == "cuda" or config.precision != "fp32"):
        from robust201.runtime.devices import choose_device

        choose_device(execution.device, config.precision)


def _check_cores(execution: ExecutionSection) -> None:
    n_cores, n_workers = len(os.sched_getaffinity(0)), execution.workers or 1
    room = fitting_workers(n_cores, execution.cpus_per_worker)
    if n_workers <= room:
        return
    share = math.floor(100 * n_cores / n_workers) / 100
    changes = [f"execution.workers: {room}"] * (room > 0) + [f"execution.cpus_per_worker: {share:g}"] * (share > 0)
    raise ConfigError(
        f"Starting {n_workers:,} workers failed for this machine: expected execution.cpus_per_worker "
        f"({execution.cpus_per_worker:g}) CPU cores for each, got {n_cores} in all. Set {' or '.join(changes)}."
    )


def make_executor(plan: Plan) -> Executor:
    """Start the executor that the sweep names, whose workers check the hashes of its inputs; close it."""
    return start_executor(plan.config, partial(start_worker, plan.config, plan.facts))


def start_executor(config: WorkSettings, start_worker: StartWorker) -> Executor:
    """Start the executor that a sweep or trainings name, with workers of any kind; close it."""
    execution = config.execution
    if execution.executor == "inline":
        from robust201.runtime.devices import choose_device
        from robust201.runtime.executors.inline import InlineExecutor

        worker = start_worker(Metrics())
        on_gpu = choose_device(execution.device, config.precision).type == "cuda"
        return InlineExecutor(
            worker.run, on_drain=worker.drain, gpus_per_worker=execution.gpus_per_worker if on_gpu else 0.0
        )
    from robust201.runtime.executors.ray_process import RayProcess

    return RayProcess(config, start_worker)


def start_worker(config: SweepConfig, facts: InputFacts, metrics: Metrics) -> BundleWorker:
    """Make the worker that evaluates; torch is imported here, so the driver of workers elsewhere goes without it."""
    from robust201.runtime.worker import Worker

    return Worker(config, facts.without_weights(), metrics)
