"""Pack the archive that a Ray job needs: the package and the YAML, without images, weights, results or Git history."""

import re
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import robust201
from robust201.core.errors import ConfigError
from robust201.core.files import bundled, read_file
from robust201.planning.config import SweepConfig
from robust201.planning.sweep_yaml import dump_fields, read_fields, referenced_variables
from robust201.planning.training_config import TrainingConfig

SWEEP_NAME = "sweep.yaml"
"""A sweep's file name in the archive."""

TRAININGS_NAME = "trainings.yaml"
"""A training YAML's file name in the archive."""

UPLOAD_LIMIT_BYTES = 100 << 20
"""Size of the largest request that a head accepts: DASHBOARD_CLIENT_MAX_SIZE in ray/_private/ray_constants.py, Ray
2.60."""

_MAX_FILE_BYTES = 1 << 30
"""Maximum size of a single file. The limit of the archive is checked later, with a message that names large files."""

_ALWAYS_SHIPPED = ("benchmark_data/downloads.toml",)
_EXCLUDED_SUFFIXES = frozenset({".safetensors", ".pth", ".pt", ".npy", ".npz", ".parquet", ".pyc", ".so"})
_ARCHIVE_DATE = (1980, 1, 1, 0, 0, 0)  # Equal content gives equal archives, which Ray uploads only once.


@dataclass(frozen=True)
class Shipment:
    """A sweep or training YAML to be packed for a Ray job.

    Attributes:
        config: the sweep or training configuration, checked on this machine.
        text: the YAML that the job reads, adapted to Ray; its ``${NAME}`` references are resolved by the job.
        variables: the environment variables that the YAML refers to and that are set here.
        bundled_names: sorted names of bundled files: the names after ``bundled:`` in the YAML, and the files that every
            job needs.
        filter_options: further options of `run`, such as ``--keys``.
    """

    config: SweepConfig | TrainingConfig
    text: str
    variables: Mapping[str, str]
    bundled_names: tuple[str, ...]
    filter_options: tuple[str, ...] = ()

    @property
    def file_name(self) -> str:
        return TRAININGS_NAME if isinstance(self.config, TrainingConfig) else SWEEP_NAME


def prepare_shipment(
    config: SweepConfig | TrainingConfig,
    source: Path,
    environment: Mapping[str, str],
    filter_options: tuple[str, ...] = (),
) -> Shipment:
    """Check a sweep (from a YAML or a results folder) or a training YAML and prepare it for a Ray cluster."""
    for field, path in _find_paths(config):
        if not path.is_absolute() and not re.match(r"[a-z][a-z0-9+.-]*:/", str(path)):
            raise ConfigError(
                f"Submitting failed for {source}: the path in `{field}` must be absolute, because a job's working "
                f"folder is deleted with the job, but it is {path}. Use a folder that all machines of the cluster can "
                "access."
            )
    fields = config.model_dump(mode="json") if source.is_dir() else read_fields(source)
    fields["execution"] = (fields.get("execution") or {}) | {"executor": "ray", "ray_address": "auto"}
    variable_names = referenced_variables(fields)
    return Shipment(
        config,
        dump_fields(fields, allow_unicode=True),
        {name: environment[name] for name in sorted(variable_names) if name in environment},
        tuple(sorted({*_ALWAYS_SHIPPED, *_find_bundled_names(fields)})),
        filter_options,
    )


def _find_paths(config: SweepConfig | TrainingConfig) -> Iterator[tuple[str, Path]]:
    """Yield each path in a configuration, after the YAML field that contains it."""
    if isinstance(config, TrainingConfig):
        yield "store", config.store
    else:
        yield "results", config.results
        yield from _find_weights_paths(config)
    yield from config.code_files().items()
    for name, dataset in config.datasets.items():
        if dataset.path is not None:
            yield f"datasets.{name}.path", dataset.path
        if dataset.corruptions is not None:
            for field in ("path", "frost_path"):
                path = getattr(dataset.corruptions, field)
                if path is not None:
                    yield f"datasets.{name}.corruptions.{field}", path


def _find_weights_paths(config: SweepConfig) -> Iterator[tuple[str, Path]]:
    if config.checkpoints is not None:
        yield "checkpoints.path", config.checkpoints.path
    if config.weights is not None:
        if config.weights.path is not None:
            yield "weights.path", config.weights.path
        for name, entry in (config.weights.files or {}).items():
            for network, path in entry.items() if isinstance(entry, dict) else [("", entry)]:
                yield f"weights.files.{name}{'.' if network else ''}{network}", path


def _find_bundled_names(value: Any) -> Iterator[str]:
    if isinstance(value, str) and value.startswith("bundled:"):
        yield value.removeprefix("bundled:")
    elif isinstance(value, Mapping):
        for member in value.values():
            yield from _find_bundled_names(member)


def list_package_files(package: Path | None = None) -> dict[str, Path]:
    """Return the package's files by their names in the archive, except hidden files, caches, weights and arrays."""
    package = package or Path(robust201.__file__).resolve().parent
    files: dict[str, Path] = {}
    for path in sorted(package.rglob("*")):
        relative_path = path.relative_to(package)
        is_skipped = any(name.startswith(".") or name in {"__pycache__", "_bundled"} for name in relative_path.parts)
        if path.is_file() and not is_skipped and path.suffix not in _EXCLUDED_SUFFIXES:
            files["/".join(("robust201", *relative_path.parts))] = path
    return files


def _bundled_files(names: tuple[str, ...]) -> dict[str, Path]:
    """Return the bundled files by their names in the archive; they are stored beside the package, as in a checkout."""
    files: dict[str, Path] = {}
    for name in names:
        source = bundled(name)
        members = sorted(path for path in source.rglob("*") if path.is_file()) if source.is_dir() else [source]
        for path in members:
            files[name if path == source else f"{name}/{path.relative_to(source).as_posix()}"] = path
    return files


def pack(shipment: Shipment, archive: Path) -> int:
    """Write a job's archive and return its size in bytes."""
    files = list_package_files() | _bundled_files(shipment.bundled_names)
    with zipfile.ZipFile(archive, "w") as zip_file:
        for name, source in sorted(files.items()):
            _add_member(zip_file, name, read_file(source, _MAX_FILE_BYTES))
        _add_member(zip_file, shipment.file_name, shipment.text.encode())
        members = zip_file.infolist()
    size = archive.stat().st_size
    if size > UPLOAD_LIMIT_BYTES:
        largest_members = sorted(members, key=lambda member: -member.compress_size)[:5]
        largest_names = ", ".join(
            f"{member.filename} ({_format_mebibytes(member.compress_size)})" for member in largest_members
        )
        raise ConfigError(
            f"Packing the job failed for {archive.name}: expected at most {_format_mebibytes(UPLOAD_LIMIT_BYTES)}, "
            f"which is the limit of a Ray head, got {_format_mebibytes(size)}; largest files: {largest_names}. Move "
            "these files to a folder that all machines can access."
        )
    return size


def _add_member(zip_file: zipfile.ZipFile, name: str, content: bytes) -> None:
    member = zipfile.ZipInfo(name, _ARCHIVE_DATE)
    member.external_attr = 0o644 << 16
    zip_file.writestr(member, content, zipfile.ZIP_DEFLATED)


def _format_mebibytes(n_bytes: int) -> str:
    return f"{n_bytes / (1 << 20):.1f} MiB"
