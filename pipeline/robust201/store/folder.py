"""The results folder: its format, the shards and what their names refer to.

format.json                 format of the folder, and how units are sliced (see `SliceFormat`)
protocols/<digest>.json     protocols, and the tuples of strengths and columns behind the digests in names
shards/                     one file per part (see `store.names`)
damaged/                    shards whose content did not match their name
plan.json                   the sweep and the hashes of its inputs (see `sweep.facts`)
images/, corruptions/, code/    copied or generated inputs
events/, lock.json          running processes (see `run`)
"""

import json
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from robust201.core.errors import FormatVersionError, InputError, ShardDamagedError, StorageError, describe_read_error
from robust201.core.files import (
    MAX_STATE_BYTES,
    WRITE_STEPS,
    atomic_write,
    fsync_folder,
    load_json,
    make_folder,
    read_file,
    read_text,
    visible_entries,
    write_text,
)
from robust201.core.records import canonical_json, content_digest
from robust201.store.names import Listing, ShardName, parse_names, tuple_digest

__all__ = ["WRITE_STEPS", "ResultsFolder", "SliceFormat"]

FORMAT_FILE = "format.json"
FORMAT_NAME = "robust201-results"
VERSION = 2

MAX_SHARD_BYTES = 1 << 30


@dataclass(frozen=True)
class SliceFormat:
    """How units are cut into slices, fixed when the folder is made and used by all later runs.

    Attributes:
        slice_gmacs: billion multiply-accumulates of a slice at one strength.
        batch_size: slices begin at multiples of this number of images if bits may depend on the batch.
        is_cpu: whether the folder's results are computed on CPUs.
    """

    slice_gmacs: float
    batch_size: int
    is_cpu: bool


