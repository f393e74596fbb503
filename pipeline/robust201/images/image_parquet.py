"""Any Parquet file of images: columns `image` (JPEG or PNG bytes) and `label` (integers), one row per image.

The only module beside `shards` that imports pyarrow. Decoded JPEG pixels depend on the JPEG library inside
Pillow; the hash of an image set is taken over pixels, so a library that decodes otherwise gives another identity.
"""

import io
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robust201.core.errors import DatasetError
from robust201.core.files import check_file
from robust201.core.records import Split
from robust201.images.checks import LabelledImages, check_labels
from robust201.images.specs import DatasetSpec


def find_parquet(spec: DatasetSpec, root: Path, split: Split) -> Path | None:
    """Find the file: `root` itself, or `test.parquet` or `train.parquet` in it."""
    if root.is_file():
        return root
    file = root / f"{split}.parquet"
    return file if file.is_file() else None


def load_parquet(spec: DatasetSpec, path: Path, split: Split, *, verify: bool) -> LabelledImages:
    """Load images from a Parquet file in the order of its rows, JPEG and PNG decoded to RGB.

    One's own Parquet has no published checksum to verify; every image and label is checked anyway.

    Raises:
        DatasetError: no Parquet file, a column is missing or of another type, an image cannot be decoded or has another
            size, or a label is out of range; the first such row is named.
    """
    table = _read_columns(path)
    labels = np.asarray(table["label"].to_numpy(), dtype=np.int64)
    check_labels(path, labels, spec.n_classes)
    images = np.empty((len(labels), 3, spec.image_size, spec.image_size), np.uint8)
    for row, encoded in enumerate(table["image"]):
        images[row] = _decode(path, row, encoded.as_py(), spec.image_size)
    return LabelledImages(images, labels)


def _read_columns(path: Path) -> Any:
    import pyarrow as pa
    from pyarrow import parquet

    try:
        check_file(path)
        with parquet.ParquetFile(path) as file:
            schema = file.schema_arrow
            _check_columns(path, {field.name: field.type for field in schema})
            table = file.read(columns=["image", "label"])
    except (pa.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0]
        raise DatasetError(
            f"Reading images failed for {path}: expected a whole Parquet file, got one that cannot be read ({reason}). "
            "Check the path, or copy the file again."
        ) from error
    if not table.num_rows:
        raise DatasetError(f"Reading images failed for {path}: expected images, got no rows. Check the file.")
    for name in ("image", "label"):
        nulls = table[name].is_null().to_numpy(zero_copy_only=False)
        if nulls.any():
            raise DatasetError(
                f"Reading images failed for {path}: expected a value in every row of column {name!r}, got none in row "
                f"{int(nulls.argmax())} ({int(nulls.sum()):,} such rows). Write the file again without them."
            )
    return table


def _check_columns(path: Path, types: dict[str, Any]) -> None:
    import pyarrow as pa

    wanted = {
        "image": ("bytes", lambda kind: pa.types.is_binary(kind) or pa.types.is_large_binary(kind)),
        "label": ("integers", pa.types.is_integer),
    }
    for name, (words, accepts) in wanted.items():
        if name not in types or not accepts(types[name]):
            got = f"{name}: {types[name]}" if name in types else f"columns {', '.join(types) or 'none'}"
            raise DatasetError(
                f"Reading images failed for {path}: expected a column {name!r} of {words}, got {got}. "
                "Write the file with columns 'image' (JPEG or PNG bytes) and 'label' (integers)."
            )


def _decode(path: Path, row: int, encoded: bytes, size: int) -> NDArray[np.uint8]:
    from PIL import Image

    try:
        with Image.open(io.BytesIO(encoded), formats=("JPEG", "PNG")) as image:
            got = image.size
            # Sizes are compared before decoding, so that a wrong image cannot fill the memory.
            pixels = np.asarray(image.convert("RGB")) if got == (size, size) else None
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise DatasetError(
            f"Decoding an image failed for {path}, row {row}: expected a JPEG or PNG, got {len(encoded):,} bytes that "
            f"are none ({error}). Replace or remove the row."
        ) from error
    if pixels is None:
        raise DatasetError(
            f"Decoding an image failed for {path}, row {row}: expected {size}x{size} pixels, got {got[0]}x{got[1]}. "
            "Resize the images, or check the dataset's name."
        )
    return np.ascontiguousarray(pixels.transpose(2, 0, 1))
