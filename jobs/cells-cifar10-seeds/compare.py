"""Compare the accuracies of cells trained with two seeds.

    robust201 train jobs/cells-cifar10-seeds/train.yaml
    robust201 run jobs/cells-cifar10-seeds/evaluate.yaml
    robust201 export runs/cells-cifar10-seeds/results --out runs/cells-cifar10-seeds/dataset --parquet
    python jobs/cells-cifar10-seeds/compare.py runs/cells-cifar10-seeds/dataset OUT.csv

The results of the first seed are those in benchmark_data.
"""

import sys

import pandas as pd

import robust201
from robust201.statistics.rank_correlation import correlate_ranks
from robust201.statistics.variance import summarise_seeds

FIRST_SEED_FOLDERS = ("benchmark_data/cells-cifar10", "benchmark_data/cells-cifar10-more")


def read_accuracies(folder: str) -> "pd.Series[float]":
    """Return the accuracies of a dataset by key, strength and architecture."""
    table = robust201.RobustnessDataset(folder).to_frame("cifar10")
    return table.set_index(["key", "strength", "architecture"])["value"]


def compare(first: "pd.Series[float]", second: "pd.Series[float]") -> pd.DataFrame:
    """Return one row per key and strength, for the architectures that were evaluated with both seeds.

    Columns: number of cells; mean accuracy with each seed; standard deviation over cells (of the mean of both seeds)
    and over seeds (pooled); Kendall's tau between the seeds, with its 95% interval over cells.
    """
    both_seeds = pd.DataFrame({"first": first, "second": second}).dropna()
    rows = []
    for (key, strength), accuracies in both_seeds.groupby(level=["key", "strength"]):
        tau = correlate_ranks(accuracies).kendall.interval(0, 1)
        rows.append(
            {
                "key": key,
                "strength": strength,
                "cells": len(accuracies),
                "mean_seed_0": accuracies["first"].mean(),
                "mean_seed_1": accuracies["second"].mean(),
                "deviation_over_cells": accuracies.mean(axis=1).std(),
                "deviation_over_seeds": summarise_seeds(accuracies)[1],
                "tau": tau.value,
                "tau_low": tau.low,
                "tau_high": tau.high,
            }
        )
    return pd.DataFrame(rows)


def main() -> None:
    second_folder, csv_path = sys.argv[1:]
    first = pd.concat([read_accuracies(folder) for folder in FIRST_SEED_FOLDERS])
    table = compare(first, read_accuracies(second_folder))
    table.to_csv(csv_path, index=False, float_format="%.4f")
    print(table.round(3).to_string(index=False))


if __name__ == "__main__":
    main()
