"""The checks of `robust201 doctor`: the installation and the inputs of a sweep, with a fix for each problem.

Packages that may be missing are imported in the functions that need them.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import secrets
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from robust201.core.errors import RobustError
from robust201.core.files import show_bytes
from robust201.monitoring.doctor_machines import (
    HealthCheck,
    examine_clock,
    examine_cluster,
    examine_device,
    examine_gpus,
)

if TYPE_CHECKING:
    from robust201.planning.config import SweepConfig

PACKAGES = {
    **{name: name for name in ("torch", "numpy", "foolbox", "pyautoattack", "ray", "pyarrow", "orjson", "pandas")},
    **{name: name for name in ("scipy", "pydantic", "safetensors", "matplotlib", "psutil", "fsspec")},
    "scikit-learn": "sklearn",
    "pillow": "PIL",
    "pyyaml": "yaml",
    "vl-convert-python": "vl_convert",
}
"""The required packages, except those of the command line, with the name of their module."""

_REINSTALL = "Install robust201 again with -c constraints.txt."


def examine(config: SweepConfig | None, *, address: str | None = None) -> Iterator[HealthCheck]:
    """Check this machine and, if given, the inputs of a sweep."""
    yield _examine_python()
    for package, module in PACKAGES.items():
        yield _examine_package(package, module)
    yield from _attempt("cpu kernels", lambda: [_examine_cpu_kernels()])
    yield from _attempt("gpus", lambda: [examine_gpus()])
    yield from _attempt("temporary folders", _examine_leftovers)
    yield from _attempt("cluster", lambda: examine_cluster(config, address))
    if config is not None:
        yield from _examine_sweep(config)


def _examine_sweep(config: SweepConfig) -> Iterator[HealthCheck]:
    yield from _attempt("sweep", lambda: _examine_warnings(config))
    yield from _attempt("device", lambda: [examine_device(config)])
    yield from _attempt("results", lambda: [_examine_results(config.results)])
    if url := config.shards:
        yield from _attempt("shards", lambda: [_examine_shards(url)])
    yield from _attempt("disk", lambda: [_examine_space(config)])
    yield from _attempt("clock", lambda: [examine_clock(_nearest_folder(config.results))])
    yield from _attempt("checkpoints", lambda: [_examine_checkpoints(config)])
    for dataset in config.datasets:
        yield from _attempt(dataset, partial(_examine_dataset, config, dataset))
        yield from _attempt(f"{dataset} corruptions", partial(_examine_corruptions, config, dataset))
    yield from _attempt("clean accuracy", lambda: _examine_clean_accuracy(config))


def _attempt(what: str, check: Callable[[], Iterable[HealthCheck]]) -> Iterator[HealthCheck]:
    """Run checks; an error becomes a failed check, so that doctor also works in a broken installation."""
    try:
        yield from check()
    except RobustError as error:
        yield HealthCheck(what, ok=False, detail="not readable", fix=str(error))
    except ImportError as error:
        yield HealthCheck(what, ok=False, detail=f"not checked: {error}", fix=_REINSTALL)
    except OSError as error:
        fix = f"Check the path and its permissions; if it belongs to a package: {_REINSTALL}"
        yield HealthCheck(what, ok=False, detail=f"not checked: {error}", fix=fix)
    except Exception as error:  # noqa: BLE001 - incompatible packages can raise any error
        yield HealthCheck(what, ok=False, detail=f"not checked: {type(error).__name__}: {error}", fix=_REINSTALL)


def _examine_python() -> HealthCheck:
    installed = ".".join(map(str, sys.version_info[:3]))
    return HealthCheck("python", sys.version_info >= (3, 11), installed, "Install Python 3.11 or later.")


def _examine_package(name: str, module: str) -> HealthCheck:
    try:
        installed = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return HealthCheck(name, ok=False, detail="not installed", fix=_REINSTALL)
    if importlib.util.find_spec(module) is None:
        return HealthCheck(name, ok=False, detail=f"{installed}, but its module {module} is missing", fix=_REINSTALL)
    minimum = _minimum_of(name)
    if _numbers(installed) < _numbers(minimum):
        return HealthCheck(name, ok=False, detail=f"{installed}, older than {minimum}", fix=_REINSTALL)
    return HealthCheck(name, ok=True, detail=installed)


def _examine_cpu_kernels() -> HealthCheck:
    from robust201.core.precision import has_avx512
    from robust201.spaces import why_no_native_library

    reason = why_no_native_library()
    if reason is None:
        return HealthCheck("cpu kernels", ok=True, detail="the native library (AVX-512)")
    results = "results are the same" if has_avx512() else "confidences may differ in their last digits"
    detail = f"PyTorch's: {reason}. On a CPU, `engine: fused` takes up to three times as long; {results}."
    return HealthCheck("cpu kernels", ok=True, detail=detail)


def _examine_leftovers() -> Iterator[HealthCheck]:
    from robust201.runtime.executors.ray_folder import find_unused_folders

    if folders := find_unused_folders():
        names = ", ".join(map(str, folders[:5])) + (f" and {len(folders) - 5:,} more" if len(folders) > 5 else "")
        detail = f"left by killed runs: {names}; the next run on Ray removes them"
        yield HealthCheck("temporary folders", ok=True, detail=detail)


def _minimum_of(name: str) -> str:
    try:
        requirements = importlib.metadata.requires("robust201") or []
    except importlib.metadata.PackageNotFoundError:  # A checkout that is not installed.
        requirements = []
    matches = (re.match(rf"{name}(?:\[\w+\])?[^;]*?>=([\d.]+)", line) for line in requirements)
    return next((match[1] for match in matches if match), "0")


def _numbers(version: str) -> tuple[int, ...]:
    match = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(map(int, match[0].split("."))) if match else ()


def _nearest_folder(path: Path) -> Path:
    return next(folder for folder in (path.absolute(), *path.absolute().parents) if folder.is_dir())


def _examine_results(results: Path) -> HealthCheck:
    folder = _nearest_folder(results)
    try:
        with tempfile.NamedTemporaryFile(dir=folder):
            return HealthCheck("results", ok=True, detail=f"{results} is writable")
    except OSError as error:
        return HealthCheck(
            "results", ok=False, detail=f"{folder}: {error.strerror}", fix="Set `results` to another folder."
        )


def _examine_shards(url: str) -> HealthCheck:
    from robust201.shards.object_store import ObjectBackend, folder_of  # Imports pyarrow, which may be missing.

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


def _examine_space(config: SweepConfig) -> HealthCheck:
    from robust201.planning.plan import assumed_facts, make_plan
    from robust201.shards.object_store import folder_of

    folder = folder_of(config.shards or "") or config.results
    from robust201.planning.estimates import estimate

    needed = int(estimate(make_plan(config, assumed_facts(config)))["estimated_shard_bytes"])
    if config.shards and folder_of(config.shards) is None:
        needed = 0  # A bucket is unlimited, and the folder contains only the plan, images and logs.
    free = shutil.disk_usage(_nearest_folder(folder)).free
    detail = f"{show_bytes(free)} free, about {show_bytes(needed)} needed"
    return HealthCheck("disk", free > needed, detail, "Free some space or name another folder by `results`.")


def _examine_warnings(config: SweepConfig) -> Iterator[HealthCheck]:
    from robust201.planning.sweep_warnings import find_sweep_warnings

    for warning in find_sweep_warnings(config):
        yield HealthCheck("sweep", ok=True, detail=warning.what, fix=warning.fix, warns=True)


def _examine_checkpoints(config: SweepConfig) -> HealthCheck:
    from robust201.planning.inputs import Inputs

    inputs = Inputs(config)
    pairs = [(dataset, index) for dataset in config.datasets for index in config.selected_architectures]
    missing: list[str] = []
    for dataset, index in pairs:
        try:
            inputs.weights.check(dataset, index)
        except RobustError as error:
            missing.append(str(error))
    detail = f"{len(pairs) - len(missing)} of {len(pairs)} networks"
    return HealthCheck("checkpoints", not missing, detail, missing[0] if missing else "")


def _examine_clean_accuracy(config: SweepConfig) -> Iterator[HealthCheck]:
    """Compare finished clean accuracies with those recorded with the weights; yield nothing without any."""
    if not config.results.is_dir():
        return
    from robust201.planning.plan_file import PLAN_FILE, load_plan
    from robust201.reader.weights_check import check_clean_accuracy
    from robust201.shards import ShardStore

    if not (config.results / PLAN_FILE).exists():
        return
    store = ShardStore.open(config.results)
    check = check_clean_accuracy(load_plan(config.results), store, store.inventory(on_damage="report"))
    detail = f"as recorded with the weights for {check.n_checked - len(check.unexpected)} of {check.n_checked} networks"
    if check.n_checked:
        fix = check.unexpected[0].message if check.unexpected else ""
        yield HealthCheck("clean accuracy", not check.unexpected, detail, fix)


def _examine_dataset(config: SweepConfig, name: str) -> Iterator[HealthCheck]:
    from robust201.images.specs import UNKNOWN_COUNT
    from robust201.planning.inputs import Inputs

    images, n_test = Inputs(config).images(name), config.dataset_spec(name).n_test
    total = "" if n_test == UNKNOWN_COUNT else f" of {n_test:,}"
    yield HealthCheck(name, ok=True, detail=f"{len(images):,}{total} test images")


def _examine_corruptions(config: SweepConfig, name: str) -> Iterator[HealthCheck]:
    """Check the files of published corruptions; the run itself generates the others."""
    from robust201.images import DATASETS
    from robust201.planning.inputs import Inputs

    section = config.datasets[name].corruptions
    if section is None or section.source != "published" or section.path is None:
        return
    what, published = f"{name} corruptions", DATASETS[name].corruptions
    # Reported separately, since opening also fails if the clean images are missing.
    if published and not section.path.is_dir():
        fix = f"Put the published files there: robust201 fetch {published}"
        yield HealthCheck(what, ok=False, detail=f"no folder {section.path}", fix=fix)
        return
    Inputs(config).open_corruptions(name)
    yield HealthCheck(what, ok=True, detail=f"published files in {section.path}")
