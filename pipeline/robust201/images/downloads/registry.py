"""The registry of downloads, `benchmark_data/downloads.toml`, which lists all files that can be fetched or verified."""

import hashlib
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from robust201.core.errors import ConfigError, DatasetError, did_you_mean
from robust201.core.files import bundled, digest_of

DATA_VARIABLE = "ROBUST201_DATA"
"""Environment variable with the path of the data folder."""


@dataclass(frozen=True, slots=True)
class Checksum:
    """Digest and size of a file, as far as they are published.

    Attributes:
        algorithm: ``"md5"`` or ``"sha256"``.
        digest: lower-case hex digits, or None if unpublished.
        size: bytes, or None if unpublished.
    """

    algorithm: Literal["md5", "sha256"]
    digest: str | None
    size: int | None = None

    def __str__(self) -> str:
        size = [f"{self.size:,} bytes"] if self.size is not None else []
        return ", ".join(size + ([f"{self.algorithm} {self.digest}"] if self.digest else []))

    def hasher(self) -> "hashlib._Hash":
        """Return a new hasher; MD5 is used only to detect accidental damage, not attacks."""
        return hashlib.new(self.algorithm, usedforsecurity=False)

    def check_file(self, path: Path) -> None:
        """Compare a file's size and digest with the published ones; a `DatasetError` states the difference."""
        try:
            self.check(path, path.stat().st_size, digest_of(path, self.hasher))
        except OSError as error:
            raise DatasetError(
                f"Verifying failed for {path}: {error.strerror}. Correct the path, or the permissions of the file."
            ) from error

    def check(self, file: Path, size: int, digest: str) -> None:
        """Compare a file's size and digest with the published ones, like `check_file`."""
        if self.size not in (None, size):
            raise DatasetError(
                f"Verifying failed for {file}: expected {self.size:,} bytes, got {size:,}. "
                "The file is truncated or not the published file; fetch it again."
            )
        if self.digest not in (None, digest):
            raise DatasetError(
                f"Verifying failed for {file}: expected {self.algorithm} {self.digest}, got {digest}. "
                "The file is damaged or not the published file; fetch it again."
            )


@dataclass(frozen=True, slots=True)
class Download:
    """One entry of the registry.

    Attributes:
        name: name for `robust201 fetch`.
        kind: ``"archive"`` (a tar archive at a URL) or ``"manual"`` (files that the user downloads).
        folder: name of the entry's folder in the data folder.
        members: checksum of each file, by path below `folder`.
        source: web page that describes the files or offers them for manual download.
        checksum: checksum of the archive; without digest and size for manual downloads.
        file: name of the archive, or ``""``.
        url: URL of the archive, or ``""``.
    """

    name: str
    kind: Literal["archive", "manual"]
    folder: str
    members: Mapping[str, Checksum]
    source: str
    checksum: Checksum
    file: str = ""
    url: str = ""


def _parse_checksum(fields: Mapping[str, Any]) -> Checksum:
    algorithm: Literal["md5", "sha256"] = "sha256" if "sha256" in fields else "md5"
    return Checksum(algorithm, fields.get(algorithm), fields.get("bytes"))


def _parse_download(name: str, fields: Mapping[str, Any]) -> Download:
    other_fields = {key: value for key, value in fields.items() if key not in ("members", "sha256", "md5", "bytes")}
    members = {path: _parse_checksum(member) for path, member in fields.get("members", {}).items()}
    return Download(name=name, members=members, checksum=_parse_checksum(fields), **other_fields)


@cache
def downloads() -> Mapping[str, Download]:
    """Read the registry, and return its entries by name in the order of the file."""
    tables = tomllib.loads(bundled("benchmark_data/downloads.toml").read_text(encoding="utf-8"))
    return {name: _parse_download(name, fields) for name, fields in tables.items()}


def find_download(name: str) -> Download:
    """Return an entry, such as ``"CIFAR-10-C"``; if there is none, a `ConfigError` suggests the closest name."""
    entries = downloads()
    if name not in entries:
        raise ConfigError(f"Looking up a download failed for {name!r}: no such name.{did_you_mean(name, entries)}")
    return entries[name]


def data_folder() -> Path:
    """Return the data folder: `ROBUST201_DATA`, or `data` in the working directory."""
    return Path(os.environ.get(DATA_VARIABLE) or "data")
