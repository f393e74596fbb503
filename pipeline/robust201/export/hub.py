"""Upload of a dataset to the Hugging Face Hub: its listed files and a report page."""

import re
import tempfile
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from robust201.core.errors import ConfigError, ResultsError, StorageError, one_line
from robust201.core.files import MAX_EXPORTED_FILE_BYTES, read_text, sha256_of
from robust201.dataset.listings import CHECKSUM_FILE, MAX_LISTING_BYTES, parse_checksums, read_checksums
from robust201.dataset.layout import IMAGES_FOLDER, PARQUET_FOLDER

if TYPE_CHECKING:
    from huggingface_hub import HfApi

PAGE_FILE = "index.html"
"""File name of the report page."""

_NAME_PATTERN = r"(?!\S*(?:\.\.|--))[A-Za-z0-9_](?:[\w.-]*[A-Za-z0-9_])?(?<!\.git)"
"""Pattern of a valid name on the Hub: no dot or hyphen at either end, no two in a row, and no .git at the end."""

_TARGET_PATTERN = re.compile(rf"hf://(?:datasets/)?(?P<name>{_NAME_PATTERN}/{_NAME_PATTERN})", re.ASCII)


@dataclass(frozen=True)
class Upload:
    """Files to upload.

    Attributes:
        repository: name of the repository, such as ``user/name``.
        files: paths of the files, by name in the repository.
    """

    repository: str
    files: dict[str, Path]

    @property
    def n_bytes(self) -> int:
        return sum(path.stat().st_size for path in self.files.values())


def parse_target(target: str) -> str:
    """Return the name of the repository in ``hf://user/name`` or ``hf://datasets/user/name``."""
    match = _TARGET_PATTERN.fullmatch(target)
    if match is None:
        raise ConfigError(
            f"Publishing failed for {target!r}: this is not a dataset on the Hugging Face Hub. Write hf://USER/NAME."
        )
    return match["name"]


def prepare_upload(folder: Path, target: str, page: Path) -> Upload:
    """Check the hashes of an export's listed files, and return these files and the report page for upload.

    Other files in the folder are not uploaded.

    Raises:
        ConfigError: the target is not the name of a repository.
        ResultsError: the folder has no listing, or a file differs from it.
    """
    repository = parse_target(target)
    listed_digests = read_checksums(folder)
    if not listed_digests:
        raise ResultsError(
            f"Publishing failed for {folder}: the folder has no {CHECKSUM_FILE}, so it is not a complete export. "
            "Export the dataset with `robust201 export`."
        )
    for name, sha256 in listed_digests.items():
        path = folder / name
        if not path.is_file() or sha256_of(path, MAX_EXPORTED_FILE_BYTES) != sha256:
            raise ResultsError(
                f"Publishing failed for {path}: the file "
                f"{f'does not match {CHECKSUM_FILE}' if path.is_file() else 'is missing'}. Export the dataset again; "
                f"`robust201 verify {folder}` checks all files."
            )
    if PAGE_FILE in listed_digests:
        raise ResultsError(
            f"Publishing failed for {folder}: {CHECKSUM_FILE} lists a file {PAGE_FILE}, which is the name of the "
            "report page. Export the dataset to a new folder."
        )
    files = {name: folder / name for name in (*listed_digests, CHECKSUM_FILE)}
    return Upload(repository, files | {PAGE_FILE: page})


def push(upload: Upload, *, say: Callable[[str], None]) -> str:
    """Upload a dataset in one commit, with the credentials of huggingface_hub; a new repository is private.

    Args:
        upload: the files.
        say: called with messages about the upload.

    Returns:
        The URL of the dataset.

    Raises:
        ConfigError: huggingface_hub is not installed.
        StorageError: the Hub rejected the upload or was not reachable.
    """
    try:
        from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi

        # huggingface_hub.errors re-exports HTTPError from its HTTP library without declaring it for type checkers.
        from huggingface_hub.errors import HFValidationError, HTTPError  # type: ignore[attr-defined]
    except ModuleNotFoundError as error:
        raise ConfigError(
            "Publishing failed: the package huggingface_hub is not installed. Install robust201[hub]."
        ) from error
    api = HfApi()
    try:
        url = api.create_repo(upload.repository, repo_type="dataset", private=True, exist_ok=True)
        published_names = api.list_repo_files(upload.repository, repo_type="dataset")
        listed_names = (
            _read_published_listing(api, upload.repository) if CHECKSUM_FILE in published_names else frozenset()
        )
        stale_names = _find_stale_files(published_names, listed_names, upload)
        if stale_names:
            say(f"Removing {len(stale_names):,} files of an earlier version, such as {stale_names[0]}.")
        operations: list[CommitOperationAdd | CommitOperationDelete] = [
            *(CommitOperationAdd(name, path) for name, path in upload.files.items()),
            *(CommitOperationDelete(name) for name in stale_names),
        ]
        api.create_commit(upload.repository, operations, commit_message="Dataset of robust201", repo_type="dataset")
    except (HTTPError, HFValidationError, OSError) as error:
        raise StorageError(
            f"Publishing failed for hf://{upload.repository}: {one_line(error, 200)}. Log in with `hf auth login`, or "
            "check the name and your permissions."
        ) from error
    return str(url)


def _read_published_listing(api: "HfApi", repository: str) -> Collection[str]:
    """Return the names of the files in the published listing."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(api.hf_hub_download(repository, CHECKSUM_FILE, repo_type="dataset", local_dir=folder))
        return parse_checksums(read_text(path, MAX_LISTING_BYTES), path).digests.keys()


def _find_stale_files(published_names: Iterable[str], listed_names: Collection[str], upload: Upload) -> list[str]:
    """Return the published files of an earlier export that the upload does not replace.

    A file belongs to an export if the published listing contains it, or if it is in a folder that exports create. Other
    files, such as a licence, belong to the owner of the repository and are kept.
    """
    folders = (f"{PARQUET_FOLDER}/", f"{IMAGES_FOLDER}/")
    return sorted(
        name
        for name in published_names
        if name not in upload.files and (name in listed_names or name.startswith(folders))
    )
