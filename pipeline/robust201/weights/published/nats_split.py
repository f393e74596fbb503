"""NATS-Bench's full archive as it is downloaded: tar parts, read in place.

Nothing is unpacked: the headers are walked, the records of the networks that are asked for are read and the rest is
sought past. So importing six networks out of the parts costs about six records, not the archive.
"""

import io
import tarfile
from collections.abc import Collection, Iterator
from pathlib import Path, PurePosixPath

from robust201.core.errors import CheckpointError
from robust201.weights.published.base import Member, Selection, SourceWeights, WeightsFormat, absent_member
from robust201.weights.published.records import RECORD_NAME, read_nats
from robust201.weights.published.split_archive import JoinedParts, find_parts, is_part_name, missing_after

_MAX_MEMBER_BYTES = 1 << 30


def _matches(path: Path) -> bool:
    if path.is_dir():
        return any(is_part_name(file.name) for file in path.iterdir())
    if not is_part_name(path.name) or not path.parent.is_dir():
        return False
    return any(file.name.startswith(path.name) for file in path.parent.iterdir())


def _members(path: Path, indices: Collection[int] | None) -> Iterator[Member]:
    parts = find_parts(path)
    wanted = None if indices is None else set(indices)
    with JoinedParts(parts) as joined:
        whole = joined.is_whole_tar()
        yield from _walk(io.BufferedReader(joined, 1 << 16), parts, wanted, whole=whole)
    if wanted is None and not whole:
        raise CheckpointError(_cut_off(parts, "all records"))
    for index in sorted(wanted or ()):
        yield absent_member(_absent(parts, index) if whole else _cut_off(parts, f"the record of #{index}"))


def _walk(stream: io.BufferedReader, parts: list[Path], wanted: set[int] | None, *, whole: bool) -> Iterator[Member]:
    """Yield the wanted records in the archive's order and drop them from `wanted`."""
    seen: set[int] = set()
    try:
        with tarfile.open(fileobj=stream, mode="r:") as archive:
            for entry in archive:
                index = _index_of(entry, parts)
                if index is None or index in seen or (wanted is not None and index not in wanted):
                    continue
                seen.add(index)
                yield _record(archive, entry, index, parts)
                if wanted is not None:
                    wanted.discard(index)
                    if not wanted:
                        return
    except tarfile.TarError as error:
        if whole:
            raise CheckpointError(
                f"Reading an archive failed for {parts[0]}: expected the headers of a tar archive, got damaged ones "
                f"({error}). Get its parts again."
            ) from error


def _index_of(entry: tarfile.TarInfo, parts: list[Path]) -> int | None:
    """Read the index off an entry's name; None for folders and other files."""
    path = PurePosixPath(entry.name)
    if path.is_absolute() or ".." in path.parts:
        raise CheckpointError(
            f"Reading an archive failed for {parts[0]}: expected entries inside its own folder, got {entry.name!r}. "
            "Get the archive from its publisher."
        )
    match = RECORD_NAME.fullmatch(path.name)
    if match is None or entry.isdir():
        return None
    if not entry.isfile() or entry.size > _MAX_MEMBER_BYTES:
        raise CheckpointError(
            f"Reading an archive failed for {parts[0]}: expected {entry.name} to be a file of at most "
            f"{_MAX_MEMBER_BYTES:,} bytes, got {'a link' if not entry.isfile() else f'{entry.size:,} bytes'}. "
            "Get the archive from its publisher."
        )
    return int(match.group(1))


def _record(archive: tarfile.TarFile, entry: tarfile.TarInfo, index: int, parts: list[Path]) -> Member:
    def weights(selection: Selection) -> Iterator[SourceWeights]:
        stream = archive.extractfile(entry)
        try:
            raw = b"" if stream is None else stream.read()
        except tarfile.TarError:
            raw = b""
        if len(raw) != entry.size:
            raise CheckpointError(_cut_off(parts, f"the record of #{index}"))
        return read_nats(index, raw, f"{parts[0]}:{entry.name}", selection)

    return weights


def _cut_off(parts: list[Path], what: str) -> str:
    return (
        f"Reading an archive failed for {parts[0].parent}: expected {missing_after(parts)} after {parts[-1].name} to "
        f"hold {what}, got no such part. Get the part that is missing; those that are there need not be joined."
    )


def _absent(parts: list[Path], index: int) -> str:
    return (
        f"Finding weights failed for #{index} in {parts[0]}: expected its record in the archive, got none. "
        "Leave it out, or import it from another source."
    )


NATS_SPLIT = WeightsFormat(
    "nats-tar", "NATS-tss-v1_0-3ffb9-full.taraa, .tarab, … (not unpacked)", matches=_matches, members=_members
)
