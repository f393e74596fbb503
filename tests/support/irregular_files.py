"""What may lie under a file's name instead of the file."""

import os
import socket
from collections.abc import Callable
from pathlib import Path

SPARSE_BYTES = 20 << 30


def make_socket(path: Path) -> None:
    before = Path.cwd()
    os.chdir(path.parent)  # a socket's path has a hundred characters at most
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path.name)
    finally:
        os.chdir(before)


def make_sparse(path: Path) -> None:
    """Make a file of 20 GB that takes no space."""
    path.touch()
    os.truncate(path, SPARSE_BYTES)


IRREGULAR: dict[str, Callable[[Path], object]] = {
    "a named pipe": os.mkfifo,
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "a socket": make_socket,
}
"""Files that are not regular, by the words that name their kind."""

OBSTACLES: dict[str, Callable[[Path], object]] = {
    **IRREGULAR,
    "an empty device": lambda path: path.symlink_to("/dev/null"),
    "a folder": lambda path: path.mkdir(),
    "20 GB": make_sparse,
}


def replace(path: Path, obstacle: str) -> Path:
    """Put an obstacle in the place of a file, which need not exist."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    OBSTACLES[obstacle](path)
    return path
