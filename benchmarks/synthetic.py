"""Synthetic results for `benchmarks.store`, and the memory of a process with its descendants."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import psutil

from robust201.tasks.columns import COLUMNS, FRACTION_BITS

MEASUREMENTS = ("accuracy", "confidence", "cm")
MEMORY_INTERVAL_SECONDS = 0.1


def make_bank(rng: np.random.Generator, n_results: int, n_classes: int, n_images: int) -> list[dict[str, Any]]:
    """Return results of simulated networks with increasing confidence, whose numbers resemble those of trained ones."""
    bank = []
    images_per_class = n_images // n_classes
    labels = np.repeat(np.arange(n_classes), images_per_class)
    for index in range(n_results):
        sharpness = 1.0 + 3.0 * index / n_results
        class_logits = rng.normal(size=(n_classes, n_classes))
        logits = sharpness * (class_logits[labels] + rng.normal(size=(n_images, n_classes)))
        logits[np.arange(n_images), labels] += sharpness * 3
        logits -= logits.max(axis=1, keepdims=True)
        softmax = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        fixed_point = np.rint(softmax * 2**FRACTION_BITS).astype(np.int64)
        predicted = logits.argmax(axis=1)
        cm = np.zeros((n_classes, n_classes), dtype=np.int64)
        np.add.at(cm, (labels, predicted), 1)
        values: dict[str, Any] = {"accuracy": np.array(np.trace(cm) / n_images), "cm": cm.astype(np.int32)}
        row_indices_by_column = {"confidence_label": labels, "confidence_argmax": predicted}
        for name, row_indices in row_indices_by_column.items():
            sums = np.zeros((n_classes, n_classes), dtype=np.int64)
            np.add.at(sums, row_indices, fixed_point)
            count_images = COLUMNS[name].count_images_per_mean
            assert count_images is not None
            n_images_per_row = np.broadcast_to(count_images(cm), sums.shape)
            values[name] = np.full(sums.shape, np.nan)
            np.divide(sums, n_images_per_row * 2.0**FRACTION_BITS, out=values[name], where=n_images_per_row > 0)
        confidences = fixed_point[np.arange(n_images), predicted]
        means = [confidences[predicted == labels].mean(), confidences[predicted != labels].mean()]
        values["confidence_prediction"] = np.array(means) / 2.0**FRACTION_BITS
        bank.append(values)
    return bank


def _gigabytes(process: psutil.Process) -> float:
    """Return the proportional set size of a process in GB; 0 if it has ended."""
    try:
        return float(process.memory_full_info().pss) / 1e9
    except psutil.Error:
        return 0.0


@contextmanager
def sampling_memory() -> Iterator[dict[str, float]]:
    """Sample the memory of this process and its descendants during the block, and yield the peaks so far.

    The peaks are the memory of all processes together (``all``) and of the largest descendant (``largest``) in GB, and
    the number of processes (``processes``).
    """
    peak = {"all": 0.0, "processes": 0.0, "largest": 0.0}
    stop = threading.Event()

    def sample() -> None:
        while not stop.wait(MEMORY_INTERVAL_SECONDS):
            driver, *workers = map(_gigabytes, [psutil.Process(), *psutil.Process().children(recursive=True)])
            peak["all"] = max(peak["all"], driver + sum(workers))
            peak["processes"] = max(peak["processes"], 1 + len(workers))
            peak["largest"] = max(peak["largest"], *workers, 0.0)

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield peak
    finally:
        stop.set()
        thread.join()
