"""Published files of images: checksums, and pickled batches (CIFAR's Python version, ImageNet16)."""

import io
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import numpy as np

from robust201.core.errors import DatasetError
from robust201.core.records import Split
from robust201.core.unpickling import load_pickle
from robust201.images.checks import LabelledImages, check_count
from robust201.images.downloads.registry import find_download
from robust201.images.specs import DatasetSpec


def read_published(path: Path, download_name: str, *, verify: bool) -> bytes:
    """Read a file of a download; with `verify`, check it against its published checksum.

    For the files of CIFAR's binary version, only the sizes are published.

    Raises:
        DatasetError: the file is missing, unreadable, or differs from the published file.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DatasetError(
            f"Reading images failed for {path}: {error.strerror}. Check the path, or fetch the dataset again."
        ) from error
    checksum = find_download(download_name).members.get(path.name)
    if verify and checksum is not None:
        hasher = checksum.hasher()
        hasher.update(content)
        checksum.check(path, len(content), hasher.hexdigest())
    return content


def read_batches(
    spec: DatasetSpec,
    files: Iterable[Path],
    split: Split,
    download_name: str,
    parse: Callable[[Path, bytes], LabelledImages],
    *,
    verify: bool,
) -> LabelledImages:
    """Read, parse and concatenate the files of a split; `verify` checks their checksums and the number of images."""
    files = [*files]
    batches = [parse(file, read_published(file, download_name, verify=verify)) for file in files]
    images = np.concatenate([batch.images for batch in batches])
    labels = np.concatenate([batch.labels for batch in batches])
    if verify:
        check_count(files[0].parent, len(labels), spec, split)
    return LabelledImages(images, labels)


def parse_batch(path: Path, content: bytes, label_key: str, image_size: int) -> LabelledImages:
    """Parse one pickled batch {data: (N, 3 * size * size) uint8, label_key: N integers}, written by Python 2.

    Returns images (N, 3, size, size) uint8 and labels (N,) int64 as in the file.

    Raises:
        DatasetError: the content is not such a pickle, or names a forbidden global.
    """
    batch = load_pickle(io.BytesIO(content), name=str(path), error=DatasetError, encoding="latin1")
    fields = batch if isinstance(batch, Mapping) else {}
    pixels, labels = np.asarray(fields.get("data")), np.asarray(fields.get(label_key))
    expected_shape = (labels.size, 3 * image_size**2)
    is_valid = labels.ndim == 1 and labels.dtype.kind in "iu" and pixels.dtype == np.uint8
    if not is_valid or pixels.shape != expected_shape:
        got = f"{pixels.dtype} {pixels.shape} and {labels.dtype} {labels.shape}"
        raise DatasetError(
            f"Reading images failed for {path}: expected a batch with 'data' (N, {expected_shape[1]}) uint8 and N "
            f"integers {label_key!r}, got {got if fields else type(batch).__name__} with the keys "
            f"{sorted(map(str, fields))}. Check the dataset's name and form."
        )
    return LabelledImages(pixels.reshape(-1, 3, image_size, image_size), labels.astype(np.int64))
