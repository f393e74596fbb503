"""Reader of NATS-Bench's full archive as downloaded: tar parts, read without unpacking.

Only the headers and the records of requested networks are read, and the rest is skipped. So importing six networks
costs about as much as reading six records, not the whole archive.
"""

import bisect
import io
import itertools
import re
import tarfile
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path, PurePosixPath
from string import ascii_lowercase
from typing import Any, cast

from robust201.core.errors import CheckpointError
from robust201.core.files import open_file
from robust201.weights.published.base import Member, Selection, SourceWeights, WeightsFormat, absent_member
from robust201.weights.published.records import RECORD_NAME, read_nats

_MAX_MEMBER_BYTES = 1 << 30


_PART_NAME = re.compile(r"(?P<base>.+\.tar)(?P<major>[a-z]{2})?(?:-(?P<minor>[a-z]{2}))?")
_SUFFIXES = ["".join(pair) for pair in itertools.product(ascii_lowercase, repeat=2)]
_END_OF_TAR = bytes(1024)


def is_part_name(name: str) -> bool:
    """Return whether a file name is ``*.tar``, ``*.taraa`` or ``*.taraa-aa``."""
    match = _PART_NAME.fullmatch(name)
    return match is not None and (match["major"] is not None or match["minor"] is None)


def find_parts(path: Path) -> list[Path]:
    """Return the parts of an archive up to the first missing one; `path` is its folder, a part, or the common name."""
    folder = path if path.is_dir() else path.parent
    files = sorted(file for file in folder.iterdir() if is_part_name(file.name)) if folder.is_dir() else []
    bases = {_base(file) for file in files}
    if not path.is_dir():
        bases &= {_base(path)} if is_part_name(path.name) else set()
    if len(bases) != 1:
        raise CheckpointError(
            f"Finding the parts of an archive failed for {path}: expected those of one archive, got "
            f"{', '.join(sorted(bases)) or 'none'}. Name one of its parts."
        )
    base = bases.pop()
    by_suffix = {file.name.removeprefix(base): file for file in files if _base(file) == base}
    return [by_suffix.pop("")] if "" in by_suffix else _contiguous(by_suffix, folder / base)


def _base(file: Path) -> str:
    match = _PART_NAME.fullmatch(file.name)
    return match["base"] if match else ""


def _contiguous(by_suffix: dict[str, Path], archive: Path) -> list[Path]:
    parts: list[Path] = []
    for major in _SUFFIXES:
        minor = list(itertools.takewhile(by_suffix.__contains__, (f"{major}-{suffix}" for suffix in _SUFFIXES)))
        if major in by_suffix and minor:
            raise CheckpointError(
                f"Finding the parts of an archive failed for {archive}: expected {by_suffix[major].name} or its "
                f"parts, got both. Remove one of them."
            )
        suffixes = [major] if major in by_suffix else minor
        if not suffixes:
            break
        parts += [by_suffix[suffix] for suffix in suffixes]
    if not parts:
        raise CheckpointError(
            f"Finding the parts of an archive failed for {archive}: expected its first part {archive.name}aa, got "
            f"{', '.join(sorted(by_suffix))} only. Get the missing part."
        )
    return parts


def missing_after(parts: Sequence[Path]) -> str:
    """Return the name of the part after the last one, for a message."""
    match = _PART_NAME.fullmatch(parts[-1].name)
    if match is None or match["major"] is None:
        return f"the rest of {parts[-1].name}"
    following = _SUFFIXES[_SUFFIXES.index(match["major"]) + 1 :] or ["…"]
    if match["minor"] is None:
        return f"{match['base']}{following[0]}"
    finer = _SUFFIXES[_SUFFIXES.index(match["minor"]) + 1 :] or ["…"]
    return f"{match['base']}{match['major']}-{finer[0]} or {match['base']}{following[0]}-aa"


