"""The numbers in the golden files. When a function moves or is renamed, only this module has to change.

A number has a name, such as ``cell 309/fused/fmn steps=8/2``. Most numbers are the same on every processor. Others,
like the last bits of a confidence, depend on the instruction set and the version of PyTorch (`Row.bits`).
"""

import csv
import hashlib
import io
import json
import platform
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import torch
import yaml
from torch import nn
from typer.testing import CliRunner

import robust201
from jobs.papers.image_distribution.singular_values import singular_spectra
from robust201.analysis.dataset_results import read_results
from robust201.cli.app import app
from robust201.core.errors import RobustWarning
from robust201.core.files import bundled
from robust201.dataset.reader import Dataset
from robust201.figures.table import find_figure
from robust201.images import load_images, select
from robust201.networks.nb201.cell_space import NasBench201
from robust201.training.data import OneSource
from robust201.training.loop import train
from robust201.training.recipes import Recipe

N_IMAGES, SEED = 40, 0
DEMO_WEIGHTS, SHIPPED_CELLS = "bundled:benchmark_data/demo", "benchmark_data/cells-cifar10"
LIGHT_CELL, HEAVIER_CELL = 309, 21  # without and with a 3x3 convolution
COMPARED_CELLS = (21, 13714, 3456)

Tasks = Sequence[tuple[str, Mapping[str, Any]]]

ATTACKS: Tasks = (
    ("fgsm", {"epsilons": ["2/255", "5/255"]}),
    ("pgd", {"epsilons": ["2/255", "5/255"], "steps": 6, "rel_stepsize": 0.25}),
    ("pgd", {"epsilons": ["2/255", "5/255"], "steps": 6, "rel_stepsize": 0.25, "random_start": False}),
    ("pgd", {"epsilons": ["2/255", "5/255"], "steps": 6, "rel_stepsize": 0.25, "target": "least_likely"}),
    ("pgd_linf7", {"epsilons": ["2/255", "5/255"]}),
    ("pgd_linf7", {"epsilons": ["2/255", "5/255"], "label": "predicted"}),
    ("pgd_linf7", {"epsilons": ["2/255", "5/255"], "iterate": "best", "random_start": True}),
    ("pgd_l2", {"epsilons": [0.4, 0.8], "steps": 6, "step_size": 0.25}),
    ("pgd_l2", {"epsilons": [0.4, 0.8], "steps": 6, "step_size": 0.25, "iterate": "best", "random_start": True}),
    ("aa_apgd-ce", {"epsilons": ["2/255", "5/255"], "steps": 6, "restarts": 2}),
    ("aa_apgd-ce_l2", {"epsilons": [0.4, 0.8], "steps": 6}),
    ("aa_apgd-ce_l1", {"epsilons": [3, 6], "steps": 6, "restarts": 1}),
    ("aa_apgd-t", {"epsilons": ["2/255", "5/255"], "steps": 4, "targets": 2}),
    ("aa_apgd-t_l2", {"epsilons": [0.4, 0.8], "steps": 4, "targets": 2}),
    ("aa_apgd-t_l1", {"epsilons": [3, 6], "steps": 4, "targets": 2}),
    ("aa_fab-t", {"epsilons": ["2/255", "5/255"], "steps": 3, "targets": 2}),
    ("aa_fab-t_l2", {"epsilons": [0.4, 0.8], "steps": 3, "targets": 2}),
    ("aa_fab-t_l1", {"epsilons": [6, 15], "steps": 3, "targets": 2}),
    ("aa_square", {"epsilons": ["8/255", "32/255"], "queries": 30}),
    ("aa_square_l2", {"epsilons": [1.0, 4.0], "queries": 30}),
    ("aa_square_l1", {"epsilons": [20, 60], "queries": 15}),
    ("aa_standard", {"epsilons": ["2/255", "5/255"], "steps": 2, "queries": 5}),
    ("aa_standard_l2", {"epsilons": [0.4, 0.8], "steps": 1, "queries": 5}),
    ("aa_standard_l1", {"epsilons": [6, 15], "steps": 2, "queries": 2}),
    ("fmn", {"epsilons": ["2/255", "5/255"], "steps": 8}),
    ("fmn_l2", {"epsilons": [0.4, 0.8], "steps": 8, "projection": "ball"}),
    ("fmn_l2", {"epsilons": [0.4, 0.8], "steps": 8, "projection": "none"}),
    ("fmn_l1", {"epsilons": [6, 15], "steps": 8}),
    ("grid775", {"rotations": 5, "translations": 3}),
    ("grid135", {"rotations": 3, "translations": 2}),
    ("grid775_10", {"rotations": 3, "translations": 3}),
    ("rot30", {"rotations": 7}),
    ("rot10", {"rotations": 7}),
)
FUSED_ONLY = {"iterate": "best"}
CORRUPTIONS = (
    *("brightness", "contrast", "defocus_blur", "elastic_transform", "fog", "frost", "gaussian_noise", "glass_blur"),
    *("impulse_noise", "jpeg_compression", "motion_blur", "pixelate", "shot_noise", "snow", "zoom_blur"),
)
MEASURES: Tasks = (
    ("jacobian", {}),
    ("jacobian", {"projections": "exact", "input": "pixels"}),
    ("input_gradient", {}),
    ("hessian_weights", {"batch": 20}),
    ("hessian_input", {}),
)
RECIPE: dict[str, Any] = {
    "epochs": 2,
    "batch_size": 32,
    "learning_rate": 0.1,
    "nesterov": True,
    "weight_decay": 5e-4,
    "schedule": {"cosine": {}},
    "augmentation": {"crop_padding": 2},
}
PGD_TRAINING = {"adversarial": {"pgd": {"epsilon": "8/255", "step": "4/255", "steps": 2}}}
SWEEP: dict[str, Any] = {
    "name": "golden",
    "network": {"channels": 4, "cells": 1},
    "checkpoints": {"path": DEMO_WEIGHTS},
    "architectures": [LIGHT_CELL, HEAVIER_CELL],
    "datasets": {"digits": {"corruptions": {"source": "generated", "seed": 0, "frost": "synthetic"}}},
    "images": {"count": N_IMAGES, "seed": SEED},
    "keys": {
        "clean": {},
        "fgsm": {"epsilons": ["2/255", "8/255"]},
        "pgd": {"epsilons": ["2/255", "8/255"], "steps": 4, "rel_stepsize": 0.5},
        "aa_square": {"epsilons": ["8/255", "32/255"], "queries": 20},
        "gaussian_noise": {"severities": [2, 5]},
        "fog": {"severities": [2, 5]},
    },
    "measurements": ["accuracy", "confidence", "cm", "predictions"],
    "execution": {"executor": "inline", "threads": 1},
}
FIGURES = ("attacks", "corruptions", "rank-correlation-attacks", "clean-vs-robust")


