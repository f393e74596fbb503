"""Small files of every kind, created once: weights, corruptions, a sweep with results, and exported datasets."""

import contextlib
import io
import re
import shutil
import sys
import traceback
from pathlib import Path
from typing import NamedTuple

import torch
import yaml

from robust201.cli.app import main
from robust201.shards import ShardStore
from robust201.spaces.nasbench201 import cells
from robust201.spaces.nasbench201.network import build_network
from robust201.weights.store import CheckpointStore
from tests.conftest import add_network

ARCHITECTURES = (0, 21)

PATTERNS: dict[str, tuple[str, ...]] = {
    "sweep YAML": ("sweep.yaml",),
    "format.json": ("results/format.json",),
    "plan.json": ("results/plan.json",),
    "protocol": ("results/protocols/*.json",),
    "progress.json": ("results/progress.json",),
    "shard": ("results/shards/*/*.parquet",),
    "compacted shard": ("compacted/shards/*/compact-*.parquet",),
    "copied images": ("results/images/*/*.npy",),
    "weights": ("weights/**/*.safetensors",),
    "weights manifest": ("weights/manifest.jsonl",),
    "corruptions": ("corruptions/**/*.npy",),
    "corruptions manifest": ("corruptions/**/manifest.json",),
    "dataset JSON": ("json/digits/*.json",),
    "dataset Parquet": ("parquet/parquet/*/*/*.parquet",),
    "dataset checksums": ("json/SHA256SUMS", "parquet/SHA256SUMS", "parquet/parquet_files.json"),
    "dataset metadata": ("json/meta.json", "json/sweep.json", "parquet/sweep.json", "parquet/meta.json"),
}
"""Path patterns by kind of file."""


class CommandResult(NamedTuple):
    """Result of a command: exit code (None after an exception), stdout, stderr, and additional peak memory."""

    code: int | None
    out: str
    err: str
    peak_bytes: int = 0


def run_command(*arguments: object) -> CommandResult:
    """Run `robust201 ARGUMENTS` in this process."""
    out, err = io.StringIO(), io.StringIO()
    code: int | None = None
    original_argv = sys.argv
    sys.argv = ["robust201", *map(str, arguments)]
    with contextlib.suppress(OSError):  # if the peak cannot be reset, it includes earlier peaks
        Path("/proc/self/clear_refs").write_text("5")
    initial_bytes = _read_memory("VmRSS")
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            main()
    except SystemExit as exit_error:
        code = int(exit_error.code or 0)
    except Exception:  # noqa: BLE001 - commands must not raise any exception
        err.write(traceback.format_exc())
    finally:
        sys.argv = original_argv
    return CommandResult(code, out.getvalue(), err.getvalue(), _read_memory("VmHWM") - initial_bytes)


def _read_memory(field_name: str) -> int:
    match = re.search(rf"{field_name}:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="utf-8"))
    assert match is not None
    return 1024 * int(match[1])


class Workspace:
    """A folder with files of every kind, and an undamaged copy from which it is restored."""

    def __init__(self, folder: Path) -> None:
        self.root = root = folder / "work"
        self._undamaged = folder / "undamaged"
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
            "keys": {"clean": {}, "fgsm": {"epsilons": ["1/255", "8/255"]}, "brightness": {"severities": [1, 5]}},
            "batch_size": 4,
        }
        (root / "sweep.yaml").write_text(yaml.safe_dump(sweep, sort_keys=False))
        self._run("run", root / "sweep.yaml")
        self._run("export", root / "results", "--out", root / "json")
        self._run("export", root / "results", "--out", root / "parquet", "--parquet", "--no-json")
        shutil.copytree(root / "results", root / "compacted")
        for _ in range(2):  # the second call deletes the shards that the first one compacted
            ShardStore.open(root / "compacted").compact(grace_seconds=0)
        shutil.copytree(root, self._undamaged)

    @staticmethod
    def _run(*arguments: object) -> None:
        result = run_command(*arguments)
        assert result.code == 0, result.err

    def restore(self) -> None:
        shutil.rmtree(self.root)
        shutil.copytree(self._undamaged, self.root)

    def files(self, file_kind: str) -> list[Path]:
        paths = sorted(path for pattern in PATTERNS[file_kind] for path in self.root.glob(pattern) if path.is_file())
        assert paths, file_kind
        return paths
