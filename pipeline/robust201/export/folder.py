"""Folder of an export: a new export is written to a folder inside it, and its files are moved once it is complete."""

import os
import shutil
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from robust201.core.errors import InputError, StorageError
from robust201.core.files import fsync_folder, load_json, make_folder, sole_writer, visible_entries, write_text
from robust201.core.records import canonical_json
from robust201.export.listing import listing_text
from robust201.export.side_files import WEIGHTS_FILE, WeightHashes
from robust201.export.written_file import WrittenFile, hashed_file
from robust201.reader.listings import CHECKSUM_FILE, read_checksums
from robust201.reader.result_files import SWEEP_FILE, is_dataset

STAGING_FOLDER = ".export.tmp"
"""Folder, inside the export's folder, to which a new export is written.

Once it has a listing, its files are complete and are moved to their final paths. If the process is killed before that,
the old export stays; if it is killed later, the next export moves the remaining files.
"""


@contextmanager
def open_folder(
    path: Path, planned: Collection[str], record: Mapping[str, Any], weights: WeightHashes
) -> Iterator["ExportFolder"]:
    """Make a folder ready for an export, and keep other exports of this machine out of it for the length of a block.

    The names of the files to come are relative to it. `record` is how the numbers to be exported came about, with
    ``name`` and ``protocols`` as in sweep.json; `weights` are by network (see `export.side_files.weight_hashes`).

    Raises:
        InputError: `path` is a file, lies in a results folder, or holds something that no export listed, or an export
            of another sweep.
        StorageError: another export writes there, or the folder cannot be written to.
    """
    results = next((one for one in (path, *path.resolve().parents) if (one / "format.json").exists()), None)
    if results is not None:
        raise InputError(
            f"Exporting failed for {path}: expected a new folder or an earlier export, got the results folder "
            f"{results} or one inside it. Choose another folder."
        )
    with sole_writer(path, "Exporting"):
        if _is_committed(path / STAGING_FOLDER):
            _publish(path)
        _refuse_other_sweeps(path, record, weights)
        _refuse_foreign_files(path, planned)
        _discard(path / STAGING_FOLDER)
        try:
            yield ExportFolder(path)
        finally:
            if not _is_committed(path / STAGING_FOLDER):
                _discard(path / STAGING_FOLDER)


def refuse_unfinished_export(path: Path) -> None:
    """Reject the folder of an export that was killed: before it was complete, or between moves of its files.

    An earlier export that a killed one was to replace is whole until the first move.

    Raises:
        InputError: it is one.
    """
    staging = path / STAGING_FOLDER
    if _is_committed(staging) or (staging.is_dir() and not is_dataset(path)):
        raise InputError(
            f"Reading an export failed for {path}: expected a finished one, got one that was killed or still goes on. "
            "Wait for it, or run the same robust201 export again."
        )


def _is_committed(staging: Path) -> bool:
    """Return whether all files of a staging folder are whole; a link is never followed."""
    return not staging.is_symlink() and bool(read_checksums(staging))


def _discard(staging: Path) -> None:
    if staging.is_dir() and not staging.is_symlink():
        shutil.rmtree(staging)
    else:
        staging.unlink(missing_ok=True)


def _refuse_other_sweeps(path: Path, record: Mapping[str, Any], weights: WeightHashes) -> None:
    """Check that a folder holds no export of another sweep, which an export would replace."""
    # Another sweep has another name, or they have no protocol in common, or of the networks that both have none with
    # the same weights: one more strength or architecture makes no other.
    try:
        earlier = load_json(path / SWEEP_FILE)["sweep"]
        old, new = (f"the sweep {described['name']!r}" for described in (earlier, record))
        protocols = [set(map(canonical_json, described["protocols"])) for described in (earlier, record)]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return  # none is there, or a damaged one, which says nothing and is written anew
    if old != new:
        got = old
    elif all(protocols) and protocols[0].isdisjoint(protocols[1]):
        got = "the same name but of other protocols"
    elif (same := _same_weights(path, weights)) and not any(same):
        got = "the same name and protocols but of other weights"
    else:
        return
    raise InputError(
        f"Exporting failed for {path}: expected a new folder or an earlier export of {new}, got an export of "
        f"{got}, whose files would be removed. Choose another folder, or delete this one first."
    )