class Row(NamedTuple):
    """One line of a golden file.

    Attributes:
        name: name of the numbers (see the docstring of the module).
        numbers: JSON values that are the same on every processor.
        bits: JSON values that are compared only on the processor that recorded them.
    """

    name: str
    numbers: Mapping[str, Any]
    bits: Mapping[str, Any] = {}


class SmallNetwork(nn.Module):
    """A network that is not a cell: random convolutions, and a linear layer fitted to digits by ridge regression.

    The random numbers are NumPy's, since PyTorch's normal distribution depends on the processor.
    """

    def __init__(self) -> None:
        super().__init__()
        convolution = nn.Conv2d(3, 12, 8, stride=4, bias=False)
        self.features = nn.Sequential(convolution, nn.ReLU(), nn.Flatten())
        self.logits = nn.Linear(12 * 49, 10)
        filters = np.random.default_rng(0).standard_normal((12, 3, 8, 8)) / 14
        images = load_images("digits", split="train")
        targets = torch.eye(10, dtype=torch.float64)[torch.from_numpy(images.labels)] - 0.1
        with torch.no_grad():
            convolution.weight.copy_(torch.from_numpy(filters))
            features = self.features(torch.from_numpy(images.images).float() / 255).double()
            gram = features.T @ features + 10 * torch.eye(features.shape[1])
            self.logits.weight.copy_(10 * torch.linalg.solve(gram, features.T @ targets).T)
            nn.init.zeros_(self.logits.bias)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        return self.logits(self.features(pixels))


def processor() -> str:
    """Return the name of the processor and the version of PyTorch, which affect the last bits of floats."""
    fields: dict[str, str] = {}
    if (cpuinfo := Path("/proc/cpuinfo")).exists():
        lines = (line.partition(":") for line in cpuinfo.read_text(encoding="utf-8").splitlines())
        fields = {name.strip(): value.strip() for name, _, value in lines}
    name = fields.get("model name") or platform.processor() or platform.machine()
    numbers = f"family {fields.get('cpu family', '?')}, model {fields.get('model', '?')}"
    return f"{name}, {numbers}, {torch.backends.cpu.get_cpu_capability()}, torch {torch.__version__}"


