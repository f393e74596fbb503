"""Reader of NATS-Bench's full archive as it is downloaded: a tar archive split into parts.

Nothing is unpacked. Only the headers and the records of requested networks are read, so importing six networks takes
about as long as reading six records.
"""

import bisect
import io
import itertools
import re
import tarfile
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path, PurePosixPath
from string import ascii_lowercase
from typing import Any

from robust201.core.errors import CheckpointError
from robust201.weights.published.base import (
    NetworkReader,
    Selection,
    SourceWeights,
    WeightsFormat,
    absent_network_reader,
)
from robust201.weights.published.records import RECORD_NAME, read_nats

_PART_NAME = re.compile(r"(?P<base>.+\.tar)(?P<major>[a-z]{2})?(?:-(?P<minor>[a-z]{2}))?")
_SUFFIXES = ["".join(pair) for pair in itertools.product(ascii_lowercase, repeat=2)]
_END_OF_TAR = bytes(1024)


def is_part_name(name: str) -> bool:
    """Return whether a file name is ``*.tar``, ``*.taraa`` or ``*.taraa-aa``."""
    match = _PART_NAME.fullmatch(name)
    return match is not None and (match["major"] is not None or match["minor"] is None)


def find_parts(path: Path) -> list[Path]:
    """Return the parts of an archive up to the first missing part; `path` is their folder, or one of the parts."""
    folder = path if path.is_dir() else path.parent
    files = sorted(file for file in folder.iterdir() if is_part_name(file.name)) if folder.is_dir() else []
    archive_names = {_archive_name(file) for file in files}
    if not path.is_dir():
        archive_names &= {_archive_name(path)} if is_part_name(path.name) else set()
    if len(archive_names) != 1:
        raise CheckpointError(
            f"Finding the parts of an archive failed for {path}: expected the parts of one archive, got "
            f"{', '.join(sorted(archive_names)) or 'none'}. Set the path to one part of the archive."
        )
    archive_name = archive_names.pop()
    parts_by_suffix = {
        file.name.removeprefix(archive_name): file for file in files if _archive_name(file) == archive_name
    }
    return (
        [parts_by_suffix.pop("")]
        if "" in parts_by_suffix
        else _contiguous_parts(parts_by_suffix, folder / archive_name)
    )


def _archive_name(file: Path) -> str:
    match = _PART_NAME.fullmatch(file.name)
    return match["base"] if match else ""


def _contiguous_parts(parts_by_suffix: dict[str, Path], archive: Path) -> list[Path]:
    parts: list[Path] = []
    for major in _SUFFIXES:
        minor_suffixes = list(
            itertools.takewhile(parts_by_suffix.__contains__, (f"{major}-{suffix}" for suffix in _SUFFIXES))
        )
        if major in parts_by_suffix and minor_suffixes:
            raise CheckpointError(
                f"Finding the parts of an archive failed for {archive}: there are both {parts_by_suffix[major].name} "
                "and smaller parts of it. Keep either the part or its smaller parts."
            )
        suffixes = [major] if major in parts_by_suffix else minor_suffixes
        if not suffixes:
            break
        parts += [parts_by_suffix[suffix] for suffix in suffixes]
    if not parts:
        raise CheckpointError(
            f"Finding the parts of an archive failed for {archive}: the first part {archive.name}aa is missing; there "
            f"is only {', '.join(sorted(parts_by_suffix))}. Get the missing part."
        )
    return parts


class JoinedParts(io.RawIOBase):
    """File object that reads the parts as one file. At most one part is open at a time."""

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
        """Move to a position in the joined file. As in any file, it may be past the end."""
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._ends[-1]}[whence]
        self._position = max(0, start + offset)
        return self._position

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: Any, /) -> int:
        """Read bytes from the current position into a buffer, at most to the end of the current part."""
        part_index = bisect.bisect_right(self._ends, self._position)
        if part_index == len(self._parts):
            return 0
        if self._open is None or self._open[0] != part_index:
            self._close_part()
            self._open = part_index, self._parts[part_index].open("rb")
        file = self._open[1]
        start = self._ends[part_index - 1] if part_index else 0
        file.seek(self._position - start)
        n_bytes = file.readinto(buffer)
        self._position += n_bytes
        return n_bytes

    def is_complete_tar(self) -> bool:
        """Return whether the joined file ends with two empty blocks, as a complete tar archive does."""
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
    return is_part_name(path.name) and path.is_file()


def _make_readers(path: Path, indices: Collection[int] | None) -> Iterator[NetworkReader]:
    parts = find_parts(path)
    requested = None if indices is None else set(indices)
    with JoinedParts(parts) as joined:
        is_complete = joined.is_complete_tar()
        yield from _requested_readers(io.BufferedReader(joined, 1 << 16), parts, requested, is_complete=is_complete)
    if requested is None and not is_complete:
        raise CheckpointError(_truncated_message(parts, "the rest of the records"))
    for index in sorted(requested or ()):
        record = f"the record of #{index}"
        yield absent_network_reader(
            _missing_record_message(parts, index) if is_complete else _truncated_message(parts, record)
        )


def _requested_readers(
    stream: io.BufferedReader, parts: list[Path], remaining: set[int] | None, *, is_complete: bool
) -> Iterator[NetworkReader]:
    """Yield readers of the requested networks in the order of the archive, and remove their indices from `remaining`.

    If `remaining` is None, all networks are requested.
    """
    seen_indices: set[int] = set()
    try:
        with tarfile.open(fileobj=stream, mode="r:") as archive:
            for entry in archive:
                match = RECORD_NAME.fullmatch(PurePosixPath(entry.name).name)
                if match is None or not entry.isfile():
                    continue
                index = int(match[1])
                if index in seen_indices or (remaining is not None and index not in remaining):
                    continue
                seen_indices.add(index)
                yield _make_record_reader(archive, entry, index, parts)
                if remaining is not None:
                    remaining.discard(index)
                    if not remaining:
                        return
    except tarfile.TarError as error:
        if is_complete:
            raise CheckpointError(
                f"Reading an archive failed for {parts[0]}: the headers of the tar archive are damaged ({error}). "
                "Get the parts again."
            ) from error


def _make_record_reader(
    archive: tarfile.TarFile, entry: tarfile.TarInfo, index: int, parts: list[Path]
) -> NetworkReader:
    def read_record(selection: Selection) -> Iterator[SourceWeights]:
        stream = archive.extractfile(entry)
        try:
            record_bytes = b"" if stream is None else stream.read()
        except tarfile.TarError:
            record_bytes = b""
        if len(record_bytes) != entry.size:
            raise CheckpointError(_truncated_message(parts, f"the record of #{index}"))
        return read_nats(index, record_bytes, f"{parts[0]}:{entry.name}", selection)

    return read_record


def _truncated_message(parts: list[Path], missing_content: str) -> str:
    return (
        f"Reading an archive failed for {parts[0].parent}: {missing_content} must be in the part that follows "
        f"{parts[-1].name}, and this part is missing. Get it, or get {parts[-1].name} again if it is truncated. It is "
        "not necessary to join the parts."
    )


def _missing_record_message(parts: list[Path], index: int) -> str:
    return (
        f"Finding weights failed for #{index} in {parts[0]}: the archive has no record of this network. "
        "Exclude the network, or import it from another source."
    )


NATS_SPLIT = WeightsFormat(
    "nats-tar",
    "NATS-tss-v1_0-3ffb9-full.taraa, .tarab, … (not unpacked)",
    matches=_matches,
    make_readers=_make_readers,
)
