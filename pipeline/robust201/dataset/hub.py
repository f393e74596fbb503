"""Upload of a dataset to the Hugging Face Hub: the files in its listing, the listing and a report page."""

import re
from pathlib import Path

from robust201.core.errors import ConfigError, ResultsError, StorageError, one_line
from robust201.dataset.layout import IMAGES_FOLDER, PARQUET_FOLDER
from robust201.dataset.listing import CHECKSUM_FILE, check_listing, read_listing

PAGE_FILE = "index.html"
"""File name of the report page."""

_EXPORT_PATTERNS = (f"{PARQUET_FOLDER}/*", f"{IMAGES_FOLDER}/*")
"""Patterns of files that only exports write; such files are deleted if the new export lacks them. Others stay."""

_TARGET_PATTERN = re.compile(r"hf://(?:datasets/)?(\w[\w.-]*/\w[\w.-]*)", re.ASCII)


def parse_target(target: str) -> str:
    """Return the name of the repository in ``hf://user/name`` or ``hf://datasets/user/name``."""
    match = _TARGET_PATTERN.fullmatch(target)
    if match is None:
        raise ConfigError(
            f"Publishing failed for {target!r}: this is not a dataset on the Hugging Face Hub. Write hf://USER/NAME."
        )
    return match[1]


def push(folder: Path, target: str, page: Path) -> str:
    """Upload an export's files and a report page, with the credentials of huggingface_hub; return the URL.

    A new repository is private.

    Raises:
        ConfigError: the target is not the name of a repository, or huggingface_hub is not installed.
        ResultsError: the folder has no listing, or a file differs from it; nothing is uploaded.
        StorageError: the Hub rejected the upload or was not reachable.
    """
    repository, listed = parse_target(target), read_listing(folder)
    if problem := next(check_listing(folder, listed), None):
        raise ResultsError(problem)
    try:
        from huggingface_hub import HfApi

        # huggingface_hub.errors re-exports HTTPError from its HTTP library without declaring it for type checkers.
        from huggingface_hub.errors import HFValidationError, HTTPError  # type: ignore[attr-defined]
    except ModuleNotFoundError as error:
        raise ConfigError(
            "Publishing failed: the package huggingface_hub is not installed. Install robust201[hub]."
        ) from error
    api = HfApi()
    try:
        url = api.create_repo(repository, repo_type="dataset", private=True, exist_ok=True)
        api.upload_folder(
            repo_id=repository,
            folder_path=folder,
            repo_type="dataset",
            allow_patterns=[*listed, CHECKSUM_FILE],
            delete_patterns=[*_EXPORT_PATTERNS],
        )
        api.upload_file(path_or_fileobj=page, path_in_repo=PAGE_FILE, repo_id=repository, repo_type="dataset")
    except (HTTPError, HFValidationError, OSError) as error:
        raise StorageError(
            f"Publishing failed for hf://{repository}: {one_line(error, 200)}. Log in with `hf auth login`, or "
            "check the name and your permissions."
        ) from error
    return str(url)
