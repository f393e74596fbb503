"""Files are opened by `core.files` alone, so that no pipe is waited for and no device is read to its end."""

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.project.test_layers import PACKAGE, sources

READERS = {"open", "read_bytes", "read_text", "FileIO"}

ALLOWED: dict[str, set[str]] = {
    "core/files.py": {"open", "os.open", "temporary.open"},
    # Files of the system, and of the package itself.
    "core/host.py": {"path.read_text"},
    "export/pool.py": {"Path('/proc/self/statm').read_text"},
    "figures/report.py": {"(resources.files('robust201.figures') / name).read_text"},
    "images/downloads/registry.py": {"bundled('benchmark_data/downloads.toml').read_text"},
    "spaces/nasbench201/compiled/native.py": {"C_SOURCE.read_bytes", "library.read_bytes"},
    "studies/comparisons.py": {"(_PUBLISHED / 'image_distribution.json').read_text"},
    "studies/dataset_claims.py": {"_PUBLISHED.read_text"},
    "studies/robust_features.py": {"_PUBLISHED.read_text"},
    # Files that the process itself made under a new name, or in a folder that only it can write to.
    "bench/comparison.py": {"log.open", "log.read_text"},
    "images/downloads/unpack.py": {"target.open"},
    "runtime/executors/ray_folder.py": {"os.open"},
    "runtime/executors/ray_process.py": {"(self._folder / _OUTPUT_NAME).open"},
    "runtime/lease.py": {"os.open"},
    "runtime/work_log.py": {"os.open"},
    # A sweep's YAML may be a pipe, as a shell makes for <(…); it is read up to a limit.
    "planning/sweep_yaml.py": {"path.open"},
}
"""Calls that open a file otherwise, by module."""

NOT_A_PATH = {
    "ShardStore.open",
    "Image.open(io.BytesIO(encoded)",
    "Image.open(io.BytesIO(content)",
    "Image.open(stream",
    "archive.open",
    "bz2.open(packed",
    "filesystem.open",
    "gzip.open(packed",
    "tarfile.open(fileobj=",
}
"""Calls of the same name that open no path, by what they begin with."""


def opening_calls(path: Path) -> Iterator[str]:
    """Calls in a module that open a path, as they are written."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            is_method = isinstance(node.func, ast.Attribute)
            text = ast.unparse(node)
            opens = name in READERS and (is_method or name in {"open", "FileIO"})
            if opens and not any(text.startswith(call) for call in NOT_A_PATH):
                yield ast.unparse(node.func)


def test_files_are_opened_by_one_function() -> None:
    found = {path.relative_to(PACKAGE).as_posix(): {*opening_calls(path)} for path in sources()}
    assert {module: calls for module, calls in found.items() if calls} == ALLOWED
