"""The table of tasks: every attack, corruption and measure that a sweep can evaluate, and lists of their keys.

A task's name, such as `pgd`, is called its key. `tasks.attacks` and `tasks.measures` define attacks and measures.
"""

from collections.abc import Collection, Iterable
from typing import Any

from robust201.core.errors import ConfigError, did_you_mean
from robust201.tasks.attacks import ATTACKS
from robust201.tasks.measures import MEASURES
from robust201.tasks.parameters import Corruption, Parameters
from robust201.tasks.task import ENGINES, Task

__all__ = ["ENGINES", "Task"]


def _corruption(key: str, group: str, images_version: int = 1, name: str = "") -> Task:
    return Task(
        key, "corruption", Corruption, "evaluation.images", group=group, images_version=images_version, name=name
    )


_CORRUPTION_TASKS = (
    _corruption("brightness", "weather"),
    _corruption("contrast", "digital"),
    _corruption("defocus_blur", "blur"),
    _corruption("elastic_transform", "digital"),
    _corruption("fog", "weather"),
    _corruption("frost", "weather"),
    _corruption("gaussian_noise", "noise"),
    _corruption("glass_blur", "blur"),
    _corruption("impulse_noise", "noise"),
    _corruption("jpeg_compression", "digital", name="JPEG compression"),
    _corruption("motion_blur", "blur", images_version=2),
    _corruption("pixelate", "digital"),
    _corruption("shot_noise", "noise"),
    _corruption("snow", "weather", images_version=2),
    _corruption("zoom_blur", "blur"),
)

CORRUPTIONS = tuple(task.key for task in _CORRUPTION_TASKS)
"""The 15 corruptions of the paper, in the order of the published dataset's helper code."""


TASKS: dict[str, Task] = {
    task.key: task
    for task in (
        Task("clean", "clean", Parameters, "evaluation.images"),
        *ATTACKS,
        *_CORRUPTION_TASKS,
        *MEASURES,
    )
}
"""Tasks by key, in the order in which results are listed."""

PAPER_KEYS = ("clean", "aa_apgd-ce", "aa_square", "fgsm", "pgd", *CORRUPTIONS)
"""The twenty keys of the paper, which a sweep evaluates by default."""


CORRUPTION_GROUP = "corruptions"
"""Name of the group of all corruptions in lists of keys."""

KEY_GROUPS = {
    CORRUPTION_GROUP: CORRUPTIONS,
    "paper": PAPER_KEYS,
    "autoattack": ("aa_standard",),
    "autoattack_l2": ("aa_standard_l2",),
    "autoattack_l1": ("aa_standard_l1",),
}
"""Group → keys that replace it in lists of keys."""

_LINF_BALL = {"epsilons": ["8/255"]}

_QUICK_CORRUPTIONS = ("gaussian_noise", "defocus_blur", "jpeg_compression")
"""One corruption from each of the groups noise, blur and digital."""

PRESETS: dict[str, dict[str, dict[str, Any]]] = {
    "quick": {"clean": {}}
    | dict.fromkeys(("fgsm", "pgd", "aa_standard"), _LINF_BALL)
    | {key: {"severities": [5]} for key in _QUICK_CORRUPTIONS},
    "robustbench-linf": {"clean": {}, "aa_standard": _LINF_BALL},
    "robustbench-l2": {"clean": {}, "aa_standard_l2": {"epsilons": [0.5]}},
    "robustbench-corruptions": {key: {} for key in ("clean", *CORRUPTIONS)},
}
"""Preset → its keys with their parameters, for evaluations of single networks. It cannot be combined with keys."""

N_QUICK_IMAGES = 200
"""Number of images that the preset `quick` evaluates by default."""

FEW_CLASSES_KEYS = dict.fromkeys(("aa_apgd-ce", "aa_fab-t", "aa_square"), _LINF_BALL)
"""Keys that replace AutoAttack in the preset `quick` for networks with two or three classes."""


def expand_keys(names: Iterable[str], known: Collection[str] = TASKS) -> tuple[str, ...]:
    """Replace each group with its known keys, without duplicates.

    A group without known keys stays in the list, so that the caller rejects it as an unknown key.
    """
    members = {
        group: tuple(key for key in keys if key in known) or (group,)
        for group, keys in KEY_GROUPS.items()
        if group not in known
    }
    return tuple(dict.fromkeys(key for name in names for key in members.get(name, (name,))))


def suggest_key(name: str, known: Iterable[str]) -> str:
    """Suggest a known key for an unknown name, as a sentence to append to an error message (see `did_you_mean`).

    The name may also be a label in figures, such as AutoAttack.
    """
    known = list(known)
    key_by_label = {_normalise(task.label): task.key for task in TASKS.values() if task.key in known}
    key_by_label |= {_normalise(group): group for group in KEY_GROUPS if group in known}
    return did_you_mean(key_by_label.get(_normalise(name), name), known)


def _advise_key(key: str) -> str:
    """Return advice on an unknown key, such as how to list keys or define custom attacks, or the closest key."""
    name, colon, _ = key.partition(":")
    if colon and name in TASKS:
        return f" {name} has no strengths."
    if "," in key:
        return " In Python, pass several keys as a list."
    if key.endswith(".py"):
        return " Custom attacks and measures have the fields of docs/your-own.md, such as `file`."
    return suggest_key(name or key, [*TASKS, *KEY_GROUPS, *PRESETS])


def _normalise(text: str) -> str:
    """Return the letters and digits of a text, case-folded."""
    return "".join(filter(str.isalnum, text.casefold()))


def find_task(key: str) -> Task:
    """Return the task of a key, given with or without the norm of the published name (``pgd@Linf`` or ``pgd``).

    Raises:
        ConfigError: the key is unknown; the message suggests the closest key.
    """
    task = next((task for task in TASKS.values() if key in (task.key, task.published_key)), None)
    if task is None:
        raise ConfigError(f"Looking up a key failed for {key!r}: no such key.{_advise_key(key)}")
    return task
