"""Where each architecture's value lies in a file of results, so that one is read without the others.

A file is ``{dataset: {key: {measurement: {id: value}}}}``; where values are lists or objects, an index of it holds the
id and the first and last byte of each value, found in one pass over the brackets. It is kept beside the file, in
``.index/``, or in a cache folder where that may not be written to, under a name that carries the file's size, time of
change and inode: a file that was replaced gets another index, and that of the old one is removed.
"""

import contextlib
import hashlib
import json
import os
import re
import secrets
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from robust201.core.errors import ResultsError
from robust201.reader.value_checks import check_row, is_id, parse_json
from robust201.spaces.nasbench201.cells import N_ARCHITECTURES

MIN_INDEXED_BYTES = 1 << 16
"""Smaller files are read whole."""

INDEX_FOLDER = ".index"

_CHUNK_BYTES = 1 << 24
VALUE_DEPTH = 5
"""Brackets that are open inside a value that is a list or an object."""

HEAD_BYTES = 1 << 12
"""Bytes that the names in front of the first value have at most."""

_HEAD = re.compile(
    rb'\s*\{\s*("(?:[^"\\]|\\.)*")\s*:\s*\{\s*("(?:[^"\\]|\\.)*")\s*:\s*\{\s*("(?:[^"\\]|\\.)*")\s*:\s*\{\s*'
)
_ID = re.compile(rb'[\s,]*"(\d+)"\s*:\s*')
_TAIL = re.compile(rb"\s*(?:\}\s*){4}")

_STEP = np.zeros(256, dtype=np.int8)
_STEP[[ord("{"), ord("[")]] = 1
_STEP[[ord("}"), ord("]")]] = -1


_BRACKET_BITS, _BRACKETS = 0x26, 0x7F
"""With these bits set, all four brackets are this byte; of the few other characters `_STEP` says that they are none."""

_BLOCK_BYTES = 1 << 18

_NPY_START = 10
"""Bytes of a ``.npy`` file in front of its header, of which the last two are the header's length (NEP 1)."""


Read = TypeVar("Read")
"""What is made of a file."""


class FileState(NamedTuple):
    """What tells a file from another that took its place: size in bytes, time of change in ns, and inode."""

    size: int
    mtime_ns: int
    inode: int

    @classmethod
    def of(cls, status: os.stat_result) -> "FileState":
        """Take the state out of what `os.stat` or `os.fstat` gave."""
        return cls(status.st_size, status.st_mtime_ns, status.st_ino)


class KeptByFile(Generic[Read]):
    """What was read of files, kept as long as each of them stays the same."""

    def __init__(self) -> None:
        self._held: dict[Path, tuple[FileState, Read]] = {}

    def get(self, file: Path, read: Callable[[], Read]) -> Read:
        """Give what was read of a file, or read it if that was never done or the file was replaced."""
        state = FileState.of(file.stat())
        held = self._held.get(file)
        if held is None or held[0] != state:
            held = self._held[file] = state, read()
        return held[1]

    def clear(self) -> None:
        """Keep nothing any longer."""
        self._held.clear()


class JsonRows:
    """The rows of one file of results, read one by one.

    Nothing is kept open, so an instance may be used by several threads and after a fork.

    Args:
        path: the file.
        dataset: the outermost name in the file.
        keys: spellings of the key that the second name may have.
        measure: the third name.

    Raises:
        ResultsError: the file is not of this form.
    """

    def __init__(self, path: Path, dataset: str, keys: tuple[str, ...], measure: str) -> None:
        self.path, self._key, self._measure = path, keys[0], measure
        with path.open("rb") as stream:
            # Of the open file: the path may name another one before the index is made.
            self._state = FileState.of(os.fstat(stream.fileno()))
            start = match_head(stream.read(HEAD_BYTES), path, dataset, keys, measure)
            table = _load_index(path, self._state)
            if table is None:
                table = _make_index(stream, path, start)
                _save_index(path, self._state, table)
            self._places = {identifier: (first, stop) for identifier, first, stop in table.tolist()}
            if len(self._places) < len(table):
                raise malformed(path, f"the id {_first_twice(table[:, 0].tolist())!r} twice")

    @property
    def ids(self) -> tuple[str, ...]:
        """Ids of the architectures, in the order of the file."""
        return tuple(str(identifier) for identifier in self._places)

    def __iter__(self) -> Iterator[str]:
        return iter(self.ids)

    def __contains__(self, identifier: str) -> bool:
        return identifier.isdecimal() and int(identifier) in self._places

    def __getitem__(self, identifier: str) -> Any:
        """Read one architecture's value.

        Raises:
            KeyError: it has none.
            ResultsError: the file was changed or replaced meanwhile.
        """
        first, stop = self._places[int(identifier)]
        with self.path.open("rb") as stream:
            if FileState.of(os.fstat(stream.fileno())) != self._state:
                raise ResultsError(
                    f"Reading #{identifier} failed for {self.path}: expected the file that was opened, got another in "
                    "its place. Open the dataset again."
                )
            stream.seek(first)
            text = stream.read(stop - first)
        try:
            row = parse_json(text)
        except ValueError as error:
            raise malformed(self.path, f"something else for {identifier} ({error})") from error
        check_row(self.path, self._key, self._measure, identifier, row)
        return row