def _label(key: str, parameters: Mapping[str, Any]) -> str:
    scalars = {name: value for name, value in parameters.items() if not isinstance(value, list)}
    return " ".join([key, *(f"{name}={value}" for name, value in scalars.items())])


def _evaluate(model: nn.Module, tasks: Tasks, engine: str) -> Iterator[tuple[str, Mapping[str, Any], Any]]:
    """Yield each task with its evaluation. Different keys share a call, since each call checks the network."""
    images, labels, remaining = _images(), load_images("digits").labels[:N_IMAGES], [*enumerate(tasks)]
    evaluations: dict[int, Any] = {}
    while remaining:
        keys = {key: (index, dict(parameters)) for index, (key, parameters) in reversed(remaining)}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RobustWarning)
            options: dict[str, Any] = {"seed": SEED, "engine": engine, "device": "cpu", "progress": False}
            fields = {key: parameters for key, (_, parameters) in keys.items()}
            evaluation = robust201.evaluate(model, images, labels, fields, **options)
        evaluations |= {index: evaluation for index, _ in keys.values()}
        remaining = [task for task in remaining if task[0] not in evaluations]
    for index, (key, parameters) in enumerate(tasks):
        yield key, parameters, evaluations[index]


def _images() -> Any:
    return load_images("digits").images[:N_IMAGES]


def _networks() -> dict[str, nn.Module]:
    cells = (LIGHT_CELL, HEAVIER_CELL)
    networks = {f"cell {cell}": robust201.load_model(cell, "digits", DEMO_WEIGHTS) for cell in cells}
    return {**networks, "small network": SmallNetwork().eval()}


def evaluations() -> Iterator[Row]:
    """Yield the number of correct images by network, engine, key and strength.

    To save time, only the small network is attacked by the reference engine and by AutoAttack's standard version in L2
    and L1, and the heavier cell is not attacked in L2 and L1.
    """
    unattacked = [("clean", {}), *((key, {"severities": [2, 5]}) for key in CORRUPTIONS)]
    for name, model in _networks().items():
        other_norms = {key for key, _ in ATTACKS if key.endswith(("_l1", "_l2"))}
        skipped = {
            f"cell {LIGHT_CELL}": {"aa_standard_l1", "aa_standard_l2"},
            f"cell {HEAVIER_CELL}": other_norms,
        }.get(name, set())
        for engine in ("fused",) if name.startswith("cell") else ("fused", "reference"):
            tasks = [
                (key, parameters)
                for key, parameters in (ATTACKS if engine == "reference" else (*unattacked, *ATTACKS))
                if not (engine == "reference" and FUSED_ONLY.items() <= parameters.items()) and key not in skipped
            ]
            for key, parameters, evaluation in _evaluate(model, tasks, engine):
                rows = evaluation.table[evaluation.table["key"] == key]
                for strength, accuracy, confidence in zip(
                    rows["strength"], rows["accuracy"], rows["confidence"], strict=True
                ):
                    outcomes = np.packbits(evaluation.outcomes[key, strength].to_numpy()).tobytes().hex()
                    bits = {"confidence": confidence * N_IMAGES, "outcomes": outcomes}
                    if key in evaluation.distances:
                        distances = evaluation.distances[key].to_numpy()
                        bits["distances"] = float(distances[np.isfinite(distances)].sum())
                    row_name = f"{name}/{engine}/{_label(key, parameters)}/{strength:g}"
                    yield Row(row_name, {"correct": round(accuracy * N_IMAGES)}, bits)


def measures() -> Iterator[Row]:
    """Yield the measures of each network, and mean statistics of the images' singular values."""
    for name, model in _networks().items():
        for key, parameters, evaluation in _evaluate(model, MEASURES, "fused"):
            rows = evaluation.table[evaluation.table["key"] == key].dropna(axis=1)
            (row,) = rows.drop(columns=["key", "strength", "unit", "n_images", "seconds"]).to_dict("records")
            yield Row(f"{name}/{_label(key, parameters)}", row)
    for centred in (False, True):
        spectra = singular_spectra(_images(), centred=centred)
        means = {"effective_rank": spectra.effective_rank.mean(), "energy": spectra.energy[:, 0].mean()}
        yield Row(f"singular values centred={centred}", {name: float(mean) for name, mean in means.items()})


