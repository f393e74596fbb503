"""Folders import only downward, there are no import cycles, and few modules import heavy libraries."""

import ast
from collections.abc import Collection, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import robust201

PACKAGE = Path(robust201.__file__).parent
REPOSITORY = Path(__file__).resolve().parents[2]

ROOMS = (
    "core",
    "statistics",
    "images",
    "models",
    "spaces",
    "weights",
    "training",
    "tasks",
    "shards",
    "planning",
    "runtime",
    "reader",
    "analysis",
    "search",
    "figures",
    "export",
    "studies",
    "submission",
    "monitoring",
    "bench",
    "cli",
)
"""Folders of the package from the bottom up: each may import the folders before it."""

ROOT = {"__init__.py", "__main__.py", "api.py", "gallery.py", "security.py"}
"""Modules at the package's root: the API and the entry point."""

# Ray has two: the process that is connected to a cluster, and the user's client of its Jobs API.
DOORS = {
    "ray": {
        "runtime/executors/ray.py",
        "submission/ray_jobs.py",
    },
    "pyarrow": {
        "core/memory.py",
        "shards",
        "images",
        "export",
        "reader/parquet_results.py",
    },
    "pickle": {"core/unpickling.py"},
    "fsspec": {"shards/object_store.py"},
    "huggingface_hub": {"export/hub.py"},
    "s3fs": set(),  # used only through fsspec
}


def sources(package: Path = PACKAGE) -> list[Path]:
    return sorted(path for path in package.rglob("*.py") if "_bundled" not in path.parts)


def imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
    return found


def test_package_root_contains_only_api_and_folders() -> None:
    files = {path.name for path in PACKAGE.iterdir() if path.is_file()}
    rooms = {path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name not in {"__pycache__", "_bundled"}}
    assert files == ROOT | {"py.typed"}
    assert rooms == {*ROOMS}


@pytest.fixture(scope="module")
def imported() -> dict[Path, set[str]]:
    """Return the imports of each module, by its path in the package."""
    return {path.relative_to(PACKAGE): imports(path) for path in sources()}


def test_folders_import_downward(imported: Mapping[Path, set[str]]) -> None:
    upward = []
    for place, names in imported.items():
        here = place.parts[0]
        for parts in (name.split(".") for name in names if here not in ROOT):
            inside = parts[0] == "robust201" and len(parts) > 1 and parts[1] in ROOMS
            if inside and ROOMS.index(parts[1]) > ROOMS.index(here):
                upward.append(f"{place} imports {'.'.join(parts)}")
    assert len(imported) > 300
    assert upward == []


def test_heavy_libraries_are_imported_only_in_listed_modules(imported: Mapping[Path, set[str]]) -> None:
    elsewhere = []
    for place, names in imported.items():
        for name in names:
            allowed = DOORS.get(name.split(".")[0])
            if allowed is not None and not {place.as_posix(), place.parts[0]} & allowed:
                elsewhere.append(f"{place} imports {name}")
    assert elsewhere == []


def module_name(path: Path, source_root: Path) -> str:
    return ".".join(path.relative_to(source_root).with_suffix("").parts).removesuffix(".__init__")


def imported_modules(path: Path, modules: Collection[str]) -> set[str]:
    """Return the modules that a file imports, also inside functions; of ``from folder import module`` the module."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            found |= {name if name in modules else node.module for name in names}
    return found & set(modules)


def find_cycle(graph: Mapping[str, set[str]]) -> list[str]:
    """Return the modules of an import cycle, with the first repeated at the end; empty if there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


@pytest.mark.parametrize("source_root", [REPOSITORY / "pipeline", REPOSITORY / "benchmarks"], ids=lambda p: p.name)
def test_modules_have_no_import_cycles(source_root: Path) -> None:
    """Imports inside functions count too: they only delay a cycle."""
    base = source_root if source_root.name == "pipeline" else source_root.parent
    modules = {module_name(path, base): path for path in sources(source_root)}
    graph = {name: imported_modules(path, modules) - {name} for name, path in modules.items()}
    assert len(modules) > 10
    assert find_cycle(graph) == []
