"""No two public things of one folder share a name, so that each can be found by it."""

import ast
import functools
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import robust201

PACKAGE = Path(robust201.__file__).parent

BY_CONTRACT = {
    "reference": "a task's module offers it to the reference engine",
    "fused": "a task's module offers it to the fused engine",
    "single_run": "a module of one of AutoAttack's attacks offers it to those that run several",
    "configure_library": "a module of one of AutoAttack's attacks offers it to those that run several",
    "measure": "a measure's module offers it to both engines",
    "show": "a task's module that attacks nothing offers it to both engines",
}


def public_names(source: str) -> Iterator[str]:
    """Names that a module defines at its top level, imports not among them."""
    for statement in ast.parse(source).body:
        match statement:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                found = [name]
            case ast.Assign(targets=targets):
                found = [node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name)]
            case ast.AnnAssign(target=ast.Name(id=name)):
                found = [name]
            case _:
                found = []
        yield from (name for name in found if not name.startswith("_"))


@functools.cache
def places() -> dict[tuple[str, str], list[str]]:
    """Modules by the folder that they lie in and the public name that they define."""
    found: dict[tuple[str, str], set[str]] = defaultdict(set)
    for path in sorted(PACKAGE.rglob("*.py")):
        if "_bundled" not in path.parts:
            folder = path.parent.relative_to(PACKAGE).as_posix()
            for name in public_names(path.read_text(encoding="utf-8")):
                found[folder, name].add(path.relative_to(PACKAGE).as_posix())
    return {place: sorted(modules) for place, modules in found.items()}


def test_no_two_public_things_of_a_folder_share_a_name() -> None:
    shared = {place: modules for place, modules in places().items() if len(modules) > 1 and place[1] not in BY_CONTRACT}
    assert shared == {}
