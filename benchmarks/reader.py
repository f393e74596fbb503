"""Look-ups in a dataset of the paper's size: one architecture's accuracies and confidences, JSON and Parquet.

    python -m benchmarks.reader                        6,466 architectures on cifar100 under 3 keys; 4 GB of disk
    python -m benchmarks.reader --architectures 100    a trial

The dataset is written by the export itself from made-up results, and deleted at the end. Each figure is the median and
the largest of several look-ups of random architectures by a fresh reader; "first" includes reading a JSON file whole.
"""

import argparse
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.export import STRENGTHS, SyntheticPlan, make_bank, make_values
from robust201.core.records import Unit, unit_id
from robust201.dataset import export_dataset
from robust201.dataset.conversion import convert_dataset
from robust201.reader.dataset import RobustnessDataset
from robust201.shards import RowBatch
from robust201.spaces.nasbench201 import cells as nasbench201

KEYS = ("fog", "frost", "snow")


class MadeUpPlan(SyntheticPlan):
    """Evaluated architectures under three keys."""

    def __init__(self, n_architectures: int, measurements: tuple[str, ...]) -> None:
        self.measurements = measurements
        self.units = tuple(
            Unit(unit_id("s", i, "c" * 64, key), i, "cifar100", key, STRENGTHS, 10_000, key.ljust(32, "0"), "c" * 64)
            for key in KEYS
            for i in nasbench201.evaluated_indices()[:n_architectures]
        )


class MadeUpStore:
    """Store, inventory and selection in one: results are drawn when they are read."""

    def __init__(self) -> None:
        self.bank = make_bank(np.random.default_rng(0), 4)
        self.units: tuple[Unit, ...] = ()

    def count_complete(self, unit: Unit, _measurements: Any) -> int:
        """Count all strengths: everything is there."""
        return len(unit.strengths)

    def is_complete(self, *_arguments: Any) -> bool:
        """Everything is there."""
        return True

    def check_rows(self, _inventory: Any) -> list[Mapping[str, str]]:
        """Nothing was computed."""
        return []

    def select(self, units: Any, *_arguments: Any, **_options: Any) -> "MadeUpStore":
        """Take a selection of units."""
        chosen = MadeUpStore.__new__(MadeUpStore)
        chosen.bank, chosen.units = self.bank, tuple(units)
        return chosen

    def iter_batches(self, _measurement: str | None) -> Iterator[RowBatch]:
        """Make up the results of each unit."""
        rng = np.random.default_rng(1)
        for unit in self.units:
            yield RowBatch.of_unit(unit, {strength: make_values(rng, self.bank) for strength in STRENGTHS})


def measure(label: str, look_up: Callable[[RobustnessDataset, int], Any], folder: Path, architectures: Any) -> None:
    start = time.perf_counter()
    data = RobustnessDataset(folder)
    opened = time.perf_counter() - start
    look_up(data, architectures[0])
    first = time.perf_counter() - start - opened
    reader = RobustnessDataset(folder)
    times = []
    for architecture in architectures:
        start = time.perf_counter()
        look_up(reader, architecture)
        times.append(1e3 * (time.perf_counter() - start))
    print(
        f"{label:52} opened in {1e3 * opened:6.1f} ms, first {1e3 * first:9.1f} ms, "
        f"then median {statistics.median(times):6.2f} ms, largest {max(times):6.2f} ms"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--architectures", type=int, default=6466)
    parser.add_argument("--look-ups", type=int, default=50)
    parser.add_argument("--folder", type=Path, help="where to work; a temporary folder if absent")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="robust201-reader-", dir=options.folder))
    chosen = nasbench201.evaluated_indices()[: options.architectures]
    draws = np.random.default_rng(2).choice(chosen, size=options.look_ups).tolist()
    try:
        store: Any = MadeUpStore()
        small, large = folder / "accuracy", folder / "cm"
        export_dataset(
            MadeUpPlan(options.architectures, ("accuracy",)), store, store, small, formats=("json", "parquet")
        )
        export_dataset(MadeUpPlan(options.architectures, ("accuracy", "cm")), store, store, large)
        (small / "parquet").rename(folder / "parquet")
        for place, form in ((small, "JSON"), (folder / "parquet", "Parquet")):
            measure(f"{form}: accuracies of one architecture, one key", one_key, place, draws)
            measure(f"{form}: accuracies of one architecture, three keys", every_key, place, draws)
        size = (large / "cifar100/fog_cm.json").stat().st_size
        measure(f"JSON: confusion matrices of one, {size / 1e9:.2f} GB per file", matrices, large, draws)
        start = time.perf_counter()
        convert_dataset(large)
        print(f"converted {3 * size / 1e9:.2f} GB in {time.perf_counter() - start:.1f} s")
        measure("Parquet: confusion matrices of one", matrices, large, draws)
    finally:
        shutil.rmtree(folder)


def one_key(data: RobustnessDataset, architecture: int) -> Any:
    return data.accuracy(architecture, "cifar100", "fog")


def every_key(data: RobustnessDataset, architecture: int) -> Any:
    return [data.accuracy(architecture, "cifar100", key) for key in KEYS]


def matrices(data: RobustnessDataset, architecture: int) -> Any:
    return data.value(architecture, "cifar100", "fog", "cm")


if __name__ == "__main__":
    main()