def has_indexable_rows(path: Path) -> bool:
    """Whether the values of a file are lists or objects, and it is large enough to be worth an index."""
    if path.suffix != ".json" or path.stat().st_size < MIN_INDEXED_BYTES:
        return False
    with path.open("rb") as stream:
        start = stream.read(HEAD_BYTES)
    head = _HEAD.match(start)
    return head is not None and re.match(rb'\s*"\d+"\s*:\s*[\[{]', start[head.end() :]) is not None


def match_head(text: bytes, path: Path, dataset: str, keys: tuple[str, ...], measure: str) -> int:
    """Find where the values of a file begin.

    Args:
        text: the file's beginning, of `HEAD_BYTES` or more.
        path: the file.
        dataset: the outermost name in the file.
        keys: spellings of the key that the second name may have.
        measure: the third name.

    Returns:
        The first byte behind the brackets and names.

    Raises:
        ResultsError: the names are others.
    """
    head = _HEAD.match(text)
    try:
        names = [] if head is None else [json.loads(name) for name in head.groups()]
    except ValueError:
        head, names = None, []
    if head is None or names[0] != dataset or names[1] not in keys or names[2] != measure:
        raise malformed(path, f"names {names}" if names else "another beginning")
    return head.end()


def check_tail(text: bytes, path: Path) -> None:
    """Make sure that nothing but the closing braces stands behind the last value: another value would be left out.

    Args:
        text: all that stands there, or more of it than spaces may explain.
        path: the file.

    Raises:
        ResultsError: something else does.
    """
    if _TAIL.fullmatch(text) is None:
        raise malformed(path, f"{text[:40].decode(errors='replace')!r} behind the last list or object")


def malformed(path: Path, got: str) -> ResultsError:
    """Make the error of a file of another form."""
    return ResultsError(
        f"Reading failed for {path}: expected {{dataset: {{key: {{measurement: {{id: value}}}}}}}}, got {got}. "
        "Export or download it again."
    )


def _make_index(stream: BinaryIO, path: Path, start: int) -> NDArray[np.int64]:
    rows: list[tuple[int, int, int]] = []
    first = -1
    end_of_last = start
    for place, depth in _value_edges(stream, path, start):
        if depth == VALUE_DEPTH:
            first = place
        elif depth == VALUE_DEPTH - 1:
            stream.seek(end_of_last)
            match = _ID.fullmatch(stream.read(min(first - end_of_last, HEAD_BYTES)))
            if match is None:
                raise malformed(path, f"something else than an id before byte {first}")
            if not is_id(match[1].decode()):
                got = f"id {match[1].decode()!r} where '0' to '{N_ARCHITECTURES - 1}' are architectures"
                raise malformed(path, got)
            rows.append((int(match[1]), first, place + 1))
            end_of_last = place + 1
    stream.seek(end_of_last)
    check_tail(stream.read(HEAD_BYTES), path)
    return np.array(rows, dtype=np.int64).reshape(-1, 3)


def _first_twice(identifiers: list[int]) -> str:
    seen: set[int] = set()
    return next(str(one) for one in identifiers if one in seen or seen.add(one))  # type: ignore[func-returns-value]


