"""Write and read small results datasets in the published format; the test supplies the values."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from robust201.analysis.dataset_results import DatasetResults, read_results
from robust201.dataset.reader import Dataset
from robust201.networks.nb201 import cells as nasbench201

EPSILONS = {"pgd": (1.0, 8.0), "fgsm": (1.0, 8.0)}


def write_results(
    folder: Path, values: Mapping[str, Mapping[str, Any]], *, dataset: str = "cifar10", measurement: str = "accuracy"
) -> Path:
    """Write values by key and architecture in the published layout, one value per strength."""
    (folder / dataset).mkdir(parents=True, exist_ok=True)
    (folder / "meta.json").write_text(nasbench201.meta_text(EPSILONS))
    for key, values_by_architecture in values.items():
        (folder / dataset / f"{key}_{measurement}.json").write_text(
            json.dumps({dataset: {key: {measurement: dict(values_by_architecture)}}})
        )
    return folder


def write_sweep_json(
    folder: Path,
    strengths: Mapping[str, Mapping[str, Any]],
    record: Mapping[str, Any] | None = None,
    measurements: tuple[str, ...] = ("accuracy",),
) -> Path:
    """Write sweep.json, an export's record of its sweep, with strengths by dataset and key."""
    content = {"format": 1, "robust201": "0", "sweep": record or {}, "measurements": measurements}
    (folder / "sweep.json").write_text(json.dumps(content | {"strengths": strengths}))
    return folder


def results_of(folder: Path) -> DatasetResults:
    """Return the results of the only dataset in a folder."""
    (results,) = read_results(Dataset(folder))
    return results
