"""The results folder: where its files lie, how a shard gets its name, and how one is set aside.

format.json                                     what this folder is, and the version of its form
protocols/<digest>.json                         payload of every protocol that rows name
shards/<dataset>/<index>-<key>-<sha16>.parquet  one part of one unit
shards/<dataset>/compact-<sha16>.parquet        many of them, merged
damaged/<dataset>/                              shards set aside
lease.json                                      the driver at work (see `pipeline.lease`)
shares/<i>-of-<n>/                              what each share tells of itself (see `pipeline.shares`)
slurm/                                          batch file and logs of job arrays
logs/                                           what workers did, one file each (see `pipeline.work_log`)
"""

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from pipeline.errors import FormatVersionError, InputError, ShardDamagedError
from pipeline.files import atomic_write, fsync_folder, make_folder, new_file, sha256_of, write_text
from pipeline.records import canonical_json

FORMAT_NAME = "robust201-results"
FORMAT_VERSION = 1
"""Version of the folder's form; a shard has its own (see `pipeline.shards.parquet`)."""

SHA_DIGITS = 16
_SHARD_NAME = re.compile(r"(?:(?P<architecture>\d{6})-(?P<key>.+)|(?P<compact>compact))-(?P<sha>[0-9a-f]{16})\.parquet")


_NAMES = {
    *("shards", "damaged", "protocols", "plan.json", "progress.json", "failures.jsonl", "lease.json"),
    *("meta.json", "SHA256SUMS", "manifest.json", "manifest.jsonl"),
}
"""What a folder without format.json must not hold to become a results folder: our names, and those that tell an
exported dataset, corrupted images and a checkpoint store."""


def _go_on(_step: str) -> None:
    """Do nothing at a step of a write."""


