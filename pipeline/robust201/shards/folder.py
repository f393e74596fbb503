"""The results folder: paths of its files, and names of shards.

format.json                                     marks a results folder; version of its format, and location of shards
protocols/<digest>.json                         payload of every protocol that rows refer to
shards/<dataset>/<index>-<key>-<sha16>.parquet  one part of one unit; or below the URL in format.json
shards/<dataset>/compact-<sha16>.parquet        a compacted shard
damaged/<dataset>/                              shards that were set aside; for a URL, below the URL
index/                                          cache of the shards' contents, to scan faster (see `shards.index`)
lease.json                                      the running driver (see `runtime.lease`)
shares/<i>-of-<n>/                              reports of each share (see `planning.shares`)
slurm/                                          batch file and logs of job arrays
logs/                                           logs of workers, one file each (see `runtime.work_log`)
"""

import hashlib
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

from robust201.core.errors import ConfigError, FormatVersionError, InputError, describe_content
from robust201.core.files import (
    MAX_STATE_BYTES,
    load_json,
    make_folder,
    remove_leftovers,
    visible_entries,
    write_text,
)
from robust201.core.records import ArchitectureId, canonical_json
from robust201.shards.backends import SHA_DIGITS, SHARD_NAME, HashingStream, LocalBackend, damaged, sha_of_name
from robust201.shards.object_store import ObjectBackend, StorageBackend, folder_of

FORMAT_NAME = "robust201-results"
FOLDER_VERSION = 1
"""Version of the folder's format; shards have their own version (see `shards.parquet`)."""


OnStep = Callable[[str], None]
"""Called at each step of writing a shard (`core.files.WRITE_STEPS`), for crash tests."""


