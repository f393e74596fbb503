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
SORT_TEXTS = {"clean": "", "fgsm": "0", "pgd": "1", "pgd_l2": "2"}
"""Texts that put these keys first; AutoAttack's keys follow in alphabetical order."""

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

Correct = NDArray[np.bool_]


@dataclass(frozen=True)
class Comparison:
    """Per-image outcomes of one network and key, by method: ``fused``, ``reference`` or ``by hand``.

    Attributes:
        network: name of the network.
        key: key of the attack.
        strength: strength of the attack; None if no engine has a result.
        correct: for each method, whether each image was classified correctly (N,).
    """

    network: str
    key: str
    strength: float | None
    correct: dict[str, Correct]

    def p_value(self, method: str) -> float | None:
        """Return the p-value of McNemar's test between the fused engine and a method; None if a result is missing."""
        if not {"fused", method} <= self.correct.keys():
            return None
        fused, other = self.correct["fused"], self.correct[method]
        return float(mcnemar_p_values((fused & ~other).sum(), (other & ~fused).sum()))


def read_export(path: Path) -> dict[tuple[str, str], tuple[float, Correct]]:
    """Read strength and outcomes by network and key from an export; return an empty dictionary if there is none."""
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


def read_direct_calls(file: Path) -> dict[str, Correct]:
    """Read the outcomes that `by_hand.py` wrote, by key; return an empty dictionary if it has not run."""
    if not file.exists():
        return {}
    return {key: np.array(result["correct"], bool) for key, result in json.loads(file.read_text()).items()}


def read_comparisons(folder: Path, sweep: str) -> Iterator[Comparison]:
    """Read the results of all methods for a sweep, sorted by network and key."""
    exports = {engine: read_export(folder / f"{sweep}-{engine}-dataset") for engine in ENGINES}
    for network in SWEEPS[sweep]:
        direct_outcomes = read_direct_calls(folder / "by-hand" / f"{network}.json")
        keys = {
            key for outcomes_by_key in exports.values() for name, key in outcomes_by_key if name == network
        } | direct_outcomes.keys()
        for key in sorted(keys, key=lambda key: SORT_TEXTS.get(key, key)):
            result_by_engine = {
                engine: outcomes_by_key[network, key]
                for engine, outcomes_by_key in exports.items()
                if (network, key) in outcomes_by_key
            }
            correct = {engine: correct_images for engine, (_, correct_images) in result_by_engine.items()}
            if key in direct_outcomes:
                correct[BY_HAND] = direct_outcomes[key]
            yield Comparison(network, key, next((strength for strength, _ in result_by_engine.values()), None), correct)


def print_table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> None:
    header = tuple(header)
    print(f"| {' | '.join(header)} |")
    print(f"|---|---|{'--:|' * (len(header) - 2)}")
    for row in rows:
        print(f"| {' | '.join(row)} |")


def make_row(comparison: Comparison) -> Iterator[str]:
    """Yield the entries of a comparison's row."""
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
        smallest_p, adjusted_p = min(p_values), min(holm_adjust(np.array(p_values)))
        print(
            f"\n{len(p_values)} tests; the smallest p-value is {smallest_p:.2g}, "
            f"after Holm's correction {adjusted_p:.2g}."
        )


def print_published_comparison(results: dict[tuple[str, str], tuple[float, Correct]]) -> None:
    rows = []
    for (network, key), n_published_correct in N_PUBLISHED_CORRECT.items():
        fused_accuracy, n_images = "–", ""
        if (network, key) in results:
            correct = results[network, key][1]
            fused_accuracy, n_images = f"{correct.mean():.4f}", f"{len(correct):,}"
        rows.append((network, f"`{key}`", n_images, fused_accuracy, f"{n_published_correct / 10_000:.4f}"))
    print_table(("network", "key", "images", "fused", "published"), rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("runs/controls"))
    options = parser.parse_args()
    print_comparisons([comparison for sweep in SWEEPS for comparison in read_comparisons(options.folder, sweep)])
    print()
    print_published_comparison(read_export(options.folder / "published-dataset"))


if __name__ == "__main__":
    main()
