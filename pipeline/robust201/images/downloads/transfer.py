"""Resumable download of one file over HTTP, which is verified before it gets its final name.

This module uses the standard library's `urllib`, because `requests` is only a dependency of Ray and would not implement
resuming or verification either.
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
"""Callback that receives the number of bytes received so far and the total (None if the server does not state it)."""

TIMEOUT_SECONDS = 20.0
BACKOFF_SECONDS = (1.0, 2.0, 4.0, 8.0)
"""Pauses between retries after a temporary error. When new bytes arrive, the sequence starts again."""

_CHUNK_BYTES = 1 << 18
_TEMPORARY_STATUS = {408, 425, 429, 500, 502, 503, 504}


class _TemporaryError(Exception):
    """The server was reached, and the same request may succeed later."""


class _PermanentError(Exception):
    """A retry would fail, too, for example because there is no network connection or no such file."""


class _OpenResponse(NamedTuple):
    """An open HTTP response to a request for a file.

    Attributes:
        response: the response.
        start: offset of its bytes in the file.
        total: size of the file in bytes; None if the server does not state it.
    """

    response: http.client.HTTPResponse
    start: int
    total: int | None


@contextmanager
def writing_to(path: Path) -> Iterator[None]:
    """Convert file system errors to `StorageFullError` or `DatasetError`, whose messages state a remedy."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StorageFullError(
                f"Writing failed for {path}: the disk is full ({error.strerror}). "
                "Free some space and run the same command again."
            ) from error
        raise DatasetError(
            f"Writing failed for {path}: {error.strerror}. Choose another folder, or correct the permissions."
        ) from error


def transfer(url: str, target: Path, checksum: Checksum, *, progress: ByteProgress | None = None) -> None:
    """Download a file over HTTP or HTTPS; `progress` is called after every chunk.

    The bytes are written to `<target>.part`. An interrupted call leaves this file, and the next call continues it.
    Only a complete and verified file is renamed to `target`. The folder of `target` is created.

    Raises:
        DatasetError: there is no network connection or no such file, the server fails repeatedly, the file differs
            from the expected file, or another process is downloading it.
        StorageFullError: no space is left on the disk.
    """
    partial_path = target.with_name(f"{target.name}.part")
    with writing_to(partial_path):
        target.parent.mkdir(parents=True, exist_ok=True)
        stream = cast(BufferedRandom, open_file(partial_path, None, "a+b"))
    with stream:
        _lock(stream, partial_path)
        try:
            _receive_and_verify(url, stream, partial_path, checksum, progress)
        except (_TemporaryError, _PermanentError) as error:
            size = stream.seek(0, os.SEEK_END)
            if not size:
                partial_path.unlink(missing_ok=True)
            remark = f"; {size:,} bytes are kept in {partial_path.name}" if size else ""
            raise DatasetError(
                f"Fetching failed for {url}: expected the file {target.name} ({checksum}), got {error}{remark}. "
                f"Run the same command again later, or first put {target.name} into {target.parent} yourself."
            ) from error
        with writing_to(partial_path):
            os.fsync(stream.fileno())
            partial_path.replace(target)
            fsync_folder(target.parent)


def _lock(stream: BufferedRandom, partial_path: Path) -> None:
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise DatasetError(
            f"Fetching failed for {partial_path}: another process is downloading it. Wait until it ends."
        ) from error


def _receive_and_verify(
    url: str, stream: BufferedRandom, partial_path: Path, checksum: Checksum, progress: ByteProgress | None
) -> None:
    was_resumed = stream.seek(0, os.SEEK_END) > 0
    while True:
        _receive(url, stream, partial_path, progress)
        received_checksum = _compute_checksum(stream, checksum)
        if received_checksum == checksum:
            return
        stream.truncate(0)
        if not was_resumed:
            raise _PermanentError(f"another file ({received_checksum})")
        # The old bytes may belong to another version of the file, so the download starts again from the first byte.
        was_resumed = False


def _compute_checksum(stream: BufferedRandom, checksum: Checksum) -> Checksum:
    """Return the checksum of a file, with the same fields as a published checksum."""
    size = stream.seek(0, os.SEEK_END)
    stream.seek(0)
    digest = hashlib.file_digest(stream, checksum.hasher).hexdigest()
    return Checksum(
        checksum.algorithm,
        digest if checksum.digest is not None else None,
        size if checksum.size is not None else None,
    )


def _receive(url: str, stream: BufferedRandom, partial_path: Path, progress: ByteProgress | None) -> None:
    n_failures = 0
    while True:
        previous_size = stream.seek(0, os.SEEK_END)
        try:
            _request_and_append(url, stream, partial_path, progress)
        except _TemporaryError:
            n_failures = 0 if stream.seek(0, os.SEEK_END) > previous_size else n_failures + 1
            if n_failures > len(BACKOFF_SECONDS):
                raise
            time.sleep(BACKOFF_SECONDS[max(n_failures - 1, 0)])
        else:
            return


def _request_and_append(url: str, stream: BufferedRandom, partial_path: Path, progress: ByteProgress | None) -> None:
    open_response = _request(url, stream.seek(0, os.SEEK_END))
    if open_response is None:
        return
    with open_response.response:
        n_received = open_response.start
        stream.truncate(n_received)
        while True:
            try:
                chunk = open_response.response.read(_CHUNK_BYTES)
            except (OSError, http.client.HTTPException) as error:
                raise _TemporaryError(f"a broken connection ({error or type(error).__name__})") from error
            if not chunk:
                break
            with writing_to(partial_path):
                stream.write(chunk)
                stream.flush()
            n_received += len(chunk)
            if progress is not None:
                progress(n_received, open_response.total)
    if open_response.total is not None and n_received < open_response.total:
        raise _TemporaryError(f"a connection that ended after {n_received:,} of {open_response.total:,} bytes")


def _request(url: str, offset: int) -> _OpenResponse | None:
    """Request the bytes from an offset to the end of the file; return None if the offset is the end."""
    if not url.startswith(("http://", "https://")):
        raise _PermanentError("an address that is neither http nor https")
    headers = {"User-Agent": "robust201", "Accept-Encoding": "identity"}
    if offset:
        headers["Range"] = f"bytes={offset}-"
    try:
        response = urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=TIMEOUT_SECONDS)  # noqa: S310  (the scheme is checked above)
    except urllib.error.HTTPError as error:
        with error:
            if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and offset:
                return None
            error_type = _TemporaryError if error.code in _TEMPORARY_STATUS else _PermanentError
            raise error_type(f"HTTP status {error.code} ({error.reason})") from error
    except urllib.error.URLError as error:
        raise _PermanentError(f"no connection ({error.reason})") from error
    except (OSError, http.client.HTTPException) as error:
        raise _TemporaryError(f"a broken connection ({error or type(error).__name__})") from error
    return _as_open_response(response, offset)


def _as_open_response(response: http.client.HTTPResponse, offset: int) -> _OpenResponse:
    """Return the response with its range of bytes, or raise an error if the server sent a range that was not requested.

    A server that ignores the requested range sends the file from its first byte.
    """
    length = response.headers.get("Content-Length")
    if response.status == http.HTTPStatus.PARTIAL_CONTENT:
        match = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", response.headers.get("Content-Range", ""))
        if match is None or int(match[1]) != offset:
            response.close()
            raise _PermanentError("a range of the file that was not requested")
        return _OpenResponse(response, offset, None if match[2] == "*" else int(match[2]))
    return _OpenResponse(response, 0, int(length) if length is not None else None)
