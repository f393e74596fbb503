"""Imports: folders import only lower folders, there are no cycles, and few modules import heavy libraries."""

import ast
import subprocess
import sys
from collections.abc import Collection
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import robust201

PACKAGE = Path(robust201.__file__).parent
REPOSITORY = Path(__file__).resolve().parents[2]

LAYERS = (
    "core",
    "statistics",
    "images",
    "networks",
    "weights",
    "tasks",
    "attacks",
    "corruptions",
    "measures",
    "evaluation",
    "training",
    "store",
    "sweep",
    "dataset",
    "run",
    "analysis",
    "search",
    "figures",
    "submit",
    "cli",
)
"""Folders of the package from the bottom up. Each folder may import the folders before it."""

ROOT_FILES = {"__init__.py", "__main__.py", "api.py", "comparing.py", "gallery.py", "loading.py", "sampling.py"}
"""Modules in the package's root folder, such as the API and the entry point."""

# Modules and folders that may import a heavy library, or pickle.
ALLOWED_IMPORTERS = {
    "ray": {
        "run/cluster.py",
        "submit/ray_jobs.py",
    },
    "pyarrow": {
        "core/memory.py",
        "store",
        "images",
        "dataset",
    },
    "altair": {"figures", "gallery.py", "dataset/reader.py", "networks/nb201/drawing.py"},
    "pickle": {"core/unpickling.py"},
    "fsspec": {"store/object_store.py"},
    "huggingface_hub": {"dataset/hub.py"},
    "s3fs": set(),  # used only through fsspec
}


def list_sources(package: Path = PACKAGE) -> list[Path]:
    return sorted(path for path in package.rglob("*.py") if "_bundled" not in path.parts)


def find_imports(path: Path) -> set[str]:
    """Return all names that a file imports: modules, and names in modules such as ``pathlib.Path``."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
    return names


def test_package_root_contains_only_api_and_folders():
    files = {path.name for path in PACKAGE.iterdir() if path.is_file()}
    folders = {
        path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name not in {"__pycache__", "_bundled"}
    }
    assert files == ROOT_FILES | {"py.typed"}
    assert folders == {*LAYERS}


@pytest.fixture(scope="module")
def imports_by_module() -> dict[Path, set[str]]:
    """Return the imported names of each module by its path in the package."""
    return {path.relative_to(PACKAGE): find_imports(path) for path in list_sources()}


def test_folders_import_downward(imports_by_module):
    upward_imports = []
    for path, names in imports_by_module.items():
        folder = path.parts[0]
        for parts in (name.split(".") for name in names if folder not in ROOT_FILES):
            is_in_layer = parts[0] == "robust201" and len(parts) > 1 and parts[1] in LAYERS
            if is_in_layer and LAYERS.index(parts[1]) > LAYERS.index(folder):
                upward_imports.append(f"{path} imports {'.'.join(parts)}")
    assert len(imports_by_module) > 300
    assert upward_imports == []


def test_heavy_libraries_are_imported_only_in_listed_modules(imports_by_module):
    violations = []
    for path, names in imports_by_module.items():
        for name in names:
            allowed = ALLOWED_IMPORTERS.get(name.split(".")[0])
            if allowed is not None and not {path.as_posix(), path.parts[0]} & allowed:
                violations.append(f"{path} imports {name}")
    assert violations == []


def module_name(path: Path, source_root: Path) -> str:
    return ".".join(path.relative_to(source_root).with_suffix("").parts).removesuffix(".__init__")


def imported_modules(path: Path, modules: Collection[str]) -> set[str]:
    """Return those of `modules` that a file imports, including imports inside functions."""
    imported: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            qualified_names = [f"{node.module}.{alias.name}" for alias in node.names]
            imported |= {name if name in modules else node.module for name in qualified_names}
    return imported & set(modules)


@pytest.mark.parametrize("source_root", [REPOSITORY / "pipeline", REPOSITORY / "benchmarks"], ids=lambda p: p.name)
def test_modules_have_no_import_cycles(source_root):
    # Imports inside functions are included.
    base = source_root if source_root.name == "pipeline" else source_root.parent
    modules = {module_name(path, base): path for path in list_sources(source_root)}
    graph = {name: imported_modules(path, modules) - {name} for name, path in modules.items()}
    assert len(modules) >= 5
    TopologicalSorter(graph).prepare()  # raises an error that names the modules of a cycle


LIGHT_PROGRAMS = {
    "import robust201; dir(robust201)": {"torch", "numpy", "pandas"},
    # Worker processes of export and search execute the script again.
    "import robust201.__main__": {"typer", "numpy", "pydantic", "robust201.cli"},
    "import robust201.weights.store, robust201.weights.published.formats": {"torch"},
    "import robust201.dataset.export, robust201.dataset.reader": {"torch", "ray", "pandas", "altair"},
}


@pytest.mark.parametrize("program", LIGHT_PROGRAMS)
def test_programs_load_no_heavy_libraries(program):
    command = f"import sys; {program}; print({LIGHT_PROGRAMS[program]} & set(sys.modules))"
    result = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, check=True)
    assert result.stdout == "set()\n"
