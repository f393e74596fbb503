"""The folder that an export writes: whole files, a listing with hashes, nothing left over from an earlier export."""

import glob
import json
import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from robust201.core.errors import InputError
from robust201.core.files import (
    MAX_JSON_BYTES,
    load_json,
    open_file,
    read_text,
    sole_writer,
    visible_entries,
    write_text,
)
from robust201.core.records import IMPORTED, canonical_json
from robust201.dataset.listing import listing_text
from robust201.dataset.side_files import WEIGHTS_FILE, WeightHashes
from robust201.dataset.written_file import WrittenFile, hashed_file
from robust201.reader.checksum_listing import CHECKSUM_FILE, is_below, read_checksums
from robust201.reader.result_files import SWEEP_FILE

JOURNAL_FILE = ".export-journal.json"
"""Names of the files that an export in progress owns, and a line for each that is finished; there only until the
listing is."""


@contextmanager
def open_folder(
    path: Path, planned: Collection[str], record: Mapping[str, Any], weights: WeightHashes
) -> Iterator["ExportFolder"]:
    """Make a folder ready for an export, and keep other exports of this machine out of it for the length of a block.

    The names of the files to come are relative to it. `record` is how the numbers to be exported came about, with
    ``name`` and ``protocols`` as in sweep.json; `weights` are by network (see `dataset.side_files.weight_hashes`).

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
        _refuse_other_sweeps(path, record, weights)
        yield ExportFolder(path, planned)


def _refuse_other_sweeps(path: Path, record: Mapping[str, Any], weights: WeightHashes) -> None:
    """Make sure that a folder holds no export of another sweep, which an export would replace."""
    # Another sweep has another name, or one of the two is of imported results, or they have no protocol in common, or
    # of the networks that both have none with the same weights: one more strength or architecture makes no other.
    try:
        earlier = load_json(path / SWEEP_FILE)["sweep"]
        held, wanted = _describe_sweep(earlier), _describe_sweep(record)
        marks = _protocol_marks(earlier), _protocol_marks(record)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return  # none is there, or a damaged one, which says nothing and is written anew
    if held != wanted:
        got = held
    elif all(marks) and marks[0].isdisjoint(marks[1]):
        got = "the same name but of other protocols"
    elif (same := _same_weights(path, weights)) and not any(same):
        got = "the same name and protocols but of other weights"
    else:
        return
    raise InputError(
        f"Exporting failed for {path}: expected a new folder or an earlier export of {wanted}, got an export of "
        f"{got}, whose files would be removed. Choose another folder, or delete this one first."
    )


def _same_weights(path: Path, weights: WeightHashes) -> list[bool]:
    """Say of each network that an earlier export has too whether its weights are the same; empty if that names none."""
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


def _describe_sweep(record: Mapping[str, Any]) -> str:
    protocols = record["protocols"]
    # Sweeps of earlier versions may list imported protocols beside their own.
    imported = bool(protocols) and all(protocol.get("protocol") == IMPORTED for protocol in protocols)
    return f"the {'imported results' if imported else 'sweep'} {record['name']!r}"


def _protocol_marks(record: Mapping[str, Any]) -> set[str]:
    """What distinguishes protocols; of imported results the hashes of the files read, whoever read them."""
    marks: set[str] = set()
    for protocol in record["protocols"]:
        imported = protocol.get("protocol") == IMPORTED
        marks |= set(map(str, protocol["files"].values())) if imported else {canonical_json(protocol)}
    return marks


class ExportFolder:
    """A folder being filled by an export, new, empty or holding an earlier one, which is replaced (see `open_folder`).

    `written` has the files written or kept so far, by name.
    """

    def __init__(self, path: Path, planned: Collection[str]) -> None:
        self.path = path
        self.written: dict[str, WrittenFile] = {}
        self._earlier, journaled = _listed_files(path)
        owned = self._earlier | {CHECKSUM_FILE} if self._earlier else set()
        foreign = sorted(name for name in {*planned, CHECKSUM_FILE} if (path / name).exists() and name not in owned)
        if not self._earlier:
            foreign += [name for name in visible_entries(path) if name not in foreign]
        if foreign:
            raise InputError(
                f"Exporting failed for {path}: expected a new folder or an earlier export, got {len(foreign)} files "
                f"that no export listed, such as {foreign[0]}. Choose another folder."
            )
        # After a kill the journal still shows the next export which files are an export's own, and which are whole.
        self._finished = {file.name: file for file in journaled if file.name in planned}
        lines = [sorted({*self._earlier, *planned}), *map(asdict, self._finished.values())]
        write_text(path / JOURNAL_FILE, "".join(f"{json.dumps(line)}\n" for line in lines))
        (path / CHECKSUM_FILE).unlink(missing_ok=True)
        for name in self._earlier:
            file = path / name
            for leftover in file.parent.glob(f".{glob.escape(file.name)}.*.tmp"):
                leftover.unlink(missing_ok=True)

    def earlier(self, name: str) -> WrittenFile | None:
        """What an interrupted export noted of a file; recipe and bytes are still to be compared."""
        return self._finished.get(name)

    def record(self, file: WrittenFile) -> None:
        """Note that a file is whole, so that a repeated export can keep it."""
        self.written[file.name] = file
        with open_file(self.path / JOURNAL_FILE, None, "ab") as journal:
            journal.write(json.dumps(asdict(file)).encode() + b"\n")
            journal.flush()
            os.fsync(journal.fileno())

    def write(self, name: str, content: str | bytes) -> None:
        """Write a whole file."""
        with hashed_file(self.path / name) as (stream, hashed):
            stream.write(content.encode() if isinstance(content, str) else content)
        self.record(WrittenFile(name, hashed.digest.hexdigest(), hashed.n_bytes))

    def close(self) -> tuple[str, ...]:
        """Remove what earlier exports left, list the files written, and name those removed, sorted."""
        stale = sorted(name for name in self._earlier - {*self.written} if (self.path / name).is_file())
        for name in stale:
            file = self.path / name
            file.unlink()
            for folder in file.relative_to(self.path).parents:
                place = self.path / folder
                if place != self.path and not any(place.iterdir()):
                    place.rmdir()
        write_text(self.path / CHECKSUM_FILE, listing_text({name: file.sha256 for name, file in self.written.items()}))
        (self.path / JOURNAL_FILE).unlink()
        return tuple(stale)


def _listed_files(path: Path) -> tuple[set[str], list[WrittenFile]]:
    """Names of files that earlier exports, finished or killed, wrote or were about to write; and those known whole."""
    names: list[str] = []
    finished: list[WrittenFile] = []
    journal = path / JOURNAL_FILE
    if journal.is_file():
        for line in _read_lines(journal):
            content = None
            with suppress(ValueError, RecursionError):  # a kill left half of the last line
                content = json.loads(line)
            if isinstance(content, list):
                names += [name for name in content if isinstance(name, str)]
            elif isinstance(content, dict) and content.keys() == WrittenFile.__annotations__.keys():
                finished.append(WrittenFile(**content))
    names += read_checksums(path)
    # The listing may have been edited: only files below the folder are ever removed.
    inside = {name for name in names if is_below(name)}
    return inside, [file for file in finished if file.name in inside and file.recipe]


def _read_lines(journal: Path) -> list[str]:
    """Lines of a journal; none of one that is damaged, which names nothing to be kept or removed."""
    try:
        return read_text(journal, MAX_JSON_BYTES).splitlines()
    except ValueError:
        return []