def training_runs() -> Iterator[Row]:
    """Yield hashes of the weights after two epochs on digits."""
    images = select(load_images("digits", split="train"), count=160, seed=SEED)
    for name, changes in (("plain", {}), ("pgd", PGD_TRAINING)):
        recipe = Recipe.model_validate(RECIPE | changes)
        (snapshot,) = train(NasBench201(channels=4, cells=1), LIGHT_CELL, OneSource(images), recipe, seed=SEED)
        digest = hashlib.sha256()
        for tensor_name, tensor in sorted(snapshot.state_dict.items()):
            digest.update(tensor_name.encode() + tensor.numpy().tobytes())
        yield Row(name, {"steps": snapshot.step, "tensors": len(snapshot.state_dict)}, {"weights": digest.hexdigest()})


def _run_command(*arguments: object) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)
    if result.exit_code != 0:
        raise RuntimeError(result.output)
    return result.stdout


def export(folder: Path) -> Iterator[Row]:
    """Yield hashes of a finished sweep's export: its JSON results, and Parquet columns as CSV."""
    sweep, dataset = folder / "sweep.yaml", folder / "dataset"
    sweep.write_text(yaml.safe_dump(SWEEP | {"results": str(folder / "results")}))
    _run_command("run", sweep)
    _run_command("export", folder / "results", "--out", dataset, "--parquet", "--outcomes", "classes")
    for path in (dataset / "meta.json", *sorted((dataset / "digits").glob("*.json"))):
        digest = {"sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
        name, depends_on_processor = path.relative_to(dataset).as_posix(), path.stem.endswith("_confidence")
        yield Row(name, {}, digest) if depends_on_processor else Row(name, digest)
    for path in sorted((dataset / "parquet").rglob("*.parquet")):
        rows = pq.read_table(path, partitioning=None).to_pylist()
        counts = {f"{row['architecture']}/{row['strength']:g}": round(row["accuracy"] * N_IMAGES) for row in rows}
        key = path.parent.name.removeprefix("key=")
        yield Row(f"parquet {key}", {"correct": counts}, {"csv": _csv_hash(rows)})


def _csv_hash(rows: list[dict[str, Any]]) -> str:
    columns = ("architecture", "strength", "accuracy", "confidence_correct", "confidence_incorrect")
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for row in rows:
        outcomes = (row["correct_bits"].hex(), row["predictions"], row["cm"], row["confidence_label"])
        writer.writerow([*(row[column] for column in columns), *outcomes])
    return hashlib.sha256(text.getvalue().encode()).hexdigest()


def shipped_cells() -> Iterator[Row]:
    """Yield the numbers that `rank`, `compare` and `plot` give for the shipped dataset."""
    folder = bundled(SHIPPED_CELLS)
    for row in json.loads(_run_command("rank", folder, "--rows", 100, "--json"))["rows"]:
        columns = ("rank", "accuracy", "low", "high", "p_value", "tied")
        name = f"rank/{row['evaluation'].removesuffix('/255')}/{row['network']}"
        yield Row(name, {column: row[column] for column in columns})
    keys = ["clean", "fgsm:1/255", "pgd:1/255", "aa_square:1/255", "fog:3"]
    comparison = robust201.compare([f"{folder}:{cell}" for cell in COMPARED_CELLS], keys=keys)
    for row in _records(comparison.table.drop(columns="unit")):
        pair = "/".join(str(row.pop(side)).rpartition(":")[2] for side in ("first", "second"))
        yield Row(f"compare/{pair}/{row.pop('key')}:{row.pop('strength'):g}", row)
    (results,) = read_results(Dataset(folder))
    for figure in FIGURES:
        for number, row in enumerate(_records(find_figure(figure).compute_numbers(results))):
            yield Row(f"plot/{figure}/{number:03}", row)


def _records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    return json.loads(frame.to_json(orient="records", double_precision=15))


SECTIONS: dict[str, Callable[[Path], Iterator[Row]]] = {
    "evaluations": lambda _folder: evaluations(),
    "measures": lambda _folder: measures(),
    "training-runs": lambda _folder: training_runs(),
    "export": export,
    "shipped-cells": lambda _folder: shipped_cells(),
}
"""Functions that yield the rows of each golden file, given an empty folder."""
