"""Code that makes images, draws and ids calls nothing whose last bit depends on the processor.

Matrix products go through a BLAS, and NumPy's elementary functions have other kernels for AVX-512: `tests/tasks/
test_processors.py` runs what is left under several of them.
"""

import ast
from pathlib import Path

import robust201

PACKAGE = Path(robust201.__file__).parent

GUARDED = (
    "core",
    "images",
    "tasks/corruptions",
    "tasks/attack_kit/draws.py",
    "training/draws.py",
    "training/augmentation.py",
)

PRODUCTS = {"dot", "vdot", "inner", "matmul", "einsum", "tensordot", "linalg"}
FUNCTIONS = {
    *("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "power", "float_power", "cbrt"),
    *("tan", "arcsin", "arccos", "arctan", "arctan2", "sinh", "cosh", "tanh"),
}
"""Functions of NumPy with kernels for AVX-512. Sine and cosine of float64 have none in NumPy 2.4."""

ALLOWED = {
    "images/upscaling.py": "sums of whole numbers below 2^53, which are exact in any order",
}


def processor_dependent(source: str) -> list[str]:
    names = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.BinOp | ast.AugAssign) and isinstance(node.op, ast.MatMult):
            names.append("@")
        elif isinstance(node, ast.Attribute):
            is_numpy = isinstance(node.value, ast.Name) and node.value.id == "np"
            if node.attr in PRODUCTS or (is_numpy and node.attr in FUNCTIONS):
                names.append(node.attr)
    return names


def test_generators_call_nothing_that_depends_on_the_processor() -> None:
    files = [
        file for name in GUARDED for file in ((PACKAGE / name).rglob("*.py") if "." not in name else [PACKAGE / name])
    ]
    assert len(files) > 50
    uses = {file.relative_to(PACKAGE).as_posix(): processor_dependent(file.read_text()) for file in files}
    assert {name: names for name, names in uses.items() if names and name not in ALLOWED} == {}
    assert all(uses[name] for name in ALLOWED)
