"""Checks of `robust201 doctor`: the installation, the device and the inputs of a sweep, with advice for each problem.

Packages that may be missing are imported in the functions that need them.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from robust201.core.errors import ConfigError, RobustError
from robust201.core.files import format_bytes

if TYPE_CHECKING:
    from robust201.planning.config import SweepConfig

PACKAGES = {
    **{name: name for name in ("torch", "numpy", "foolbox", "pyautoattack", "ray", "pyarrow", "orjson", "pandas")},
    **{name: name for name in ("scipy", "pydantic", "safetensors", "altair", "psutil", "fsspec")},
    "scikit-learn": "sklearn",
    "pillow": "PIL",
    "pyyaml": "yaml",
    "vl-convert-python": "vl_convert",
}
"""Module of each required package, by the package's name. Packages that only the command line needs are left out."""

_REINSTALL = "Install robust201 again with -c constraints.txt."


@dataclass(frozen=True)
class HealthCheck:
    """Result of one check.

    Attributes:
        what: name of the check.
        ok: whether the check has passed.
        detail: observed state.
        fix: advice.
        warns: whether the user should follow the advice although the check has passed.
    """

    what: str
    ok: bool
    detail: str
    fix: str = ""
    warns: bool = False


def examine(config: SweepConfig | None) -> Iterator[HealthCheck]:
    """Check this machine and, if `config` is given, the inputs of its sweep."""
    yield _examine_python()
    for package, module in PACKAGES.items():
        yield _examine_package(package, module)
    yield from _attempt("cpu kernels", lambda: [_examine_cpu_kernels()])
    yield from _attempt("gpus", lambda: [_examine_gpus()])
    yield from _attempt("temporary folders", _examine_leftovers)
    if config is not None:
        yield from _examine_sweep(config)


def _examine_sweep(config: SweepConfig) -> Iterator[HealthCheck]:
    yield from _attempt("sweep", lambda: _examine_warnings(config))
    yield from _attempt("device", lambda: [_examine_device(config)])
    yield from _attempt("results", lambda: [_examine_results(config.results)])
    if url := config.shards:
        yield from _attempt("shards", lambda: [_examine_shards(url)])
    yield from _attempt("disk", lambda: [_examine_disk(config)])
    yield from _attempt("checkpoints", lambda: [_examine_checkpoints(config)])
    for dataset in config.datasets:
        yield from _attempt(dataset, partial(_examine_dataset, config, dataset))
        yield from _attempt(f"{dataset} corruptions", partial(_examine_corruptions, config, dataset))
    yield from _attempt("clean accuracy", lambda: _examine_clean_accuracy(config))


def _attempt(check_name: str, run_checks: Callable[[], Iterable[HealthCheck]]) -> Iterator[HealthCheck]:
    """Run checks; an error becomes a failed check, so that doctor also works in a broken installation."""
    try:
        yield from run_checks()
    except RobustError as error:
        yield HealthCheck(check_name, ok=False, detail="not readable", fix=str(error))
    except ImportError as error:
        yield HealthCheck(check_name, ok=False, detail=f"not checked: {error}", fix=_REINSTALL)
    except OSError as error:
        fix = f"Check the path and its permissions. If the path belongs to a package: {_REINSTALL}"
        yield HealthCheck(check_name, ok=False, detail=f"not checked: {error}", fix=fix)
    except Exception as error:  # noqa: BLE001 - incompatible packages can raise any error
        yield HealthCheck(check_name, ok=False, detail=f"not checked: {type(error).__name__}: {error}", fix=_REINSTALL)


def _examine_python() -> HealthCheck:
    version = ".".join(map(str, sys.version_info[:3]))
    return HealthCheck("python", sys.version_info >= (3, 11), version, "Install Python 3.11 or later.")


def _examine_package(package_name: str, module: str) -> HealthCheck:
    try:
        installed_version = importlib.metadata.version(package_name)
    except importlib.metadata.PackageNotFoundError:
        return HealthCheck(package_name, ok=False, detail="not installed", fix=_REINSTALL)
    if importlib.util.find_spec(module) is None:
        return HealthCheck(
            package_name, ok=False, detail=f"{installed_version}, but its module {module} is missing", fix=_REINSTALL
        )
    minimum_version = _minimum_version(package_name)
    if _version_numbers(installed_version) < _version_numbers(minimum_version):
        return HealthCheck(
            package_name, ok=False, detail=f"{installed_version}, older than {minimum_version}", fix=_REINSTALL
        )
    return HealthCheck(package_name, ok=True, detail=installed_version)


