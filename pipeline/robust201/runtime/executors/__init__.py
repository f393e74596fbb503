"""Where bundles are computed: in this process, or on Ray actors. To add one, add a branch to `make_executor`."""

from functools import partial

from robust201.planning.config import SweepConfig
from robust201.planning.facts import Facts
from robust201.planning.plan import Plan
from robust201.runtime.executors.base import BundleWorker, Executor
from robust201.runtime.metrics import Metrics


def check_device(config: SweepConfig) -> None:
    """Refuse a sweep that this process could not compute, before anything is written; a cluster's workers check later.

    Raises:
        ConfigError: the sweep computes here and asks for a GPU, or for a precision, that is not here.
    """
    execution = config.execution
    is_here = execution.executor == "inline" or not execution.ray_address
    if is_here and (execution.device == "cuda" or config.precision == "tf32"):
        from robust201.runtime.devices import choose_device

        choose_device(execution.device, config.precision)


def make_executor(plan: Plan, facts: Facts) -> Executor:
    """Start the executor that the sweep names, whose workers check the hashes of its inputs; close it."""
    start = partial(start_worker, plan.config, facts)
    if plan.config.execution.executor == "inline":
        from robust201.runtime.devices import choose_device
        from robust201.runtime.executors.inline import InlineExecutor

        worker = start(Metrics())
        execution = plan.config.execution
        on_gpu = choose_device(execution.device, plan.config.precision).type == "cuda"
        gpus = execution.gpus_per_worker if on_gpu else 0.0
        return InlineExecutor(worker.run, gpus_per_worker=gpus)
    from robust201.runtime.executors.ray_process import RayProcess

    return RayProcess(plan.config, start)


def start_worker(config: SweepConfig, facts: Facts, metrics: Metrics) -> BundleWorker:
    """Make the worker that evaluates; torch is imported here, so the driver of workers elsewhere goes without it."""
    from robust201.runtime.worker import Worker

    return Worker(config, facts.without_weights(), metrics)
