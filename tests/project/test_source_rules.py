"""Rules for the source code: names and calls that only listed files may contain."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.project.test_layers import PACKAGE, list_sources


def module_path(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


# --- Only listed files name CUDA or change PyTorch's settings -------------------------------------

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


def test_only_listed_files_name_cuda():
    names_in = {module_path(path): set(device_names(path)) for path in list_sources()}
    assert {file for file, names in names_in.items() if names} - FILES_WITH_DEVICE_NAMES.keys() == set()
    assert names_in["networks/device.py"] >= {"torch.cuda", "torch.backends", "torch.autocast", ".pin_memory", "'cuda'"}


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


def test_generators_avoid_processor_dependent_functions():
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
