"""What a job takes along: the package and the YAML as one small archive; no images, weights, results or history."""

import re
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

import robust201
from robust201.core.errors import ConfigError
from robust201.core.files import bundled, read_file
from robust201.planning.config import SweepConfig
from robust201.planning.sweep_yaml import read_fields, referenced_variables
from robust201.planning.training_config import TrainingConfig

SWEEP_NAME = "sweep.yaml"
"""Name of a sweep within the archive."""

TRAININGS_NAME = "trainings.yaml"
"""Name of a training YAML within the archive."""

UPLOAD_LIMIT_BYTES = 100 << 20
"""The largest request that a head takes: DASHBOARD_CLIENT_MAX_SIZE in ray/_private/ray_constants.py, Ray 2.60."""

_MAX_FILE_BYTES = 1 << 30
"""Largest file that is read; whether the archive is too large is checked afterwards, and names the largest files."""

_ALWAYS_SHIPPED = ("benchmark_data/downloads.toml",)
_NOT_CODE = frozenset({".safetensors", ".pth", ".pt", ".npy", ".npz", ".parquet", ".pyc", ".so"})
_ARCHIVE_DATE = (1980, 1, 1, 0, 0, 0)  # equal content gives an equal archive, which Ray then keeps from last time


@dataclass(frozen=True)
class Shipment:
    """A sweep, or trainings, ready to be packed.

    Attributes:
        config: the sweep or the trainings, checked on this machine.
        text: the YAML as the job reads it: for Ray, with its ``${NAME}`` unresolved.
        variables: environment variables that the YAML refers to and that are set here.
        bundled_names: what it asks for by ``bundled:``, and what every job takes along, sorted.
        narrowing: further options of `run` or `train`, such as those that say which part is wanted.
    """

    config: SweepConfig | TrainingConfig
    text: str
    variables: Mapping[str, str]
    bundled_names: tuple[str, ...]
    narrowing: tuple[str, ...] = ()

    @property
    def verb(self) -> str:
        """The command that computes it."""
        return "train" if isinstance(self.config, TrainingConfig) else "run"

    @property
    def file_name(self) -> str:
        return TRAININGS_NAME if isinstance(self.config, TrainingConfig) else SWEEP_NAME


def prepare_shipment(
    config: SweepConfig | TrainingConfig,
    sweep: Path,
    environment: Mapping[str, str],
    narrowing: tuple[str, ...] = (),
) -> Shipment:
    """Check a sweep, read from a YAML or a results folder, or a training YAML, for its way to a cluster."""
    for field, path in _paths(config):
        if not path.is_absolute() and not re.match(r"[a-z][a-z0-9+.-]*:/", str(path)):
            raise ConfigError(
                f"Submitting failed for {sweep}: expected an absolute path in {field}, as a job's own folder goes with "
                f"it, got {path}. Name a folder that all machines of the cluster can access."
            )
    fields = config.model_dump(mode="json") if sweep.is_dir() else read_fields(sweep)
    fields["execution"] = (fields.get("execution") or {}) | {"executor": "ray", "ray_address": "auto"}
    names = referenced_variables(fields)
    return Shipment(
        config,
        yaml.safe_dump(fields, sort_keys=False, allow_unicode=True),
        {name: environment[name] for name in sorted(names) if name in environment},
        tuple(sorted({*_ALWAYS_SHIPPED, *_bundled_names(fields)})),
        narrowing,
    )


def _paths(config: SweepConfig | TrainingConfig) -> Iterator[tuple[str, Path]]:
    if isinstance(config, TrainingConfig):
        yield "store", config.store
    else:
        yield "results", config.results
        yield from _paths_of_weights(config)
    yield from config.code_files().items()
    for name, dataset in config.datasets.items():
        if dataset.path is not None:
            yield f"datasets.{name}.path", dataset.path
        if dataset.corruptions is not None:
            for field in ("path", "frost_path"):
                path = getattr(dataset.corruptions, field)
                if path is not None:
                    yield f"datasets.{name}.corruptions.{field}", path


def _paths_of_weights(config: SweepConfig) -> Iterator[tuple[str, Path]]:
    if config.checkpoints is not None:
        yield "checkpoints.path", config.checkpoints.path
    if config.weights is not None:
        if config.weights.path is not None:
            yield "weights.path", config.weights.path
        for name, given in (config.weights.files or {}).items():
            for network, path in given.items() if isinstance(given, dict) else [("", given)]:
                yield f"weights.files.{name}{'.' if network else ''}{network}", path


def _bundled_names(value: Any) -> Iterator[str]:
    if isinstance(value, str) and value.startswith("bundled:"):
        yield value.removeprefix("bundled:")
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from _bundled_names(part)


def code_files(package: Path | None = None) -> dict[str, Path]:
    """Find the package's files by their name in the archive: no hidden files, caches, weights or arrays."""
    package = package or Path(robust201.__file__).resolve().parent
    found: dict[str, Path] = {}
    for path in sorted(package.rglob("*")):
        parts = path.relative_to(package).parts
        skipped = any(part.startswith(".") or part in {"__pycache__", "_bundled"} for part in parts)
        if path.is_file() and not skipped and path.suffix not in _NOT_CODE:
            found["/".join(("robust201", *parts))] = path
    return found


def _bundled_files(names: tuple[str, ...]) -> dict[str, Path]:
    """Find what a sweep asks for by ``bundled:``; in the archive it lies beside the package, as in a checkout."""
    found: dict[str, Path] = {}
    for name in names:
        source = bundled(name)
        members = sorted(path for path in source.rglob("*") if path.is_file()) if source.is_dir() else [source]
        for path in members:
            found[name if path == source else f"{name}/{path.relative_to(source).as_posix()}"] = path
    return found


def pack(shipment: Shipment, archive: Path) -> int:
    """Write the archive that a job starts from."""
    files = code_files() | _bundled_files(shipment.bundled_names)
    with zipfile.ZipFile(archive, "w") as target:
        for name, source in sorted(files.items()):
            _add(target, name, read_file(source, _MAX_FILE_BYTES))
        _add(target, shipment.file_name, shipment.text.encode())
        members = target.infolist()
    size = archive.stat().st_size
    if size > UPLOAD_LIMIT_BYTES:
        largest = sorted(members, key=lambda member: -member.compress_size)[:5]
        shown = ", ".join(f"{member.filename} ({_mebibytes(member.compress_size)})" for member in largest)
        raise ConfigError(
            f"Packing the job failed for {archive.name}: expected at most {_mebibytes(UPLOAD_LIMIT_BYTES)}, which is "
            f"what a Ray head takes, got {_mebibytes(size)}; largest: {shown}. Move them to a folder that the machines "
            "share."
        )
    return size


def _add(target: zipfile.ZipFile, name: str, content: bytes) -> None:
    member = zipfile.ZipInfo(name, _ARCHIVE_DATE)
    member.external_attr = 0o644 << 16
    target.writestr(member, content, zipfile.ZIP_DEFLATED)


def _mebibytes(n_bytes: int) -> str:
    return f"{n_bytes / (1 << 20):.1f} MiB"
