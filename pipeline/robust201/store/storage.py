"""The storage of a results folder's shards: the folder itself, another folder, or an object store."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, Union

from robust201.store.local import LocalFolder

if TYPE_CHECKING:  # fsspec is imported only for object stores
    from robust201.store.object_store import ObjectStore

Storage: TypeAlias = Union[LocalFolder, "ObjectStore"]


def open_storage(root: Path, url: str, on_step: Callable[[str], None]) -> Storage:
    """Open the storage of a results folder; an empty URL means the folder itself."""
    scheme, _, path = url.partition("://")
    if scheme in {"file", "local"}:
        return LocalFolder(Path(path), Path(path) / "damaged", on_step)
    if url:
        from robust201.store.object_store import ObjectStore

        return ObjectStore(url, on_step)
    return LocalFolder(root / "shards", root / "damaged", on_step)