class JoinedParts(io.RawIOBase):
    """File object over the concatenated parts; at most one part is open at a time."""

    def __init__(self, parts: Sequence[Path]) -> None:
        super().__init__()
        self._parts = list(parts)
        self._ends = list(itertools.accumulate(part.stat().st_size for part in self._parts))
        self._position = 0
        self._open: tuple[int, io.BufferedReader] | None = None

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Move to a position in the joined file; as for any file, it may be past the end."""
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._ends[-1]}[whence]
        self._position = max(0, start + offset)
        return self._position

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: Any, /) -> int:
        """Fill a buffer from the current position, at most to the end of the current part."""
        number = bisect.bisect_right(self._ends, self._position)
        if number == len(self._parts):
            return 0
        if self._open is None or self._open[0] != number:
            self._close_part()
            self._open = number, cast(io.BufferedReader, open_file(self._parts[number], None))
        file = self._open[1]
        start = self._ends[number - 1] if number else 0
        file.seek(self._position - start)
        count = file.readinto(buffer)
        self._position += count
        return count

    def is_complete_tar(self) -> bool:
        """Return whether the joined file ends with two empty blocks, like a complete tar archive."""
        position = self.tell()
        self.seek(max(0, self._ends[-1] - len(_END_OF_TAR)))
        tail = b"".join(iter(lambda: self.read(len(_END_OF_TAR)), b""))
        self.seek(position)
        return tail == _END_OF_TAR

    def close(self) -> None:
        self._close_part()
        super().close()

    def _close_part(self) -> None:
        if self._open is not None:
            self._open[1].close()
            self._open = None


def _matches(path: Path) -> bool:
    if path.is_dir():
        return any(is_part_name(file.name) for file in path.iterdir())
    if not is_part_name(path.name) or not path.parent.is_dir():
        return False
    return any(file.name.startswith(path.name) for file in path.parent.iterdir())


def _members(path: Path, indices: Collection[int] | None) -> Iterator[Member]:
    parts = find_parts(path)
    requested = None if indices is None else set(indices)
    with JoinedParts(parts) as joined:
        is_complete = joined.is_complete_tar()
        yield from _walk(io.BufferedReader(joined, 1 << 16), parts, requested, is_complete=is_complete)
    if requested is None and not is_complete:
        raise CheckpointError(_cut_off(parts, "all records"))
    for index in sorted(requested or ()):
        yield absent_member(_absent(parts, index) if is_complete else _cut_off(parts, f"the record of #{index}"))


def _walk(
    stream: io.BufferedReader, parts: list[Path], remaining: set[int] | None, *, is_complete: bool
) -> Iterator[Member]:
    """Yield the requested records in archive order, and remove them from `remaining`."""
    found_indices: set[int] = set()
    try:
        with tarfile.open(fileobj=stream, mode="r:") as archive:
            for entry in archive:
                index = _index_of(entry, parts)
                if index is None or index in found_indices or (remaining is not None and index not in remaining):
                    continue
                found_indices.add(index)
                yield _record(archive, entry, index, parts)
                if remaining is not None:
                    remaining.discard(index)
                    if not remaining:
                        return
    except tarfile.TarError as error:
        if is_complete:
            raise CheckpointError(
                f"Reading an archive failed for {parts[0]}: expected the headers of a tar archive, got damaged ones "
                f"({error}). Get its parts again."
            ) from error


def _index_of(entry: tarfile.TarInfo, parts: list[Path]) -> int | None:
    """Return the index in an entry's name; None for folders and other files."""
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
        f"contain {what}, got no such part. Get the missing part; parts need not be joined."
    )


def _absent(parts: list[Path], index: int) -> str:
    return (
        f"Finding weights failed for #{index} in {parts[0]}: expected its record in the archive, got none. "
        "Leave it out, or import it from another source."
    )


NATS_SPLIT = WeightsFormat(
    "nats-tar", "NATS-tss-v1_0-3ffb9-full.taraa, .tarab, … (not unpacked)", matches=_matches, members=_members
)
