"""Networks and images that are so small, and parameters with so few steps, that an attack takes milliseconds."""

import dataclasses

import numpy as np
import torch
from torch import nn

from robust201.attacks.context import Context, Request
from robust201.attacks.contract import perturb
from robust201.core.records import ImageSet, Normalisation, Part, Unit, image_hash
from robust201.networks.batch_sizes import BatchSizes, Maxima
from robust201.networks.classifier import Classifier
from robust201.tasks import TASKS, Task
from robust201.tasks.constraints import LINF

N_CLASSES = 5
SIZE = 8
BATCH_SIZE = 8
SEED = 11
NORMALISATION = Normalisation((0.49, 0.48, 0.45), (0.25, 0.24, 0.26))
SMALL_PARAMETERS = {
    "severities": (1, 5),
    "steps": 4,
    "restarts": 1,
    "targets": 2,
    "queries": 8,
    "random_start": True,
    "rotations": 3,
}
"""Parameter values that make attacks fast, by name."""
SMALL_PARAMETERS_BY_KEY = {
    "aa_standard": {"steps": 2, "queries": 4},
    "aa_fab-t": {"steps": 2},
}
"""Parameters of attacks that would be slow even with `SMALL_PARAMETERS`, by the key without its norm."""
SMALL_EPSILONS_255 = (1, 8)


class TinyNetwork(nn.Module):
    """Network with one convolution and one linear layer."""

    def __init__(self, seed=0, n_classes=N_CLASSES):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.stem = nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.AvgPool2d(4))
            self.classifier = nn.Linear(24, n_classes)
            nn.init.normal_(self.classifier.weight, std=3.0)

    def forward(self, pixels):
        return self.classifier(self.stem(pixels).flatten(1))


class Float64Network(nn.Module):
    """The tiny network in float64. After rounding to float32, its logits do not depend on the batch size."""

    def __init__(self):
        super().__init__()
        self.network = TinyNetwork().double()

    def forward(self, pixels):
        return self.network(pixels.double()).float()


class PathlessNetwork(nn.Module):
    """Network with constant logits.

    If `has_gradients`, the gradient exists and is zero, as in published cells without a path. Otherwise
    autograd finds no path from the logits to the pixels.
    """

    def __init__(self, logits, *, has_gradients=True):
        super().__init__()
        self.logits = nn.Parameter(torch.tensor(logits))
        self.has_gradients = has_gradients

    def forward(self, pixels):
        zeros = pixels * 0.0 if self.has_gradients else torch.zeros_like(pixels)
        return zeros.mean(dim=(1, 2, 3))[:, None] + self.logits


class CountingNetwork(nn.Module):
    """Wrapper that counts the images that pass through a network."""

    def __init__(self, network):
        super().__init__()
        self.network = network
        self.n_images = 0

    def forward(self, pixels):
        self.n_images += len(pixels)
        return self.network(pixels)


def tiny_classifier(network=None, micro_batch=None, attack_samples=None):
    maxima = None if attack_samples is None else Maxima(attack_samples, attack_samples)
    batch_sizes = BatchSizes(maxima, limit=micro_batch)
    return Classifier(network or TinyNetwork(), NORMALISATION, N_CLASSES, batch_sizes=batch_sizes)


def checked_classifier(network):
    """Return a classifier of a `CountingNetwork` after its first gradient, which needs extra passes for a check."""
    classifier = tiny_classifier(network)
    classifier.loss_and_gradient(torch.zeros(1, 3, SIZE, SIZE), torch.zeros(1, dtype=torch.int64))
    network.n_images = 0
    return classifier


