"""One file over HTTP: resumed where it stopped, verified before it appears under its name.

The standard library's `urllib` does it: `requests` comes with Ray only, is no dependency of this project, and would
still leave resuming, verifying and retrying to be written.
"""

import errno
import fcntl
import hashlib
import http.client
import os
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BufferedRandom
from pathlib import Path
from typing import NamedTuple, cast

from robust201.core.errors import DatasetError, StorageFullError
from robust201.core.files import fsync_folder, open_file
from robust201.images.downloads.registry import Checksum

ByteProgress = Callable[[int, int | None], None]
"""Called with the bytes there are and the bytes there will be (None where the server does not say)."""

TIMEOUT_SECONDS = 20.0
BACKOFF_SECONDS = (1.0, 2.0, 4.0, 8.0)
"""Pauses before the next request after a passing fault; a request that brings new bytes starts them again."""

_CHUNK_BYTES = 1 << 18
_PASSING_STATUS = {408, 425, 429, 500, 502, 503, 504}


class _PassingError(Exception):
    """The server was reached, and the same request may succeed soon."""


class _RefusedError(Exception):
    """There is no network or no such file: asking again is no use."""


class _Body(NamedTuple):
    """An open response: where its bytes belong in the file, and how many there will be in all."""

    response: http.client.HTTPResponse
    start: int
    total: int | None


@contextmanager
def writing_to(path: Path) -> Iterator[None]:
    """Turn errors of the file system into errors that say what to do: `StorageFullError` or `DatasetError`."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StorageFullError(
                f"Writing failed for {path}: expected free space on the device, got none ({error.strerror}). "
                "Free some space and run the same command again."
            ) from error
        raise DatasetError(
            f"Writing failed for {path}: expected a folder that can be written to, got {error.strerror}. "
            "Choose another folder, or correct its permissions."
        ) from error


def transfer(url: str, target: Path, checksum: Checksum, *, progress: ByteProgress | None = None) -> None:
    """Download a file over HTTP or HTTPS; `progress` is called after every piece.

    The bytes gather in `<target>.part`, which an interrupted call leaves and the next one continues. Only a whole,
    verified file is renamed to `target`, whose folder is made.

    Raises:
        DatasetError: no network, no such file, a server that keeps failing, another file than expected, or another
            process that downloads it at this moment.
        StorageFullError: no space is left on the device.
    """
    part = target.with_name(f"{target.name}.part")
    with writing_to(part):
        target.parent.mkdir(parents=True, exist_ok=True)
        stream = cast(BufferedRandom, open_file(part, None, "a+b"))
    with stream:
        _lock(stream, part)
        try:
            _receive_whole(url, stream, part, checksum, progress)
        except (_PassingError, _RefusedError) as error:
            size = stream.seek(0, os.SEEK_END)
            if not size:
                part.unlink(missing_ok=True)
            kept = f"; {size:,} bytes are kept in {part.name}" if size else ""
            raise DatasetError(
                f"Fetching failed for {url}: expected the file {target.name} ({checksum}), got {error}{kept}. "
                f"Run the same command again later, or put {target.name} into {target.parent} by hand and run it again."
            ) from error
        with writing_to(part):
            os.fsync(stream.fileno())
            part.replace(target)
            fsync_folder(target.parent)


def _lock(stream: BufferedRandom, part: Path) -> None:
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise DatasetError(
            f"Fetching failed for {part}: expected no other download of it, got one under way. Wait until it ends."
        ) from error


def _receive_whole(
    url: str, stream: BufferedRandom, part: Path, checksum: Checksum, progress: ByteProgress | None
) -> None:
    resumed = stream.seek(0, os.SEEK_END) > 0
    while True:
        _receive(url, stream, part, progress)
        got = _measure(stream, checksum)
        if got == checksum:
            return
        stream.truncate(0)
        if not resumed:
            raise _RefusedError(f"another file ({got})")
        resumed = False  # what lay there before may have been of another version: once more from the first byte


def _measure(stream: BufferedRandom, checksum: Checksum) -> Checksum:
    """Describe the bytes of a file in the terms of a checksum; what is not published counts as equal."""
    size = stream.seek(0, os.SEEK_END)
    stream.seek(0)
    digest = hashlib.file_digest(stream, checksum.hasher).hexdigest()
    return Checksum(
        checksum.algorithm,
        digest if checksum.digest is not None else None,
        size if checksum.size is not None else None,
    )


def _receive(url: str, stream: BufferedRandom, part: Path, progress: ByteProgress | None) -> None:
    failures = 0
    while True:
        before = stream.seek(0, os.SEEK_END)
        try:
            _append(url, stream, part, progress)
        except _PassingError:
            failures = 0 if stream.seek(0, os.SEEK_END) > before else failures + 1
            if failures > len(BACKOFF_SECONDS):
                raise
            time.sleep(BACKOFF_SECONDS[max(failures - 1, 0)])
        else:
            return


def _append(url: str, stream: BufferedRandom, part: Path, progress: ByteProgress | None) -> None:
    body = _request(url, stream.seek(0, os.SEEK_END))
    if body is None:
        return
    with body.response:
        done = body.start
        stream.truncate(done)
        while True:
            try:
                chunk = body.response.read(_CHUNK_BYTES)
            except (OSError, http.client.HTTPException) as error:
                raise _PassingError(f"a broken connection ({error or type(error).__name__})") from error
            if not chunk:
                break
            with writing_to(part):
                stream.write(chunk)
                stream.flush()
            done += len(chunk)
            if progress is not None:
                progress(done, body.total)
    if body.total is not None and done < body.total:
        raise _PassingError(f"a connection that ended after {done:,} of {body.total:,} bytes")


def _request(url: str, offset: int) -> _Body | None:
    """Ask for the bytes from an offset; None means that there are none beyond it."""
    if not url.startswith(("http://", "https://")):
        raise _RefusedError("an address that is neither http nor https")
    headers = {"User-Agent": "robust201", "Accept-Encoding": "identity"}
    if offset:
        headers["Range"] = f"bytes={offset}-"
    try:
        response = urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=TIMEOUT_SECONDS)  # noqa: S310  (the scheme is checked above)
    except urllib.error.HTTPError as error:
        with error:
            if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and offset:
                return None
            kind = _PassingError if error.code in _PASSING_STATUS else _RefusedError
            raise kind(f"HTTP status {error.code} ({error.reason})") from error
    except urllib.error.URLError as error:
        raise _RefusedError(f"no connection ({error.reason})") from error
    except (OSError, http.client.HTTPException) as error:
        raise _PassingError(f"a broken connection ({error or type(error).__name__})") from error
    return _placed(response, offset)


def _placed(response: http.client.HTTPResponse, offset: int) -> _Body:
    length = response.headers.get("Content-Length")
    if response.status == http.HTTPStatus.PARTIAL_CONTENT:
        match = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", response.headers.get("Content-Range", ""))
        if match is None or int(match[1]) != offset:
            response.close()
            raise _RefusedError("a part of the file that was not asked for")
        return _Body(response, offset, None if match[2] == "*" else int(match[2]))
    return _Body(response, 0, int(length) if length is not None else None)
