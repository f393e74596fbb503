"""Results that a network could have given, for the tests of the store: every image has its own random logits."""

import numpy as np
import torch

from pipeline import noise
from pipeline.measurements import Accumulator
from pipeline.records import EvaluationResult, Part, Unit, unit_id

ALL = ("accuracy", "confidence", "cm", "predictions")
DEFAULT = ("accuracy", "confidence", "cm")


def make_unit(architecture=21, dataset="digits", key="pgd", strengths=(1.0, 4.0), n_images=30, checkpoint="c" * 64):
    protocol = f"{dataset}-{key}".ljust(32, "0")
    identifier = unit_id("nasbench201", architecture, checkpoint, protocol)
    return Unit(identifier, architecture, dataset, key, tuple(strengths), n_images, protocol, checkpoint)


def make_results(unit, strengths=None, start=0, stop=None, measurements=DEFAULT, n_classes=3, seed=0):
    strengths = unit.strengths if strengths is None else tuple(strengths)
    stop = unit.n_images if stop is None else stop
    part = Part(unit, strengths, start, stop)
    return [
        EvaluationResult(part, s, make_values(unit, s, start, stop, measurements, n_classes, seed), 0.5, {"host": "h"})
        for s in strengths
    ]


def make_values(unit, strength, start, stop, measurements=DEFAULT, n_classes=3, seed=0):
    draws = noise.generator(seed, unit.id, strength)
    logits = torch.from_numpy(draws.normal(size=(unit.n_images, n_classes)).astype(np.float32))[start:stop]
    labels = (torch.arange(unit.n_images) % n_classes)[start:stop]  # every row of a dataset is about the same images
    accumulator = Accumulator(measurements, n_classes, "cpu", stop - start)
    accumulator.update(torch.arange(stop - start), logits, labels)
    return accumulator.finalise()


def assert_equal_values(one, other):
    assert one.keys() == other.keys()
    for name in one:
        assert one[name].dtype == other[name].dtype
        assert one[name].shape == other[name].shape
        assert one[name].tobytes() == other[name].tobytes(), name


def whole(unit):
    return Part(unit, unit.strengths, 0, unit.n_images)