def _examine_cpu_kernels() -> HealthCheck:
    from robust201.models.device import has_avx512
    from robust201.spaces import native_library_problem

    reason = native_library_problem()
    if reason is None:
        return HealthCheck("cpu kernels", ok=True, detail="the native library (AVX-512)")
    results = "results are the same" if has_avx512() else "confidences may differ in their last digits"
    detail = (
        f"PyTorch's, since the native library cannot be used: {reason}. On a CPU, `engine: fused` takes up to three "
        f"times as long as with the library; {results}."
    )
    return HealthCheck("cpu kernels", ok=True, detail=detail)


def _examine_gpus() -> HealthCheck:
    """Check that PyTorch can use GPUs if nvidia-smi lists any."""
    import torch

    from robust201.models.device import cuda_version, gpu_names

    cores = f"{len(os.sched_getaffinity(0))} CPU cores"
    listed_gpus = _list_gpus()
    names, cuda = gpu_names(), cuda_version()
    build = f"torch {torch.__version__}, CUDA {cuda or 'none'}"
    if listed_gpus and not names:
        fix = (
            "Install a CUDA build of PyTorch (reinstall robust201 with -c constraints.txt, without a CPU index)."
            if cuda is None
            else f"Update the driver to one that supports CUDA {cuda}, or install a PyTorch built for an "
            "older CUDA version."
        )
        return HealthCheck("gpus", ok=False, detail=f"{'; '.join(listed_gpus)}: not usable by {build}", fix=fix)
    if not names:
        return HealthCheck("gpus", ok=True, detail=f"none; {cores}")
    driver = f"; driver {listed_gpus[0].rpartition(', ')[2]}" if listed_gpus else ""
    return HealthCheck("gpus", ok=True, detail=f"{', '.join(names)} ({build}{driver}); {cores}")


