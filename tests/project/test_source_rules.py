"""Rules for the source code: names and calls that only listed files may contain."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.project.test_layers import PACKAGE, list_sources


def module_path(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


# --- Only `models.device` names CUDA and changes PyTorch's settings ---------------------------------------------------

DEVICE_ATTRIBUTES = re.compile(
    r"torch\.(cuda|backends|version|autocast|set_(deterministic|float32)\w*|use_deterministic\w*)"
    r"|\.pin_memory\b|\bnon_blocking\b"
)
FILES_WITH_DEVICE_NAMES = {
    "networks/device.py": "the device",
    "sweep/config.py": "the setting `execution.device`",
    "sweep/training_plan.py": "the devices of training runs, on which the weights depend",
}


def device_names(path: Path) -> Iterator[str]:
    """Yield the expressions of a file that name CUDA or settings of PyTorch, and the text ``"cuda"``."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute | ast.Call) and (match := DEVICE_ATTRIBUTES.search(ast.unparse(node))):
            yield match[0]
        if isinstance(node, ast.Constant) and node.value == "cuda":
            yield "'cuda'"


def test_only_the_module_of_the_device_names_cuda() -> None:
    found = {module_path(path): set(device_names(path)) for path in list_sources()}
    assert {file for file, names in found.items() if names} - FILES_WITH_DEVICE_NAMES.keys() == set()
    assert found["networks/device.py"] >= {"torch.cuda", "torch.backends", "torch.autocast", ".pin_memory", "'cuda'"}


# --- Only `core.files` opens files, so that the program never waits for a pipe or reads from an endless device -------

OPENING_FUNCTIONS = {"open", "read_bytes", "read_text", "FileIO"}
"""Names of functions that may open a path."""

ALLOWED_CALLS: dict[str, set[str]] = {
    "core/files.py": {"path.open", "os.open", "temporary_path.open"},
    # Files of the system and of the package.
    "dataset/export_pool.py": {"Path('/proc/self/statm').read_text"},
    "figures/report.py": {"(resources.files('robust201.figures') / name).read_text"},
    "images/downloads/registry.py": {"bundled('benchmark_data/downloads.toml').read_text"},
    "networks/nb201/compiled/native.py": {"C_SOURCE.read_bytes", "library.read_bytes"},
    # Files that the process created under a new name, or in a folder that only it can write to.
    "images/downloads/fetch.py": {"tarfile.open"},
    "run/driver.py": {"Path(os.devnull).open"},
    "run/events.py": {"path.open"},
    "run/guard.py": {"(Path(folder) / 'ray.log').open"},
    "run/lock.py": {"path.open"},
    # A sweep YAML may be a pipe, such as <(…) in a shell; it is only read up to a limit.
    "sweep/sweep_yaml.py": {"path.open"},
}
"""Exceptions: calls that open a file, by module."""

NOT_OPENING_PATHS = {
    "ResultsFolder.open",
    "ShardStore.open",
    "Image.open(io.BytesIO(encoded)",
    "Image.open(io.BytesIO(content)",
    "Image.open(stream",
    "archive.open",
    "cls.open",
    "bz2.open(packed",
    "filesystem.open",
    "gzip.open(compressed",
    "tarfile.open(fileobj=",
}
"""Prefixes of calls that do not open a path, although the function has the name of an opening function."""


def opening_calls(path: Path) -> Iterator[str]:
    """Yield the functions, as source text, of calls that open a path."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            is_method = isinstance(node.func, ast.Attribute)
            call_text = ast.unparse(node)
            is_candidate = name in OPENING_FUNCTIONS and (is_method or name in {"open", "FileIO"})
            if is_candidate and not any(call_text.startswith(prefix) for prefix in NOT_OPENING_PATHS):
                yield ast.unparse(node.func)


def test_files_are_opened_only_through_core_files() -> None:
    calls_by_module = {module_path(path): {*opening_calls(path)} for path in list_sources()}
    assert {module: calls for module, calls in calls_by_module.items() if calls} == ALLOWED_CALLS


# --- Code that generates images, random numbers and ids avoids functions whose results depend on the processor ------
#
# Matrix products use a BLAS library, and NumPy's elementary functions have separate kernels for AVX-512.
# tests/corruptions/test_processors.py runs this code with several such kernels.

GUARDED_PATHS = (
    "core",
    "images",
    "corruptions",
    "attacks/random_numbers.py",
    "training/draws.py",
    "training/augmentation.py",
)
"""Folders and files whose code must not call such functions."""

MATRIX_PRODUCTS = {"dot", "vdot", "inner", "matmul", "einsum", "tensordot", "linalg"}
ELEMENTARY_FUNCTIONS = {
    *("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "power", "float_power", "cbrt"),
    *("tan", "arcsin", "arccos", "arctan", "arctan2", "sinh", "cosh", "tanh"),
}
"""NumPy functions with separate kernels for AVX-512. In NumPy 2.4, sine and cosine of float64 have no such kernels."""

EXACT_PRODUCTS = {
    "images/upscaling.py": "sums of integers below 2^53 are exact in any order",
}
"""Files that may use matrix products, with reasons."""


def find_processor_dependent_functions(source: str) -> list[str]:
    """Return the matrix products and the elementary functions of NumPy in a module."""
    names = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.BinOp | ast.AugAssign) and isinstance(node.op, ast.MatMult):
            names.append("@")
        elif isinstance(node, ast.Attribute):
            is_numpy = isinstance(node.value, ast.Name) and node.value.id == "np"
            if node.attr in MATRIX_PRODUCTS or (is_numpy and node.attr in ELEMENTARY_FUNCTIONS):
                names.append(node.attr)
    return names


def test_generators_avoid_processor_dependent_functions() -> None:
    files = [
        file
        for path in GUARDED_PATHS
        for file in ((PACKAGE / path).rglob("*.py") if "." not in path else [PACKAGE / path])
    ]
    assert len(files) > 40
    functions_by_file = {module_path(file): find_processor_dependent_functions(file.read_text()) for file in files}
    assert {
        path: functions for path, functions in functions_by_file.items() if functions and path not in EXACT_PRODUCTS
    } == {}
    assert all(functions_by_file[path] for path in EXACT_PRODUCTS)