def _value_edges(stream: BinaryIO, path: Path, start: int) -> Iterator[tuple[int, int]]:
    """Give the brackets that open and close values: their places, and the depth after them."""
    depth = VALUE_DEPTH - 1
    offset = start
    while True:
        stream.seek(offset)
        chunk = stream.read(_CHUNK_BYTES)
        if not chunk:
            break
        edges, depth = find_edges(chunk, depth)
        yield from ((offset + place, depth_there) for place, depth_there in edges)
        offset += len(chunk)
    if depth:
        raise malformed(path, "its end too early")


def find_edges(piece: bytes, depth: int) -> tuple[list[tuple[int, int]], int]:
    """Find the brackets in a piece of a file that open and close values.

    Args:
        piece: the text.
        depth: brackets that are open in front of it.

    Returns:
        Places in the piece, each with the depth after it (`VALUE_DEPTH` where a value begins, one less where it
        ends), and the depth at the end.
    """
    text = np.frombuffer(piece, np.uint8)
    places = find_brackets(text)
    turns = _STEP[text[places]]
    depths = depth + np.cumsum(turns, dtype=np.int64)
    opens = (turns > 0) & (depths == VALUE_DEPTH)
    closes = (turns < 0) & (depths == VALUE_DEPTH - 1)
    edges = np.flatnonzero(opens | closes)
    found = list(zip(places[edges].tolist(), depths[edges].tolist(), strict=True))
    return found, int(depths[-1]) if len(depths) else depth


def find_brackets(text: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Find all brackets and braces in a text: their places, ascending."""
    # Block by block, because arrays that stay in the processor's cache are searched several times as fast.
    blocks = range(0, len(text), _BLOCK_BYTES)
    parts = [np.flatnonzero((text[i : i + _BLOCK_BYTES] | _BRACKET_BITS) == _BRACKETS) + i for i in blocks]
    places = np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)
    found: NDArray[np.int64] = places[_STEP[text[places]] != 0]
    return found


def _index_places(path: Path, state: FileState) -> list[Path]:
    """Where the index of a file may lie: beside it, or in the user's cache."""
    name = f"{path.name}.{'-'.join(map(str, state))}.npy"
    places = [path.parent / INDEX_FOLDER / name]
    with contextlib.suppress(RuntimeError):  # a user without a home, as in many containers
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        folder = hashlib.sha256(os.fsencode(path.parent.resolve())).hexdigest()[:16]
        places.append(cache / "robust201" / folder / name)
    return places


def _load_index(path: Path, state: FileState) -> NDArray[np.int64] | None:
    for place in _index_places(path, state):
        with contextlib.suppress(OSError, ValueError):
            content = place.read_bytes()
            # Not by `np.load`, whose parser of headers raises whatever it likes where they are damaged.
            start = _NPY_START + int.from_bytes(content[_NPY_START - 2 : _NPY_START], "little")
            table = np.frombuffer(content, np.int64, offset=start).reshape(-1, 3)
            # A wrong id would give one architecture the numbers of another.
            if len(table) and np.array_equal(table[-1], _check_row_of(table[:-1])):
                return table[:-1]
    return None


def _check_row_of(table: NDArray[np.int64]) -> NDArray[np.int64]:
    """Make the last row of a kept index, by which a damaged one is known."""
    return np.array([-1, zlib.crc32(table.tobytes()), len(table)], dtype=np.int64)


def _save_index(path: Path, state: FileState, table: NDArray[np.int64]) -> None:
    for place in _index_places(path, state):
        # An index saves time and nothing else: where neither folder can be written to, it is made again.
        with contextlib.suppress(OSError):
            place.parent.mkdir(parents=True, exist_ok=True)
            temporary = place.with_name(f".{secrets.token_hex(6)}.tmp")
            try:
                with temporary.open("wb") as stream:
                    np.save(stream, np.vstack([table, _check_row_of(table)]), allow_pickle=False)
                temporary.replace(place)
            except BaseException:
                temporary.unlink(missing_ok=True)
                raise
            _remove_older(path, place)
            return


def _remove_older(path: Path, place: Path) -> None:
    """Remove the indexes of files that were at this path before."""
    form = re.compile(rf"{re.escape(path.name)}\.\d+(-\d+)+\.npy")
    for other in place.parent.iterdir():
        if other != place and form.fullmatch(other.name):
            other.unlink(missing_ok=True)
