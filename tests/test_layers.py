"""Imports point downward only, and each heavy library has one door."""

import ast
from collections.abc import Collection, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import pipeline

PACKAGE = Path(pipeline.__file__).parent
LAYERS: dict[str, int] = {
    **dict.fromkeys(
        (
            "__init__",
            "records",
            "precision",
            "noise",
            "errors",
            "files",
            "host",
            "processes",
            "interrupts",
            "unpickling",
            "metrics",
            "work_log",
        ),
        0,
    ),
    **dict.fromkeys(("spaces", "checkpoints", "datasets", "perturbations", "measurements", "classifier"), 1),
    **dict.fromkeys(
        (
            "sweep_yaml",
            "config",
            "speed",
            "plan",
            "evaluate",
            "shards",
            "plan_file",
            "imported_plan",
            "adoption",
            "shares",
            "lease",
            "inputs",
            "importing",
            "corrupting",
            "training",
        ),
        2,
    ),
    **dict.fromkeys(("executors", "worker", "scheduler"), 3),
    **dict.fromkeys(
        (
            "sweep",
            "share_run",
            "progress",
            "underway",
            "status",
            "logs",
            "watching",
            "export",
            "verifying",
            "comparing",
            "json_import",
            "import_origins",
            "doctor",
            "doctor_machines",
            "demo",
            "submission",
        ),
        4,
    ),
    **dict.fromkeys(
        (
            "cli",
            "cli_dataset",
            "cli_help",
            "cli_look",
            "cli_plot",
            "cli_slurm",
            "cli_submit",
            "cli_train",
            "exits",
            "console",
            "console_status",
            "__main__",
        ),
        5,
    ),
}
# analysis/ stands aside: it may import layers 0 and 1 and itself.
SIDE = "analysis"
# The classifier is what attacks work on; every other room of layer 1 stands by itself.
COMMON = {"classifier"}
# Ray has four: actors, metrics and the token where the driver runs, and the client of its Jobs API where the user sits.
DOORS = {
    "ray": {"executors/ray.py", "executors/ray_metrics.py", "executors/ray_token.py", "submission/ray_jobs.py"},
    "pyarrow": {"shards", "datasets", "export", "analysis/parquet_results.py"},
    "pickle": {"unpickling.py"},
    "fsspec": {"shards/object_place.py"},
    "s3fs": set(),  # only ever reached through fsspec
}


def sources(package: Path = PACKAGE) -> list[Path]:
    return sorted(path for path in package.rglob("*.py") if "_bundled" not in path.parts)


def room(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
    return found


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_downward(path: Path) -> None:
    here = room(path)
    for name in imports(path):
        parts = name.split(".")
        if parts[0] != "pipeline" or len(parts) < 2 or parts[1] not in {*LAYERS, SIDE}:
            continue
        there = parts[1]
        if here == SIDE:
            assert there == SIDE or LAYERS[there] <= 1, f"{path.name} imports {name}"
        elif there == SIDE:
            assert here == "__init__" or LAYERS[here] >= 4, f"{path.name} imports {name}"
        elif there not in {here} | COMMON:
            siblings_allowed = LAYERS[here] != 1
            assert LAYERS[there] < LAYERS[here] or (siblings_allowed and LAYERS[there] == LAYERS[here]), (
                f"{path.name} imports {name}"
            )


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_heavy_libraries_have_one_door(path: Path) -> None:
    place = path.relative_to(PACKAGE)
    for name in imports(path):
        allowed = DOORS.get(name.split(".")[0])
        assert allowed is None or str(place) in allowed or place.parts[0] in allowed, f"{place} imports {name}"


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")


def imported_modules(path: Path, modules: Collection[str]) -> set[str]:
    """Which of the modules a file imports, inside functions too; of ``from room import module`` the module alone."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            found |= {name if name in modules else node.module for name in names}
    return found & set(modules)


def find_cycle(graph: Mapping[str, set[str]]) -> list[str]:
    """Give modules that import each other in a ring, the first again at the end; none where there is no ring."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


@pytest.mark.parametrize("package", ["pipeline", "benchmarks"])
def test_modules_do_not_import_each_other(package: str) -> None:
    """Imports inside functions count, too: they put a ring off, and do not open it."""
    modules = {module_name(path): path for path in sources(PACKAGE.parent / package)}
    graph = {name: imported_modules(path, modules) - {name} for name, path in modules.items()}
    assert len(modules) > 10
    assert find_cycle(graph) == []


def test_a_ring_of_modules_is_found() -> None:
    assert set(find_cycle({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}})) == {"b", "c"}
