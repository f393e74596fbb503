"""The results folder: paths of its files, and names of shards.

format.json                                     format of the folder, its version, and the location of the shards
protocols/<digest>.json                         payload of every protocol that rows refer to
shards/<dataset>/<index>-<key>-<sha16>.parquet  results of one network under one key (see below)
shards/<dataset>/compact-<sha16>.parquet        a compacted shard
damaged/<dataset>/                              shards that were set aside (below the URL if the shards are)
index/                                          cache of the shards' contents for faster scans (see `shards.index`)
plan.json                                       the plan (see `planning`)
images/, corruptions/, code/                    copied or generated inputs (see `sweep.inputs`)
lease.json                                      the running driver, which distributes the work (see `runtime.lease`)
shares/<i>-of-<n>/                              reports of ``run --share I/N`` (see `planning.shares`)
slurm/                                          batch file and logs of job arrays
progress.json, failures.jsonl                   progress and failures of the last run (see `runtime.progress`)
heartbeats/                                     activity of workers (see `runtime.heartbeat`)
logs/                                           one log file per worker (see `runtime.work_log`)

An uncompacted shard has the results of one part, that is, at some strengths and on a range of images. If format.json
contains a URL, all shards are below this URL instead of in ``shards/``.
"""

import hashlib
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

from robust201.core.errors import ConfigError, FormatVersionError, InputError, describe_read_error
from robust201.core.files import (
    MAX_STATE_BYTES,
    load_json,
    make_folder,
    remove_leftovers,
    visible_entries,
    write_text,
)
from robust201.core.records import ArchitectureId, canonical_json
from robust201.shards.backends import SHA_DIGITS, SHARD_NAME, HashingStream, LocalBackend, damage_error, sha_of_name
from robust201.shards.object_store import ObjectBackend, StorageBackend, folder_of

FORMAT_NAME = "robust201-results"
FOLDER_VERSION = 1
"""Version of the folder's format; shards have their own version (see `shards.parquet`)."""


OnWriteStep = Callable[[str], None]
"""Called at each step of writing a shard (`core.files.WRITE_STEPS`), for crash tests."""


