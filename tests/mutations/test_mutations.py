"""After random damage to a file, commands give an error, a warning or the right result; only JSON may be misread.

By default, few mutations run. For many, run
``MUTATIONS=500 MUTATIONS_SEED=1 python -m pytest -n 0 --timeout 3600 tests/mutations``.
"""

import filecmp
import json
import os
import re
import shutil
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from robust201.core.errors import RobustError
from robust201.dataset.export import export_dataset
from robust201.dataset.reader import Dataset
from robust201.store.folder import ResultsFolder
from robust201.store.packing import pack
from robust201.sweep.loading import load_config
from robust201.sweep.plan import open_results
from tests.conftest import THREE_KEYS, FinishedCommand, RunCommand, read_tree, tiny_sweep_fields
from tests.support.runs import run_inline

N_MUTATIONS = int(os.environ.get("MUTATIONS", "2"))
SEED = int(os.environ.get("MUTATIONS_SEED", "2"))
MAX_ERROR_CHARACTERS = 20_000
WARNING = re.compile("^warning:|moved to", re.MULTILINE)

Rng = np.random.Generator
Damage = Callable[[Path, Sequence[Path], Rng], object]


# Kinds of damage


def flip_bit(path: Path, _siblings: Sequence[Path], rng: Rng) -> None:
    content = bytearray(path.read_bytes())
    content[int(rng.integers(len(content)))] ^= 1 << int(rng.integers(8))
    path.write_bytes(content)


def truncate(path: Path, _siblings: Sequence[Path], rng: Rng) -> None:
    os.truncate(path, int(rng.integers(path.stat().st_size)))


def overwrite_with_zeros(path: Path, _siblings: Sequence[Path], rng: Rng) -> None:
    content = bytearray(path.read_bytes())
    start = int(rng.integers(len(content)))
    length = min(int(rng.integers(1, 512)), len(content) - start)
    content[start : start + length] = bytes(length)
    path.write_bytes(content)


def swap(path: Path, siblings: Sequence[Path], rng: Rng) -> None:
    sibling = siblings[int(rng.integers(len(siblings)))] if siblings else path
    content = path.read_bytes()
    path.write_bytes(sibling.read_bytes())
    sibling.write_bytes(content)


def replace_with(make: Callable[[Path], object]) -> Damage:
    def replace(path: Path, _siblings: Sequence[Path], _rng: Rng) -> None:
        path.unlink()
        make(path)

    return replace


WRONG_VALUES: tuple[Any, ...] = (None, "text", -1, 2.5, True, [], {}, [None], 10**30, {"a": {"b": 1}})


def set_wrong_value(path: Path, _siblings: Sequence[Path], rng: Rng) -> None:
    """Replace a random value in the first object of a JSON or JSON Lines file."""
    first_line, *other_lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
    content = parent = json.loads(first_line)
    while True:
        key = (list(parent) if isinstance(parent, dict) else range(len(parent)))[int(rng.integers(len(parent)))]
        if not isinstance(parent[key], (dict, list)) or not parent[key] or rng.integers(4) == 0:
            break
        parent = parent[key]
    parent[key] = WRONG_VALUES[int(rng.integers(len(WRONG_VALUES)))]
    path.write_text("\n".join([json.dumps(content), *other_lines]))


DAMAGES: tuple[Damage, ...] = (
    *(flip_bit, truncate, overwrite_with_zeros, swap),
    *map(replace_with, (lambda _path: None, Path.mkdir)),
    *(replace_with(partial(Path.write_bytes, data=content)) for content in (b"", b"[]", b"\xff\xfe")),
)


# Files, and the commands that read them


