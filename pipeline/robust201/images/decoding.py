"""Decoding of JPEG and PNG files to arrays of one image size.

The pixels of a JPEG depend on the JPEG library inside Pillow, and the pixels of a resized image on Pillow. The hash of
an image set includes its pixels, so libraries that give different pixels give different hashes.
"""

import io
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from robust201.core.errors import DatasetError
from robust201.images.specs import UNKNOWN_COUNT, DatasetSpec

if TYPE_CHECKING:
    from PIL.Image import Image

_MODES = {3: "RGB", 1: "L"}
"""Pillow's mode for each number of channels."""

_GREY_MODES = ("1", "L", "LA")
_BIT_DEPTH_OFFSET = 24
"""Offset of the bit depth in a PNG: after the signature (8 bytes), IHDR's length and name (8), width and height (8)."""


@dataclass
class ImageDecoder:
    """Decoder of a dataset's images to arrays of one size.

    Attributes:
        spec: the dataset, with its channels, image size and resize rule.
        image_size: height and width of every image; taken from the first image if the dataset does not define them.
    """

    spec: DatasetSpec
    image_size: int = field(init=False)

    def __post_init__(self) -> None:
        self.image_size = self.spec.image_size

    def decode_all(self, images: Iterable[tuple[str, Callable[[], bytes]]], count: int) -> NDArray[np.uint8]:
        """Decode `count` images to (count, C, H, H) uint8.

        Each image is a pair of its name in messages and a function that reads its encoded bytes.
        """
        pixels = np.empty((0, 0, 0, 0), np.uint8)
        for position, (image_name, read_bytes) in enumerate(images):
            image = self.decode(image_name, read_bytes())
            if position == 0:
                pixels = np.empty((count, *image.shape), np.uint8)
            pixels[position] = image
        return pixels

    def decode(self, image_name: str, encoded: bytes) -> NDArray[np.uint8]:
        """Decode an image to (C, H, H) uint8.

        Raises:
            DatasetError: the image is not a JPEG or a PNG of at most 8 bits per channel, cannot be decoded, has the
                wrong size, or is coloured but the dataset is grey.
        """
        from PIL import Image, UnidentifiedImageError

        try:
            with Image.open(io.BytesIO(encoded), formats=("JPEG", "PNG")) as image:
                if image.format == "PNG" and encoded[_BIT_DEPTH_OFFSET] > 8:
                    # Pillow would truncate these pixels to 8 bits, and its modes RGB and LA do not show the bit depth.
                    raise DatasetError(
                        f"Decoding an image failed for {image_name}: expected 8 bits per channel, got a PNG of "
                        f"{encoded[_BIT_DEPTH_OFFSET]} bits. Convert the image."
                    )
                # Without a resize rule, the size is checked before decoding: a huge image could exhaust the memory.
                self._check_mode_and_size(image_name, image)
                pixels = np.asarray(self._apply_resize_rule(image.convert(_MODES[self.spec.channels])))
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
            # Pillow's message for unknown bytes names only the object in memory.
            reason = "" if isinstance(error, UnidentifiedImageError) else f" ({error})"
            got = f"{len(encoded):,} bytes that cannot be decoded{reason}" if encoded else "an empty file"
            raise DatasetError(
                f"Decoding an image failed for {image_name}: expected a JPEG or PNG, got {got}. Replace or remove it."
            ) from error
        return np.ascontiguousarray(pixels.transpose(2, 0, 1) if pixels.ndim == 3 else pixels[None])

    def _check_mode_and_size(self, image_name: str, image: "Image") -> None:
        width, height = image.size
        if self.spec.resize is None:
            if self.image_size == UNKNOWN_COUNT and width == height:
                self.image_size = height
            if image.size != (self.image_size, self.image_size):
                expected = f"{self.image_size}x{self.image_size} pixels" if self.image_size else "a square image"
                raise DatasetError(
                    f"Decoding an image failed for {image_name}: expected {expected}, got {width}x{height} pixels. "
                    "Resize the images, add a resize rule (--resize, `resize`), or check the name of the dataset."
                )
        if self.spec.channels == 1 and image.mode not in _GREY_MODES:
            raise DatasetError(
                f"Decoding an image failed for {image_name}: expected a grey image, since the dataset has one channel, "
                f"got Pillow mode {image.mode}. Convert the image, or set the number of channels to 3."
            )

    def _apply_resize_rule(self, image: "Image") -> "Image":
        """Apply the resize rule. As in torchvision, round the longer side down; offsets are rounded half to even."""
        rule = self.spec.resize
        if rule is None:
            return image
        from PIL import Image

        width, height = image.size
        if min(width, height) != rule.shorter_side:
            longer_side = int(rule.shorter_side * max(width, height) / min(width, height))
            size = (rule.shorter_side, longer_side) if width <= height else (longer_side, rule.shorter_side)
            image = image.resize(size, Image.Resampling[rule.resampling.upper()])
        left, top = (round((length - self.image_size) / 2) for length in image.size)
        return image.crop((left, top, left + self.image_size, top + self.image_size))
