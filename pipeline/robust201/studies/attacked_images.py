"""Attacked images for the study of image distributions: one image per group and network."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robust201.planning.config import SweepConfig
from robust201.planning.inputs import Inputs
from robust201.studies.config import ImageDistributionStudy, StudyGroup, StudyNetwork
from robust201.weights.manifest import CheckpointRecord
from robust201.weights.store import CheckpointStore

AttackedImages = dict[str, NDArray[np.float32]]
"""For each group, pixels (1 + S, 3, H, W) in [0, 1]: the clean image and the attacked images at S strengths."""


def attack_example_images(study: ImageDistributionStudy, sweeps: Sequence[SweepConfig]) -> dict[str, AttackedImages]:
    """For each network of the study, attack the first image of each group's dataset. Omit groups without weights.

    If a store has several snapshots, the one after the most epochs is used; among equals, the one with the lowest
    seed.

    Raises:
        CheckpointError: weights are damaged.
        EvaluationError: see `robust201.attack`.
    """
    images_by_network: dict[str, AttackedImages] = {}
    for name, network in study.networks.items():
        attacked_by_group = {}
        for group, study_group in study.groups.items():
            for sweep in sweeps:
                record = _choose_weights(sweep, network, study_group)
                if record is not None:
                    attacked_by_group[group] = _attack_image(sweep, study.key, study_group.dataset, record)
                    break
        images_by_network[name] = attacked_by_group
    return images_by_network


def find_attack_strengths(study: ImageDistributionStudy, sweeps: Sequence[SweepConfig]) -> tuple[float, ...]:
    """Return the strengths of the study's attack; empty if its sweeps have different strengths."""
    distinct_strengths = {sweep.parameters[study.key].strengths for sweep in sweeps if study.key in sweep.parameters}
    return distinct_strengths.pop() if len(distinct_strengths) == 1 else ()


def _choose_weights(sweep: SweepConfig, network: StudyNetwork, group: StudyGroup) -> CheckpointRecord | None:
    """Return the record of the weights to attack, for a network and group in a sweep; None if the sweep has none."""
    section, space = sweep.weights, sweep.make_space({})
    if group.dataset not in sweep.datasets or section is None or section.path is None:
        return None
    architecture = space.resolve(network.architecture)
    records = [
        record
        for record in CheckpointStore(section.path).records()
        if record.network == (space.weights_name, group.dataset, architecture)
        and record.recipe in group.recipes
        and (section.recipes is None or record.recipe in section.recipes)
        and record.steps is None
    ]
    return min(records, key=lambda record: (-record.epochs, record.seed), default=None)


def _attack_image(sweep: SweepConfig, key: str, dataset: str, record: CheckpointRecord) -> NDArray[np.float32]:
    from robust201.api import attack
    from robust201.models.classifier import Classifier
    from robust201.weights.loading import fill_network

    assert sweep.weights is not None and sweep.weights.path is not None  # noqa: S101, PT018 - `_choose_weights` has read a record from it
    space, images = sweep.make_space({}), Inputs(sweep).images(dataset)
    network = space.build(record.index, n_classes=images.n_classes)
    fill_network(network, CheckpointStore(sweep.weights.path).load(record), record.label)
    classifier = Classifier(network, images.normalisation, images.n_classes, channels_last=space.channels_last)
    parameters: dict[str, Any] = sweep.parameters[key].model_dump()
    attacked = attack(key, classifier, images.images[:1], images.labels[:1], seed=sweep.seed, **parameters)
    clean = images.images[:1].astype(np.float32) / 255
    return np.concatenate([clean, attacked[:, 0].cpu().numpy()])
