"""The plan of a sweep: its units and their slices, as arrays per dataset and key.

A unit is one network (architecture and weights) on one dataset under one protocol. Its images are cut into slices whose
number depends on the unit and the results folder only, so every run uses the same slices. Planning is deterministic
and does not need torch.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robust201.core.records import ArchitectureId, Unit, content_digest, unit_id
from robust201.evaluation.user_task import UserTask
from robust201.networks.user_file import DEFAULT_GMACS
from robust201.store.folder import ResultsFolder, SliceFormat
from robust201.store.names import MAX_SLICES
from robust201.sweep.config import SweepConfig
from robust201.sweep.facts import Facts, Network, load_plan
from robust201.sweep.protocol import make_protocol
from robust201.sweep.user_tasks import make_task
from robust201.tasks import Task
from robust201.tasks.attacks import Attack
from robust201.tasks.columns import PREDICTIONS, columns_of
from robust201.tasks.parameters import Parameters

SLICE_SECONDS = 60.0
"""Target time of a slice at one strength on a worker of the assumed speed, in a new results folder. All missing
strengths of a slice form one part, so with the paper's five to eleven strengths a part takes several minutes."""

IMAGES_PER_STEP = 8
"""Slices begin at multiples of this number of images if results do not depend on the batch, to the last bit. With
several strengths, this number of images fills a batch of the compiled network."""

USER_ATTACK_PASSES = 30.0
"""Number of forward passes from which the number of slices of a user's attack is computed. The attack's `passes` are
not used, because they are not in the protocol and may change. In the same way, `DEFAULT_GMACS` replaces `gmacs`."""


