"""Estimate the accuracies of further cells under two attacks from chosen images; the shipped cells are the pilot.

    python -m benchmarks.budget choose --cells 13277,904   # writes runs/cells-cifar10/budget.yaml
    robust201 run runs/cells-cifar10/budget.yaml           # needs trained cells (jobs/papers/dataset/train.yaml)
    python -m benchmarks.budget estimate                   # writes jobs/papers/dataset/tables/budget.csv

The chosen images and the estimates are those of `robust201.sampling`, with an export in place of a pilot's results.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml
from numpy.typing import NDArray

from jobs.papers.dataset.results import FOLDER
from jobs.papers.page import write_table
from robust201 import Dataset
from robust201.dataset.stored_outcomes import read_outcomes
from robust201.sampling import CHEAP_KEYS, ChosenImages
from robust201.statistics.image_samples import Pilot, choose_sample, estimate_accuracies

EXPORT = Path("benchmark_data/cells-cifar10")
RUNS = Path("runs/cells-cifar10")
CHOSEN = {key: RUNS / f"chosen-{key}.json" for key in ("aa_apgd-ce", "aa_square")}
N_CHOSEN = 100


def read_pilot(key: str) -> Pilot:
    """Read the outcomes of all shipped cells under a key and the cheap keys."""
    reader = Dataset(EXPORT)

    def read(keys: tuple[str, ...]) -> NDArray[np.bool_]:
        columns = [(name, strength) for name in keys for strength in reader.strengths("cifar10", name)]
        return np.stack([reader.outcomes("cifar10", *column).correct for column in columns], axis=1)

    return Pilot(read((key,)), read(CHEAP_KEYS))


def shipped_protocols(key: str) -> list[dict[str, Any]]:
    protocols = json.loads((EXPORT / "sweep.json").read_text())["sweep"]["protocols"]
    return [protocol for protocol in protocols if protocol["key"] == key]


def choose(cells: str) -> None:
    """Write the chosen images of each key, and the sweep that evaluates cells on them."""
    sweep = yaml.safe_load((FOLDER / "cells.yaml").read_text())
    sweep |= {"results": str(RUNS / "budget"), "architectures": [int(cell) for cell in cells.split(",")]}
    images = pd.read_parquet(EXPORT / "images").sort_values("position")["row"].to_numpy()
    for key, file in CHOSEN.items():
        pilot = read_pilot(key)
        sample = choose_sample(pilot.outcomes, pilot.fitted, N_CHOSEN, 0)
        rows = (images[sample.chosen], images, sample.strata)
        ChosenImages("cifar10", key, CHEAP_KEYS, *(tuple(row.tolist()) for row in rows)).save(file)
        sweep["keys"][key]["images"] = {"file": str(file)}
    (RUNS / "budget.yaml").write_text(yaml.safe_dump(sweep, sort_keys=False))


def estimate() -> None:
    """Write the estimates, with 95% intervals for the choice of images."""
    rows = []
    cheap = read_outcomes(RUNS / "budget", "cifar10", CHEAP_KEYS)
    for key, file in CHOSEN.items():
        chosen, pilot = ChosenImages.load(file), read_pilot(key)
        sampled = read_outcomes(RUNS / "budget", "cifar10", [key])
        if (sampled.images.tolist(), cheap.images.tolist()) != ([*chosen.images], [*chosen.population]):
            raise SystemExit(f"{RUNS / 'budget'}: expected the images in {file}; choose and run again")
        used = sampled.protocols[key]["parameters"], cheap.images_sha256
        if any(used != (protocol["parameters"], protocol["images"]["sha256"]) for protocol in shipped_protocols(key)):
            raise SystemExit(f"{RUNS / 'budget'}: expected the images and the parameters of {EXPORT} for {key}")
        for network, correct, cheap_correct in zip(sampled.networks, sampled.correct, cheap.correct, strict=True):
            predicted = pilot.predict(cheap_correct)
            columns = estimate_accuracies(chosen.sample, correct, predicted, pilot.variance_factors)
            for (_, strength), *values in zip(sampled.strengths, *columns, strict=True):
                rows.append((network.architecture, key, strength, "estimated", *values))
    names = ["architecture", "key", "strength", "kind", "accuracy", "standard_error", "low", "high"]
    write_table(FOLDER / "tables/budget.csv", pd.DataFrame(rows, columns=names))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=("choose", "estimate"))
    parser.add_argument("--cells", default="", help="indices of the cells to evaluate, separated by commas")
    options = parser.parse_args()
    if options.step == "choose" and not options.cells:
        parser.error("choose needs --cells")
    if options.step == "choose":
        choose(options.cells)
    else:
        estimate()


if __name__ == "__main__":
    main()
