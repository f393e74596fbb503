"""The words of figures for keys, strengths and datasets; what is in no table is shown as it is."""

from collections.abc import Collection

from robust201.core.records import CLEAN_STRENGTH
from robust201.reader.result_files import kind_of, paper_key, row_of
from robust201.tasks import TASKS

KEY_LABELS = {key: row.label for key, row in TASKS.items()}
"""By key, in the paper's style."""

DATASET_LABELS = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100"}


def key_label(key: str) -> str:
    """Name a key, in either style, for people; one of the user's own that reads like another's name is in quotes."""
    return KEY_LABELS.get(paper_key(key), f"“{key}”" if key in KEY_LABELS.values() else key)


def dataset_label(name: str) -> str:
    """Name a dataset for people."""
    return DATASET_LABELS.get(name, name)


def strength_label(key: str, strength: float, among: Collection[float] = ()) -> str:
    """Write a strength with its unit, such as ``ε = 8/255``, ``ε = 0.5 (L2)`` or ``severity 3``.

    It is empty for 0 of clean images and of keys without a ball, such as grids of rotations. That of a key that is not
    in the table has no unit, such as ``strength 3``; ``strength 0`` is written only if `among`, the strengths of the
    key, has others.
    """
    row = row_of(key)
    if row is not None and row.constraint is not None:
        ball = row.constraint
        return f"ε = {strength:g}/{ball.divisor:g}" if ball.divisor != 1 else f"ε = {strength:g} ({ball.name})"
    if strength == CLEAN_STRENGTH and (row is not None or len(among) < 2):
        return ""
    return f"severity {strength:g}" if kind_of(key) == "corruption" else f"strength {strength:g}"


def column_label(key: str, strength: float, among: Collection[float] = ()) -> str:
    """Name a key and strength, such as ``PGD, ε = 8/255`` (see `strength_label`)."""
    return ", ".join(filter(None, (key_label(key), strength_label(key, strength, among))))


def measure_label(key: str, measurement: str, strength: float) -> str:
    """Name what is measured, such as ``Jacobian squared norm``, and at which strength if that is not 0."""
    name = measurement.replace("_", " ") if row_of(key) is not None else measurement
    return f"{key_label(key)} {name}" + (f", strength {strength:g}" if strength != CLEAN_STRENGTH else "")
