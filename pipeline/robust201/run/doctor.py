"""Checks of `robust201 doctor`: packages, the device, and the inputs and disk space of a sweep.

Packages that may be missing are imported in the functions that need them.
"""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from robust201.core.errors import ConfigError, RobustError
from robust201.core.files import format_bytes

if TYPE_CHECKING:
    from robust201.sweep.config import SweepConfig

PACKAGES = (
    *("torch", "numpy", "foolbox", "pyautoattack", "ray", "pyarrow", "orjson", "pandas", "scipy", "pydantic"),
    *("safetensors", "altair", "psutil", "fsspec", "scikit-learn", "pillow", "pyyaml", "vl-convert-python"),
)
"""Required packages, except those that only the command line, downloads or searches need."""

_DRIVER_GPUS = Path("/proc/driver/nvidia/gpus")
"""Folder in which NVIDIA's driver for Linux lists its GPUs."""

_REINSTALL = "Install robust201 again with -c constraints.txt."


@dataclass(frozen=True)
class HealthCheck:
    """Result of one check.

    Attributes:
        what: name of the check.
        ok: whether the check has passed.
        detail: observed state.
        fix: advice if the check has failed.
    """

    what: str
    ok: bool
    detail: str
    fix: str = ""


def examine(config: SweepConfig | None) -> Iterator[HealthCheck]:
    """Check this machine and, if `config` is given, the inputs and disk space of its sweep."""
    yield from map(_examine_package, PACKAGES)
    yield from _attempt("cpu kernels", lambda: [_examine_cpu_kernels()])
    yield from _attempt("gpus", lambda: [_examine_gpus()])
    if config is None:
        return
    yield from _attempt("device", lambda: [_examine_device(config)])
    yield from _attempt("disk", lambda: [_examine_disk(config)])
    yield from _attempt("checkpoints", lambda: [_examine_checkpoints(config)])
    for dataset in config.datasets:
        yield from _attempt(dataset, partial(_examine_images, config, dataset))


def _attempt(check_name: str, run_checks: Callable[[], Iterable[HealthCheck]]) -> Iterator[HealthCheck]:
    """Run checks; an error becomes a failed check, so that doctor also works in a broken installation."""
    try:
        yield from run_checks()
    except RobustError as error:
        yield HealthCheck(check_name, ok=False, detail="not readable", fix=str(error))
    except OSError as error:
        fix = f"Check the path and its permissions. If the path belongs to a package: {_REINSTALL}"
        yield HealthCheck(check_name, ok=False, detail=f"not checked: {error}", fix=fix)
    except Exception as error:  # noqa: BLE001 - incompatible packages can raise any error
        yield HealthCheck(check_name, ok=False, detail=f"not checked: {type(error).__name__}: {error}", fix=_REINSTALL)


def _examine_package(package: str) -> HealthCheck:
    try:
        return HealthCheck(package, ok=True, detail=importlib.metadata.version(package))
    except importlib.metadata.PackageNotFoundError:
        return HealthCheck(package, ok=False, detail="not installed", fix=_REINSTALL)


def _examine_cpu_kernels() -> HealthCheck:
    from robust201.networks.spaces import native_library_problem

    reason = native_library_problem()
    if reason is None:
        return HealthCheck("cpu kernels", ok=True, detail="the native library (AVX-512)")
    detail = (
        f"PyTorch's, since the native library cannot be used: {reason}. On a CPU, `engine: fused` takes up to three "
        "times as long as with the library."
    )
    return HealthCheck("cpu kernels", ok=True, detail=detail)


def _examine_gpus() -> HealthCheck:
    """Check that PyTorch can use the GPUs that the driver lists; nvidia-smi may be installed without a GPU."""
    import torch

    from robust201.networks.device import cuda_version, gpu_names

    build, names = f"torch {torch.__version__}, CUDA {cuda_version() or 'none'}", gpu_names()
    if not names and _DRIVER_GPUS.is_dir() and any(_DRIVER_GPUS.iterdir()):
        fix = "Install a build of PyTorch for this driver's CUDA version, or update the driver."
        return HealthCheck("gpus", ok=False, detail=f"{_DRIVER_GPUS} lists GPUs, but {build} finds none", fix=fix)
    gpus = f"{', '.join(names)} ({build})" if names else "none"
    return HealthCheck("gpus", ok=True, detail=f"{gpus}; {len(os.sched_getaffinity(0))} CPU cores")


def _examine_device(config: SweepConfig) -> HealthCheck:
    """Check that this machine has a sweep's device and supports its precision, unless the sweep runs on a cluster."""
    from robust201.run.environment import check_machine

    execution = config.execution
    requested = f"device {execution.device}, precision {config.precision}"
    try:
        check_machine(execution, config.precision)
    except ConfigError as error:
        return HealthCheck("device", ok=False, detail=f"{requested}: not available", fix=str(error))
    is_remote = execution.executor == "ray" and execution.ray_address
    return HealthCheck("device", ok=True, detail=f"{requested}{'; not checked on the cluster' if is_remote else ''}")


def _examine_disk(config: SweepConfig) -> HealthCheck:
    """Check that the folder of the results is writable and has space for the shards if they are stored there."""
    from robust201.sweep.costs import estimate_bytes
    from robust201.sweep.facts import assumed_facts
    from robust201.sweep.plan import choose_slices, make_plan

    path = config.results.absolute()
    folder = next(parent for parent in (path, *path.parents) if parent.is_dir())
    with tempfile.NamedTemporaryFile(dir=folder):
        pass
    plan = make_plan(config, assumed_facts(config), choose_slices(config))
    needed = 0 if config.shards else estimate_bytes(plan)[0]
    free = shutil.disk_usage(folder).free
    detail = f"{folder} is writable; {format_bytes(free)} free, about {format_bytes(needed)} needed"
    return HealthCheck("disk", free > needed, detail, "Free some space, or set `results` to another folder.")


def _examine_checkpoints(config: SweepConfig) -> HealthCheck:
    from robust201.sweep.inputs import Inputs

    inputs = Inputs(config)
    pairs = [(dataset, architecture) for dataset in config.datasets for architecture in config.selected_architectures]
    error_messages: list[str] = []
    for dataset, architecture in pairs:
        try:
            inputs.weights.check(dataset, architecture)
        except RobustError as error:
            error_messages.append(str(error))
    detail = f"usable for {len(pairs) - len(error_messages)} of {len(pairs)} networks"
    return HealthCheck("checkpoints", not error_messages, detail, error_messages[0] if error_messages else "")


def _examine_images(config: SweepConfig, dataset: str) -> Iterator[HealthCheck]:
    """Check the images of a dataset and the published corruptions; other corruptions are generated by the run."""
    from robust201.sweep.inputs import Inputs

    inputs = Inputs(config)
    yield HealthCheck(dataset, ok=True, detail=f"{len(inputs.images(dataset)):,} test images")
    section = config.datasets[dataset].corruptions
    if section is not None and section.source == "published" and section.path is not None:
        inputs.open_published_corruptions(dataset)
        yield HealthCheck(f"{dataset} corruptions", ok=True, detail=f"published files in {section.path}")
