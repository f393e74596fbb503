"""Shards below a URL that fsspec supports, such as ``s3://bucket/prefix``; the only module that imports fsspec.

A shard is written with one conditional PUT (``If-None-Match: *``), or, if it is large, with a multipart upload whose
completion has the same condition. An object therefore exists completely or not at all, and the first of several writers
of the same shard wins. If a store does not support the condition, an overwrite is harmless, because a shard's name
contains the hash of its content.

The library for the URL's scheme, such as s3fs, finds credentials in the environment or in its configuration files. URLs
must not contain credentials.
"""

import errno
import hashlib
import io
import math
import os
import re
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias, TypeVar, cast

import fsspec
from fsspec.core import url_to_fs

from robust201.core.errors import StorageError, StorageLibraryError, did_you_mean
from robust201.core.files import NewFile
from robust201.shards.backends import (
    MAX_SHARD_BYTES,
    SHA_DIGITS,
    SHARD_NAME,
    LocalBackend,
    ShardEntry,
    is_compacted,
    sha_of_name,
    size_error,
)

PUT_STEPS = ("ready", "put")
"""Steps of publishing at which `on_step` is called: before the request is sent, and after the response."""

_MARKER_FIELDS = ("ETag", "etag", "md5Hash", "generation", "mtime", "LastModified", "last_modified", "created")
"""Properties of an object that may serve as its change marker; the first that exists is used."""

