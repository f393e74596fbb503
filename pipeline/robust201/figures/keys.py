"""Keys and strengths in figures: their order, their labels on axes, and the panels of each key."""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import pandas as pd

from robust201.analysis.dataset_results import DatasetResults
from robust201.analysis.labels import key_label
from robust201.analysis.ranking import nearest_strength
from robust201.core.colours import GROUPS
from robust201.core.records import CLEAN_STRENGTH
from robust201.dataset.layout import CLEAN, task_of
from robust201.figures.panels import Panel
from robust201.tasks import TASKS

KeyStrength = tuple[str, float]

_GROUPED_KEYS = [task.key for group in GROUPS for task in TASKS.values() if task.group == group]

_AXIS_STEP = 0.05


def shown_strengths(results: DatasetResults, key: str) -> list[tuple[float, KeyStrength]]:
    """Return each strength that figures show for a key, with the evaluation whose accuracies they show.

    Clean images come first, as strength 0, if they were evaluated and the key was not evaluated at strength 0.
    """
    clean = [CLEAN_STRENGTH] if results.keys(CLEAN) and results.starts_with_clean(key) and key != CLEAN else []
    return [(strength, (CLEAN, strength)) for strength in clean] + [
        (strength, (key, strength)) for strength in results.strengths(key)
    ]


def reference_columns(columns: Sequence[KeyStrength]) -> list[KeyStrength]:
    """Choose one strength per key: the nearest to ε = 1/255, to 1 for norms other than Linf, or to severity 3."""
    keys = dict.fromkeys(key for key, _ in columns)
    return [(key, nearest_strength(key, [strength for name, strength in columns if name == key])) for key in keys]


def sort_by_group(keys: Sequence[str]) -> list[str]:
    """Sort keys so that corruptions of a group are adjacent; other keys come first, in the given order."""
    return sorted(keys, key=lambda key: _GROUPED_KEYS.index(key) if key in _GROUPED_KEYS else -1)


def group_of(key: str) -> str | None:
    """Return the group of a corruption; None for any other key."""
    task = task_of(key)
    return None if task is None else task.group or None


def key_panels(keys: Sequence[str], draw: Any) -> list[Panel]:
    """Return one panel per key, titled with the key's label."""
    return [Panel((key_label(key),), partial(draw, key=key)) for key in keys]


def strength_title(key: str, results: DatasetResults) -> str:
    """Return the title of a key's axis of strengths, with the unit of its constraint; empty for clean images."""
    if (ball := results.reader.norm_ball_of(key)) is not None:
        return ball.axis_label.replace("epsilon", "ε")
    return {"corruption": "severity", "clean": ""}.get(results.reader.kind_of(key), "strength")


def axis_titles(keys: Sequence[str], results: DatasetResults) -> tuple[str, dict[str, str | None]]:
    """Return the shared title of all keys' strength axes (empty if they differ), and the titles of single axes."""
    titles: dict[str, str | None] = {key: strength_title(key, results) for key in keys}
    shared = {*titles.values()}
    return ("", titles) if len(shared) > 1 else (shared.pop() or "", dict.fromkeys(keys))


def with_ticks(rows: pd.DataFrame, key: str, results: DatasetResults) -> tuple[pd.DataFrame, list[str]]:
    """Return a key's rows with the label `tick` of their strength, and all labels by ascending strength."""
    is_clean = (rows["strength"] == CLEAN_STRENGTH) & results.starts_with_clean(key)
    rows = rows.assign(tick=rows["strength"].map("{:g}".format).mask(is_clean, "clean"))
    return rows, list(dict.fromkeys(rows.sort_values("strength", kind="stable")["tick"]))


def fraction_limits(*columns: "pd.Series[float]") -> tuple[float, float]:
    """Return axis limits that include all these fractions and are multiples of 5%."""
    values = pd.concat(columns).dropna()
    # The tolerance prevents a rounding error from adding a step.
    low = math.floor(values.min() / _AXIS_STEP + 1e-9)
    high = max(low + 1, math.ceil(values.max() / _AXIS_STEP - 1e-9))
    return max(0.0, round(low * _AXIS_STEP, 6)), min(1.0, round(high * _AXIS_STEP, 6))
