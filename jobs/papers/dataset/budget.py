"""Estimate the accuracies of further cells under two attacks from chosen images; the shipped cells are the pilot.

python -m jobs.papers.dataset.budget choose     # writes runs/cells-cifar10/budget.yaml
robust201 run runs/cells-cifar10/budget.yaml --architectures CELLS
python -m jobs.papers.dataset.budget estimate   # writes tables/budget.csv
"""

import sys
from pathlib import Path

import pandas as pd
import yaml

from jobs.papers.dataset.results import FOLDER
from jobs.papers.page import write_table
from robust201.sampling import ChosenImages, choose_images, estimate

PILOT = Path("benchmark_data/cells-cifar10")
RUNS = Path("runs/cells-cifar10")
CHOSEN = {key: RUNS / f"chosen-{key}.json" for key in ("aa_apgd-ce", "aa_square")}
N_CHOSEN = 100


def main(step: str) -> None:
    if step == "choose":
        sweep = yaml.safe_load((FOLDER / "cells.yaml").read_text()) | {"results": str(RUNS / "budget")}
        for key, file in CHOSEN.items():
            choose_images(PILOT, "cifar10", key, N_CHOSEN).save(file)
            sweep["keys"][key]["images"] = {"file": str(file)}
        (RUNS / "budget.yaml").write_text(yaml.safe_dump(sweep, sort_keys=False))
    else:
        tables = [estimate(ChosenImages.load(file), PILOT, RUNS / "budget") for file in CHOSEN.values()]
        write_table(FOLDER / "tables/budget.csv", pd.concat(tables))


if __name__ == "__main__":
    main(sys.argv[1])
