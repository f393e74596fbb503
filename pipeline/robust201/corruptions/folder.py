"""Generation of corrupted images into a folder."""

import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from robust201.core.errors import PerturbationError
from robust201.core.files import sole_writer
from robust201.core.records import ImageSet
from robust201.corruptions.frost_textures import FrostTextures, load_frost, synthetic_frost
from robust201.corruptions.generator import (
    check_keys,
    corrupt,
    corruption_recipes,
)
from robust201.images.corrupted import N_SEVERITIES, CorruptedStore, open_generated, write_clean_set
from robust201.images.store import ArrayFolder, Recipe
from robust201.tasks import CORRUPTIONS

ImageProgress = Callable[[int, int], None]
"""Function that is called with (number of finished images, total number). An image counts once per corruption and
severity."""

Blocks: TypeAlias = Iterator[NDArray[np.uint8]]
"""Consecutive images of a file, in blocks of (n, H, W, 3)."""

_BLOCK_IMAGES = 500
"""Number of images that a process corrupts at a time."""


@dataclass(frozen=True)
class _Job:
    """The data from which a process corrupts blocks of images."""

    images: NDArray[np.uint8]  # (N, H, W, 3)
    indices: NDArray[np.int64]
    seed: int
    frost: FrostTextures

    @classmethod
    def of(cls, images: ImageSet, seed: int, frost: FrostTextures) -> "_Job":
        return cls(np.ascontiguousarray(images.images.transpose(0, 2, 3, 1)), images.indices, seed, frost)

    def blocks(self) -> list[tuple[int, int]]:
        """Return the severity and first position of each block, in the order of a file."""
        return list(product(range(1, N_SEVERITIES + 1), range(0, len(self.indices), _BLOCK_IMAGES)))

    def corrupt_block(self, key: str, severity: int, start: int) -> NDArray[np.uint8]:
        block = slice(start, start + _BLOCK_IMAGES)
        indices = self.indices[block]
        return corrupt(self.images[block], key, severity, seed=self.seed, indices=indices, frost=self.frost)


_process_jobs: list[_Job] = []
"""The job of this process, if it is a worker process."""


def _start_process(job: _Job) -> None:
    _process_jobs.append(job)


def _corrupt_block(key: str, severity: int, start: int) -> NDArray[np.uint8]:
    return _process_jobs[0].corrupt_block(key, severity, start)


def find_unfinished_corruptions(folder: Path, recipes: Mapping[str, Recipe]) -> list[str]:
    """Return the corruptions that a folder lacks.

    Raises:
        DatasetError: a corruption was generated with another recipe, or the folder's `made.json` is damaged.
    """
    made = ArrayFolder(folder)
    return [key for key, recipe in recipes.items() if not made.is_complete(key, recipe)]


def generate_corruptions(
    folder: Path,
    images: ImageSet,
    *,
    keys: Sequence[str],
    seed: int,
    frost: FrostTextures,
    workers: int = 1,
    progress: ImageProgress | None = None,
) -> CorruptedStore:
    """Write corrupted images in the published layout, skipping finished files.

    A killed run can be resumed (see `images.store`). The pixels do not depend on `workers`.

    Args:
        folder: output folder, created if absent.
        images: the clean images, whose order is also the order in the files.
        keys: corruptions to generate.
        seed: seed of the random numbers.
        frost: textures for the key ``"frost"``.
        workers: number of processes.
        progress: called after each block of images.

    Returns:
        The opened store.

    Raises:
        ConfigError: a corruption does not exist.
        DatasetError: the folder contains published files, or files generated from other images or with other settings.
        StorageError: another process is generating images in this folder, or the disk is full.
    """
    check_keys(keys)
    recipes = corruption_recipes(keys, images.images.shape[-1], seed=seed, frost=frost)
    if not find_unfinished_corruptions(folder, recipes):
        return open_generated(folder, images)
    job, made = _Job.of(images, seed, frost), ArrayFolder(folder)
    shape = (N_SEVERITIES * len(images), *job.images.shape[1:])
    with sole_writer(folder, "Generating corruptions"):
        write_clean_set(made, images)
        unfinished = find_unfinished_corruptions(folder, recipes)
        report_progress = _progress_reporter(progress, len(unfinished) * shape[0])
        with _block_corrupter(job, workers) as corrupt_blocks:
            for key in unfinished:
                blocks = report_progress(corrupt_blocks(key))
                made.write(key, blocks, shape=shape, recipe=recipes[key], info={"libraries": library_versions()})
    return open_generated(folder, images)


def corrupt_blocks(
    images: ImageSet, key: str, severity: int, *, seed: int, frost: FrostTextures
) -> Iterator[NDArray[np.uint8]]:
    """Yield the images under a corruption at a severity, in blocks of (n, H, W, 3)."""
    job = _Job.of(images, seed, frost)
    return (job.corrupt_block(key, *block) for block in job.blocks() if block[0] == severity)


def library_versions() -> dict[str, str]:
    """Return the versions of the libraries that may affect generated pixels."""
    import PIL
    import scipy
    from PIL import features

    return {
        "python": platform.python_version(),
        "numpy": np.__version__,
        "scipy": scipy.__version__,
        "pillow": PIL.__version__,
        "libjpeg": features.version("jpg") or "",
    }


def _progress_reporter(progress: ImageProgress | None, total: int) -> Callable[[Blocks], Blocks]:
    n_done = 0

    def report_progress(blocks: Blocks) -> Blocks:
        nonlocal n_done
        for block in blocks:
            yield block
            n_done += len(block)
            if progress is not None:
                progress(n_done, total)

    return report_progress


@contextmanager
def _block_corrupter(job: _Job, workers: int) -> Iterator[Callable[[str], Blocks]]:
    """Yield a function that corrupts all blocks of a key in the order of the file, in this process or in several."""
    if workers <= 1:
        yield lambda key: (job.corrupt_block(key, *block) for block in job.blocks())
        return
    # Spawn processes, since a fork would copy locks that other threads of the caller hold.
    with ProcessPoolExecutor(workers, get_context("spawn"), initializer=_start_process, initargs=(job,)) as pool:
        try:
            yield lambda key: pool.map(_corrupt_block, *zip(*((key, *block) for block in job.blocks()), strict=True))
        except BrokenProcessPool as error:
            raise PerturbationError(
                f"Generating corruptions failed for {workers} workers: one was killed, perhaps because memory ran out. "
                "Run the same command again with fewer workers; it skips finished files."
            ) from error


def corrupt_dataset(
    folder: Path,
    images: ImageSet,
    *,
    keys: Sequence[str] | None = None,
    seed: int = 0,
    frost_folder: Path | None = None,
    workers: int = 1,
    progress: ImageProgress | None = None,
) -> str:
    """Generate corruptions for `robust201 corrupt`, and return its line.

    The arguments are those of `generate_corruptions`. None as `keys` means all corruptions; None as `frost_folder`,
    synthetic textures.

    Raises:
        InputError: a key, the images, the frost textures or the folder is wrong.
        StorageError: another process is generating images in this folder, or the disk is full.
    """
    frost = load_frost(frost_folder) if frost_folder is not None else synthetic_frost(seed)
    keys = tuple(keys or CORRUPTIONS)
    generate_corruptions(folder, images, keys=keys, seed=seed, frost=frost, workers=workers, progress=progress)
    return (
        f"{len(keys)} corruptions of {len(images):,} images of {images.dataset} at {N_SEVERITIES} severities are in "
        f"{folder} (generated, seed {seed}, frost {frost.name})."
    )