def tiny_images(n_images=21, labels=None, classifier=None):
    """Return smooth random images. By default, three in four labels are the classifier's predictions."""
    rng = np.random.default_rng(3)
    coarse = rng.integers(0, 256, (n_images, 3, 2, 2))
    noise = rng.integers(-20, 20, (n_images, 3, SIZE, SIZE))
    images = np.clip(coarse.repeat(4, axis=2).repeat(4, axis=3) + noise, 0, 255).astype(np.uint8)
    if labels is None:
        predicted = (classifier or tiny_classifier())(torch.from_numpy(images) / 255).argmax(dim=1).numpy()
        labels = np.where(np.arange(n_images) % 4 == 3, (predicted + 1) % N_CLASSES, predicted)
    labels = np.asarray(labels, dtype=np.int64)
    indices = np.arange(n_images, dtype=np.int64) * 3 + 1
    sha256 = image_hash(images, labels, indices)
    return ImageSet("tiny", images, labels, indices, N_CLASSES, NORMALISATION, sha256)


def corrupted_images(key, severity, indices):
    """Return pixels that depend only on corruption, severity and index."""
    return np.stack(
        [
            np.random.default_rng([severity, int(index), *key.encode()]).integers(0, 256, (3, SIZE, SIZE), np.uint8)
            for index in indices
        ]
    )


def tiny_context(key, classifier=None, first_batch=0, batch_size=BATCH_SIZE):
    return Context(
        classifier or tiny_classifier(),
        seed=SEED,
        batch_size=batch_size,
        corrupted_images=corrupted_images,
        first_batch=first_batch,
        key=key,
    )


def small_parameters(task: Task, **changes):
    """Return a task's parameters with few steps and strengths."""
    return attack_parameters(task, **small_parameter_values(task) | changes)


def small_parameter_values(task: Task):
    """Return small values of the parameters that determine a task's run time."""
    changes = SMALL_PARAMETERS | SMALL_PARAMETERS_BY_KEY.get(task.key.removesuffix("_l2").removesuffix("_l1"), {})
    return {name: value for name, value in changes.items() if name in task.field_names}


def attack_parameters(task, epsilons_255=SMALL_EPSILONS_255, **changes):
    """Return a task's parameters, with epsilons for the norm of the task.

    In norms other than Linf, a ball reaches as far along the diagonal as the Linf ball of radius `epsilons_255` / 255.
    """
    if task.constraint is None:
        return task.parameters(**changes)
    if task.constraint is LINF:
        return task.parameters(epsilons=[f"{epsilon}/255" for epsilon in epsilons_255], **changes)
    diagonal = float(task.constraint.distances(torch.ones(1, 3, SIZE, SIZE)))
    epsilons = [epsilon / 255 * diagonal * task.constraint.divisor for epsilon in epsilons_255]
    return task.parameters(epsilons=epsilons, **changes)


def part_of(task, parameters, images, start=0, stop=None, strengths=None):
    strengths = strengths or parameters.strengths
    unit = Unit("0" * 32, 0, images.dataset, task.key, parameters.strengths, len(images), "1" * 32, "2" * 64)
    return Part(unit, strengths, start, len(images) if stop is None else stop)


def request_of(images, strengths):
    """Return a request to attack all images at `strengths`."""
    return Request(strengths, torch.from_numpy(images.images), torch.from_numpy(images.labels), images.indices)


def measure_network(key, image_set, classifier=None, /, *, seed=SEED, batch_size=BATCH_SIZE, **parameters):
    """Return the columns of a measure as numbers."""
    context = dataclasses.replace(tiny_context(key, classifier, batch_size=batch_size), seed=seed)
    values = TASKS[key].load("fused")(context, TASKS[key].parameters(**parameters), request_of(image_set, (0.0,)))
    return {name: float(value) for name, value in values.items()}


def perturb_all(task, parameters, images, context, strengths=None):
    """Perturb images with a task; return the images (N, 3, H, W) by strength, in the original order."""
    strengths = strengths or parameters.strengths
    pixels = torch.from_numpy(images.images)
    perturbed = {strength: torch.full(pixels.shape, torch.nan) for strength in strengths}
    for batch in perturb(task, context, parameters, request_of(images, strengths)):
        perturbed[strengths[batch.strength_index]][batch.positions] = batch.images
    return perturbed
