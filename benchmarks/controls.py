"""Compare both engines with the libraries called directly, on published networks (docs/controls.md).

    python -m benchmarks.controls
    python -m benchmarks.controls --folder runs/controls

Reads results of `jobs/controls-*.yaml` in a folder: exports with per-image outcomes in mnist-fused-dataset,
mnist-reference-dataset, and likewise for keras and resnet18, and by-hand/NETWORK.json from `jobs/controls/by_hand.py`.

Prints two tables in Markdown. The first has accuracies, and p-values of McNemar's exact test between the fused engine
and the other two methods on the same images; missing results are dashes. The second compares published-dataset with the
results that advertorch's authors published with their benchmarks.
"""

import argparse
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from robust201.statistics.significance import holm_adjust, mcnemar_p_values

SWEEPS = {"mnist": ("lenet-plain", "lenet-robust"), "keras": ("keras-cnn",), "resnet18": ("resnet18",)}
ENGINES = ("fused", "reference")
BY_HAND = "by hand"
ORDER = {"clean": "", "fgsm": "0", "pgd": "1", "pgd_l2": "2"}
"""Sort order of keys; the keys of AutoAttack follow in alphabetical order."""

PUBLISHED = {
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
"""Correctly classified images of 10,000 MNIST test images, under the attacks of advertorch's benchmarks.

Source: the comments at the head of advertorch_examples/attack_benchmarks/benchmark_iterative_projected_gradient.py
(advertorch 0.1.5), benchmark_autopgd.py and benchmark_square.py (0.2.2) of github.com/BorealisAI/advertorch.
"""

Correct = NDArray[np.bool_]


@dataclass(frozen=True)
class Comparison:
    """Per-image outcomes (N,) of one network and key, by method.

    `strength` is None if no engine has a result.
    """

    network: str
    key: str
    strength: float | None
    correct: dict[str, Correct]

    def p_value(self, other: str) -> float | None:
        """Return the p-value between the fused engine and another method; None if a result is missing."""
        if not {"fused", other} <= self.correct.keys():
            return None
        first, second = self.correct["fused"], self.correct[other]
        return float(mcnemar_p_values((first & ~second).sum(), (second & ~first).sum()))


def read_export(path: Path) -> dict[tuple[str, str], tuple[float, Correct]]:
    """Return strength and outcomes by network and key from an export; empty if it does not exist."""
    if not path.exists():
        return {}
    n_images = len(pd.read_parquet(path / "images"))
    rows = pd.read_parquet(path / "parquet").to_dict("records")
    return {
        (str(row["architecture"]), str(row["key"])): (
            row["strength"],
            np.unpackbits(np.frombuffer(row["correct_bits"], np.uint8), count=n_images).astype(bool),
        )
        for row in rows
    }


def read_by_hand(file: Path) -> dict[str, Correct]:
    """Return the outcomes by key from `by_hand.py`; empty if it has not run."""
    if not file.exists():
        return {}
    return {key: np.array(result["correct"], bool) for key, result in json.loads(file.read_text()).items()}


def read_comparisons(folder: Path, sweep: str) -> Iterator[Comparison]:
    """Read the results of all methods for a sweep, sorted by network and key."""
    exports = {engine: read_export(folder / f"{sweep}-{engine}-dataset") for engine in ENGINES}
    for network in SWEEPS[sweep]:
        by_hand = read_by_hand(folder / "by-hand" / f"{network}.json")
        keys = {key for results in exports.values() for name, key in results if name == network} | by_hand.keys()
        for key in sorted(keys, key=lambda key: ORDER.get(key, key)):
            computed = {
                engine: results[network, key] for engine, results in exports.items() if (network, key) in results
            }
            correct = {engine: outcomes for engine, (_, outcomes) in computed.items()}
            if key in by_hand:
                correct[BY_HAND] = by_hand[key]
            yield Comparison(network, key, next((strength for strength, _ in computed.values()), None), correct)


def print_table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> None:
    header = tuple(header)
    print(f"| {' | '.join(header)} |")
    print(f"|---|---|{'--:|' * (len(header) - 2)}")
    for row in rows:
        print(f"| {' | '.join(row)} |")


def make_row(comparison: Comparison) -> Iterator[str]:
    """Return the cells of a comparison's row."""
    yield from (comparison.network, f"`{comparison.key}`")
    yield "–" if comparison.strength is None else f"{comparison.strength:g}"
    yield str(len(next(iter(comparison.correct.values()))))
    for method in (*ENGINES, BY_HAND):
        yield f"{comparison.correct[method].mean():.3f}" if method in comparison.correct else "–"
    for method in (ENGINES[1], BY_HAND):
        p_value = comparison.p_value(method)
        yield "–" if p_value is None else f"{p_value:.2g}"


def print_comparisons(comparisons: list[Comparison]) -> None:
    print_table(
        ("network", "key", "strength", "images", *ENGINES, BY_HAND, "p, reference", "p, by hand"),
        map(make_row, comparisons),
    )
    p_values = [
        p
        for comparison in comparisons
        for method in (ENGINES[1], BY_HAND)
        if (p := comparison.p_value(method)) is not None
    ]
    if p_values:
        smallest, adjusted = min(p_values), min(holm_adjust(np.array(p_values)))
        print(f"\n{len(p_values)} tests; the smallest p-value is {smallest:.2g}, after Holm {adjusted:.2g}.")


def print_published(results: dict[tuple[str, str], tuple[float, Correct]]) -> None:
    rows = []
    for (network, key), published in PUBLISHED.items():
        fused, n_images = "–", ""
        if (network, key) in results:
            correct = results[network, key][1]
            fused, n_images = f"{correct.mean():.4f}", f"{len(correct):,}"
        rows.append((network, f"`{key}`", n_images, fused, f"{published / 10_000:.4f}"))
    print_table(("network", "key", "images", "fused", "published"), rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("runs/controls"))
    options = parser.parse_args()
    print_comparisons([row for sweep in SWEEPS for row in read_comparisons(options.folder, sweep)])
    print()
    print_published(read_export(options.folder / "published-dataset"))


if __name__ == "__main__":
    main()
