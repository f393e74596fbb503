"""Images of every dataset: the table of datasets, loading, and selections of images.

No module of this folder imports torch.
"""

from typing import TYPE_CHECKING, Any

from robust201.core.records import Split
from robust201.images.selection import check_selection, select
from robust201.images.specs import DATASETS, DatasetSpec, Resize, dataset

if TYPE_CHECKING:
    from robust201.images.loading import load_images

__all__ = ["DATASETS", "DatasetSpec", "Resize", "Split", "check_selection", "dataset", "load_images", "select"]


def __getattr__(name: str) -> Any:
    # The loaders are imported on first use, because evaluations of a user's arrays do not need them.
    if name == "load_images":
        from robust201.images.loading import load_images

        return load_images
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
