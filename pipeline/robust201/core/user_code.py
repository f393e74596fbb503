"""User functions in Python files.

A file is identified by its hash, and executed by `UserFunction.load`. Its failures are reported as one-line errors.
"""

import hashlib
import importlib.machinery
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from robust201.core.errors import ConfigError, did_you_mean, one_line
from robust201.core.interrupts import SignalInterrupt


def read_code(path: Path) -> bytes:
    """Read a user's Python file.

    Raises:
        ConfigError: the file cannot be read.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"Reading a Python file failed for {path}: {error.strerror}. Correct the path.") from error


def hash_file(path: Path) -> str:
    """Return the SHA-256 of a user's file (see `read_code`): 64 hex digits."""
    return hashlib.sha256(read_code(path)).hexdigest()


def hash_files(files: Mapping[str, Path]) -> dict[str, str]:
    """Return the SHA-256 of each file, by the YAML field that names the file."""
    return {field: hash_file(path) for field, path in files.items()}


@dataclass(frozen=True)
class UserFunction:
    """A function in a user's file.

    Attributes:
        sha256: hash of the file; empty if the file has not been hashed yet.
        origin: the user's file, if `path` is a copy of it.
        neighbours: name and SHA-256 of each module of the file's folder that the file imports (see
            `importing_neighbours`).
    """

    path: Path
    name: str
    sha256: str = ""
    origin: Path | None = None
    neighbours: tuple[tuple[str, str], ...] = ()

    @property
    def label(self) -> str:
        return f"{self.name} in {self.origin or self.path}"

    def located(self, path: Path, sha256: str) -> "UserFunction":
        """Return the same function in another file, such as a copy of the user's file."""
        return replace(self, path=path, sha256=sha256, origin=self.origin or self.path)

    def identity(self) -> dict[str, Any]:
        """Return the JSON object that identifies the function in a protocol; it does not contain the path."""
        neighbours = {"neighbours": dict(self.neighbours)} if self.neighbours else {}
        return {"function": self.name, "file_sha256": self.sha256, **neighbours}

    def load(self) -> Callable[..., Any]:
        """Return the function; execute the file first, unless this process has already executed the same content.

        Raises:
            ConfigError: the file has changed since it was hashed, cannot be executed, or does not define the function.
        """
        source = read_code(self.path)
        digest = hashlib.sha256(source).hexdigest()
        if digest != self.sha256:
            raise ConfigError(
                f"Loading {self.label} failed: the file has changed since the run was planned (SHA-256 "
                f"{self.sha256[:16]}…, now {digest[:16]}…). Start the run again to plan with the new file."
            )
        module_name = _module_name(digest)
        if module_name not in sys.modules:
            _execute(self.path, source, module_name, str(self.origin or self.path))
        module = sys.modules[module_name]
        function = getattr(module, self.name, None)
        if not callable(function):
            function_names = [
                name for name, value in vars(module).items() if getattr(value, "__module__", None) == module_name
            ]
            raise ConfigError(
                f"Loading {self.label} failed: the file does not define this function. Define it, or use the name of "
                f"another function.{did_you_mean(self.name, function_names) if function_names else ''}"
            )
        loaded_function: Callable[..., Any] = function
        return loaded_function


def parse_function(text: str) -> UserFunction:
    """Return the function that FILE:FUNCTION names, with the file's current hash.

    Raises:
        ConfigError: the text is not of this form, or the file cannot be read.
    """
    file, colon, name = text.rpartition(":")
    if not colon or not file or not name.isidentifier():
        raise ConfigError(
            f"Reading a function failed for {text!r}: it is not of the form FILE:FUNCTION, such as my_model.py:build. "
            "Write a Python file and the name of its function."
        )
    return UserFunction(Path(file), name, hash_file(Path(file)))


@contextmanager
def importing_neighbours(function: UserFunction) -> Iterator[dict[str, str]]:
    """Let a user's file import modules of its folder during a `with` block; `load` then executes the file again.

    After the block, the yielded dictionary maps the name of each of the folder's loaded modules to its SHA-256.

    The folder is then removed from `sys.path`, and its modules from `sys.modules`, because files of other folders may
    import other modules of the same names. Sweeps do not use this: their protocols contain the hash of one file.
    """
    folder = function.path.absolute().parent
    sys.modules.pop(_module_name(function.sha256), None)  # a file with the same content may have other neighbours
    names = {path.stem for path in folder.glob("*.py")} | {path.parent.name for path in folder.glob("*/__init__.py")}
    modules_before = {name: module for name, module in sys.modules.items() if name.partition(".")[0] in names}
    foreign_names = [name for name, module in modules_before.items() if not _is_in_folder(module, folder)]
    for name in foreign_names:
        del sys.modules[name]
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    hashes: dict[str, str] = {}
    try:
        yield hashes
        for name, module in sorted(sys.modules.items()):
            if name.partition(".")[0] in names and _is_in_folder(module, folder):
                hashes[name] = hash_file(Path(str(module.__file__)))
    finally:
        sys.path.remove(str(folder))
        for name in [name for name in sys.modules if name.partition(".")[0] in names]:
            del sys.modules[name]
        sys.modules.update(modules_before)


def _module_name(sha256: str) -> str:
    return f"robust201_user_{sha256[:16]}"


def _is_in_folder(module: ModuleType, folder: Path) -> bool:
    file = getattr(module, "__file__", None)
    return file is not None and Path(file).is_relative_to(folder)


def _execute(path: Path, source: bytes, module_name: str, display_path: str) -> None:
    """Execute a user's file as a new module; `display_path` is its path in errors."""
    module = ModuleType(module_name)
    module.__file__ = str(path)
    module.__spec__ = importlib.machinery.ModuleSpec(module_name, None, origin=str(path))
    sys.modules[module_name] = module
    try:
        exec(compile(source, str(path), "exec", dont_inherit=True), vars(module))  # noqa: S102 - the user allowed it
    except SignalInterrupt:
        del sys.modules[module_name]
        raise
    except (Exception, SystemExit, KeyboardInterrupt) as error:
        del sys.modules[module_name]
        raise ConfigError(
            f"Loading {display_path} failed: executing the file raised {describe_failure(error)}. Correct the file."
        ) from error


def describe_failure(error: BaseException) -> str:
    """Describe an error raised by user code in one line."""
    # A sweep's workers execute a copy of the file. The protocol contains only the file's hash, so changes to other
    # files would go unnoticed.
    import_hint = " (in a sweep, a user's file can import installed packages, but no files from its own folder)"
    description = f"{type(error).__name__}: {one_line(error, 200)}" if str(error) else type(error).__name__
    return description + import_hint if isinstance(error, ModuleNotFoundError) else description
