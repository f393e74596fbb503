"""Plausible results for tests; every image has different random logits."""

import numpy as np
import torch

from robust201.core import noise
from robust201.core.records import EvaluationResult, Part, Unit, unit_id
from robust201.evaluation.measurements import Accumulator

ALL_MEASUREMENTS = ("accuracy", "confidence", "cm", "predictions")
DEFAULT_MEASUREMENTS = ("accuracy", "confidence", "cm")
"""Measurements of the fabricated results, by default."""


def make_unit(architecture=21, dataset="digits", key="pgd", strengths=(1.0, 4.0), n_images=30, checkpoint="c" * 64):
    protocol = f"{dataset}-{key}".ljust(32, "0")
    identifier = unit_id("nasbench201", architecture, checkpoint, protocol)
    return Unit(identifier, architecture, dataset, key, tuple(strengths), n_images, protocol, checkpoint)


def make_results(unit, strengths=None, start=0, stop=None, measurements=DEFAULT_MEASUREMENTS, n_classes=3, seed=0):
    strengths = unit.strengths if strengths is None else tuple(strengths)
    stop = unit.n_images if stop is None else stop
    part = Part(unit, strengths, start, stop)
    return [
        EvaluationResult(part, s, make_values(unit, s, start, stop, measurements, n_classes, seed), 0.5, {"host": "h"})
        for s in strengths
    ]


def make_values(unit, strength, start, stop, measurements=DEFAULT_MEASUREMENTS, n_classes=3, seed=0):
    rng = noise.generator(seed, unit.id, strength)
    logits = torch.from_numpy(rng.normal(size=(unit.n_images, n_classes)).astype(np.float32))[start:stop]
    labels = (torch.arange(unit.n_images) % n_classes)[start:stop]  # all results of a dataset are for the same images
    accumulator = Accumulator(measurements, n_classes, "cpu", stop - start)
    accumulator.update(torch.arange(stop - start), logits, labels)
    return accumulator.finalise()


def assert_equal_values(values, expected):
    assert values.keys() == expected.keys()
    for name in values:
        assert values[name].dtype == expected[name].dtype
        assert values[name].shape == expected[name].shape
        assert values[name].tobytes() == expected[name].tobytes(), name
