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

Once it contains SHA256SUMS, its files are complete and are moved to their final paths. If the process is killed
before that, the old export stays; if it is killed later, the next export moves the remaining files.
"""


@contextmanager
def open_folder(
    path: Path, planned: Collection[str], record: Mapping[str, Any], weights: WeightHashes
) -> Iterator["ExportFolder"]:
    """Prepare a folder for an export, and lock it against other exports on this machine until the block ends.

    Args:
        path: the folder.
        planned: names of the files that the export will write, relative to the folder.
        record: description of the sweep, with ``name`` and ``protocols`` as in sweep.json.
        weights: SHA-256 of each network's weights (see `export.side_files.weight_hashes`).

    Raises:
        InputError: `path` is a file or lies in a results folder, or the folder contains files that no export listed or
            an export of another sweep.
        StorageError: another export is writing to the folder, or the folder is not writable.
    """
    candidates = (path, *path.resolve().parents)
    results = next((folder for folder in candidates if (folder / "format.json").exists()), None)
    if results is not None:
        raise InputError(
            f"Exporting failed for {path}: expected a new folder or an earlier export, got the results folder "
            f"{results} or one inside it. Choose another folder."
        )
    with sole_writer(path, "Exporting"):
        if _is_committed(path / STAGING_FOLDER):
            _publish(path)
        _reject_other_sweep(path, record, weights)
        _reject_unlisted_files(path, planned)
        _discard(path / STAGING_FOLDER)
        try:
            yield ExportFolder(path)
        finally:
            if not _is_committed(path / STAGING_FOLDER):
                _discard(path / STAGING_FOLDER)


def reject_unfinished_export(path: Path) -> None:
    """Reject the folder of an export that was killed before it was complete, or while its files were being moved.

    If an export is killed before the first move, the earlier export that it would have replaced is still intact.

    Raises:
        InputError: the folder contains an unfinished export.
    """
    staging = path / STAGING_FOLDER
    if _is_committed(staging) or (staging.is_dir() and not is_dataset(path)):
        raise InputError(
            f"Reading an export failed for {path}: the export was killed or is still running. "
            "Wait until it ends, or run the same robust201 export again."
        )


def _is_committed(staging: Path) -> bool:
    """Return whether a staging folder is complete, which its listing shows; symbolic links are not followed."""
    return not staging.is_symlink() and bool(read_checksums(staging))


def _discard(staging: Path) -> None:
    if staging.is_dir() and not staging.is_symlink():
        shutil.rmtree(staging)
    else:
        staging.unlink(missing_ok=True)


def _reject_other_sweep(path: Path, record: Mapping[str, Any], weights: WeightHashes) -> None:
    """Raise InputError if the folder contains an export of another sweep, since the new export would replace it."""
    # Two sweeps are different if their names differ, if they have no protocol in common, or if no network that both
    # have has the same weights. The same sweep with more strengths or architectures may replace its earlier export.
    try:
        earlier = load_json(path / SWEEP_FILE)["sweep"]
        old, new = (f"the sweep {described['name']!r}" for described in (earlier, record))
        protocols = [set(map(canonical_json, described["protocols"])) for described in (earlier, record)]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return  # there is no earlier sweep.json, or it is damaged and will be replaced
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
    """Return, for each network that both exports have, whether its weights are the same."""
    try:
        earlier = load_json(path / WEIGHTS_FILE)
        return [
            _overlap(earlier[dataset][identifier], sha256)
            for dataset, by_network in weights.items()
            for identifier, sha256 in by_network.items()
            if identifier in earlier.get(dataset, {})
        ]
    except (OSError, ValueError, TypeError, AttributeError):
        return []


def _overlap(first: Any, second: str | Mapping[str, str]) -> bool:
    """Return whether two networks have weights in common; each has one hash, or several hashes by name."""
    if isinstance(first, dict) and isinstance(second, Mapping):
        return bool(first.items() & second.items())
    return bool(first == second)


def _reject_unlisted_files(path: Path, planned: Collection[str]) -> None:
    """Raise InputError if a planned file would replace one that no export listed, or if the folder is not an export."""
    listed = read_checksums(path)
    listed_names = {*listed, CHECKSUM_FILE} if listed else set()
    unlisted = sorted(name for name in {*planned, CHECKSUM_FILE} if _is_taken(path, name, listed_names))
    if not listed:
        unlisted += [name for name in visible_entries(path) if name not in unlisted]
    if unlisted:
        raise InputError(
            f"Exporting failed for {path}: expected a new folder or an earlier export, got {len(unlisted)} files "
            f"that no export listed, such as {unlisted[0]}. Choose another folder."
        )


def _is_taken(path: Path, name: str, listed_names: Collection[str]) -> bool:
    """Return whether a path, or a folder above it, is occupied by something that no export wrote."""
    file = path / name
    ancestors = (path / folder for folder in Path(name).parents)
    return (file.exists() and (name not in listed_names or file.is_dir())) or any(
        os.path.lexists(folder) and not folder.is_dir() for folder in ancestors
    )


class ExportFolder:
    """The folder of a running export (see `open_folder`).

    Attributes:
        path: the folder.
        staging: the folder inside `path` to which the export's files are written first.
        written: the complete files, by name.
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
        """Move the files to their final paths, and return the sorted names of the earlier export's removed files."""
        listing = listing_text({name: file.sha256 for name, file in self.written.items()})
        write_text(self.staging / CHECKSUM_FILE, listing)
        return _publish(self.path)


def _publish(path: Path) -> tuple[str, ...]:
    """Move the files of a complete staging folder to their final paths, and remove the old export's other files.

    If a call is killed, the next call completes the remaining steps: the old listing, which names the files to remove,
    is replaced last.

    Returns:
        The sorted names of the removed files.
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
