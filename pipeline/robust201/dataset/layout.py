"""Names of a dataset's files, and spellings of keys: ``pgd`` in the paper's style, ``pgd@Linf`` in published files."""

from collections.abc import Iterable
from pathlib import Path

from robust201.core.records import ArchitectureId, format_architecture
from robust201.tasks import TASKS, Task

EXPORT_FORMAT = 1
"""Version of sweep.json and of the layout of an export."""

META_FILE = "meta.json"
SWEEP_FILE = "sweep.json"
MISSING_FILE = "missing.json"

RESULTS_FOLDER_FILE = "format.json"
"""File that distinguishes a sweep's results folder from an exported dataset."""

PARQUET_FOLDER = "parquet"
IMAGES_FOLDER = "images"
"""Folder of the tables that describe the images of per-image outcomes."""

PUBLISHED_DATASETS = ("cifar10", "cifar100", "ImageNet16-120")

CLEAN = "clean"

WEIGHTS_SEPARATOR = "@"
"""Text between architecture and weights in the name of a network, if architectures have several sets of weights."""


def task_of(key: str) -> Task | None:
    """Return the task of a key in either spelling; None for an unknown key."""
    return next((task for task in TASKS.values() if key in (task.key, task.published_key)), None)


def spellings(key: str) -> tuple[str, ...]:
    """Return all spellings of a key, such as ``pgd`` and ``pgd@Linf``, beginning with the given spelling."""
    task = task_of(key)
    return (key,) if task is None else tuple(dict.fromkeys((key, task.key, task.published_key)))


def paper_key(key: str) -> str:
    """Return a key in the paper's style, such as ``pgd``; unknown keys are returned unchanged."""
    task = task_of(key)
    return key if task is None else task.key


def kind_of(key: str) -> str:
    """Return the kind of a key: ``clean``, ``attack``, ``corruption``, ``measure``, or ``other`` for an unknown key."""
    task = task_of(key)
    return "other" if task is None else task.kind


def sort_by_task_order(keys: Iterable[str]) -> list[str]:
    """Sort keys in the order of `TASKS`, unknown keys last."""
    task_keys = list(TASKS)
    return sorted(keys, key=lambda key: (task_keys.index(task.key) if (task := task_of(key)) else len(task_keys), key))


def parquet_name(dataset: str, key: str) -> str:
    """Return the name of a key's Parquet file, relative to the export's folder."""
    return f"{PARQUET_FOLDER}/dataset={dataset}/key={key}/part-0.parquet"


def images_name(dataset: str) -> str:
    """Return the name of the table of a dataset's images, relative to the export's folder."""
    return f"{IMAGES_FOLDER}/dataset={dataset}/part-0.parquet"


def is_dataset(folder: Path) -> bool:
    """Return whether a folder is an exported or published dataset; a sweep's results folder is not."""
    if (folder / RESULTS_FOLDER_FILE).is_file():
        return False
    return (folder / META_FILE).is_file()


def parse_architecture_id(identifier: str) -> ArchitectureId:
    """Return the architecture for an id in a file: an index (int) or a name."""
    return int(identifier) if identifier.isdecimal() else identifier


def format_id(identifier: str) -> str:
    """Return an id in a file as shown in messages: ``#21``, or ``resnet18``."""
    return format_architecture(parse_architecture_id(identifier))


def architecture_of_network(network: ArchitectureId) -> ArchitectureId:
    """Return the architecture of a network: the part of the network's name before ``@``, or the whole name."""
    return network if isinstance(network, int) else parse_architecture_id(network.partition(WEIGHTS_SEPARATOR)[0])
