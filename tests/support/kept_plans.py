"""Changes of a results folder's `plan.json` as an earlier version would have written it, without its digest."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any


def edit_plan(results: Path, change: Callable[[dict[str, Any]], object]) -> None:
    path = results / "plan.json"
    plan: dict[str, Any] = json.loads(path.read_text())
    plan.pop("digest", None)
    change(plan)
    path.write_text(json.dumps(plan))


def move_plan(results: Path, source: Path, target: Path) -> None:
    """Replace the folder `source` by `target` in all paths of a plan."""
    path = results / "plan.json"
    path.write_text(path.read_text().replace(str(source), str(target)))
    edit_plan(results, lambda _: None)