class ResultsFolder:
    """Paths and names in one results folder.

    A shard is named by its path below ``shards/``, such as ``cifar10/000021-pgd-0123456789abcdef.parquet``.
    """

    def __init__(self, root: Path, on_step: OnWriteStep = lambda _step: None) -> None:
        self.root = root
        self.shards = root / "shards"
        self.damaged = root / "damaged"
        self.protocols = root / "protocols"
        self.index = root / "index"
        self.on_step = on_step

    @cached_property
    def backend(self) -> StorageBackend:
        """Storage of the shards according to format.json, or the folder itself if there is no format.json yet."""
        url = self.shards_url
        folder = folder_of(url)
        if folder is not None:
            return LocalBackend(folder, folder / "damaged", self.on_step)
        return ObjectBackend(url, self.on_step) if url else LocalBackend(self.shards, self.damaged, self.on_step)

    @property
    def shards_url(self) -> str:
        """URL below which the shards are stored; empty if they are in the folder itself."""
        try:
            payload = load_json(self.root / "format.json", MAX_STATE_BYTES)
            return str(payload.get("shards", ""))
        except (FileNotFoundError, NotADirectoryError):
            return ""

    def create(self, shards: str | None = None) -> None:
        """Create an empty results folder, or check the format of an existing results folder.

        Args:
            shards: URL below which to store the shards, or ``""`` for the folder itself. If it is None, a new folder
                stores the shards in itself, and an existing one keeps its location.

        Raises:
            InputError: the path is a file, or a folder with other contents.
            StorageError: the URL cannot be reached.
            ConfigError, FormatVersionError: see `check_format`.
        """
        format_path = self.root / "format.json"
        make_folder(self.root)
        if not format_path.exists():
            existing_names = visible_entries(self.root)
            if existing_names:
                others = f" and {len(existing_names) - 1:,} more" if len(existing_names) > 1 else ""
                raise InputError(
                    f"Creating a results folder failed for {self.root}: the folder contains "
                    f"{existing_names[0]}{others} but no {format_path.name}. Choose a new or an empty folder."
                )
            payload: dict[str, Any] = {"format": FORMAT_NAME, "version": FOLDER_VERSION}
            if shards:
                if folder_of(shards) is None:
                    ObjectBackend(shards, self.on_step).entries()  # fail before a wrong URL is saved
                payload["shards"] = shards
            write_text(format_path, canonical_json(payload) + "\n")
            self.__dict__.pop("backend", None)
        self.check_format(shards)

    def remove(self) -> None:
        """Delete the contents of a new results folder whose first result turned out to be invalid."""
        for folder in (self.shards, self.damaged, self.protocols, self.index):
            shutil.rmtree(folder, ignore_errors=True)
        (self.root / "format.json").unlink(missing_ok=True)

    def check_format(self, shards: str | None = None) -> None:
        """Check that this is a results folder of the current version, with its shards in the expected location.

        Raises:
            InputError: the path is not a results folder.
            ConfigError: the stored location of the shards is not `shards` (see `create`; None accepts any location).
            FormatVersionError: another version of robust201 created the folder.
        """
        format_path = self.root / "format.json"
        try:
            payload = load_json(format_path, MAX_STATE_BYTES)
            name, version = payload["format"], payload["version"]
        except (FileNotFoundError, NotADirectoryError) as error:
            inner_format_path = next(iter(sorted(self.root.glob("*/format.json"))), None)
            hint = f" Did you mean {inner_format_path.parent}?" if inner_format_path else ""
            got, fix = "none", "Check the path, or start a sweep there with: robust201 run SWEEP.yaml"
            if any(self.root.joinpath(name).exists() for name in ("meta.json", "parquet")):  # an export
                got, fix = "an exported dataset", "Use the folder of the sweep's results, or the sweep's YAML."
            raise InputError(
                f"Opening results failed for {self.root}: expected a results folder with a format.json, got {got}."
                f"{hint} {fix}"
            ) from error
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(
                f"Opening results failed for {format_path}: expected the format and version of a results folder, got "
                f"{describe_read_error(error)}. Check the path, or restore the file from a copy."
            ) from error
        if (name, version) != (FORMAT_NAME, FOLDER_VERSION):
            raise FormatVersionError(
                f"Opening results failed for {self.root}: expected format {FORMAT_NAME} version {FOLDER_VERSION}, "
                f"got {name} version {version}. Use the version of robust201 that created the folder."
            )
        if shards is not None and shards != self.shards_url:
            raise ConfigError(
                f"Opening results failed for {self.root}: its result files are in "
                f"{self.shards_url or self.shards}, but the sweep YAML has `shards: {shards or 'none'}`. Correct the "
                f"YAML, or choose another results folder. If the files were moved, correct {format_path}."
            )

    def remove_leftovers(self) -> int:
        """Delete files that killed processes left here and next to the shards (see `files.remove_leftovers`)."""
        removed = remove_leftovers(self.root)
        return removed + self.backend.remove_temporaries(time.time) if self.shards_url else removed

    def verify_hash(self, shard: str) -> None:
        """Check that a shard's bytes match the hash in its name; raise ShardDamagedError if they do not."""
        self.check_hash(shard, self.backend.sha256(shard))

    def read_verified(self, shard: str) -> bytes:
        """Return a shard's bytes, after checking that they match the hash in its name (raises like `verify_hash`)."""
        content = self.backend.read(shard)
        self.check_hash(shard, hashlib.sha256(content).hexdigest())
        return content

    def check_hash(self, shard: str, sha256: str) -> None:
        """Check that the hash of a shard's bytes matches its name (raises like `verify_hash`)."""
        if sha256[:SHA_DIGITS] != sha_of_name(shard):
            expected = f"SHA-256 {sha_of_name(shard)}…"
            raise damage_error(self.backend.label(shard), expected, sha256[:SHA_DIGITS], "Verifying")

    def publish(self, dataset: str, stem: str, content: bytes) -> str:
        """Write a shard whose name consists of a stem and the hash of its content, and return the name."""
        shard = f"{dataset}/{stem}-{hashlib.sha256(content).hexdigest()[:SHA_DIGITS]}.parquet"
        self.backend.publish(shard, content)
        return shard

    @contextmanager
    def open_compacted_shard(self, dataset: str) -> Iterator[HashingStream]:
        """Open a compacted shard for writing; it appears, named by its hash, when the block ends without an error."""
        with self.backend.open_new_shard(dataset) as new_file:
            stream = HashingStream(new_file.stream)
            yield stream
            new_file.name = f"compact-{stream.digest.hexdigest()[:SHA_DIGITS]}.parquet"


def network_of(shard: str) -> tuple[str, ArchitectureId] | None:
    """Return the dataset and architecture in a shard's name; None for a compacted shard, which has many networks."""
    dataset, _, name = shard.partition("/")
    match = SHARD_NAME.fullmatch(name)
    if match is None or not match["stem"]:
        return None
    return dataset, int(match["index"]) if match["index"] else match["name"]


def stem_of(architecture: ArchitectureId, key: str) -> str:
    """Return the part of a shard's name before its hash, for shards of one unit."""
    return f"{architecture:06d}-{key}" if isinstance(architecture, int) else f"{architecture}@{key}"


def has_stem(shard: str, stem: str) -> bool:
    """Return whether a shard's name has the given stem (see `stem_of`)."""
    match = SHARD_NAME.fullmatch(shard.rpartition("/")[2])
    return match is not None and match["stem"] == stem
