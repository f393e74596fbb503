"""Parquet files with one row per image, in the columns `image` (JPEG or PNG bytes) and `label` (integers).

Files of Hugging Face's datasets are accepted, too: the image is a struct with the field `bytes`, and its column may be
`img`.

This is the only module of `images` that imports pyarrow. `images.decoding` decodes the images.
"""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robust201.core.errors import DatasetError, one_line
from robust201.core.records import MAX_CLASSES, Split
from robust201.images.checks import LabelledImages, check_labels
from robust201.images.decoding import ImageDecoder
from robust201.images.specs import DatasetSpec


def find_parquet(spec: DatasetSpec, root: Path, split: Split) -> Path | None:
    """Return `root` if it is a file, else the split's Parquet file in the folder `root`; None if there is neither."""
    if root.is_file():
        return root
    file = root / f"{split}.parquet"
    return file if file.is_file() else None


def load_parquet(spec: DatasetSpec, path: Path, split: Split, *, verify: bool) -> LabelledImages:
    """Load images from a Parquet file in row order, and decode them.

    Parquet files have no published checksum, so `verify` has no effect. Every image and label is checked.

    Raises:
        DatasetError: the file is not Parquet or has no rows, a column is missing or has the wrong type or missing
            values, an image cannot be decoded or has the wrong size, or a label is out of range.
    """
    images, labels = _read_columns(path)
    check_labels(path, labels, spec.n_classes or MAX_CLASSES)
    decoder = ImageDecoder(spec)
    encoded = ((f"{path}, row {row}", cell.as_py) for row, cell in enumerate(images))
    pixels = decoder.decode_all(encoded, len(labels))
    return LabelledImages(pixels, labels)


def _read_columns(path: Path) -> tuple[Any, NDArray[np.int64]]:
    """Return the columns of encoded images and of labels, after checking that no value is missing."""
    import pyarrow as pa
    from pyarrow import compute as pc
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(path) as file:
            image_column = _find_image_column(path, file.schema_arrow)
            table = file.read(columns=[image_column, "label"])
    except (pa.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0]
        raise DatasetError(
            f"Reading images failed for {path}: the Parquet file cannot be read ({reason}). "
            "Check the path, or copy the file again."
        ) from error
    if not table.num_rows:
        raise DatasetError(f"Reading images failed for {path}: the file has no rows. Check the path.")
    cells, labels = table[image_column], table["label"]
    images = pc.struct_field(cells, "bytes") if pa.types.is_struct(cells.type) else cells
    for column, values, name in ((cells, images, image_column), (labels, labels, "label")):
        is_null = values.is_null().to_numpy(zero_copy_only=False)
        if is_null.any():
            row = int(is_null.argmax())
            raise DatasetError(
                f"Reading images failed for {path}: column {name!r} has no value in row {row} "
                f"({int(is_null.sum()):,} such rows), got {one_line(column[row].as_py(), 80)}. Write the bytes of all "
                "images and all labels into the file, or use a folder of images per class."
            )
    return images, np.asarray(labels.to_numpy(), np.int64)


def _find_image_column(path: Path, schema: Any) -> str:
    """Return the name of the column of images, after checking the types of both columns."""
    import pyarrow as pa

    def is_bytes(arrow_type: Any) -> bool:
        return bool(pa.types.is_binary(arrow_type) or pa.types.is_large_binary(arrow_type))

    types = dict(zip(schema.names, schema.types, strict=True))
    image_column = "img" if "img" in types and "image" not in types else "image"
    image_type = types.get(image_column, pa.null())
    if pa.types.is_struct(image_type) and image_type.get_field_index("bytes") >= 0:
        image_type = image_type.field("bytes").type
    if is_bytes(image_type) and pa.types.is_integer(types.get("label", pa.null())):
        return image_column
    raise DatasetError(
        f"Reading images failed for {path}: expected the columns 'image' (JPEG or PNG bytes) and 'label' (integers), "
        f"got {', '.join(f'{name} ({arrow_type})' for name, arrow_type in types.items()) or 'none'}. "
        "Write the file with these columns."
    )