def _list_gpus() -> list[str]:
    if shutil.which("nvidia-smi") is None:
        return []
    command = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        completed = subprocess.run(command, capture_output=True, text=True, timeout=10.0, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [line.strip() for line in completed.stdout.splitlines() if line.strip()] if completed.returncode == 0 else []


def _examine_device(config: SweepConfig) -> HealthCheck:
    """Check that this machine has a sweep's device and supports its precision, unless the sweep runs on a cluster."""
    from robust201.runtime.executors import check_device

    execution = config.execution
    requested = f"device {execution.device}, precision {config.precision}"
    try:
        check_device(config)
    except ConfigError as error:
        return HealthCheck("device", ok=False, detail=f"{requested}: not available", fix=str(error))
    is_remote = execution.executor == "ray" and execution.ray_address
    return HealthCheck("device", ok=True, detail=f"{requested}{'; not checked on the cluster' if is_remote else ''}")


def _examine_leftovers() -> Iterator[HealthCheck]:
    from robust201.runtime.executors.ray_folder import find_unused_folders

    if folders := find_unused_folders():
        folder_names = ", ".join(map(str, folders[:5])) + (
            f" and {len(folders) - 5:,} more" if len(folders) > 5 else ""
        )
        detail = f"left by killed runs: {folder_names}; the next run on Ray removes them"
        yield HealthCheck("temporary folders", ok=True, detail=detail)


def _minimum_version(package_name: str) -> str:
    try:
        requirements = importlib.metadata.requires("robust201") or []
    except importlib.metadata.PackageNotFoundError:  # robust201 is a checkout that is not installed
        requirements = []
    matches = (re.match(rf"{package_name}(?:\[\w+\])?[^;]*?>=([\d.]+)", requirement) for requirement in requirements)
    return next((match[1] for match in matches if match), "0")


def _version_numbers(version: str) -> tuple[int, ...]:
    match = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(map(int, match[0].split("."))) if match else ()


def _nearest_existing_folder(path: Path) -> Path:
    return next(folder for folder in (path.absolute(), *path.absolute().parents) if folder.is_dir())


def _examine_results(results: Path) -> HealthCheck:
    folder = _nearest_existing_folder(results)
    try:
        with tempfile.NamedTemporaryFile(dir=folder):
            return HealthCheck("results", ok=True, detail=f"{results} is writable")
    except OSError as error:
        return HealthCheck(
            "results", ok=False, detail=f"{folder}: {error.strerror}", fix="Set `results` to another folder."
        )


def _examine_shards(url: str) -> HealthCheck:
    from robust201.shards.object_store import ObjectBackend, folder_of  # this imports pyarrow, which may be missing

    folder = folder_of(url)
    if folder is not None:
        return replace(_examine_results(folder), what="shards")
    backend, probe = ObjectBackend(url, lambda _step: None), f"doctor/{secrets.token_hex(8)}.probe"
    try:
        backend.publish(probe, b"robust201 doctor")
        backend.delete([probe])
    except RobustError as error:
        return HealthCheck("shards", ok=False, detail=f"{url}: not writable", fix=str(error))
    return HealthCheck("shards", ok=True, detail=f"objects can be written to and deleted from {url}")


def _examine_disk(config: SweepConfig) -> HealthCheck:
    from robust201.planning.plan import assumed_facts, make_plan
    from robust201.shards.object_store import folder_of

    folder = folder_of(config.shards or "") or config.results
    from robust201.planning.estimates import estimate

    needed_bytes = int(estimate(make_plan(config, assumed_facts(config)))["estimated_shard_bytes"])
    if config.shards and folder_of(config.shards) is None:
        needed_bytes = 0  # a bucket is unlimited, and the folder contains only the plan, images and logs
    free_bytes = shutil.disk_usage(_nearest_existing_folder(folder)).free
    detail = f"{format_bytes(free_bytes)} free, about {format_bytes(needed_bytes)} needed"
    return HealthCheck(
        "disk", free_bytes > needed_bytes, detail, "Free some space, or set `results` to another folder."
    )


def _examine_warnings(config: SweepConfig) -> Iterator[HealthCheck]:
    from robust201.planning.sweep_warnings import find_sweep_warnings

    for warning in find_sweep_warnings(config):
        yield HealthCheck("sweep", ok=True, detail=warning.problem, fix=warning.remedy, warns=True)


def _examine_checkpoints(config: SweepConfig) -> HealthCheck:
    from robust201.planning.inputs import Inputs

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


def _examine_clean_accuracy(config: SweepConfig) -> Iterator[HealthCheck]:
    """Compare finished clean accuracies with the accuracies that were recorded with the weights."""
    if not config.results.is_dir():
        return
    from robust201.planning.plan_file import PLAN_FILE, load_plan
    from robust201.reader.weights_check import check_clean_accuracy
    from robust201.shards import ShardStore

    if not (config.results / PLAN_FILE).exists():
        return
    store = ShardStore.open(config.results)
    check = check_clean_accuracy(
        load_plan(config.results), store, store.inventory(verify="unverified", on_damage="report")
    )
    n_expected = check.n_checked - len(check.unexpected)
    detail = f"agrees with the accuracy recorded with the weights for {n_expected} of {check.n_checked} networks"
    if check.n_checked:
        fix = check.unexpected[0].message if check.unexpected else ""
        yield HealthCheck("clean accuracy", not check.unexpected, detail, fix)


def _examine_dataset(config: SweepConfig, dataset: str) -> Iterator[HealthCheck]:
    from robust201.images.specs import UNKNOWN_COUNT
    from robust201.planning.inputs import Inputs

    images, n_test = Inputs(config).images(dataset), config.dataset_spec(dataset).n_test
    total_images = "" if n_test == UNKNOWN_COUNT else f" of {n_test:,}"
    yield HealthCheck(dataset, ok=True, detail=f"{len(images):,}{total_images} test images")


def _examine_corruptions(config: SweepConfig, dataset: str) -> Iterator[HealthCheck]:
    """Check the files of published corruptions; other corruptions are generated by the run."""
    from robust201.images import DATASETS
    from robust201.planning.inputs import Inputs

    section = config.datasets[dataset].corruptions
    if section is None or section.source != "published" or section.path is None:
        return
    check_name, archive_name = f"{dataset} corruptions", DATASETS[dataset].corruptions
    # A missing folder is reported separately, because opening also fails if the clean images are missing.
    if archive_name and not section.path.is_dir():
        fix = f"Put the published files there: robust201 fetch {archive_name}"
        yield HealthCheck(check_name, ok=False, detail=f"no folder {section.path}", fix=fix)
        return
    Inputs(config).open_corruptions(dataset)
    yield HealthCheck(check_name, ok=True, detail=f"published files in {section.path}")
