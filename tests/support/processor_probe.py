"""Print hashes of data that robust201 generates: ``python -m tests.support.processor_probe SIZE…``.

The output is a JSON object with the first 16 hex digits of a SHA-256 hash for each name. Only the hashes whose names
begin with ``control`` may depend on the processor.
"""

import hashlib
import json
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robust201.corruptions.folder import generate_corruptions
from robust201.corruptions.frost_textures import synthetic_frost
from robust201.corruptions.generator import CORRUPTION_FUNCTIONS, corrupt
from robust201.images import load_images, select
from robust201.images.corrupted import CorruptedStore
from robust201.images.fusion import blend
from robust201.images.upscaling import upscale
from tests.support.natural_images import natural_images, raw_integers, stripes

N_IMAGES = 4


def digest(arrays: Iterable[NDArray[Any]]) -> str:
    sha256 = hashlib.sha256()
    for array in arrays:
        sha256.update(np.ascontiguousarray(array).tobytes())
    return sha256.hexdigest()[:16]


def sample_images(size: int) -> NDArray[np.uint8]:
    """Return two natural-looking images, an image of four flat colours, and noise.

    In flat colours, a change in the last bit of a sum can change the pixels, because sums are truncated to integers.
    """
    images = natural_images(N_IMAGES, size)
    images[2] = raw_integers("flat", shape=(2, 2, 3), below=256).repeat(size // 2, 0).repeat(size // 2, 1)
    images[3] = raw_integers("noise", size, shape=images[3].shape, below=256)
    return images


def corrupted_images(key: str, size: int) -> Iterator[NDArray[np.uint8]]:
    """Yield images with one corruption at all severities."""
    frost = stripes()
    for severity in range(1, 6):
        yield corrupt(sample_images(size), key, severity, seed=0, indices=np.arange(N_IMAGES), frost=frost)


def snow_on_noise() -> Iterator[NDArray[np.uint8]]:
    """Yield images of noise with snow.

    Their pixels depend on the last bits of grey values, which a matrix product by OpenBLAS would change.
    """
    indices = np.array([1, 21, 30, 32, 67])
    images = raw_integers("noise", 64, shape=(indices.max() + 1, 64, 64, 3), below=256)[indices].astype(np.uint8)
    yield corrupt(images, "snow", 5, seed=0, indices=indices, frost=stripes())


def _random_numbers() -> Iterator[tuple[str, Iterable[NDArray[Any]]]]:
    import torch

    from robust201.attacks.random_numbers import RandomNumbers
    from robust201.training.augmentation import Augmenter
    from robust201.training.draws import epoch_random_words, image_random_words, uniform
    from robust201.training.recipes import AUGMENTATIONS

    draws, indices, shape = RandomNumbers(0, "pgd"), np.arange(64), (3, 32, 32)
    yield "draw uniforms", [draws.uniforms(0, indices, shape).numpy()]
    yield "draw normals", [draws.normals(0, indices, 3072).numpy()]
    yield "draw stripes", [draws.stripes(0, indices, shape).numpy()]
    yield "draw windows", [np.array([w.row, w.column, *w.signs.flatten()]) for w in draws.windows(0, 0, [3] * 9, shape)]
    yield "draw tiles", [draws.tiles(0, indices, 9, 3)[1].numpy()]
    yield "draw swaps", [swap.signs.numpy() for swap in draws.window_moves(0, 0, indices, [3] * 9, shape)]
    yield "draw training", [uniform(epoch_random_words(0, 1, "order", 99)), image_random_words(0, 1, "start", 2, 99)]
    images = np.ascontiguousarray(natural_images(16).transpose(0, 3, 1, 2))
    # Augmentations with colour jitter are not included: PyTorch sums an image's mean in an order that depends on the
    # processor (docs/protocol/images-and-processors.md).
    for name in ("flip-crop", "std*-tf"):
        augment = Augmenter(AUGMENTATIONS[name], n_ids=16, seed=0, device=torch.device("cpu"))
        yield f"augmentation {name}", [augment(images, np.arange(16), 0).numpy()]


def _images() -> Iterator[tuple[str, Iterable[NDArray[Any]]]]:
    yield "snow on noise", snow_on_noise()
    yield "synthetic frost", synthetic_frost(0).images
    grey = raw_integers("grey", shape=(20, 28, 28), below=256).astype(np.uint8)
    for size in (32, 96):
        yield f"upscaled to {size}", [upscale(grey, size, 255)]
    original, reversed_images = natural_images(2), natural_images(2)[::-1]
    for alpha in (0.1, 0.3, 0.5):
        yield f"blend {alpha}", [blend(original, reversed_images, alpha)]


def hashes(sizes: Iterable[int]) -> dict[str, str]:
    """Return all hashes by name, with corrupted images of these sizes in pixels."""
    hash_by_name = {name: digest(arrays) for name, arrays in (*_images(), *_random_numbers())}
    for size in sizes:
        hash_by_name |= {f"{key} at {size}": digest(corrupted_images(key, size)) for key in CORRUPTION_FUNCTIONS}
    digits = select(load_images("digits"), count=3, seed=0)
    hash_by_name["digits"] = digits.sha256[:16]
    with tempfile.TemporaryDirectory() as folder:
        generate_corruptions(Path(folder), digits, keys=("snow", "frost"), seed=0, frost=synthetic_frost(0))
        store = CorruptedStore(Path(folder), digits, rows=np.arange(len(digits)), n_images=len(digits))
        hash_by_name |= {f"identity of {key}": str(store.digest(key))[:16] for key in ("snow", "frost")}
    return hash_by_name | _controls()


def _controls() -> dict[str, str]:
    """Return hashes that depend on the environment variables of the test, to show that the variables have an effect."""
    import torch

    matrix = np.random.default_rng(0).random((64, 64), np.float32)
    maps = torch.from_numpy(matrix).view(1, 1, 64, 64).expand(1, 16, -1, -1).contiguous()
    kernels = torch.from_numpy(np.random.default_rng(1).random((16, 16, 3, 3), np.float32))
    return {
        "control OPENBLAS_CORETYPE": digest([matrix @ matrix]),
        "control NPY_DISABLE_CPU_FEATURES": digest([np.exp(-4 * matrix)]),
        "control ONEDNN_MAX_CPU_ISA": digest([torch.nn.functional.conv2d(maps, kernels).numpy()]),
    }


if __name__ == "__main__":
    print(json.dumps(hashes(int(size) for size in sys.argv[1:])))
