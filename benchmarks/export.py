"""Measure the export of a synthetic sweep with 100 classes: speed, and memory of all processes.

    python -m benchmarks.export                      5 GB of JSON; needs 8 GB of disk space until the end
    python -m benchmarks.export --gigabytes 0.2      a quick trial

The sweep has 100 classes, like CIFAR-100. Its rows are mean softmax vectors of simulated networks with different
confidence, so that the numbers resemble those of trained networks in digits and size. Results are committed as by a
worker, and compacted. Then the shards are exported, once with each number of `--processes`, while the memory of all
processes (proportional set size) is sampled. `benchmarks.store` measures an export of the size of the paper's sweep.
"""

import argparse
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from robust201.core.records import EvaluationResult, Part, Unit, Weights, unit_id
from robust201.export import export_dataset
from robust201.shards import ShardStore
from robust201.tasks import TASKS
from robust201.tasks.columns import COLUMNS, FRACTION_BITS, columns_of

N_CLASSES = 100
N_IMAGES = 10_000
STRENGTHS = (1.0, 2.0, 3.0, 4.0, 5.0)
KEYS = ("fog", "snow", "frost", "contrast")
MEASUREMENTS = ("accuracy", "confidence", "cm")
# In JSON, a number takes 21.5 bytes on average in the two confidence matrices, and 3.1 bytes in the confusion matrix.
BYTES_PER_UNIT = len(STRENGTHS) * (2 * N_CLASSES**2 * 21.5 + N_CLASSES**2 * 3.1)
MEMORY_INTERVAL_SECONDS = 0.1


class SyntheticPlan:
    """Substitute for a plan, with the members that an export needs."""

    measurements: tuple[str, ...] = MEASUREMENTS

    def __init__(self, gigabytes: float) -> None:
        n_units = max(len(KEYS), round(gigabytes * 1e9 / BYTES_PER_UNIT))
        n_architectures = -(-n_units // len(KEYS))
        self.units = tuple(
            Unit(unit_id("s", i, "c" * 64, key), i, "cifar100", key, STRENGTHS, N_IMAGES, key.ljust(32, "0"), "c" * 64)
            for key in sorted(KEYS)
            for i in range(n_architectures)
        )

    tasks = TASKS
    weights: Mapping[str, Weights] = {}
    space_name = "nasbench201"

    def measurements_of(self, _key: str) -> tuple[str, ...]:
        """Return the names of the measurements, which are the same for all keys."""
        return self.measurements

    def n_classes(self, _dataset: str) -> int:
        """Return the number of classes."""
        return N_CLASSES

    def recorded_accuracies(self, units: Iterable[Unit]) -> Iterator[tuple[Unit, float, int]]:
        """Return an empty iterator: no weights have recorded accuracies."""
        return iter(())

    def describe(self) -> dict[str, Any]:
        """Return the content of sweep.json."""
        return {"name": "synthetic", "protocols": []}

    def portable_fields(self) -> dict[str, Any]:
        """Return the fields of the sweep YAML."""
        return {"name": "synthetic"}


def make_values(rng: np.random.Generator, bank: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the values of a random result from a bank, with classes rotated by a random shift, so that rows differ."""
    result = bank[rng.integers(len(bank))]
    shift = int(rng.integers(len(result["cm"])))
    rotated_values = {
        name: np.roll(array, (shift, shift), (0, 1)) if array.ndim == 2 else array for name, array in result.items()
    }
    return {name: rotated_values[name] for name in columns_of(MEASUREMENTS, N_CLASSES)}


def make_bank(
    rng: np.random.Generator, n_results: int = 16, n_classes: int = N_CLASSES, n_images: int = N_IMAGES
) -> list[dict[str, Any]]:
    """Return a bank of results for `make_values`, from simulated networks with increasing confidence."""
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


def fill_store(store: ShardStore, plan: SyntheticPlan) -> None:
    rng = np.random.default_rng(0)
    bank = make_bank(rng)
    for unit in plan.units:
        part = Part(unit, STRENGTHS, 0, N_IMAGES)
        results = [EvaluationResult(part, strength, make_values(rng, bank), 1.0) for strength in STRENGTHS]
        store.commit(results)
    store.compact(grace_seconds=0)
    store.compact(grace_seconds=0)  # delete the files that the first pass merged


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=5.0, help="approximate size of the JSON, in GB")
    parser.add_argument("--processes", type=int, nargs="*", default=[1, len(os.sched_getaffinity(0))])
    parser.add_argument("--folder", type=Path, help="working folder; a temporary folder if absent")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="robust201-export-", dir=options.folder))
    try:
        plan = SyntheticPlan(options.gigabytes)
        store = ShardStore.create(folder / "results")
        start = time.perf_counter()
        fill_store(store, plan)
        shard_bytes = sum(path.stat().st_size for path in (folder / "results").rglob("*.parquet"))
        fill_seconds = time.perf_counter() - start
        print(
            f"{len(plan.units)} units (network and key) with {N_CLASSES} classes and 5 severities, "
            f"{shard_bytes / 1e9:.2f} GB of shards, "
            f"{fill_seconds:.0f} s"
        )
        for n_processes in dict.fromkeys(options.processes):
            with sampling_memory() as peak:
                start = time.perf_counter()
                inventory = store.inventory()
                any_plan: Any = plan  # the type checker expects a Plan
                report = export_dataset(any_plan, store, inventory, folder / "out", processes=n_processes)
                seconds = time.perf_counter() - start
            print(
                f"{n_processes} processes: {report.n_bytes / 1e9:.2f} GB of JSON in {seconds:.1f} s, "
                f"{report.n_bytes / 1e6 / seconds:.1f} MB/s, peak memory {peak['all']:.2f} GB over "
                f"{peak['processes']:.0f} processes, largest worker {peak['largest']:.2f} GB"
            )
            shutil.rmtree(folder / "out")
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