class _HashingStream:
    """A binary stream that hashes what goes through it."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self.digest = hashlib.sha256()
        self.closed = False

    def write(self, data: bytes) -> int:
        self.digest.update(data)
        return self._stream.write(data)

    def tell(self) -> int:
        return self._stream.tell()

    def flush(self) -> None:
        self._stream.flush()

    def writable(self) -> bool:
        return True

    def readable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return False

    def close(self) -> None:
        """Leave the file open: whoever opened it flushes and renames it."""


class ResultsFolder:
    """Paths and names in one results folder.

    A shard is named by its path below ``shards/``, such as ``cifar10/000021-pgd-0123456789abcdef.parquet``.

    Args:
        root: the folder.
        on_step: called at each step of writing a shard (`pipeline.files.WRITE_STEPS`), for crash tests.
    """

    def __init__(self, root: Path, on_step: Callable[[str], None] = _go_on) -> None:
        self.root = root
        self.shards = root / "shards"
        self.damaged = root / "damaged"
        self.protocols = root / "protocols"
        self.on_step = on_step

    def create(self) -> None:
        """Make an empty results folder, unless it is one already.

        Raises:
            InputError: the path is a file, or a folder that holds something else.
            FormatVersionError: another version made it.
            StorageFullError: no space is left.
        """
        form = self.root / "format.json"
        make_folder(self.root)
        if not form.exists():
            foreign = sorted(_NAMES & {entry.name for entry in self.root.iterdir()})
            if foreign:
                raise InputError(
                    f"Creating a results folder failed for {self.root}: expected a new folder, got one with "
                    f"{foreign[0]} but without {form.name}. Name another folder."
                )
            write_text(form, canonical_json({"format": FORMAT_NAME, "version": FORMAT_VERSION}) + "\n")
        self.check_format()

    def check_format(self) -> None:
        """Make sure that this is a results folder of a version that we know.

        Raises:
            InputError: it is none.
            FormatVersionError: another version made it.
        """
        form = self.root / "format.json"
        try:
            payload = json.loads(form.read_text(encoding="utf-8"))
            name, version = payload["format"], payload["version"]
        except (FileNotFoundError, NotADirectoryError) as error:
            inside = next(iter(sorted(self.root.glob("*/format.json"))), None)
            hint = f" Did you mean {inside.parent}?" if inside else ""
            raise InputError(
                f"Opening results failed for {self.root}: expected a results folder with a format.json, got none."
                f"{hint} Check the path, or start a sweep there with: robust201 run SWEEP.yaml"
            ) from error
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(
                f"Opening results failed for {form}: expected the format and version of a results folder, got other "
                f"content ({error}). Check the path; a folder that lost this file can be joined into a new one by hand."
            ) from error
        if (name, version) != (FORMAT_NAME, FORMAT_VERSION):
            raise FormatVersionError(
                f"Opening results failed for {self.root}: expected format {FORMAT_NAME} version {FORMAT_VERSION}, "
                f"got {name} version {version}. Use the version of robust201 that made the folder."
            )

    def path(self, shard: str) -> Path:
        """Path of a shard."""
        return self.shards / shard

    def list_shards(self) -> list[str]:
        """Names of all shards, sorted; temporary and other files are left out."""
        if not self.shards.is_dir():
            return []
        names: list[str] = []
        for folder in sorted(self.shards.iterdir()):
            if folder.is_dir():
                found = (entry.name for entry in os.scandir(folder))
                names.extend(f"{folder.name}/{name}" for name in sorted(found) if _SHARD_NAME.fullmatch(name))
        return names

    def list_temporaries(self) -> list[Path]:
        """Files that writers left behind, or are writing."""
        return sorted(self.shards.glob("*/.*.tmp"))

    def verify_hash(self, shard: str) -> None:
        """Compare a shard's bytes with its name.

        Raises:
            ShardDamagedError: they differ.
            FileNotFoundError: there is no such shard.
        """
        path = self.path(shard)
        try:
            sha = sha256_of(path)[:SHA_DIGITS]
        except FileNotFoundError:
            raise
        except OSError as error:
            raise self._mismatch(path, f"a read error ({error.strerror})") from error
        if sha != sha_of_name(shard):
            raise self._mismatch(path, sha)

    @staticmethod
    def _mismatch(path: Path, got: str) -> ShardDamagedError:
        return ShardDamagedError(
            f"Verifying failed for shard {path}: expected SHA-256 {sha_of_name(path.name)}…, got {got}. "
            "Run the sweep again: it sets the shard aside and computes its evaluations anew."
        )

    def publish(self, dataset: str, stem: str, content: bytes) -> str:
        """Write a shard durably under the name that its content gives it.

        Args:
            dataset: name of the dataset.
            stem: what the name begins with.
            content: the whole file.

        Returns:
            The shard's name.

        Raises:
            StorageFullError: no space is left; nothing is left behind.
        """
        name = f"{stem}-{hashlib.sha256(content).hexdigest()[:SHA_DIGITS]}.parquet"
        with atomic_write(self.shards / dataset / name, on_step=self.on_step) as stream:
            stream.write(content)
        return f"{dataset}/{name}"

    @contextmanager
    def publishing_compacted(self, dataset: str) -> Iterator[_HashingStream]:
        """Open a compacted shard for writing; it appears under its name when the block ends without an error.

        Yields:
            A write-only stream; after the block `digest` names the shard (see `compacted_name`).

        Raises:
            StorageFullError: no space is left; nothing is left behind.
        """
        with new_file(self.shards / dataset, on_step=self.on_step) as new:
            stream = _HashingStream(new.stream)
            yield stream
            new.name = f"compact-{stream.digest.hexdigest()[:SHA_DIGITS]}.parquet"

    def set_aside(self, shard: str) -> Path:
        """Move a shard out of the way, into ``damaged/``.

        Returns:
            Where it lies now.
        """
        source, target = self.path(shard), self.damaged / shard
        target.parent.mkdir(parents=True, exist_ok=True)
        source.replace(target)
        fsync_folder(target.parent)
        fsync_folder(source.parent)
        return target


def sha_of_name(shard: str) -> str:
    """First hex digits of the SHA-256 that a shard's name gives it."""
    return shard.removesuffix(".parquet")[-SHA_DIGITS:]


def is_compacted(shard: str) -> bool:
    """Whether a shard is a compacted one, by its name."""
    return shard.rpartition("/")[2].startswith("compact-")


def stem_of(architecture: int, key: str) -> str:
    """What the name of a unit's shard begins with."""
    return f"{architecture:06d}-{key}"


def has_stem(shard: str, stem: str) -> bool:
    """Whether a shard's name begins with what its rows say."""
    match = _SHARD_NAME.fullmatch(shard.rpartition("/")[2])
    return match is not None and f"{match['architecture']}-{match['key']}" == stem
