"""Sharing images out among threads: the native library computes each image by itself, so that no bit depends on it."""

import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch


def shares(n_images: int) -> list[slice]:
    """Cut images into parts, one for each thread that torch has."""
    share = -(-n_images // torch.get_num_threads())
    return [slice(start, min(start + share, n_images)) for start in range(0, n_images, share)]


def in_threads(run: Callable[[int, slice], None], parts: list[slice]) -> None:
    """Call with each part and its number, one thread each."""
    if len(parts) == 1:
        run(0, parts[0])
        return
    pool = _pool(len(parts))
    for done in [pool.submit(run, number, part) for number, part in enumerate(parts)]:
        done.result()


@functools.cache
def _pool(n_threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(n_threads, thread_name_prefix="robust201")
