"""The evaluated images of an export with per-image outcomes, and the table that describes them.

An outcome is a bit, which is set if a network classifies an image correctly.
"""

import hashlib
import io
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from robust201.core.errors import DatasetError
from robust201.core.records import ImageSet
from robust201.dataset.published_layout import CATEGORICAL
from robust201.sweep.inputs import Inputs
from robust201.sweep.plan import Plan

ImageLoader: TypeAlias = Callable[[str], ImageSet]
"""Function that loads the evaluated images of a dataset, given its name."""

_SCHEMA = pa.schema(
    [
        pa.field("dataset", CATEGORICAL, metadata={"description": "Dataset of the images."}),
        pa.field("position", pa.int32(), metadata={"description": "Index of the image's bit or class in a row."}),
        pa.field("row", pa.int64(), metadata={"description": "Row of the image in the dataset's test split."}),
        pa.field("label", pa.int32(), metadata={"description": "True class."}),
        pa.field("sha256", pa.string(), metadata={"description": "SHA-256 of its pixels: uint8, channels first."}),
    ]
)


def evaluated_images(plan: Plan, dataset: str) -> ImageSet:
    """Load the images that a sweep evaluated, from the copy in its results folder or from their source.

    Raises:
        DatasetError: the images are not available, or differ from the evaluated images.
    """
    inputs, sha256 = Inputs(plan.config), plan.facts.datasets[dataset].images_of().sha256
    try:
        return inputs.read_copied_images(dataset, sha256)
    except DatasetError as error:  # a merged results folder has no copy
        source_images = Inputs(plan.config).images(dataset)
        if source_images.sha256 != sha256:
            raise DatasetError(
                f"Exporting outcomes failed for {dataset}: expected the evaluated images, whose SHA-256 begins "
                f"with {sha256[:16]}, got images with {source_images.sha256[:16]}. Run "
                "`robust201 plan SWEEP.yaml --save` on a machine that has the evaluated images."
            ) from error
        return source_images


def image_table(images: ImageSet) -> pa.Table:
    """Return the table of a dataset's images, in the order of the outcomes."""
    hashes = [hashlib.sha256(np.ascontiguousarray(pixels).tobytes()).hexdigest() for pixels in images.images]
    arrays = [
        pa.array([images.dataset] * len(images), CATEGORICAL),
        pa.array(np.arange(len(images), dtype=np.int32)),
        pa.array(images.indices),
        pa.array(images.labels.astype(np.int32)),
        pa.array(hashes),
    ]
    return pa.table(arrays, schema=_SCHEMA)


def image_table_bytes(images: ImageSet) -> bytes:
    """Return the table of a dataset's images as a Parquet file."""
    stream = io.BytesIO()
    pq.write_table(image_table(images), stream, compression="zstd", write_page_checksum=True)
    return stream.getvalue()