def _same_weights(path: Path, weights: WeightHashes) -> list[bool]:
    """Return, for each network that an earlier export has too, whether its weights are the same; empty if none."""
    try:
        earlier = load_json(path / WEIGHTS_FILE)
        return [
            _overlap(earlier[dataset][identifier], sha256)
            for dataset, of_network in weights.items()
            for identifier, sha256 in of_network.items()
            if identifier in earlier.get(dataset, {})
        ]
    except (OSError, ValueError, TypeError, AttributeError):
        return []


def _overlap(one: Any, other: str | Mapping[str, str]) -> bool:
    """Whether two networks have weights in common: one state each, or several by name."""
    if isinstance(one, dict) and isinstance(other, Mapping):
        return bool(one.items() & other.items())
    return bool(one == other)


def _refuse_foreign_files(path: Path, planned: Collection[str]) -> None:
    """Reject a folder with files that no export listed, under the names of files to come or in place of an export."""
    listed = read_checksums(path)
    owned = {*listed, CHECKSUM_FILE} if listed else set()
    foreign = sorted(name for name in {*planned, CHECKSUM_FILE} if _is_taken(path, name, owned))
    if not listed:
        foreign += [name for name in visible_entries(path) if name not in foreign]
    if foreign:
        raise InputError(
            f"Exporting failed for {path}: expected a new folder or an earlier export, got {len(foreign)} files "
            f"that no export listed, such as {foreign[0]}. Choose another folder."
        )


def _is_taken(path: Path, name: str, owned: Collection[str]) -> bool:
    """Whether something that is not an export's has the name of a file to come, or of a folder above it."""
    file = path / name
    above = (path / folder for folder in Path(name).parents)
    return (file.exists() and (name not in owned or file.is_dir())) or any(
        os.path.lexists(folder) and not folder.is_dir() for folder in above
    )


class ExportFolder:
    """A folder being filled by an export, new, empty or holding an earlier one, which is replaced (see `open_folder`).

    `staging` is where its files are written; `written` has those that are whole, by name.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.staging = path / STAGING_FOLDER
        self.written: dict[str, WrittenFile] = {}

    def record(self, file: WrittenFile) -> None:
        self.written[file.name] = file

    def write(self, name: str, content: str | bytes) -> None:
        with hashed_file(self.staging / name) as (stream, hashed):
            stream.write(content.encode() if isinstance(content, str) else content)
        self.record(WrittenFile(name, hashed.digest.hexdigest(), hashed.n_bytes))

    def close(self) -> tuple[str, ...]:
        """Put the files written in place of an earlier export's, and name the files of that which are gone, sorted."""
        listing = listing_text({name: file.sha256 for name, file in self.written.items()})
        write_text(self.staging / CHECKSUM_FILE, listing)
        return _publish(self.path)


def _publish(path: Path) -> tuple[str, ...]:
    """Move the files of a complete staging folder to their final paths, and remove the old export's other files.

    After a kill, a second call does the remaining steps: the old listing, which names the files to remove, is replaced
    last. Return the names of the removed files, sorted.
    """
    staging = path / STAGING_FOLDER
    stale = sorted(name for name in {*read_checksums(path)} - {*read_checksums(staging)} if (path / name).is_file())
    try:
        for name in read_checksums(staging):
            if (staging / name).is_file():
                make_folder((path / name).parent)
                (staging / name).replace(path / name)
        for name in stale:
            (path / name).unlink()
            for folder in Path(name).parents[:-1]:
                if not any((path / folder).iterdir()):
                    (path / folder).rmdir()
        for folder in {(path / name).parent for name in read_checksums(staging)}:
            fsync_folder(folder)
        (staging / CHECKSUM_FILE).replace(path / CHECKSUM_FILE)
        fsync_folder(path)
        shutil.rmtree(staging)
    except OSError as error:
        raise StorageError(
            f"Exporting failed for {path}: expected to move its files there from {STAGING_FOLDER}, got "
            f"{error.strerror or error} for {error.filename}. Remove what is in the way, or correct the permissions, "
            "and run the same command again."
        ) from error
    return tuple(stale)