class ResultsFolder:
    """A results folder. Any number of processes may write to it at the same time; files are never changed in place.

    `on_step` is called at each step of writing a shard (`core.files.WRITE_STEPS`), for crash tests.
    """

    def __init__(self, root: Path, slices: SliceFormat, on_step: Callable[[str], None] = lambda _step: None) -> None:
        self.root = root
        self.slices = slices
        self.shards = root / "shards"
        self._on_step = on_step

    @classmethod
    def create(cls, root: Path, slices: SliceFormat) -> "ResultsFolder":
        """Create a folder, or open an existing one, which keeps its own format.

        Raises:
            InputError: the folder cannot be created, or contains something else.
            FormatVersionError: the folder has another format.
        """
        make_folder(root)
        if not (root / FORMAT_FILE).exists():
            others = visible_entries(root)
            if others:
                raise InputError(
                    f"Creating a results folder failed for {root}: expected an empty folder, got {others[0]} without "
                    f"{FORMAT_FILE}. Choose a new folder."
                )
            payload = {"format": FORMAT_NAME, "version": VERSION, "slices": asdict(slices)}
            write_text(root / FORMAT_FILE, json.dumps(payload) + "\n")
        return cls.open(root)

    @classmethod
    def open(cls, root: Path) -> "ResultsFolder":
        """Open an existing folder.

        Raises:
            InputError: the path is not a results folder.
            FormatVersionError: the folder has another format.
        """
        path = root / FORMAT_FILE
        try:
            payload = load_json(path, MAX_STATE_BYTES)
            name, version = payload["format"], payload["version"]
            if (name, version) != (FORMAT_NAME, VERSION):
                raise FormatVersionError(
                    f"Opening results failed for {path}: expected {FORMAT_NAME} version {VERSION}, got {name} version "
                    f"{version}. Choose another folder, or the version of robust201 that wrote it."
                )
            return cls(root, SliceFormat(**payload["slices"]))
        except FileNotFoundError as error:
            raise InputError(
                f"Opening results failed for {root}: there is no {FORMAT_FILE}. Check the path, or start a sweep there "
                "with: robust201 run SWEEP.yaml"
            ) from error
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(
                f"Opening results failed for {path}: not a valid format ({describe_read_error(error)}). "
                "Restore the file, or choose another folder."
            ) from error

    def _record_path(self, digest: str) -> Path:
        return self.root / "protocols" / f"{digest}.json"

    def save_record(self, digest: str, value: Any) -> None:
        """Store a protocol or a tuple under its digest, unless it is stored already and undamaged."""
        path, text = self._record_path(digest), canonical_json(value) + "\n"
        with suppress(OSError, ValueError):
            if read_text(path, MAX_STATE_BYTES) == text:
                return
        write_text(path, text)

    def save_tuple(self, values: Iterable[float | str]) -> str:
        """Store strengths or columns, and return their digest for names."""
        items = list(values)
        digest = tuple_digest(items)
        self.save_record(digest, items)
        return digest

    def read_tuple(self, digest: str) -> tuple[Any, ...]:
        """Return the strengths or columns of a digest; empty if the record is missing or damaged.

        Raises:
            StorageError: the record cannot be read at the moment.
        """
        path = self._record_path(digest)
        try:
            values = load_json(path, MAX_STATE_BYTES)
        except (FileNotFoundError, ValueError):
            return ()
        except OSError as error:
            raise _reading_error(path, error) from error
        return tuple(values) if isinstance(values, list) and tuple_digest(values) == digest else ()

    def read_protocols(self) -> dict[str, dict[str, Any]]:
        """Return all stored protocols by digest; damaged records are left out."""
        protocols = {}
        for path in sorted((self.root / "protocols").glob(f"{'?' * 32}.json")):
            try:
                payload = load_json(path)
            except (OSError, ValueError):
                continue
            if content_digest(payload) == path.stem:
                protocols[path.stem] = payload
        return protocols

    def list(self) -> Listing:
        """Return the names of all shards by dataset."""
        datasets = visible_entries(self.shards)
        return {dataset: parse_names(_names_below(self.shards / dataset)) for dataset in datasets}

    def list_unit(self, dataset: str, unit: str) -> Listing:
        """Return the names of the shards of one unit, from the listing of one folder of at most a few thousand."""
        names = _names_in(self.shards / dataset / unit[:2])
        return {dataset: parse_names(name for name in names if name.startswith(unit))}

    def write(self, name: ShardName, content: bytes) -> None:
        """Write a shard, which appears completely or not at all, and survives a crash when the method returns.

        Raises:
            StorageFullError: the disk is full.
            StorageError: the folder cannot be written.
        """
        with atomic_write(self.shards / name.path, on_step=self._on_step) as stream:
            stream.write(content)

    def read(self, name: ShardName) -> bytes:
        """Return the content of a shard. A damaged shard is moved to ``damaged/``, so that its part is missing.

        Raises:
            ShardDamagedError: the content does not match the hash in the name.
            FileNotFoundError: the shard has vanished.
            StorageError: the shard cannot be read at the moment.
        """
        path = self.shards / name.path
        try:
            content = read_file(path, MAX_SHARD_BYTES)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise _reading_error(path, error) from error
        if not name.names_content(content):
            raise self.set_aside(name, "other bytes than its name says")
        return content

    def set_aside(self, name: ShardName, fault: str) -> ShardDamagedError:
        """Move a damaged shard to ``damaged/``, and return the error to raise."""
        source, target = self.shards / name.path, self.root / "damaged" / name.path
        target.parent.mkdir(parents=True, exist_ok=True)
        source.replace(target)
        fsync_folder(source.parent)
        return ShardDamagedError(
            f"Reading failed for {source}: expected a file as it was written, got {fault}. The file was moved to "
            f"{target}; run the sweep again to compute its part."
        )


def _reading_error(path: Path, error: OSError) -> StorageError:
    return StorageError(
        f"Reading failed for {path}: {error.strerror}. Check its permissions and the file server, and run the same "
        "command again."
    )


def _names_in(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)  # noqa: PTH208 - names of half a million files, without a Path for each
    except (FileNotFoundError, NotADirectoryError):
        return []


def _names_below(folder: Path) -> Iterable[str]:
    return (name for subfolder in _names_in(folder) for name in _names_in(folder / subfolder))
