"""Measure the accuracy under PGD and APGD-CE at 1/255 during training, with one and with five restarts.

    robust201 run jobs/attack-gap/train.yaml
    python jobs/attack-gap/measure.py OUT.csv

ROBUST201_DATA names a folder with cifar10/. Rows that OUT.csv already has are not measured again. The measurement takes
about 20 minutes on one core.
"""

import csv
import sys
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from torch import nn

import robust201
from robust201.core.records import ImageSet
from robust201.images import load_images, select

STORE = "runs/attack-gap/store"
ARCHITECTURES = (13714, 1462)
EPOCHS = (2, 10, 30, 100)
PGD_SEEDS = range(5)
COLUMNS = ("architecture", "epochs", "training", "confidence", "clean", "fgsm", "pgd", "pgd5", "apgd", "apgd5")


def _evaluate(
    model: nn.Module, images: ImageSet, key: str, seed: int = 0, **parameters: object
) -> "tuple[pd.Series[float], NDArray[np.bool_]]":
    """Return the table's row for one key (attacks at 1/255), and whether each image was classified correctly."""
    keys = ["clean"] if key == "clean" else [{key: {"epsilons": ["1/255"], **parameters}}]
    result = robust201.evaluate(model, images.images, images.labels, keys, seed=seed, progress=False)
    return result.table.iloc[-1], result.outcomes.iloc[:, -1].to_numpy()


def measure(architecture: int, epochs: int, training_images: ImageSet, test_images: ImageSet) -> dict[str, object]:
    """Return one row: accuracies and the clean confidence on test images, and the clean accuracy on training images."""
    model = robust201.load_model(architecture, "cifar10", STORE, epochs=epochs, seed=0, recipe="long")
    training_result, _ = _evaluate(model, training_images, "clean")
    clean_result, _ = _evaluate(model, test_images, "clean")
    fgsm_result, _ = _evaluate(model, test_images, "fgsm")
    pgd_correct_by_seed = [_evaluate(model, test_images, "pgd", seed)[1] for seed in PGD_SEEDS]
    apgd_result, _ = _evaluate(model, test_images, "aa_apgd-ce")
    apgd5_result, _ = _evaluate(model, test_images, "aa_apgd-ce", restarts=5)
    return {
        "architecture": architecture,
        "epochs": epochs,
        "training": training_result.accuracy,
        "confidence": clean_result.confidence,
        "clean": clean_result.accuracy,
        "fgsm": fgsm_result.accuracy,
        "pgd": np.mean(pgd_correct_by_seed[0]),
        "pgd5": np.mean(np.logical_and.reduce(pgd_correct_by_seed)),
        "apgd": apgd_result.accuracy,
        "apgd5": apgd5_result.accuracy,
    }


def main() -> None:
    csv_path = Path(sys.argv[1])
    rows = list(csv.DictReader(csv_path.open())) if csv_path.exists() else []
    measured_pairs = {(int(row["architecture"]), int(row["epochs"])) for row in rows}
    test_images = select(load_images("cifar10"), count=500, seed=0)
    training_images = select(load_images("cifar10", split="train"), count=500, seed=0)
    with csv_path.open("a", newline="") as stream:
        writer = csv.DictWriter(stream, COLUMNS)
        if not rows:
            writer.writeheader()
        for architecture in ARCHITECTURES:
            for epochs in EPOCHS:
                if (architecture, epochs) not in measured_pairs:
                    writer.writerow(measure(architecture, epochs, training_images, test_images))
                    stream.flush()


if __name__ == "__main__":
    main()
