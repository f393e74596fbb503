"""Parquet files with one row per image, in the columns `image` (JPEG or PNG bytes) and `label` (integers).

Files of Hugging Face's datasets are accepted, too: the image is a struct with the field `bytes`, and its column may be
`img`.

This is the only module of `images` that imports pyarrow. `images.decoding` decodes the images.
"""

from pathlib import Path
from typing import Any

import numpy as np

from robust201.core.errors import DatasetError
from robust201.core.files import check_file
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

    Custom Parquet files have no published checksum, so `verify` has no effect. Every image and label is checked.

    Raises:
        DatasetError: the file is not Parquet, a column is missing or has the wrong type, an image cannot be decoded or
            has the wrong size, or a label is out of range; the message contains the first such row.
    """
    table = _read_columns(path)
    labels = np.asarray(table["label"].to_numpy(), dtype=np.int64)
    check_labels(path, labels, spec.n_classes or MAX_CLASSES)
    decoder = ImageDecoder(spec)
    encoded = ((f"{path}, row {row}", cell.as_py) for row, cell in enumerate(table["image"]))
    images = decoder.decode_all(encoded, len(labels))
    # Without a resize rule, the protocol omits the decoder libraries, so that the ids of older results stay valid.
    return LabelledImages(images, labels, {} if spec.resize is None else decoder.libraries)


def _read_columns(path: Path) -> Any:
    import pyarrow as pa
    from pyarrow import compute as pc
    from pyarrow import parquet

    try:
        check_file(path)
        with parquet.ParquetFile(path) as file:
            schema = file.schema_arrow
            types = {field.name: field.type for field in schema}
            image_column = "img" if "img" in types and "image" not in types else "image"
            if image_column == "img":
                types["image"] = types["img"]
            _check_columns(path, types)
            table = file.read(columns=[image_column, "label"]).select([image_column, "label"])
            table = table.rename_columns(["image", "label"])
            if pa.types.is_struct(types["image"]):
                table = table.set_column(0, "image", pc.struct_field(table["image"], "bytes"))
    except (pa.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0]
        raise DatasetError(
            f"Reading images failed for {path}: the Parquet file cannot be read ({reason}). "
            "Check the path, or copy the file again."
        ) from error
    if not table.num_rows:
        raise DatasetError(f"Reading images failed for {path}: the file has no rows. Check the path.")
    for name in ("image", "label"):
        is_null = table[name].is_null().to_numpy(zero_copy_only=False)
        if is_null.any():
            raise DatasetError(
                f"Reading images failed for {path}: column {name!r} has no value in row {int(is_null.argmax())} "
                f"({int(is_null.sum()):,} such rows). Write the file again without these rows."
            )
    return table


def _check_columns(path: Path, arrow_types: dict[str, Any]) -> None:
    import pyarrow as pa

    def is_binary(arrow_type: Any) -> bool:
        return bool(pa.types.is_binary(arrow_type) or pa.types.is_large_binary(arrow_type))

    def bytes_type(arrow_type: Any) -> Any:
        has_bytes = pa.types.is_struct(arrow_type) and arrow_type.get_field_index("bytes") >= 0
        return arrow_type.field("bytes").type if has_bytes else arrow_type

    expected = {
        "image": ("bytes", lambda arrow_type: is_binary(bytes_type(arrow_type))),
        "label": ("integers", pa.types.is_integer),
    }
    for name, (type_name, is_accepted) in expected.items():
        if name not in arrow_types or not is_accepted(arrow_types[name]):
            got = (
                f"{name}: {arrow_types[name]}" if name in arrow_types else f"columns {', '.join(arrow_types) or 'none'}"
            )
            raise DatasetError(
                f"Reading images failed for {path}: expected a column {name!r} of {type_name}, got {got}. "
                "Write the file with columns 'image' (JPEG or PNG bytes) and 'label' (integers)."
            )
