"""Shards below a URL that fsspec supports, such as ``s3://bucket/prefix``; the only module that imports fsspec.

A shard or pack is written with one conditional PUT (``If-None-Match: *``), or, if it is large, with a multipart upload
whose completion has the same condition. An object therefore exists completely or not at all, and the first of several
writers of the same object wins. If a store does not support the condition, an overwrite is harmless, because the
name of a shard or pack contains a hash that fixes its content.

The library for the URL's scheme, such as s3fs, finds credentials in the environment or in its configuration files. URLs
must not contain credentials.
"""

import errno
import math
import os
import re
import secrets
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import Any, BinaryIO, TypeVar, cast

import fsspec
from fsspec.core import url_to_fs

from robust201.core.errors import StorageError, StorageLibraryError, did_you_mean
from robust201.core.files import NewFile

PUT_STEPS = ("ready", "put")
"""Steps of writing an object at which `on_step` is called: before the request is sent, and after the response."""

_TIME_FIELDS = ("LastModified", "last_modified", "mtime", "updated", "created")
_CONFLICT_ATTEMPTS = 6
_EXTRA_OF_SCHEME = {"s3": "robust201[s3]", "s3a": "robust201[s3]"}
_SCHEMES_WITHOUT_FOLDERS = {"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "oci", "oss"}
"""Schemes for which creating a folder would create a bucket."""
_COMMON_SCHEMES = ("s3", "gs", "abfs", "file", "hdfs", "sftp")
_T = TypeVar("_T")


def check_url(url: str) -> str:
    """Check that a URL is suitable for storing shards, and return it in a normalised form that can be compared.

    Raises:
        ValueError: the URL is not suitable. The message does not repeat a password.
    """
    scheme, _, location = url.partition("://")
    authority = location.partition("/")[0]
    # In Azure's URLs, `@` separates container and account.
    is_azure = scheme in {"abfs", "abfss", "az"} and re.fullmatch(r"[\w-]+@[\w.-]+", authority)
    is_bucket = scheme in _SCHEMES_WITHOUT_FOLDERS
    has_credentials = re.search(":.*@", location) or (is_bucket and re.search("[:@]", authority) and not is_azure)
    is_relative = scheme in {"file", "local"} and not location.startswith("/")
    is_wrong = has_credentials or is_relative or scheme == "memory" or re.search(r"::|[?#]", url)
    if is_wrong or not location.strip("/") or not url.isprintable():
        raise ValueError(
            "expected a URL such as s3://bucket/prefix or file:///FOLDER of one store that all processes share, "
            "without user, password, query or fragment. The library finds credentials in the environment, such as "
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or in its configuration files."
        )
    if scheme not in fsspec.available_protocols():
        raise ValueError(f"expected a scheme that fsspec knows, got {scheme!r}.{did_you_mean(scheme, _COMMON_SCHEMES)}")
    return f"{scheme}://{location.rstrip('/')}"


class ObjectStore:
    """Files below a URL of an object store or another file system that fsspec supports (see `store.local.LocalFolder`).

    Args:
        url: a URL as returned by `check_url`.
        on_step: called at each of `PUT_STEPS`, for crash tests.
    """

    n_readers = 16  # each read is a round trip

    def __init__(self, url: str, on_step: Callable[[str], None]) -> None:
        self.url = url
        self._on_step = on_step
        self._cached_filesystem: tuple[int, Any, str] | None = None
        self._open_lock = threading.Lock()

    def _filesystem(self) -> tuple[Any, str]:
        """Return the file system and the URL's path in it. After a fork, the file system is opened again."""
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

    def _call(self, action: str, path: str, function: Callable[[Any, str], _T]) -> _T:
        """Call a function with the file system and the location of `path`, and convert its exceptions to StorageError.

        FileNotFoundError (of a missing object) and FileExistsError remain. The library has retried transient errors.
        """
        filesystem, root = self._filesystem()
        try:
            return function(filesystem, f"{root}/{path}" if path else root)
        except FileNotFoundError as error:
            if _s3_error_code(error) == "NoSuchBucket":
                raise self._storage_error(action, self.label(path), error) from error
            raise
        except (FileExistsError, StorageError):
            raise
        except Exception as error:
            raise self._storage_error(action, self.label(path), error) from error

    @staticmethod
    def _storage_error(action: str, label: str, error: Exception) -> StorageError:
        details = " ".join(str(error).split()).rstrip(".")
        return StorageError(
            f"{action} failed for {label}: {type(error).__name__}{': ' + details if details else ''}. "
            f"{_describe_remedy(error)} Then run the same command again; finished work is kept."
        )

    def label(self, path: str) -> str:
        return f"{self.url}/{path}" if path else self.url

    def folders(self) -> Iterator[tuple[str, str, list[str]]]:
        """Yield (dataset, folder, names of the files in it), from one listing of all objects."""
        _, root = self._filesystem()
        names: dict[tuple[str, str], list[str]] = {}
        for path in self._list("", lambda filesystem, path: filesystem.find(path)):
            dataset, _, rest = path.removeprefix(f"{root}/").partition("/")
            folder, _, name = rest.partition("/")
            if dataset != "damaged":  # see `set_aside`
                names.setdefault((dataset, folder), []).append(name)
        return ((*dataset_and_folder, file_names) for dataset_and_folder, file_names in names.items())

    def names(self, dataset: str, folder: str) -> list[str]:
        paths = self._list(f"{dataset}/{folder}".strip("/"), lambda filesystem, path: filesystem.ls(path, detail=False))
        return [path.rpartition("/")[2] for path in paths]

    def _list(self, folder: str, list_paths: Callable[[Any, str], list[str]]) -> list[str]:
        try:
            return self._call("Listing the results", folder, list_paths)
        except FileNotFoundError:
            return []  # nothing was written yet

    def read(self, path: str, start: int = 0, stop: int | None = None) -> bytes:
        def cat(filesystem: Any, location: str) -> bytes:
            try:
                return bytes(filesystem.cat_file(location, start=start, end=stop))
            except OSError as error:
                if _s3_error_code(error) == "InvalidRange":
                    return b""
                raise

        return self._call("Reading", path, cat)

    def write(self, path: str, content: bytes) -> None:
        """Write an object, unless it exists with the same content."""
        self._put(path, content, lambda filesystem, location, mode: filesystem.pipe_file(location, content, mode=mode))

    @contextmanager
    def new_file(self, dataset: str, folder: str) -> Iterator[NewFile]:
        with tempfile.NamedTemporaryFile(prefix="robust201-") as stream:
            file = NewFile(cast(BinaryIO, stream), "")
            yield file
            stream.flush()
            self._put(
                f"{dataset}/{folder}/{file.name}",
                None,
                lambda filesystem, location, mode: filesystem.put_file(stream.name, location, mode=mode),
            )

    def _put(self, path: str, content: bytes | None, put: Callable[[Any, str, str], None]) -> None:
        self._on_step("ready")
        self._call("Writing", path, _make_parents)
        try:
            self._call("Writing", path, lambda filesystem, location: _put_if_absent(filesystem, location, put))
        except FileExistsError:
            # Another writer was first, or the response to this writer's first attempt was lost. In both cases, the
            # object has the right bytes unless it was damaged afterwards.
            if content is None or self.read(path) != content:
                self._call("Writing", path, lambda filesystem, location: put(filesystem, location, "overwrite"))
        self._on_step("put")

    def set_aside(self, path: str) -> str:
        """Copy an object below ``damaged/`` and delete it."""
        target = f"damaged/{path}"
        _, root = self._filesystem()

        def move(filesystem: Any, location: str) -> None:
            _make_parents(filesystem, f"{root}/{target}")
            filesystem.cp_file(location, f"{root}/{target}")
            filesystem.rm_file(location)

        with suppress(FileNotFoundError):  # another process has moved it
            self._call("Setting aside", path, move)
        return self.label(target)

    def delete(self, paths: Iterable[str]) -> None:
        _, root = self._filesystem()
        locations = [f"{root}/{path}" for path in paths]
        if locations:
            with suppress(FileNotFoundError):
                self._call("Deleting", "", lambda filesystem, _root: filesystem.rm(locations))

    def age(self, path: str) -> float:
        """Return the age of an object in seconds, by the clock of the store."""
        probe = f"clock-{secrets.token_hex(6)}"
        self._call("Writing", probe, lambda filesystem, location: filesystem.pipe_file(location, b"0"))
        now, modified = self._modified(probe), self._modified(path)
        self.delete([probe])
        return now - modified

    def _modified(self, path: str) -> float:
        return self._call("Reading", path, lambda filesystem, location: _modification_time(filesystem.info(location)))


def _make_parents(filesystem: Any, path: str) -> None:
    """Create the parent folders of a path, unless the file system is an object store, which has no folders."""
    schemes = {filesystem.protocol} if isinstance(filesystem.protocol, str) else set(filesystem.protocol)
    if not schemes & _SCHEMES_WITHOUT_FOLDERS:
        filesystem.makedirs(path.rpartition("/")[0], exist_ok=True)


def _put_if_absent(filesystem: Any, path: str, put: Callable[[Any, str, str], None]) -> None:
    """Write an object with `put`; raise FileExistsError if it exists and the store supports the condition."""
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


def _modification_time(properties: dict[str, Any]) -> float:
    """Return the modification time in seconds since the epoch; infinity if the store does not report it."""
    timestamp = next((properties[field] for field in _TIME_FIELDS if properties.get(field)), math.inf)
    if isinstance(timestamp, str):
        timestamp = datetime.fromisoformat(timestamp)
    return timestamp.timestamp() if isinstance(timestamp, datetime) else float(timestamp)


def _describe_remedy(error: Exception) -> str:
    if isinstance(error, PermissionError) or "redential" in f"{type(error).__name__} {error}":
        return (
            "Set credentials that may list, read, write and delete there (for S3: AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY, or a profile)."
        )
    if isinstance(error, FileNotFoundError):
        return "Create the bucket, or correct `shards` in the sweep YAML."
    return "Check the network, the endpoint (for S3: AWS_ENDPOINT_URL) and the region."