@dataclass(frozen=True, eq=False)
class PlannedKey:
    """The units of one key on one dataset.

    Attributes:
        protocol: digest of `payload`.
        payload: the protocol (see `sweep.protocol`).
        columns: columns that a result must have.
        step: slices begin at multiples of this number of images.
        networks: the networks (N).
        units: (N,) S32, ids of the units.
        n_slices: (N,) int64, number of slices of each unit.
        macs: (N,) float64, multiply-accumulates of each unit at one strength.
    """

    dataset: str
    task: Task
    parameters: Parameters
    protocol: str
    payload: Mapping[str, Any]
    columns: tuple[str, ...]
    n_images: int
    step: int
    networks: tuple[Network, ...]
    units: NDArray[np.bytes_]
    n_slices: NDArray[np.int64]
    macs: NDArray[np.float64]

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"task": self.key}  # functions in the table of tasks cannot be pickled

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state | {"task": make_task(state["task"], state["parameters"])})

    @property
    def key(self) -> str:
        return self.task.key

    @cached_property
    def strengths(self) -> tuple[float, ...]:
        return self.parameters.strengths

    @property
    def n_evaluations(self) -> int:
        return len(self.networks) * len(self.strengths)

    @cached_property
    def first_slices(self) -> NDArray[np.int64]:
        """(N + 1,) position of each unit's first slice among the slices of all units, then the number of all slices."""
        return np.concatenate([[0], np.cumsum(self.n_slices)])

    def unit(self, network: int) -> Unit:
        """Return the unit of the network at a position."""
        planned = self.networks[network]
        return Unit(
            id=self.units[network].decode(),
            architecture=planned.architecture,
            dataset=self.dataset,
            key=self.key,
            strengths=self.strengths,
            n_images=self.n_images,
            protocol=self.protocol,
            checkpoint_sha256=planned.weights.sha256,
            weights=planned.name,
            columns=self.task.columns,
        )

    def images_of_slice(self, index: int, n_slices: int) -> tuple[int, int]:
        """Return the positions [start, stop) of the images of a slice."""
        n_steps = -(-self.n_images // self.step)
        start, stop = (self.step * (position * n_steps // n_slices) for position in (index, index + 1))
        return start, min(stop, self.n_images)

    def networks_without_weights(self) -> list[int]:
        """Return the positions of the networks whose weights are unknown (see `sweep.facts.Network`)."""
        return [position for position, network in enumerate(self.networks) if not network.weights.sha256]

    def keep_architectures(self, architectures: Collection[ArchitectureId]) -> "PlannedKey":
        """Return the key with the networks of some architectures."""
        kept = [index for index, network in enumerate(self.networks) if network.architecture in architectures]
        return replace(
            self,
            networks=tuple(self.networks[index] for index in kept),
            units=self.units[kept],
            n_slices=self.n_slices[kept],
            macs=self.macs[kept],
        )


@dataclass(frozen=True, eq=False)
class Plan:
    """All units of a sweep, by dataset and key, in the order of the YAML and of the table of tasks."""

    config: SweepConfig
    facts: Facts
    keys: tuple[PlannedKey, ...]

    @property
    def n_evaluations(self) -> int:
        return sum(key.n_evaluations for key in self.keys)

    def narrow(
        self,
        *,
        architectures: Collection[ArchitectureId] | None = None,
        datasets: Collection[str] | None = None,
        keys: Collection[str] | None = None,
    ) -> "Plan":
        """Return a plan of the units that match all filters; None matches everything."""
        kept = [
            key
            for key in self.keys
            if (datasets is None or key.dataset in datasets) and (keys is None or key.key in keys)
        ]
        if architectures is not None:
            kept = [key.keep_architectures(architectures) for key in kept]
        return replace(self, keys=tuple(key for key in kept if key.networks))

    @property
    def comparable(self) -> "Plan":
        """The plan without keys whose images a file chooses; accuracies on different images are not comparable."""
        return replace(self, keys=tuple(key for key in self.keys if key.parameters.images_file is None))

    def save_records(self, folder: ResultsFolder) -> None:
        """Store the protocols, and the tuples of strengths and columns to which the names of shards will refer."""
        for key in self.keys:
            folder.save_record(key.protocol, key.payload)
            folder.save_tuple(key.strengths)
            folder.save_tuple(key.columns)


def choose_slices(config: SweepConfig) -> SliceFormat:
    """Choose how the units of a new results folder are sliced."""
    execution = config.execution
    return SliceFormat(SLICE_SECONDS * execution.assumed_gmacs(), config.batch_size, execution.device == "cpu")


def make_plan(config: SweepConfig, facts: Facts, slices: SliceFormat) -> Plan:
    """Plan all units of a sweep; equal arguments give equal ids and slices on every machine."""
    tasks, parameters = config.tasks, config.parameters
    keys = []
    for dataset in config.datasets:
        networks = facts.datasets[dataset].networks
        macs = _macs_per_pass(config, dataset, networks, facts)
        keys += [
            _plan_key(config, dataset, tasks[key], parameters[key], facts, slices, macs)
            for key in config.keys_of(dataset)
        ]
    return Plan(config, facts, tuple(keys))


def _macs_per_pass(config: SweepConfig, dataset: str, networks: Sequence[Network], facts: Facts) -> NDArray[np.float64]:
    space, spec = config.make_space(facts.code), config.dataset_spec(dataset)
    macs = {
        architecture: space.macs(architecture, n_classes=spec.n_classes, image_size=spec.image_size)
        for architecture in {network.architecture for network in networks}
    }
    return np.array([macs[network.architecture] for network in networks], np.float64)


def _plan_key(
    config: SweepConfig,
    dataset: str,
    task: Task,
    parameters: Parameters,
    facts: Facts,
    slices: SliceFormat,
    macs_per_pass: NDArray[np.float64],
) -> PlannedKey:
    n_classes, networks = config.dataset_spec(dataset).n_classes, facts.datasets[dataset].networks
    n_images = facts.datasets[dataset].images_of(task.key).n_images
    payload = make_protocol(config, dataset, task.key, facts)
    protocol = content_digest(payload)
    ids = [unit_id(config.space_name, network.architecture, network.weights.sha256, protocol) for network in networks]
    step = _images_per_step(config, task, facts, slices)
    macs_for_slices = _macs_for_slices(config, task, parameters, n_classes, macs_per_pass)
    n_slices = _count_slices(macs_for_slices * n_images, n_images, step, slices)
    return PlannedKey(
        dataset=dataset,
        task=task,
        parameters=parameters,
        protocol=protocol,
        payload=payload,
        columns=task.columns or columns_of((*config.measurements, PREDICTIONS), n_classes),
        n_images=n_images,
        step=step,
        networks=networks,
        units=np.array(ids, "S32"),
        n_slices=n_slices if task.is_divisible else np.ones_like(n_slices),
        macs=macs_per_pass * parameters.n_passes(n_classes) * n_images,
    )


def _macs_for_slices(
    config: SweepConfig, task: Task, parameters: Parameters, n_classes: int, macs_per_pass: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the cost per image (N,) that sets the number of slices; no field outside the protocol affects it."""
    if isinstance(parameters, Attack):  # some attacks serve all epsilons at once, so n_passes depends on their number
        parameters = parameters.model_copy(update={"epsilons": parameters.epsilons[:1]})
    if not isinstance(config.space, str):
        macs_per_pass = np.full_like(macs_per_pass, DEFAULT_GMACS * 1e9)
    return macs_per_pass * (USER_ATTACK_PASSES if isinstance(task, UserTask) else parameters.n_passes(n_classes))


def _images_per_step(config: SweepConfig, task: Task, facts: Facts, slices: SliceFormat) -> int:
    """Return the step: slices begin at its multiples, so that no bit of a result depends on the slices."""
    if task.shares_random_numbers_in_batch(config.engine):
        return config.batch_size  # part of the protocol
    is_invariant = config.make_space(facts.code).is_batch_invariant
    return IMAGES_PER_STEP if is_invariant and config.precision == "fp32" and slices.is_cpu else slices.batch_size


def _count_slices(macs: NDArray[np.float64], n_images: int, step: int, slices: SliceFormat) -> NDArray[np.int64]:
    n_slices = np.ceil(macs / (slices.slice_gmacs * 1e9))
    return np.clip(n_slices, 1, min(MAX_SLICES, -(-n_images // step))).astype(np.int64)


def open_results(results: Path) -> tuple[Plan, ResultsFolder]:
    """Open a results folder with the plan of its last run.

    Raises:
        InputError: the path is not a results folder, or has no valid plan.
    """
    folder, (config, facts) = ResultsFolder.open(results), load_plan(results)
    return make_plan(config, facts, folder.slices), folder
