"""Fabricated results in memory, mainly for tests of exports."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from robust201.core.errors import StorageError
from robust201.core.records import (
    CLEAN_STRENGTH,
    ArchitectureId,
    ImageSet,
    Normalisation,
    Unit,
    Weights,
    content_digest,
)
from robust201.dataset.export import ExportReport, write_dataset
from robust201.dataset.groups import Group, SweepFacts
from robust201.dataset.shard_rows import UnitColumns
from robust201.images import DATASETS
from robust201.store.shards import stack
from robust201.tasks import TASKS, Task
from robust201.tasks.columns import Values, fields_of

N_IMAGES = 40
LABELS = np.arange(N_IMAGES) % 3


def make_images(dataset: str, first_index: int = 7) -> ImageSet:
    """Return images for fabricated results; their indices are every second number from `first_index`."""
    pixels = np.random.default_rng(0).integers(0, 256, (N_IMAGES, 3, 4, 4), dtype=np.uint8)
    indices = first_index + 2 * np.arange(N_IMAGES)
    return ImageSet(dataset, pixels, LABELS, indices, 3, Normalisation((0,) * 3, (1,) * 3), "0" * 64)


def make_unit(
    architecture: ArchitectureId,
    dataset: str,
    key: str,
    strengths: Sequence[float],
    *,
    weights: str = "",
    columns: tuple[str, ...] | None = None,
) -> Unit:
    identifier = content_digest([architecture, dataset, key, *([weights] if weights else [])])
    columns = TASKS[key].columns if columns is None else columns
    return Unit(
        identifier, architecture, dataset, key, tuple(strengths), N_IMAGES, "p" * 32, "c" * 64, weights, columns
    )


@dataclass(frozen=True)
class FabricatedPlan:
    """Substitute for `sweep.plan.Plan`."""

    units: tuple[Unit, ...]
    measurements: tuple[str, ...] = ("accuracy", "confidence", "cm")
    name: str = "fabricated"
    protocols: tuple[dict[str, Any], ...] = ()
    tasks: Mapping[str, Task] = field(default_factory=lambda: TASKS)
    weights: Mapping[str, Weights] = field(default_factory=dict)
    space_name: str = "nasbench201"

    def facts(self) -> SweepFacts:
        images = {"count": N_IMAGES, "seed": 3}
        record = {"name": self.name, "images": images, "seed": 0, "protocols": list(self.protocols)}
        return SweepFacts(
            record=record if self.space_name == "nasbench201" else record | {"space": self.space_name},
            fields={"name": self.name},
            space=self.space_name,
            tasks=self.tasks,
            measurements=self.measurements,
            n_classes={
                name: DATASETS[name].n_classes for name in {unit.dataset for unit in self.units} & DATASETS.keys()
            },
            weights=self.weights,
        )

    def groups(self, store: "FabricatedStore", weights: str | None) -> list[Group]:
        units_by_key: dict[tuple[str, str], list[Unit]] = {}
        for unit in self.units:
            if weights in (None, unit.weights):
                units_by_key.setdefault((unit.dataset, unit.key), []).append(unit)
        return [store.group(self, units) for units in units_by_key.values()]


def make_plan(
    architectures: Iterable[int],
    keys: Iterable[str] = ("clean", "fgsm", "pgd", "fog"),
    datasets: Iterable[str] = ("cifar10",),
    *,
    epsilons: Sequence[float] = (0.5, 1.0, 8.0),
    severities: Sequence[float] = (1.0, 3.0, 5.0),
    measurements: tuple[str, ...] = ("accuracy", "confidence", "cm"),
) -> FabricatedPlan:
    strengths = {"clean": (CLEAN_STRENGTH,), "measure": (CLEAN_STRENGTH,), "attack": epsilons, "corruption": severities}
    units = [
        make_unit(architecture, dataset, key, strengths[TASKS[key].kind])
        for dataset in datasets
        for key in sorted(keys, key=list(TASKS).index)
        for architecture in sorted(architectures)
    ]
    return FabricatedPlan(tuple(units), measurements)


def make_values(unit: Unit, strength: float, n_classes: int = 3) -> Values:
    """Return plausible values of all columns.

    The accuracy usually decreases with the strength, at a rate that depends on the task's kind and on random numbers.
    """
    index = unit.architecture if isinstance(unit.architecture, int) else len(unit.architecture)
    rng = np.random.default_rng([index, len(unit.key), round(strength * 10), *unit.weights.encode()])
    if unit.columns:
        return {
            name: 100 * (rng.random(4) if name.startswith("list") else np.array(rng.random())) for name in unit.columns
        }
    clean_accuracy = 0.95 - 0.4 * (index * 7919 % 97) / 97
    task_kind = TASKS[unit.key].kind if unit.key in TASKS else "attack"
    rate = {"attack": 0.35, "corruption": 0.12}.get(task_kind, 0.0)
    chance = 1 / n_classes
    accuracy = chance + (clean_accuracy - chance) * np.exp(-rate * strength * (0.6 + rng.random()))
    n_correct = round(accuracy * N_IMAGES)
    cm = np.zeros((n_classes, n_classes), dtype=np.int32)
    labels = np.arange(N_IMAGES) % n_classes
    predictions = np.where(np.arange(N_IMAGES) < n_correct, labels, (labels + 1) % n_classes)
    np.add.at(cm, (labels, predictions), 1)
    confidences = rng.dirichlet(np.ones(n_classes), size=(2, n_classes))
    prediction_confidences = np.array([0.9, np.nan if n_correct == N_IMAGES else 0.6])
    return {
        "accuracy": np.array(np.trace(cm) / N_IMAGES),
        "cm": cm,
        "confidence_label": confidences[0],
        "confidence_argmax": np.where(cm.sum(axis=0)[:, None] > 0, confidences[1], np.nan),
        "confidence_prediction": prediction_confidences,
        "predictions": predictions.astype(np.uint8),
    }


@dataclass
class FabricatedStore:
    """Substitute for a results folder, whose `values` are computed instead of read.

    Attributes:
        n_classes: number of classes of all datasets.
        missing: architecture, key and strength of each missing evaluation.
    """

    n_classes: int = 3
    missing: set[tuple[ArchitectureId, str, float]] = field(default_factory=set)

    def group(self, plan: FabricatedPlan, units: Sequence[Unit]) -> Group:
        task = plan.tasks[units[0].key]
        sorted_units = tuple(sorted(units, key=lambda unit: unit.architecture))
        missing = {
            unit.id: strengths
            for unit in units
            if (strengths := tuple(s for s in unit.strengths if (unit.architecture, unit.key, s) in self.missing))
        }
        measurements = task.columns or plan.measurements
        complete_units = tuple(unit for unit in sorted_units if unit.id not in missing)
        columns = tuple(column for name in measurements for column in fields_of(name).values())
        return Group(
            units[0].dataset, task, measurements, sorted_units, missing, FabricatedRows(self, complete_units, columns)
        )

    def values(self, unit: Unit, strength: float) -> Values:
        return make_values(unit, strength, self.n_classes)


@dataclass
class FabricatedRows:
    """Rows of a fabricated store."""

    store: FabricatedStore
    units: tuple[Unit, ...]
    columns: tuple[str, ...]
    provenances: tuple[Mapping[str, str], ...] = ({"torch": "2", "host": "here"}, {"torch": "1"})

    def __iter__(self) -> Iterator[tuple[Unit, UnitColumns]]:
        for unit in self.units:
            rows = [self.store.values(unit, strength) for strength in unit.strengths]
            yield unit, {name: stack([row[name] for row in rows]) for name in self.columns}


@dataclass
class ChangedStore(FabricatedStore):
    """Fabricated store in which `change`, given unit, strength and values, returns replacements for some values."""

    change: Callable[[Unit, float, Values], Values] = lambda _unit, _strength, values: values

    def values(self, unit: Unit, strength: float) -> Values:
        values = super().values(unit, strength)
        return {**values, **self.change(unit, strength, values)}


class BrokenStore(FabricatedStore):
    """Fabricated store in which the row of PGD for architecture 10 is damaged."""

    def values(self, unit: Unit, strength: float) -> Values:
        if (unit.key, unit.architecture) == ("pgd", 10):
            raise StorageError("damaged")
        return super().values(unit, strength)


class SlowStore(FabricatedStore):
    """Fabricated store in which reading a row of PGD takes ten minutes."""

    def values(self, unit: Unit, strength: float) -> Values:
        if unit.key == "pgd":
            time.sleep(600)
        return super().values(unit, strength)


_CACHED_FILES: dict[str, dict[str, bytes]] = {}


def export_copy(out: Path, plan: FabricatedPlan, store: FabricatedStore | None = None, **options: Any) -> None:
    """Write the files that `export` would write, cached in memory, for tests that need an export only as input."""
    cache_key = repr((plan, type(store), vars(store or FabricatedStore()), sorted(options.items())))
    if cache_key not in _CACHED_FILES:
        export(out, plan, store, **options)
        _CACHED_FILES[cache_key] = {
            str(path.relative_to(out)): path.read_bytes() for path in out.rglob("*") if path.is_file()
        }
        return
    for relative_path, content in _CACHED_FILES[cache_key].items():
        path = out / relative_path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def export(
    out: Path,
    plan: FabricatedPlan,
    store: FabricatedStore | None = None,
    *,
    weights: str | None = None,
    images_of: Callable[[str], ImageSet] = make_images,
    **options: Any,
) -> ExportReport:
    return write_dataset(plan.facts(), plan.groups(store or FabricatedStore(), weights), out, images_of, **options)
