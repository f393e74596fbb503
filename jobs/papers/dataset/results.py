"""Accuracies and properties of cells, read from exports, for the claims of the dataset paper."""

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd

from jobs.papers.verdicts import Estimate, mean_estimate, normal_estimate
from robust201 import Dataset

FOLDER = Path(__file__).parent
PUBLISHED = json.loads((FOLDER / "published.json").read_text())

Column = tuple[str, float]
CLEAN: Column = ("clean", 0.0)

ATTACKS = {"aa_apgd-ce": "APGD-CE", "pgd": "PGD", "fgsm": "FGSM", "aa_square": "Square"}

PAPER_NETWORK_SIZE = {"channels": 16, "cells": 5}


@dataclass(frozen=True)
class Results:
    """Accuracies of cells on one dataset.

    Attributes:
        reader: the export.
        sweep: fields of the sweep that the export describes; empty for the authors' published files.
        accuracies: fractions by architecture (index) and (key, strength).
        representatives: index of the evaluated cell of its isomorphism class, for each of the 15,625 cell strings.
        cells: cell strings of the evaluated cells, by index.
        jacobian: mean norm of the Jacobian by architecture; empty if it was not measured.
    """

    reader: Dataset
    sweep: dict[str, Any]
    accuracies: pd.DataFrame
    representatives: dict[str, int]
    cells: dict[int, str]
    jacobian: "pd.Series[float]"

    @property
    def has_full_square(self) -> bool:
        """Whether Square makes 5,000 queries, as in the paper."""
        protocols = [protocol for protocol in self.sweep.get("protocols", ()) if protocol["key"] == "aa_square"]
        return all(protocol["parameters"]["queries"] == 5000 for protocol in protocols)

    @property
    def has_paper_network_size(self) -> bool:
        """Whether the networks have the paper's size, so that they may be the paper's networks.

        If so, a claim that names cells is tested on these networks. Otherwise, it is a claim about the cells with any
        weights, and results of one training run per cell cannot decide it.
        """
        return bool(self.sweep.get("network", PAPER_NETWORK_SIZE) == PAPER_NETWORK_SIZE)

    @property
    def attacks(self) -> list[str]:
        """Attacks with results, without Square if it makes fewer queries than in the paper."""
        return [key for key in ATTACKS if key in self.accuracies and (self.has_full_square or key != "aa_square")]

    @property
    def columns(self) -> list[Column]:
        return cast("list[Column]", self.accuracies.columns.tolist())

    @cached_property
    def adversarial_columns(self) -> list[Column]:
        return [column for column in self.columns if column[0] in ATTACKS]

    @cached_property
    def corruption_columns(self) -> list[Column]:
        return [column for column in self.columns if column[0] not in {*ATTACKS, "clean"}]

    def mean(self, columns: Sequence[Column]) -> "pd.Series[float]":
        """Return each cell's mean accuracy over (key, strength) pairs, for cells that have all of them."""
        return self.accuracies[[*columns]].dropna().mean(axis=1)

    @cached_property
    def n_images(self) -> int:
        return (self.sweep.get("images") or {}).get("count") or 10_000

    @property
    def data(self) -> str:
        return f"{len(self.accuracies):,} cells, {self.n_images:,} images"

    def confidences(self, attack: str) -> tuple[pd.DataFrame, pd.DataFrame] | None:
        """Return the mean confidences of right and of wrong predictions, by cell and epsilon (0: clean images).

        Returns None if confidences were not recorded.
        """
        if self.reader is None or not self.reader.has("cifar10", attack, "confidence"):
            return None
        frames = [self.reader.read_table("cifar10", key, "confidence") for key in ("clean", attack)]
        frame = pd.concat([frame[frame["architecture"].isin(frames[1]["architecture"])] for frame in frames])
        means = np.array([value["prediction"] for value in frame["value"]], np.float64)
        right, wrong = (
            frame.assign(value=means[:, column]).pivot(index="architecture", columns="strength", values="value")
            for column in (0, 1)
        )
        return right, wrong

    def compare(self, first: int, second: int, columns: Sequence[Column], n_comparisons: int = 1) -> Estimate:
        """Return one cell's mean accuracy minus another's, with an interval over images.

        The difference is taken image by image. Without per-image outcomes (published files), the interval is wider: it
        treats the two accuracies as measured on independent samples of images.
        """
        if "predictions" in self.sweep.get("measurements", ()):
            outcomes = [self.reader.outcomes("cifar10", *column).of((first, second)).correct for column in columns]
            scores = np.mean(outcomes, axis=0)
            return mean_estimate(scores[0] - scores[1], n_comparisons)
        accuracies = self.mean(columns)[[first, second]].to_numpy()
        error = math.sqrt(float((accuracies * (1 - accuracies)).sum()) / self.n_images)
        return normal_estimate(float(accuracies @ [1, -1]), error, self.n_images, n_comparisons)


def read_results(export: Path) -> Results:
    """Read an export, or the authors' published files."""
    reader = Dataset(export)
    has_jacobian = "jacobian" in reader.keys_measure
    ids = json.loads((export / "meta.json").read_text())["ids"]
    return Results(
        reader,
        (reader.sweep or {}).get("sweep", {}),
        reader.accuracies("cifar10").sort_index(axis="columns"),
        {fields["nb201-string"]: int(fields["isomorph"]) for fields in ids.values()},
        {int(index): fields["nb201-string"] for index, fields in ids.items() if fields["isomorph"] == index},
        reader.read_table("cifar10", "jacobian", "norm").set_index("architecture")["value"]
        if has_jacobian
        else pd.Series(dtype=float),
    )


def operations(cell: str) -> list[str]:
    """Return the operations on edges 1 to 6 of a cell string."""
    return re.findall(r"\|?([a-z_0-9]+)~\d", cell)


def kernel_parameters(cell: str) -> int:
    """Return the number of kernel parameters for one channel, 0 to 54, on edges that reach the output."""
    operation_by_edge = dict(zip([(0, 1), (0, 2), (1, 2), (0, 3), (1, 3), (2, 3)], operations(cell), strict=True))
    live_nodes, total = {3}, 0
    for (source, target), operation in sorted(operation_by_edge.items(), key=lambda item: -item[0][1]):
        if target in live_nodes and operation != "none":
            live_nodes.add(source)
            total += {"nor_conv_3x3": 9, "nor_conv_1x1": 1}.get(operation, 0)
    return total
