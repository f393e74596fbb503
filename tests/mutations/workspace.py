"""Small files of every kind, made once: weights, corruptions, a sweep and its results, and datasets exported of it."""

import shutil
from dataclasses import dataclass
from pathlib import Path

import torch
import yaml

from robust201.spaces.nasbench201 import cells
from robust201.spaces.nasbench201.network import build_network
from robust201.weights.store import CheckpointStore
from tests.conftest import add_network
from tests.mutations.commands import run_command

ARCHITECTURES = (0, 21)
KEYS = {
    "clean": {},
    "fgsm": {"epsilons_255": [1, 8]},
    "brightness": {"severities": [1, 5]},
}

KINDS: dict[str, tuple[str, ...]] = {
    "sweep YAML": ("sweep.yaml",),
    "format.json": ("results/format.json",),
    "plan.json": ("results/plan.json",),
    "protocol": ("results/protocols/*.json",),
    "progress.json": ("results/progress.json",),
    "shard": ("results/shards/*/*.parquet",),
    "compacted shard": ("compacted/shards/*/compact-*.parquet",),
    "kept images": ("results/images/*/*.npy",),
    "weights": ("weights/**/*.safetensors",),
    "weights manifest": ("weights/manifest.jsonl",),
    "corruptions": ("corruptions/**/*.npy",),
    "corruptions manifest": ("corruptions/**/manifest.json",),
    "dataset JSON": ("json/digits/*.json",),
    "dataset Parquet": ("parquet/parquet/*/*/*.parquet",),
    "dataset listing": ("json/SHA256SUMS", "parquet/SHA256SUMS", "parquet/parquet_files.json"),
    "dataset facts": ("json/meta.json", "json/sweep.json", "parquet/sweep.json", "parquet/meta.json"),
}
"""Kinds of files, and where they lie."""


@dataclass(frozen=True)
class Workspace:
    """A folder with files of every kind, and a copy of it from which what was damaged is restored."""

    root: Path
    pristine: Path

    @classmethod
    def make(cls, folder: Path) -> "Workspace":
        root = folder / "work"
        root.mkdir(parents=True)
        with CheckpointStore(root / "weights") as store:
            for index in ARCHITECTURES:
                torch.manual_seed(index)
                spec = cells.architecture(index).spec
                add_network(store, index, build_network(spec, channels=4, cells=1, n_classes=10).state_dict())
        sweep = {
            "execution": {"executor": "inline", "threads": 1},
            "name": "mutations",
            "results": str(root / "results"),
            "architectures": list(ARCHITECTURES),
            "network": {"channels": 4, "cells": 1},
            "checkpoints": {"path": str(root / "weights")},
            "datasets": {"digits": {"corruptions": {"source": "generated", "path": str(root / "corruptions")}}},
            "images": {"count": 10, "seed": 0},
            "keys": KEYS,
            "batch_size": 4,
        }
        (root / "sweep.yaml").write_text(yaml.safe_dump(sweep, sort_keys=False))
        for arguments in (
            ("run", root / "sweep.yaml"),
            ("export", root / "results", "--out", root / "json", "--processes", 1),
            ("export", root / "results", "--out", root / "parquet", "--parquet", "--no-json", "--processes", 1),
        ):
            ended = run_command(*arguments)
            assert ended.code == 0, ended.err
        shutil.copytree(root / "results", root / "compacted")
        for _ in range(2):
            assert run_command("compact", root / "compacted", "--grace-hours", 0).code == 0
        pristine = folder / "pristine"
        shutil.copytree(root, pristine)
        return cls(root, pristine)

    def restore(self) -> None:
        shutil.rmtree(self.root)
        shutil.copytree(self.pristine, self.root)

    def files(self, kind: str) -> list[Path]:
        found = sorted(path for pattern in KINDS[kind] for path in self.root.glob(pattern) if path.is_file())
        assert found, kind
        return found
