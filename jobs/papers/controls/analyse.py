"""Compare both engines with direct calls of the libraries, on published networks (jobs/papers/controls/README.md).

    python -m jobs.papers.controls.analyse
    python -m jobs.papers.controls.analyse --folder runs/controls

The folder contains results of `jobs/papers/controls/*.yaml`: exports with per-image outcomes in mnist-fused-dataset and
mnist-reference-dataset, and likewise for keras and resnet18. `by_hand.py`, which calls the libraries directly, wrote
by-hand/NETWORK.json.

The output is two tables in Markdown. The first has accuracies, and p-values of McNemar's exact test between the fused
engine and the other two methods on the same images; missing results are shown as dashes. The second compares
our results in published-dataset with those that advertorch's authors published with their benchmarks.
"""

import argparse
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from jobs.papers.controls.networks import SWEEPS
from jobs.papers.page import number, p_value, table
from robust201 import Dataset
from robust201.statistics.significance import holm_adjust, mcnemar_p_values

ENGINES = ("fused", "reference")
BY_HAND = "by hand"

N_PUBLISHED_CORRECT = {
    ("lenet-plain", "clean"): 9889,
    ("lenet-plain", "pgd"): 0,
    ("lenet-plain", "aa_apgd-ce"): 0,
    ("lenet-plain", "aa_apgd-t"): 0,
    ("lenet-plain", "aa_square"): 0,
    ("lenet-robust", "clean"): 9864,
    ("lenet-robust", "pgd"): 9320,
    ("lenet-robust", "aa_apgd-ce"): 9098,
    ("lenet-robust", "aa_apgd-t"): 9204,
    ("lenet-robust", "aa_square"): 8929,
}
"""Numbers of correctly classified images among 10,000 MNIST test images, under the attacks of advertorch's benchmarks.

Source: the comments at the head of advertorch_examples/attack_benchmarks/benchmark_iterative_projected_gradient.py
(advertorch 0.1.5), benchmark_autopgd.py and benchmark_square.py (0.2.2) of github.com/BorealisAI/advertorch.
"""

Row = tuple[str, str, str, float, Any]
"""Network, key, method, strength (NaN for direct calls), and whether each image was classified correctly."""


def read_export(path: Path, method: str) -> list[Row]:
    """Read the outcomes in an export; return an empty list if there is none."""
    if not path.exists():
        return []
    reader, rows = Dataset(path), []
    (dataset,) = reader.data
    for key in reader.keys_all:
        (strength,) = reader.strengths(dataset, key)
        outcomes = reader.outcomes(dataset, key, strength)
        rows += [
            (str(network), key, method, strength, correct)
            for network, correct in zip(outcomes.architectures, outcomes.correct, strict=True)
        ]
    return rows


def read_direct_calls(folder: Path, network: str) -> list[Row]:
    """Read the outcomes that `by_hand.py` wrote; return an empty list if it has not run."""
    file = folder / f"by-hand/{network}.json"
    by_key = json.loads(file.read_text()) if file.exists() else {}
    return [(network, key, BY_HAND, math.nan, np.array(result["correct"], bool)) for key, result in by_key.items()]


def compare_methods(rows: list[Row]) -> tuple[str, list[float]]:
    """Return the table of accuracies and p-values, and the p-values."""
    frame = pd.DataFrame(rows, columns=["network", "key", "method", "strength", "correct"])
    lines: list[list[str]] = []
    p_values: list[float] = []
    for (network, key), group in frame.groupby(["network", "key"], sort=False):
        correct: dict[str, Any] = dict(zip(group["method"], group["correct"], strict=True))
        tests = []
        for method in (ENGINES[1], BY_HAND):
            p = math.nan
            if {ENGINES[0], method} <= {*correct}:
                fused, other = correct[ENGINES[0]], correct[method]
                p = float(mcnemar_p_values((fused & ~other).sum(), (other & ~fused).sum()))
            tests.append(p)
        p_values += [p for p in tests if not math.isnan(p)]
        accuracies = (correct[method].mean() if method in correct else math.nan for method in (*ENGINES, BY_HAND))
        strength = group["strength"].max()
        lines.append(
            [
                str(network),
                f"`{key}`",
                "–" if math.isnan(strength) else f"{strength:g}",
                str(len(group["correct"].iloc[0])),
                *map(number, accuracies),
                *map(p_value, tests),
            ]
        )
    columns = ["network", "key", "strength", "images", *ENGINES, BY_HAND, "p, reference", "p, by hand"]
    return table(columns, lines, text_columns=2), p_values


def compare_with_published(rows: list[Row]) -> str:
    results = {(network, key): correct for network, key, _, _, correct in rows}
    lines = []
    for (network, key), n_correct in N_PUBLISHED_CORRECT.items():
        correct = results.get((network, key))
        ours = ["", "–"] if correct is None else [f"{len(correct):,}", f"{correct.mean():.4f}"]
        lines.append([network, f"`{key}`", *ours, f"{n_correct / 10_000:.4f}"])
    return table(["network", "key", "images", "fused", "published"], lines, text_columns=2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("runs/controls"))
    folder = parser.parse_args().folder
    rows = [
        row
        for sweep in SWEEPS
        for engine in ENGINES
        for row in read_export(folder / f"{sweep}-{engine}-dataset", engine)
    ]
    rows += [row for networks in SWEEPS.values() for network in networks for row in read_direct_calls(folder, network)]
    comparisons, p_values = compare_methods(rows)
    print(comparisons)
    if p_values:
        smallest, adjusted = min(p_values), min(holm_adjust(np.array(p_values)))
        print(
            f"{len(p_values)} tests; the smallest p-value is {smallest:.2g}, after Holm's correction {adjusted:.2g}.\n"
        )
    print(compare_with_published(read_export(folder / "published-dataset", ENGINES[0])))


if __name__ == "__main__":
    main()
