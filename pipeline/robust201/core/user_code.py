"""Functions in Python files of the user's own: named by hash, executed in workers; one line says why one fails."""

import hashlib
import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from robust201.core.errors import ConfigError


def hash_file(path: Path) -> str:
    """SHA-256 of a user's file: 64 hex digits.

    Raises:
        ConfigError: it cannot be read.
    """
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise ConfigError(
            f"Reading a Python file failed for {path}: expected a readable file, got {error.strerror}. "
            "Correct the path."
        ) from error


@dataclass(frozen=True)
class UserFunction:
    """A function in a file of the user's.

    Attributes:
        path: the file.
        name: of the function.
        sha256: of the file; empty before anybody hashed it.
    """

    path: Path
    name: str
    sha256: str = ""

    @property
    def label(self) -> str:
        """Readable name for messages."""
        return f"{self.name} in {self.path}"

    def identity(self) -> dict[str, str]:
        """What decides its numbers: a JSON value without the path."""
        return {"function": self.name, "file_sha256": self.sha256}

    def load(self) -> Callable[..., Any]:
        """Execute the file, once per process and content, and find the function.

        Raises:
            ConfigError: the file differs from the hash, cannot be executed, or has no such function.
        """
        digest = hash_file(self.path)
        if digest != self.sha256:
            raise ConfigError(
                f"Loading {self.label} failed: expected the file that was planned (SHA-256 {self.sha256[:16]}…), got "
                f"another ({digest[:16]}…). Start the run again to plan with the new file."
            )
        module_name = f"robust201_user_{digest[:16]}"
        if module_name not in sys.modules:
            _execute(self.path, module_name)
        function = getattr(sys.modules[module_name], self.name, None)
        if not callable(function):
            raise ConfigError(
                f"Loading {self.label} failed: expected a function of that name, got none. Define it, or name another "
                "by `function`."
            )
        loaded: Callable[..., Any] = function
        return loaded


def _execute(path: Path, module_name: str) -> None:
    spec = importlib.util.spec_from_file_location(module_name, path)
    if spec is None or spec.loader is None:
        raise ConfigError(
            f"Loading {path} failed: expected a Python file whose name ends with .py, got another. Rename it."
        )
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[module_name]
        raise ConfigError(
            f"Loading {path} failed: expected a file that can be executed, got {type(error).__name__}: {error}. "
            "Correct the file."
        ) from error
