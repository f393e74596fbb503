"""Where bundles are computed: in this process, or on Ray actors. To add one, add a branch to `make_executor`."""

from functools import partial

from robust201.planning.config import SweepConfig
from robust201.planning.facts import Facts
from robust201.planning.plan import Plan
from robust201.runtime.executors.base import BundleWorker, Executor, StartWorker, WorkSettings
from robust201.runtime.metrics import Metrics


def check_device(config: WorkSettings) -> None:
    """Refuse work that this process could not do, before anything is written; a cluster's workers check later.

    Raises:
        ConfigError: it is done here and asks for a GPU, or for a precision, that is not here.
    """
    execution = config.execution
    is_here = execution.executor == "inline" or not execution.ray_address
    if is_here and (execution.device == "cuda" or config.precision == "tf32"):
        from robust201.runtime.devices import choose_device

        choose_device(execution.device, config.precision)


def make_executor(plan: Plan, facts: Facts) -> Executor:
    """Start the executor that the sweep names, whose workers check the hashes of its inputs; close it."""
    return start_executor(plan.config, partial(start_worker, plan.config, facts))


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


def start_worker(config: SweepConfig, facts: Facts, metrics: Metrics) -> BundleWorker:
    """Make the worker that evaluates; torch is imported here, so the driver of workers elsewhere goes without it."""
    from robust201.runtime.worker import Worker

    return Worker(config, facts.without_weights(), metrics)