class ResultsFolder:
    """Paths and names in one results folder.

    A shard is named by its path below ``shards/``, such as ``cifar10/000021-pgd-0123456789abcdef.parquet``.
    """

    def __init__(self, root: Path, on_step: OnStep = lambda _step: None) -> None:
        self.root = root
        self.shards = root / "shards"
        self.damaged = root / "damaged"
        self.protocols = root / "protocols"
        self.index = root / "index"
        self.on_step = on_step

    @cached_property
    def backend(self) -> StorageBackend:
        """The storage of the shards according to format.json; the folder itself if there is no format.json yet."""
        url = self.shards_url
        folder = folder_of(url)
        if folder is not None:
            return LocalBackend(folder, folder / "damaged", self.on_step)
        return ObjectBackend(url, self.on_step) if url else LocalBackend(self.shards, self.damaged, self.on_step)

    @property
    def shards_url(self) -> str:
        """URL below which the shards are stored; empty for the folder itself."""
        try:
            payload = load_json(self.root / "format.json", MAX_STATE_BYTES)
            return str(payload.get("shards", ""))
        except (FileNotFoundError, NotADirectoryError):
            return ""

    def create(self, shards: str | None = None) -> None:
        """Create an empty results folder, unless it is one already.

        Args:
            shards: URL below which to store the shards, ``""`` for the folder itself; None keeps an existing folder's
                location, and uses the folder itself for a new one.

        Raises:
            InputError: the path is a file, or a folder with other contents.
            StorageError: the URL cannot be reached.
            ConfigError, FormatVersionError: see `check_format`.
        """
        form = self.root / "format.json"
        make_folder(self.root)
        if not form.exists():
            foreign = visible_entries(self.root)
            if foreign:
                more = f" and {len(foreign) - 1:,} more" if len(foreign) > 1 else ""
                raise InputError(
                    f"Creating a results folder failed for {self.root}: expected a new or an empty folder, got one "
                    f"with {foreign[0]}{more} but without {form.name}. Name another folder."
                )
            payload: dict[str, Any] = {"format": FORMAT_NAME, "version": FOLDER_VERSION}
            if shards:
                if folder_of(shards) is None:
                    ObjectBackend(shards, self.on_step).entries()  # fail before a wrong URL is saved
                payload["shards"] = shards
            write_text(form, canonical_json(payload) + "\n")
            self.__dict__.pop("backend", None)
        self.check_format(shards)

    def remove(self) -> None:
        """Reduce a new results folder to an empty folder, after its first result turned out to be invalid."""
        for folder in (self.shards, self.damaged, self.protocols, self.index):
            shutil.rmtree(folder, ignore_errors=True)
        (self.root / "format.json").unlink(missing_ok=True)

    def check_format(self, shards: str | None = None) -> None:
        """Check that this is a results folder of a known version, with its shards in the expected location.

        Raises:
            InputError: it is not a results folder.
            ConfigError: its location of shards differs from `shards` (see `create`; None accepts any).
            FormatVersionError: another version created it.
        """
        form = self.root / "format.json"
        try:
            payload = load_json(form, MAX_STATE_BYTES)
            name, version = payload["format"], payload["version"]
        except (FileNotFoundError, NotADirectoryError) as error:
            inside = next(iter(sorted(self.root.glob("*/format.json"))), None)
            hint = f" Did you mean {inside.parent}?" if inside else ""
            got, fix = "none", "Check the path, or start a sweep there with: robust201 run SWEEP.yaml"
            if any(self.root.joinpath(name).exists() for name in ("meta.json", "parquet")):  # JSON or Parquet
                got, fix = "an exported dataset", "Give the folder of the sweep's results, or the sweep's YAML."
            raise InputError(
                f"Opening results failed for {self.root}: expected a results folder with a format.json, got {got}."
                f"{hint} {fix}"
            ) from error
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(
                f"Opening results failed for {form}: expected the format and version of a results folder, got other "
                f"content ({describe_content(error)}). Check the path, or restore the file from a copy."
            ) from error
        if (name, version) != (FORMAT_NAME, FOLDER_VERSION):
            raise FormatVersionError(
                f"Opening results failed for {self.root}: expected format {FORMAT_NAME} version {FOLDER_VERSION}, "
                f"got {name} version {version}. Use the version of robust201 that made the folder."
            )
        if shards is not None and shards != self.shards_url:
            raise ConfigError(
                f"Opening results failed for {self.root}: expected its result files where they were first put, "
                f"{self.shards_url or self.shards}, got `shards: {shards or 'none'}` in the sweep YAML. Correct that, "
                f"or name another results folder. If they were moved, correct {form}."
            )

    def remove_leftovers(self) -> int:
        """Delete files that killed processes left here and next to the shards (see `files.remove_leftovers`)."""
        removed = remove_leftovers(self.root)
        return removed + self.backend.remove_temporaries(time.time) if self.shards_url else removed

    def verify_hash(self, shard: str) -> None:
        """Check a shard's bytes against its name; raise ShardDamagedError if they differ (see `shards.backends`)."""
        self.check_hash(shard, self.backend.sha256(shard))

    def read_verified(self, shard: str) -> bytes:
        """Read a whole shard and check its bytes against its name (raises like `verify_hash`)."""
        content = self.backend.read(shard)
        self.check_hash(shard, hashlib.sha256(content).hexdigest())
        return content

    def check_hash(self, shard: str, sha256: str) -> None:
        """Check the hash of a shard's bytes against its name (raises like `verify_hash`)."""
        if sha256[:SHA_DIGITS] != sha_of_name(shard):
            expected = f"SHA-256 {sha_of_name(shard)}…"
            raise damaged(self.backend.label(shard), expected, sha256[:SHA_DIGITS], "Verifying")

    def publish(self, dataset: str, stem: str, content: bytes) -> str:
        """Write a shard durably, named by a stem and the hash of its content, and return the name."""
        shard = f"{dataset}/{stem}-{hashlib.sha256(content).hexdigest()[:SHA_DIGITS]}.parquet"
        self.backend.publish(shard, content)
        return shard

    @contextmanager
    def open_compacted_shard(self, dataset: str) -> Iterator[HashingStream]:
        """Open a compacted shard for writing; it appears under its content's name when the block ends without error."""
        with self.backend.writing(dataset) as new:
            stream = HashingStream(new.stream)
            yield stream
            new.name = f"compact-{stream.digest.hexdigest()[:SHA_DIGITS]}.parquet"


def network_of(shard: str) -> tuple[str, ArchitectureId] | None:
    """Return dataset and architecture from a shard's name; None for a compacted shard, which has many."""
    dataset, _, name = shard.partition("/")
    match = SHARD_NAME.fullmatch(name)
    if match is None or not match["stem"]:
        return None
    return dataset, int(match["index"]) if match["index"] else match["name"]


def stem_of(architecture: ArchitectureId, key: str) -> str:
    """Return the stem of the names of a unit's shards."""
    return f"{architecture:06d}-{key}" if isinstance(architecture, int) else f"{architecture}@{key}"


def has_stem(shard: str, stem: str) -> bool:
    """Return whether a shard's name has a stem."""
    match = SHARD_NAME.fullmatch(shard.rpartition("/")[2])
    return match is not None and match["stem"] == stem
