"""Functions that change a results folder's `plan.json`. The changed plan has no digest, like plans of old versions."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any


def edit_plan(results_folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    path = results_folder / "plan.json"
    plan: dict[str, Any] = json.loads(path.read_text())
    plan.pop("digest", None)
    change(plan)
    path.write_text(json.dumps(plan))


def replace_folder_in_plan(results_folder: Path, old_folder: Path, new_folder: Path) -> None:
    """Replace a folder in all paths of a plan."""
    path = results_folder / "plan.json"
    path.write_text(path.read_text().replace(str(old_folder), str(new_folder)))
    edit_plan(results_folder, lambda _: None)  # only removes the digest
