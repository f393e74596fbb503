"""The folder that an export writes: whole files, a listing with hashes, nothing left over from an earlier export."""

import glob
import hashlib
import json
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from pipeline.errors import InputError
from pipeline.files import atomic_write, make_folder, write_text

CHECKSUM_FILE = "SHA256SUMS"
"""Listing that ``sha256sum -c`` reads; it is written last, so a folder that has it holds a whole export."""

JOURNAL_FILE = ".export-journal.json"
"""Names of files that an export in progress owns; it is there only until the listing is."""


class ExportFolder:
    """A folder being filled by an export, new, empty or holding an earlier export, which is replaced.

    Attributes:
        path: the folder.
        hashes: SHA-256 of the files written so far, by name.
        n_bytes: their size together.
    """

    def __init__(self, path: Path, planned: Collection[str]) -> None:
        """Make the folder ready.

        Args:
            path: the folder; made if absent.
            planned: names of the files to come, relative to it.

        Raises:
            InputError: a file of that name is there that no export listed, or `path` is a file.
        """
        self.path = path
        self.hashes: dict[str, str] = {}
        self.n_bytes = 0
        make_folder(path)
        if (path / "format.json").exists():
            raise InputError(
                f"Exporting failed for {path}: expected a new folder or an earlier export, got a results folder. "
                "Choose another folder."
            )
        self._earlier = _listed_files(path)
        owned = self._earlier | {CHECKSUM_FILE} if self._earlier else set()
        foreign = sorted(name for name in {*planned, CHECKSUM_FILE} if (path / name).exists() and name not in owned)
        if foreign:
            raise InputError(
                f"Exporting failed for {path}: expected a new folder or an earlier export, got {len(foreign)} files "
                f"that no export listed, such as {foreign[0]}. Choose another folder."
            )
        # After a kill the journal still tells the next export which files are an export's own.
        write_text(path / JOURNAL_FILE, json.dumps(sorted({*self._earlier, *planned})))
        (path / CHECKSUM_FILE).unlink(missing_ok=True)
        for name in self._earlier:
            file = path / name
            for leftover in file.parent.glob(f".{glob.escape(file.name)}.*.tmp"):
                leftover.unlink(missing_ok=True)

    @contextmanager
    def open(self, name: str) -> Iterator[Callable[[str], None]]:
        """Write a file piece by piece; it appears, and is listed, when the block ends without an error.

        Args:
            name: relative to the folder.

        Yields:
            A function that appends text.
        """
        digest = hashlib.sha256()
        n_bytes = 0
        with atomic_write(self.path / name) as stream:

            def write(text: str) -> None:
                nonlocal n_bytes
                data = text.encode()
                digest.update(data)
                n_bytes += stream.write(data)

            yield write
        self.hashes[name] = digest.hexdigest()
        self.n_bytes += n_bytes

    def write(self, name: str, text: str) -> None:
        """Write a whole file."""
        with self.open(name) as write:
            write(text)

    def close(self) -> tuple[str, ...]:
        """Remove what earlier exports left, then list the files written.

        Returns:
            Names of the files removed, sorted.
        """
        stale = sorted(name for name in self._earlier - {*self.hashes} if (self.path / name).is_file())
        for name in stale:
            file = self.path / name
            file.unlink()
            if file.parent != self.path and not any(file.parent.iterdir()):
                file.parent.rmdir()
        lines = [f"{digest}  {name}\n" for name, digest in sorted(self.hashes.items())]
        write_text(self.path / CHECKSUM_FILE, "".join(lines))
        (self.path / JOURNAL_FILE).unlink()
        return tuple(stale)


def _listed_files(path: Path) -> set[str]:
    """Names of files that earlier exports, finished or killed, wrote or were about to write."""
    names: list[str] = []
    journal, checksums = path / JOURNAL_FILE, path / CHECKSUM_FILE
    if journal.is_file():
        names += json.loads(journal.read_text(encoding="utf-8"))
    if checksums.is_file():
        names += [line.partition("  ")[2] for line in checksums.read_text(encoding="utf-8").splitlines()]
    # The listing may have been edited: only files below the folder are ever removed.
    return {name for name in names if name and not PurePosixPath(name).is_absolute() and ".." not in Path(name).parts}
