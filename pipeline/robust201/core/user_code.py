"""Functions in Python files of the user's own: named by hash, executed in workers; one line says why one fails."""

import hashlib
import importlib.abc
import importlib.util
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from robust201.core.errors import ConfigError, closest, one_line
from robust201.core.files import read_file
from robust201.core.interrupts import SignalInterrupt

_MAX_CODE_BYTES = 16 << 20


def read_code(path: Path) -> bytes:
    """Read a user's file.

    Raises:
        ConfigError: it cannot be read.
    """
    try:
        return read_file(path, _MAX_CODE_BYTES)
    except OSError as error:
        raise ConfigError(
            f"Reading a Python file failed for {path}: expected a readable file, got {error.strerror}. "
            "Correct the path."
        ) from error


def hash_file(path: Path) -> str:
    """SHA-256 of a user's file (see `read_code`): 64 hex digits."""
    return hashlib.sha256(read_code(path)).hexdigest()


def hash_files(files: Mapping[str, Path]) -> dict[str, str]:
    """Hash several files, by the field that names each."""
    return {field: hash_file(path) for field, path in files.items()}


@dataclass(frozen=True)
class UserFunction:
    """A function in a file of the user's.

    Attributes:
        sha256: of the file; empty before anybody hashed it.
        origin: the user's own file, where `path` is a copy of it.
        distribution: name and version of the installed package that registers it, such as ``my-attacks==1.2``.
    """

    path: Path
    name: str
    sha256: str = ""
    origin: Path | None = None
    distribution: str = ""

    @property
    def label(self) -> str:
        return f"{self.name} in {self.origin or self.path}"

    def located(self, path: Path, sha256: str) -> "UserFunction":
        return UserFunction(path, self.name, sha256, self.origin or self.path, self.distribution)

    def identity(self) -> dict[str, str]:
        """What decides its numbers: a JSON value without the path."""
        origin = {"distribution": self.distribution} if self.distribution else {}
        return {"function": self.name, "file_sha256": self.sha256} | origin

    def load(self) -> Callable[..., Any]:
        """Execute the file, once per process and content, and find the function.

        Raises:
            ConfigError: the file differs from the hash, cannot be executed, or has no such function.
        """
        source = read_code(self.path)
        digest = hashlib.sha256(source).hexdigest()
        if digest != self.sha256:
            raise ConfigError(
                f"Loading {self.label} failed: expected the file that was planned (SHA-256 {self.sha256[:16]}…), got "
                f"another ({digest[:16]}…). Start the run again to plan with the new file."
            )
        module_name = f"robust201_user_{digest[:16]}"
        if module_name not in sys.modules:
            _execute(self.path, source, module_name, str(self.origin or self.path))
        module = sys.modules[module_name]
        function = getattr(module, self.name, None)
        if not callable(function):
            own = [name for name, value in vars(module).items() if getattr(value, "__module__", None) == module_name]
            raise ConfigError(
                f"Loading {self.label} failed: expected a function of that name, got none. Define it, or name another "
                f"one.{closest(self.name, own) if own else ''}"
            )
        loaded: Callable[..., Any] = function
        return loaded


class _SourceLoader(importlib.abc.SourceLoader):
    """Loads the source that was hashed, whatever the file or a compiled copy beside it may hold by now."""

    def __init__(self, path: Path, source: bytes) -> None:
        self._path = path
        self._source = source

    def get_filename(self, fullname: str) -> str:
        del fullname
        return str(self._path)

    def get_data(self, path: Any) -> bytes:
        del path
        return self._source


def _execute(path: Path, source: bytes, module_name: str, label: str) -> None:
    loader = _SourceLoader(path, source)
    spec = importlib.util.spec_from_loader(module_name, loader)
    assert spec is not None  # noqa: S101 - there is a loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    try:
        loader.exec_module(module)
    except SignalInterrupt:
        del sys.modules[module_name]
        raise
    except (Exception, SystemExit, KeyboardInterrupt) as error:
        del sys.modules[module_name]
        raise ConfigError(
            f"Loading {label} failed: expected a file that can be executed, got {describe_failure(error)}. "
            "Correct the file."
        ) from error


def describe_failure(error: BaseException) -> str:
    """An error that the user's code raised, in one line."""
    # Workers execute a copy, whose hash is all that the protocol holds: a file beside it could change unseen.
    alone = " (a user's file can import installed packages, but not the files beside it)"
    text = f"{type(error).__name__}: {one_line(error, 200)}" if str(error) else type(error).__name__
    return text + alone if isinstance(error, ModuleNotFoundError) else text