_TIME_FIELDS = ("LastModified", "last_modified", "mtime", "updated", "created")
_RANGE_BYTES = 32 << 20
_CONFLICT_ATTEMPTS = 6
_EXTRA_OF_SCHEME = {"s3": "robust201[s3]", "s3a": "robust201[s3]"}
_SCHEMES_WITHOUT_FOLDERS = {"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "oci", "oss"}
"""Schemes for which creating a folder would create a bucket."""
_COMMON_SCHEMES = ("s3", "gs", "abfs", "file", "hdfs", "sftp")
_T = TypeVar("_T")


def check_url(url: str) -> str:
    """Check that a URL is suitable for storing shards, and return it in a normalised form that can be compared.

    Raises:
        ValueError: the URL is not suitable. The message explains why, without repeating a password.
    """
    scheme, separator, location = url.partition("://")
    if "::" in url:
        raise ValueError(
            "expected one URL such as s3://bucket/prefix, got several URLs joined by '::'. A cache would hide the "
            "result files of other writers. Use the URL of the store itself."
        )
    authority = location.partition("/")[0]
    # In Azure's URLs, `@` separates container and account.
    is_azure = re.match(r"(abfss?|az)://[\w-]+@[\w.-]+(/|\Z)", url)
    if re.search(":.*@", location or url) or (
        scheme in _SCHEMES_WITHOUT_FOLDERS and re.search("[:@]", authority) and not is_azure
    ):
        raise ValueError(
            "expected a URL without a user or password. Remove them: the library finds credentials in the environment, "
            "such as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or in its configuration files."
        )
    if re.search("[?#]", url) or not url.isprintable():
        raise ValueError(
            "expected a URL such as s3://bucket/prefix, got a URL with a query ('?'), a fragment ('#') or an "
            "unprintable character. Remove it, and set options in the library's configuration files."
        )
    if not separator or not location.strip("/"):
        raise ValueError(f"expected a URL such as s3://bucket/prefix, got {url!r}. For a folder, write file:///FOLDER.")
    if scheme == "memory":
        raise ValueError(
            "expected a store that all processes share, but memory:// is separate in each process, so results of "
            "workers would be lost. Use a store such as s3://bucket/prefix, or omit `shards` to use the results folder."
        )
    if scheme not in fsspec.available_protocols():
        raise ValueError(f"expected a scheme that fsspec knows, got {scheme!r}.{did_you_mean(scheme, _COMMON_SCHEMES)}")
    if scheme in {"file", "local"} and not location.startswith("/"):
        raise ValueError(f"expected an absolute path after file://, got {location!r}. Write file:///FOLDER.")
    return f"{scheme}://{location.rstrip('/')}"


def folder_of(url: str) -> Path | None:
    """Return the folder that a ``file://`` URL refers to; None for other URLs."""
    scheme, _, path = url.partition("://")
    return Path(path) if scheme in {"file", "local"} else None


class ObjectBackend:
    """Shards below a URL of an object store or another file system that fsspec supports (see `LocalBackend`).

    Args:
        url: a URL as returned by `check_url`.
        on_step: called at each of `PUT_STEPS`, for crash tests.
    """

    threads = 16  # each read is a round trip

    def __init__(self, url: str, on_step: Callable[[str], None]) -> None:
        self.url = url
        self._on_step = on_step
        self._cached_filesystem: tuple[int, Any, str] | None = None
        self._open_lock = threading.Lock()

    def _filesystem(self) -> tuple[Any, str]:
        """Return the file system and the path of the URL in it; the file system is opened again after a fork."""
        with self._open_lock:
            if self._cached_filesystem is None or self._cached_filesystem[0] != os.getpid():
                try:
                    filesystem, root = url_to_fs(self.url, use_listings_cache=False)
                except ImportError as error:
                    scheme = self.url.partition("://")[0]
                    extra_requirement = _EXTRA_OF_SCHEME.get(scheme)
                    advice = (
                        f"Install it with pip install '{extra_requirement}'."
                        if extra_requirement
                        else f"Install the package that fsspec names: {error}"
                    )
                    raise StorageLibraryError(
                        f"Opening the results failed for {self.url}: the library for {scheme}:// is not "
                        f"installed. {advice}"
                    ) from error
                except Exception as error:
                    raise self._storage_error("Opening the results", self.url, error) from error
                self._cached_filesystem = os.getpid(), filesystem, root.rstrip("/")
            return self._cached_filesystem[1], self._cached_filesystem[2]

    def _call(self, action: str, shard: str, function: Callable[[Any, str], _T]) -> _T:
        """Call a function with the file system and the path of a shard, and convert its exceptions.

        The library has already retried transient errors.
        """
        filesystem, root = self._filesystem()
        try:
            return function(filesystem, f"{root}/{shard}" if shard else root)
        except FileNotFoundError as error:
            if _s3_error_code(error) == "NoSuchBucket":
                raise self._storage_error(action, self.label(shard), error) from error
            raise
        except (FileExistsError, StorageError):
            raise
        except Exception as error:
            raise self._storage_error(action, self.label(shard), error) from error

    @staticmethod
    def _storage_error(action: str, label: str, error: Exception) -> StorageError:
        details = " ".join(str(error).split()).rstrip(".")
        return StorageError(
            f"{action} failed for {label}: {type(error).__name__}{': ' + details if details else ''}. "
            f"{_describe_remedy(error)} Then run the same command again; finished work is kept."
        )

    def label(self, shard: str) -> str:
        return f"{self.url}/{shard}" if shard else self.url

    def entries(self) -> list[ShardEntry]:
        def find(filesystem: Any, root: str) -> dict[str, dict[str, Any]]:
            filesystem.invalidate_cache()
            files: dict[str, dict[str, Any]] = filesystem.find(root, detail=True)
            return files

        try:
            files = self._call("Listing the results", "", find)
        except FileNotFoundError:
            return []  # nothing was written yet
        _, root = self._filesystem()
        entries = []
        for path, properties in files.items():
            dataset, _, name = path.removeprefix(f"{root}/").rpartition("/")
            if "/" not in dataset and dataset and SHARD_NAME.fullmatch(name):
                change_marker = next(
                    (f"{field} {properties[field]}" for field in _MARKER_FIELDS if properties.get(field)), ""
                )
                entries.append(
                    ShardEntry(
                        f"{dataset}/{name}",
                        int(properties["size"]),
                        change_marker,
                        _parse_modification_time(properties),
                    )
                )
        return sorted(entries, key=lambda entry: entry.name)

    def read(self, shard: str, start: int = 0, stop: int | None = None) -> bytes:
        if stop is not None:
            return self._read_range(shard, start, stop)
        chunks, n_bytes = [], 0
        for chunk in self._iter_chunks(shard, start):
            chunks.append(chunk)
            n_bytes += len(chunk)
            if n_bytes > MAX_SHARD_BYTES:
                raise size_error(self.label(shard))
        return b"".join(chunks)

    def _read_range(self, shard: str, start: int, stop: int) -> bytes:
        def cat(filesystem: Any, path: str) -> bytes:
            try:
                return bytes(filesystem.cat_file(path, start=start, end=stop))
            except OSError as error:
                if _s3_error_code(error) == "InvalidRange":
                    return b""
                raise

        return self._call("Reading", shard, cat) if stop > start else b""

    def _iter_chunks(self, shard: str, start: int = 0) -> Iterator[bytes]:
        """Yield a shard's bytes from `start` to the end in chunks of `_RANGE_BYTES`, without requesting the size."""
        while True:
            chunk = self._read_range(shard, start, start + _RANGE_BYTES)
            yield chunk
            start += len(chunk)
            if len(chunk) < _RANGE_BYTES:
                return

    def source(self, shard: str) -> BinaryIO:
        """Open a shard for a Parquet reader. An uncompacted shard is read immediately, a compacted shard on demand."""
        if not is_compacted(shard):
            return io.BytesIO(self.read(shard))
        return cast(
            BinaryIO,
            self._call("Reading", shard, lambda filesystem, path: filesystem.open(path, "rb", cache_type="none")),
        )

    def sha256(self, shard: str) -> str:
        digest = hashlib.sha256()
        for chunk in self._iter_chunks(shard):
            digest.update(chunk)
        return digest.hexdigest()

    def publish(self, shard: str, content: bytes) -> None:
        """Publish a shard with one conditional PUT."""
        self._put(shard, lambda filesystem, path, mode: filesystem.pipe_file(path, content, mode=mode))

    @contextmanager
    def open_new_shard(self, dataset: str) -> Iterator[NewFile]:
        """Open a new shard as a local temporary file; the caller's block sets its name, which depends on the bytes."""
        with tempfile.NamedTemporaryFile(prefix="robust201-", suffix=".parquet") as stream:
            new_file = NewFile(cast(BinaryIO, stream), "")
            yield new_file
            stream.flush()
            shard = f"{dataset}/{new_file.name}"
            self._put(shard, lambda filesystem, path, mode: filesystem.put_file(stream.name, path, mode=mode))

    def _put(self, shard: str, put: Callable[[Any, str, str], None]) -> None:
        self._on_step("ready")
        self._call("Writing", shard, _make_parents)
        try:
            self._call("Writing", shard, lambda filesystem, path: _put_if_absent(filesystem, path, put))
        except FileExistsError:
            # Another writer was first, or the response to the first attempt was lost. In both cases, the object has the
            # right bytes unless it was damaged afterwards.
            if self.sha256(shard)[:SHA_DIGITS] != sha_of_name(shard):
                self._call("Writing", shard, lambda filesystem, path: put(filesystem, path, "overwrite"))
        self._on_step("put")

    def set_aside(self, shard: str) -> str:
        """Copy a shard below ``damaged/`` and delete it."""
        target = f"damaged/{shard}"
        _, root = self._filesystem()

        def move(filesystem: Any, path: str) -> None:
            _make_parents(filesystem, f"{root}/{target}")
            filesystem.cp_file(path, f"{root}/{target}")
            filesystem.rm_file(path)

        self._call("Setting aside", shard, move)
        return self.label(target)

    def delete(self, shards: Iterable[str]) -> None:
        for shard in shards:
            try:
                self._call("Deleting", shard, lambda filesystem, path: filesystem.rm_file(path))
            except FileNotFoundError:
                continue

    def remove_temporaries(self, clock: Callable[[], float]) -> int:
        """Return 0, because an unfinished upload is not visible as an object."""
        del clock
        return 0


StorageBackend: TypeAlias = LocalBackend | ObjectBackend


def _make_parents(filesystem: Any, path: str) -> None:
    """Create the parent folders of a path, unless the file system is an object store, which has no folders."""
    schemes = {filesystem.protocol} if isinstance(filesystem.protocol, str) else set(filesystem.protocol)
    if not schemes & _SCHEMES_WITHOUT_FOLDERS:
        filesystem.makedirs(path.rpartition("/")[0], exist_ok=True)


def _put_if_absent(filesystem: Any, path: str, put: Callable[[Any, str, str], None]) -> None:
    """Write an object with `put`; raise FileExistsError if the object exists already."""
    for attempt in range(_CONFLICT_ATTEMPTS):
        try:
            put(filesystem, path, "create")
        except FileExistsError:
            raise
        except NotImplementedError:  # the library does not support the condition
            put(filesystem, path, "overwrite")
        except OSError as error:
            code = _s3_error_code(error)
            if code == "PreconditionFailed":
                raise FileExistsError(path) from error
            if code == "ConditionalRequestConflict" and attempt + 1 < _CONFLICT_ATTEMPTS:
                time.sleep(0.1 * 2**attempt)  # another upload of this name is in progress
                continue
            if error.errno == errno.ENOSYS:  # the store does not support the condition
                put(filesystem, path, "overwrite")
                return
            raise
        return


def _s3_error_code(error: BaseException) -> str:
    """Return the error code of an S3 server, or an empty string for other errors."""
    response = getattr(error.__cause__, "response", None) or getattr(error, "response", None)
    return str(response.get("Error", {}).get("Code", "")) if isinstance(response, dict) else ""


def _parse_modification_time(properties: dict[str, Any]) -> float:
    for field in _TIME_FIELDS:
        timestamp = properties.get(field)
        if isinstance(timestamp, datetime):
            return timestamp.timestamp()
        if isinstance(timestamp, int | float) and not isinstance(timestamp, bool):
            return float(timestamp)
        if isinstance(timestamp, str):
            try:
                return datetime.fromisoformat(timestamp).timestamp()
            except ValueError:
                continue
    return math.inf


def _describe_remedy(error: Exception) -> str:
    if isinstance(error, PermissionError) or "redential" in f"{type(error).__name__} {error}":
        return (
            "Set credentials that may list, read, write and delete there (for S3: AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY, or a profile)."
        )
    if isinstance(error, FileNotFoundError):
        return "Create the bucket, or correct `shards` in the sweep YAML."
    return "Check the network, the endpoint (for S3: AWS_ENDPOINT_URL) and the region."
