"""Functions that replace a regular file with an irregular file or another obstacle."""

import os
import socket
from collections.abc import Callable
from pathlib import Path

SPARSE_BYTES = 20 << 30


def make_socket(path: Path) -> None:
    original_folder = Path.cwd()
    os.chdir(path.parent)  # the path of a socket is limited to about a hundred characters
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path.name)
    finally:
        os.chdir(original_folder)


def make_sparse(path: Path) -> None:
    """Create a sparse file of 20 GiB, which takes no space on the disk."""
    path.touch()
    os.truncate(path, SPARSE_BYTES)


IRREGULAR: dict[str, Callable[[Path], object]] = {
    "a named pipe": os.mkfifo,
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "a socket": make_socket,
}
"""Functions that create irregular files, by their description in error messages."""

OBSTACLES: dict[str, Callable[[Path], object]] = {
    **IRREGULAR,
    "an empty device": lambda path: path.symlink_to("/dev/null"),
    "a folder": lambda path: path.mkdir(),
    "20 GB": make_sparse,
}


def replace(path: Path, obstacle: str) -> Path:
    """Replace a file, which need not exist, with an obstacle."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    OBSTACLES[obstacle](path)
    return path
