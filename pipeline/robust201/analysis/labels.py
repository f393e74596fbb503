"""Labels of keys, strengths and datasets in figures and tables; unknown names are shown unchanged."""

from robust201.core.records import CLEAN_STRENGTH
from robust201.dataset.layout import paper_key, task_of
from robust201.tasks import TASKS

KEY_LABELS = {key: task.label for key, task in TASKS.items()}
"""Label of each key in the paper's style."""

DATASET_LABELS = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100"}


def key_label(key: str) -> str:
    """Return the label of a key (``pgd`` or ``pgd@Linf``); a custom key that equals another key's label is quoted."""
    return KEY_LABELS.get(paper_key(key), f"“{key}”" if key in KEY_LABELS.values() else key)


def dataset_label(name: str) -> str:
    """Return the label of a dataset."""
    return DATASET_LABELS.get(name, name)


def strength_label(strength: float, unit: str) -> str:
    """Return a strength with its unit (see `tasks.strengths.unit_of`), such as ``ε = 8/255`` or ``severity 3``.

    Epsilons in other norms are written ``ε = 0.5 (L2)``, strengths without a unit ``strength 3``. The label is empty
    for clean images and for strength 0 of keys without a norm ball, such as grids of rotations.
    """
    if unit == "severity":
        return f"severity {strength:g}"
    if unit:
        return f"ε = {strength:g}{unit}" if unit.startswith("/") else f"ε = {strength:g} ({unit})"
    return "" if strength == CLEAN_STRENGTH else f"strength {strength:g}"


def measure_label(key: str, measurement: str, strength: float) -> str:
    """Return the label of a measurement, such as ``Jacobian squared norm``, with its strength unless that is 0."""
    name = measurement.replace("_", " ") if task_of(key) is not None else measurement
    return f"{key_label(key)} {name}" + (f", strength {strength:g}" if strength != CLEAN_STRENGTH else "")
