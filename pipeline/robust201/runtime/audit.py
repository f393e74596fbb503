"""An audit of a sweep: some of its networks are attacked with the reference libraries too, and compared by image.

Both engines evaluate the same networks on the same images, each as a small sweep of its own with predicted classes, in
a folder beside the sweep's. So an audit resumes and runs on the same executors, and nothing of the sweep is touched.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robust201.core.errors import ConfigError, IncompleteError
from robust201.core.records import ArchitectureId, Unit, show_architecture
from robust201.planning.config import SweepConfig
from robust201.planning.inputs import Inputs
from robust201.planning.plan_file import load_plan
from robust201.runtime.scheduler import RunTally
from robust201.shards import ShardStore
from robust201.statistics.significance import holm_adjust, mcnemar_p_values
from robust201.tasks import ENGINES, TASKS, closest_key

AUDIT_LEVEL = 0.01
"""Probability that an audit of two equal engines finds a difference."""

RunSweep = Callable[[SweepConfig], RunTally]

_Place = tuple[str, ArchitectureId, str, str, float]


@dataclass(frozen=True)
class AuditedEvaluation:
    """One network under one key at one strength, with both engines.

    Attributes:
        correct: images classified correctly by engine, in the order of `tasks.ENGINES`.
        only_one: images classified correctly with one engine only, in the same order.
        p_value: of McNemar's exact test (two-sided) that the engines are equally strong.
        adjusted_p_value: after Holm, over all evaluations of the audit.
    """

    dataset: str
    architecture: ArchitectureId
    weights: str
    key: str
    strength: float
    n_images: int
    correct: tuple[int, int]
    only_one: tuple[int, int]
    p_value: float
    adjusted_p_value: float

    @property
    def label(self) -> str:
        network = " ".join(filter(None, (show_architecture(self.architecture), self.dataset, self.weights)))
        return f"{network} {self.key} at {self.strength:g}"

    @property
    def differs(self) -> bool:
        """Whether chance alone would hardly make the engines differ so much."""
        return self.adjusted_p_value < AUDIT_LEVEL

    def to_payload(self) -> dict[str, Any]:
        by_engine = {name: dict(zip(ENGINES, getattr(self, name), strict=True)) for name in ("correct", "only_one")}
        return asdict(self) | by_engine | {"differs": self.differs}


def sample_sweep(
    config: SweepConfig, *, networks: int, images: int, seed: int, keys: Collection[str] | None, out: Path
) -> dict[str, SweepConfig]:
    """Make the small sweeps of an audit, by engine.

    Raises:
        ConfigError: a key is no attack of the sweep that both engines can compute as it is set there, or none is; or
            the folder holds something else.
        DatasetError: images are missing or damaged.
    """
    others = [path.name for path in sorted(out.iterdir()) if path.name not in ENGINES] if out.is_dir() else []
    if others:
        raise ConfigError(
            f"Auditing failed for {out}: expected a new folder or that of an audit, got one with {others[0]}. "
            "Name another by --out."
        )
    audited = [
        key
        for key, parameters in config.parameters.items()
        if key in TASKS
        and TASKS[key].kind == "attack"
        and all(engine in TASKS[key].functions and parameters.refusal(engine) is None for engine in ENGINES)
    ]
    wrong = [key for key in keys or () if key not in audited]
    if wrong or not audited:
        got = f"another key; there are {', '.join(audited)}" if audited else "none"
        raise ConfigError(
            f"Auditing failed for {wrong[0] if wrong else config.name}: expected attacks of the sweep that both "
            f"engines can compute, got {got}. Name others by --keys, or audit another sweep."
            f"{closest_key(wrong[0], audited) if wrong else ''}"
        )
    every = Inputs(config.model_copy(update={"images": config.images.model_copy(update={"count": None})}))
    count = min(images, *(len(every.images(dataset)) for dataset in config.datasets))
    names = config.selected_architectures
    drawn = np.random.default_rng(seed).choice(len(names), size=min(networks, len(names)), replace=False)
    common = {
        "architectures": tuple(names[place] for place in sorted(drawn.tolist())),
        "images": config.images.model_copy(update={"count": count, "seed": seed}),
        "keys": {key: config.keys[key] for key in audited if keys is None or key in keys},
        "datasets": {name: given.model_copy(update={"corruptions": None}) for name, given in config.datasets.items()},
        "measurements": ("accuracy", "cm", "predictions"),
        "shards": None,
        "sampling": None,
    }
    return {
        engine: config.model_copy(update=common | {"results": out / engine, "engine": engine}) for engine in ENGINES
    }


def audit_sweep(sweeps: Mapping[str, SweepConfig], run: RunSweep) -> tuple[AuditedEvaluation, ...]:
    """Evaluate the sample with both engines, and test whether they are equally strong.

    Raises:
        InputError: bad input; nothing was started.
        IncompleteError: something was not computed; the same audit goes on where it stopped.
    """
    outcomes: dict[str, dict[_Place, NDArray[np.bool_]]] = {}
    for engine, config in sweeps.items():
        if not run(config).complete:
            raise IncompleteError(
                f"Auditing failed for {config.results}: expected every evaluation of the sample, got some that are "
                "missing. Run the same audit again: it goes on where it stopped."
            )
        outcomes[engine] = dict(_read_outcomes(config))
    first, second = (outcomes[engine] for engine in ENGINES)
    only_first = {place: int((first[place] & ~second[place]).sum()) for place in first}
    only_second = {place: int((second[place] & ~first[place]).sum()) for place in first}
    p_values = mcnemar_p_values([*only_first.values()], [*only_second.values()])
    adjusted = holm_adjust(p_values)
    return tuple(
        AuditedEvaluation(
            *place,
            n_images=len(first[place]),
            correct=(int(first[place].sum()), int(second[place].sum())),
            only_one=(only_first[place], only_second[place]),
            p_value=float(p_values[number]),
            adjusted_p_value=float(adjusted[number]),
        )
        for number, place in enumerate(first)
    )


def _read_outcomes(config: SweepConfig) -> Iterator[tuple[_Place, NDArray[np.bool_]]]:
    """Read which images each evaluation of a finished sample classified correctly."""
    plan, store, inputs = load_plan(config.results), ShardStore.open(config.results), Inputs(config)
    labels = {dataset: np.asarray(inputs.images(dataset).labels) for dataset in config.datasets}
    unit: Unit
    values: Mapping[float, Mapping[str, Any]]
    for unit, values in store.select(plan.units, store.inventory(), ("predictions",)).iter_values():
        for strength, columns in values.items():
            place = unit.dataset, unit.architecture, unit.weights, unit.key, strength
            yield place, columns["predictions"] == labels[unit.dataset]