@pytest.fixture(scope="module")
def undamaged(tiny_weights: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an undamaged copy of the folder `root`, whose files the tests damage.

    The folder has weights, corruptions, results, results in packs, and exported datasets.
    """
    root = tmp_path_factory.mktemp("mutations") / "root"
    shutil.copytree(tiny_weights, root / "weights")
    fields = tiny_sweep_fields(root, root / "weights", keys=THREE_KEYS)
    (root / "sweep.yaml").write_text(yaml.safe_dump(fields, sort_keys=False))
    assert run_inline(load_config(root / "sweep.yaml")).is_complete
    for file_format in ("json", "parquet"):
        export_dataset(*open_results(root / "results"), root / file_format, formats=(file_format,))
    shutil.copytree(root / "results", root / "packed")
    for _ in range(2):  # the second call deletes the files that the first one packed
        pack(ResultsFolder.open(root / "packed"), grace_seconds=0)
    return Path(shutil.copytree(root, root.with_name("undamaged")))


@pytest.fixture
def root(undamaged: Path) -> Path:
    restore(undamaged.with_name("root"), undamaged)
    return undamaged.with_name("root")


RESULTS_COMMANDS = ("status results", "verify results", "export results --out again", "run sweep.yaml")
PACKED_COMMANDS = ("status packed", "verify packed", "export packed --out again", "merge packed --compact")
INPUT_COMMANDS = ("run sweep.yaml --out new", "plan sweep.yaml --check")
JSON_COMMANDS = ("read json", "verify json", "verify results --export json")
PARQUET_COMMANDS = tuple(command.replace("json", "parquet") for command in JSON_COMMANDS)
KINDS: dict[str, tuple[str, tuple[str, ...]]] = {
    "sweep YAML": ("sweep.yaml", ("plan sweep.yaml", "status sweep.yaml", "doctor sweep.yaml")),
    "format.json": ("results/format.json", RESULTS_COMMANDS),
    "plan": ("results/plan.json", RESULTS_COMMANDS),
    "protocol": ("results/protocols/*.json", RESULTS_COMMANDS),
    "events": ("results/events/*.jsonl", RESULTS_COMMANDS),
    "shard": ("results/shards/*/*/*.parquet", RESULTS_COMMANDS),
    "pack": ("packed/shards/*/packs/*.pack", PACKED_COMMANDS),
    "images": ("results/images/*/*.npy", RESULTS_COMMANDS),
    "weights": ("weights/*/*.safetensors", INPUT_COMMANDS),
    "manifest": ("weights/manifest.jsonl", INPUT_COMMANDS),
    "corruptions": ("corruptions/*/*.npy", INPUT_COMMANDS),
    "corruptions digest": ("corruptions/*/*.sha256", INPUT_COMMANDS),
    "dataset JSON": ("json/digits/*.json", JSON_COMMANDS),
    "dataset Parquet": ("parquet/parquet/*/*/*.parquet", PARQUET_COMMANDS),
    "JSON metadata": ("json/*.json", JSON_COMMANDS),
    "Parquet metadata": ("parquet/*.json", PARQUET_COMMANDS),
    "JSON checksums": ("json/SHA256SUMS", JSON_COMMANDS),
    "Parquet checksums": ("parquet/SHA256SUMS", PARQUET_COMMANDS),
}
"""Kind of file → pattern of its paths, and commands that read such files."""

PATH_NAMES = {"sweep.yaml", "results", "packed", "json", "parquet", "new", "again"}
VERIFIED_KINDS = {"protocol", "shard", "pack", "dataset JSON", "dataset Parquet"}
"""Kinds of files in which `verify` detects every change."""


def run_reader(robust201: RunCommand, root: Path, command: str) -> tuple[FinishedCommand, Any]:
    """Run a command in the root folder; return its result, and the data that it exported or read."""
    verb, *texts = command.split()
    arguments = [root / text if text in PATH_NAMES else text for text in texts]
    if verb == "read":
        try:
            return FinishedCommand(0, "", ""), Dataset(arguments[0]).query(missing_ok=True)
        except (RobustError, OSError) as error:
            return FinishedCommand(2, "", f"error: {error}"), None
    result = robust201(verb, *arguments)
    if result.code == 0 and verb == "run":
        result = robust201("export", root / ("new" if "new" in texts else "results"), "--out", root / "again")
    exported = root / "again/digits"
    return result, read_tree(exported) if exported.exists() else None


def test_commands_succeed_on_undamaged_files(root: Path, undamaged: Path, robust201: RunCommand) -> None:
    assert [pattern for pattern, _ in KINDS.values() if not list(root.glob(pattern))] == []
    for command in {command for _, commands in KINDS.values() for command in commands}:
        result, _ = run_reader(robust201, root, command)
        assert result.code == 0, (command, result.err)
        assert not WARNING.search(result.err), (command, result.err)
        restore(root, undamaged)


@pytest.mark.filterwarnings("ignore::robust201.dataset.folder.MissingFilesWarning")
@pytest.mark.parametrize("kind", KINDS)
def test_damaged_file_gives_error_warning_or_right_result(
    root: Path, undamaged: Path, robust201: RunCommand, kind: str
) -> None:
    pattern, commands = KINDS[kind]
    for index in range(N_MUTATIONS):
        rng = np.random.default_rng([SEED, list(KINDS).index(kind), index])
        command = commands[int(rng.integers(len(commands)))]
        paths = sorted(root.glob(pattern))
        path = paths[int(rng.integers(len(paths)))]
        damages = [*DAMAGES, *([set_wrong_value] * 2 if path.suffix in {".json", ".jsonl"} else [])]
        damage = damages[int(rng.integers(len(damages)))]
        damage(path, [other for other in paths if other != path], rng)
        is_changed = not path.is_file() or not filecmp.cmp(path, undamaged / path.relative_to(root), shallow=False)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            result, actual = run_reader(robust201, root, command)
        restore(root, undamaged)
        case = f"{path.relative_to(root)}, {damage.__qualname__}, {command}: {result.err[-1500:]}"
        assert result.code in {0, 2, 3, 4}, case
        assert "Traceback" not in result.err, case
        assert len(result.err) < MAX_ERROR_CHARACTERS, case
        if result.code == 0 and not caught and not WARNING.search(result.err):
            assert not (is_changed and command.startswith("verify") and kind in VERIFIED_KINDS), case
            assert command == "read json" or actual == run_reader(robust201, root, command)[1], case
            restore(root, undamaged)


def restore(root: Path, undamaged: Path) -> None:
    shutil.rmtree(root)
    shutil.copytree(undamaged, root)
