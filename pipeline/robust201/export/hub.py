"""Publication of a dataset on the Hugging Face hub: its listed files, and one page that shows them."""

import re
import tempfile
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from robust201.core.errors import ConfigError, ResultsError, StorageError, one_line
from robust201.core.files import read_text
from robust201.reader.file_cache import hash_once
from robust201.reader.listings import CHECKSUM_FILE, MAX_LISTING_BYTES, parse_checksums, read_checksums
from robust201.reader.result_files import IMAGES_FOLDER, PARQUET_FOLDER

if TYPE_CHECKING:
    from huggingface_hub import HfApi

PAGE_FILE = "index.html"
"""The page of the dataset: a report, which any web server can serve."""

_NAME = r"(?!\S*(?:\.\.|--))[A-Za-z0-9_](?:[\w.-]*[A-Za-z0-9_])?(?<!\.git)"
"""A name that the hub accepts: no dot or hyphen at its ends, no two in a row, no .git at the end."""

_TARGET = re.compile(rf"hf://(?:datasets/)?(?P<name>{_NAME}/{_NAME})", re.ASCII)


@dataclass(frozen=True)
class Upload:
    """What is uploaded.

    Attributes:
        repository: its name, such as ``user/name``.
        files: by their names in the repository.
    """

    repository: str
    files: dict[str, Path]

    @property
    def n_bytes(self) -> int:
        return sum(path.stat().st_size for path in self.files.values())


def parse_target(text: str) -> str:
    """Read ``hf://user/name``, also with ``datasets/`` before it; return the repository's name."""
    match = _TARGET.fullmatch(text)
    if match is None:
        raise ConfigError(
            f"Publishing failed for {text!r}: expected hf://USER/NAME, a dataset of the Hugging Face hub, got another "
            "form. Correct it."
        )
    return match["name"]


def prepare_upload(folder: Path, target: str, page: Path) -> Upload:
    """List the files of an export, and its page, after a check of every hash; other files of the folder stay.

    Raises:
        ConfigError: the target is no repository of the hub.
        ResultsError: the folder has no listing, or a file differs from it.
    """
    repository = parse_target(target)
    listed = read_checksums(folder)
    if not listed:
        raise ResultsError(
            f"Publishing failed for {folder}: expected the {CHECKSUM_FILE} of an export, got none. Export the dataset "
            "with `robust201 export`."
        )
    for name, sha256 in listed.items():
        path = folder / name
        if not path.is_file() or hash_once(path) != sha256:
            raise ResultsError(
                f"Publishing failed for {path}: expected the file of {CHECKSUM_FILE}, got "
                f"{'another' if path.is_file() else 'none'}. Export the dataset again; `robust201 verify {folder}` "
                "checks all."
            )
    if PAGE_FILE in listed:
        raise ResultsError(
            f"Publishing failed for {folder}: expected no {PAGE_FILE} among the files of {CHECKSUM_FILE}, since the "
            "page of the dataset gets this name, got one. Export the dataset into a new folder."
        )
    files = {name: folder / name for name in (*listed, CHECKSUM_FILE)}
    return Upload(repository, files | {PAGE_FILE: page})


def push(upload: Upload, *, public: bool, say: Callable[[str], None]) -> str:
    """Upload a dataset in one commit, with the login of the library; a new repository is private unless `public`.

    Returns:
        The address of the dataset.

    Raises:
        ConfigError: huggingface_hub is not installed.
        StorageError: the hub refused, or was not reached.
    """
    try:
        from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi
        from huggingface_hub.errors import HFValidationError, HTTPError  # type: ignore[attr-defined] # of its HTTP library
    except ModuleNotFoundError as error:
        raise ConfigError(
            "Publishing failed: expected the package huggingface_hub, got none. Install robust201[hub]."
        ) from error
    api = HfApi()
    try:
        url = api.create_repo(upload.repository, repo_type="dataset", private=not public, exist_ok=True)
        published = api.list_repo_files(upload.repository, repo_type="dataset")
        listed = _read_published_listing(api, upload.repository) if CHECKSUM_FILE in published else frozenset()
        stale = _find_stale(published, listed, upload)
        if stale:
            say(f"Removing {len(stale):,} files of an earlier version, such as {stale[0]}.")
        operations: list[CommitOperationAdd | CommitOperationDelete] = [
            *(CommitOperationAdd(name, path) for name, path in upload.files.items()),
            *(CommitOperationDelete(name) for name in stale),
        ]
        api.create_commit(upload.repository, operations, commit_message="Dataset of robust201", repo_type="dataset")
    except (HTTPError, HFValidationError, OSError) as error:
        raise StorageError(
            f"Publishing failed for hf://{upload.repository}: expected the hub to take the files, got "
            f"{one_line(error, 200)}. Log in by `hf auth login`, or check the name and your rights."
        ) from error
    return str(url)


def _read_published_listing(api: "HfApi", repository: str) -> Collection[str]:
    """Return the names of the files that the published listing names."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(api.hf_hub_download(repository, CHECKSUM_FILE, repo_type="dataset", local_dir=folder))
        return parse_checksums(read_text(path, MAX_LISTING_BYTES), path).digests.keys()


def _find_stale(published: Iterable[str], listed: Collection[str], upload: Upload) -> list[str]:
    """List the published files of an earlier export: what it listed, or lies in the folders that an export fills alone.

    Other files, such as a licence, are the owner's and stay.
    """
    folders = (f"{PARQUET_FOLDER}/", f"{IMAGES_FOLDER}/")
    return sorted(
        name for name in published if name not in upload.files and (name in listed or name.startswith(folders))
    )
