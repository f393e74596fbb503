"""Derivatives in training mode and per batch: comparison with dense matrices and with loops that call ``train()``."""

import copy

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch import nn
from torch.nn import functional

from robust201.attacks.random_numbers import RandomNumbers
from robust201.core.errors import EvaluationError
from robust201.tasks import find_task
from tests.support.tiny_networks import N_CLASSES, SEED, tiny_classifier, tiny_images
from tests.support.tiny_networks import measure_network as measure

BATCH = 4
N_IMAGES = 12
TRAINING_PARAMETERS = {"mode": "training", "batch": BATCH, "images": N_IMAGES}
KEYS = ("jacobian", "hessian_weights", "hessian_input")
LOW_TOLERANCE = {"tolerance": 1e-5}


class BatchNormNetwork(nn.Module):
    """A smooth network with dropout and BatchNorm; the running statistics differ from the statistics of all batches."""

    def __init__(self, dropout=0.0):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(4)
            self.stem = nn.Sequential(nn.Conv2d(3, 4, 3, stride=3), nn.BatchNorm2d(4), nn.Tanh())
            self.classifier = nn.Sequential(nn.Dropout(dropout), nn.Linear(16, N_CLASSES))
            self.stem[1].running_mean.uniform_(-0.2, 0.2)
            self.stem[1].running_var.uniform_(0.5, 2.0)

    def forward(self, pixels):
        return self.classifier(self.stem(pixels).flatten(1))


def normalised_images(images, classifier):
    """Return images (N, 3, H, W) float64 after the classifier's normalisation."""
    return ((torch.from_numpy(images.images) / 255 - classifier.mean) / classifier.std).double()


def batches_of(images, classifier):
    """Return each batch's normalised images (B, 3, H, W) float64 and labels (B,)."""
    labels = torch.from_numpy(images.labels)
    return list(zip(normalised_images(images, classifier).split(BATCH), labels.split(BATCH), strict=True))


def new_network_in_mode(mode):
    """Return a new float64 network in training or evaluation mode, with its initial running statistics."""
    return BatchNormNetwork().double().train(mode == "training")


def dense_hessian(network, loss_of):
    """Return the dense Hessian of the loss in the weights; `loss_of` maps a function inputs → logits to the loss."""
    names, weights = zip(*((name, weight.detach()) for name, weight in network.named_parameters()), strict=True)
    buffers = {name: buffer.clone() for name, buffer in network.named_buffers()}

    def loss(*values):
        state = dict(zip(names, values, strict=True)) | {name: buffer.clone() for name, buffer in buffers.items()}
        return loss_of(lambda x: torch.func.functional_call(network, state, (x,)))

    blocks = torch.autograd.functional.hessian(loss, weights)
    rows = [
        torch.cat([block.reshape(weight.numel(), -1) for block in block_row], dim=1)
        for weight, block_row in zip(weights, blocks, strict=True)
    ]
    return torch.cat(rows)


@pytest.mark.parametrize("mode", ["evaluation", "training"])
def test_eigenvalues_of_weights_match_dense_hessians(mode):
    classifier, images = tiny_classifier(BatchNormNetwork()), tiny_images(N_IMAGES)
    batches = batches_of(images, classifier)
    columns = ["largest", "largest_summed", "batch_largest", "batch_largest_sd"]
    result = measure(
        "hessian_weights",
        images,
        classifier,
        **TRAINING_PARAMETERS | LOW_TOLERANCE | {"mode": mode, "columns": columns},
    )
    hessians = [
        dense_hessian(new_network_in_mode(mode), lambda call, x=x, y=y: functional.cross_entropy(call(x), y))
        for x, y in batches
    ]
    eigenvalues = np.array([float(torch.linalg.eigvalsh(hessian)[-1]) for hessian in hessians])
    expected_largest = float(torch.linalg.eigvalsh(torch.stack(hessians).mean(dim=0))[-1])
    assert result["batch_largest"] == pytest.approx(eigenvalues.mean(), rel=1e-4)
    assert result["batch_largest_sd"] == pytest.approx(eigenvalues.std(), rel=1e-3)
    assert result["largest"] == pytest.approx(expected_largest, rel=1e-4)
    assert result["largest_summed"] == 3 * result["largest"]
    assert result["batch_largest"] > 1.01 * result["largest"]  # Jensen's inequality: the two columns differ


@pytest.mark.parametrize("input_space", ["normalised", "pixels"])
def test_batch_eigenvalues_of_input_match_dense_hessians(input_space):
    classifier, images = tiny_classifier(BatchNormNetwork()), tiny_images(N_IMAGES)
    result = measure("hessian_input", images, classifier, input=input_space, **TRAINING_PARAMETERS, **LOW_TOLERANCE)
    expected = []
    for x, y in batches_of(images, classifier):
        network = new_network_in_mode("training")
        # The network's input is pixels / std + constant, so a pixel's change is multiplied by 1 / std.
        factor = torch.ones(()) if input_space == "normalised" else 1 / classifier.std.double()

        def loss(z, x=x, y=y, network=network, factor=factor):
            return functional.cross_entropy(network(x + factor * z), y, reduction="sum")

        matrix = torch.autograd.functional.hessian(loss, torch.zeros_like(x))
        size = x.numel()
        expected.append(float(torch.linalg.eigvalsh(matrix.reshape(size, size))[-1]))
    assert result["batch_largest"] == pytest.approx(np.mean(expected), rel=1e-4)
    assert result["batch_largest_sd"] == pytest.approx(np.std(expected), rel=1e-3)


def test_batch_eigenvalue_of_input_is_maximum_over_images_in_evaluation_mode():
    classifier, images = tiny_classifier(BatchNormNetwork()), tiny_images(N_IMAGES)
    parameters = {"batch": BATCH, "images": N_IMAGES} | LOW_TOLERANCE
    result = measure("hessian_input", images, classifier, columns=["batch_largest", "largest"], **parameters)
    network = new_network_in_mode("evaluation")
    largest = [
        float(
            torch.linalg.eigvalsh(
                torch.autograd.functional.hessian(
                    lambda z, y=y: functional.cross_entropy(network(z[None]), y[None]), x
                ).reshape(x.numel(), -1)
            )[-1]
        )
        for x, y in zip(normalised_images(images, classifier), torch.from_numpy(images.labels), strict=True)
    ]
    assert result["batch_largest"] == pytest.approx(np.reshape(largest, (-1, BATCH)).max(axis=1).mean(), rel=1e-4)
    assert result["largest"] == pytest.approx(np.mean(largest), rel=1e-4)


def squared_norms_from_loop(images, classifier, network, projections):
    """Return squared norms from a simple loop in training mode, which finally restores the running statistics."""
    state = copy.deepcopy(network.state_dict())
    network.train()
    squares = []
    random_numbers = RandomNumbers(SEED, "jacobian")
    for batch, normalised in enumerate(normalised_images(images, classifier).float().split(BATCH)):
        indices = images.indices[batch * BATCH : (batch + 1) * BATCH]
        total = torch.zeros(len(normalised), dtype=torch.float64)
        for projection in range(projections):
            directions = functional.normalize(random_numbers.normals(projection, indices, N_CLASSES), dim=1)
            x = normalised.clone().requires_grad_()
            (gradient,) = torch.autograd.grad((network(x) * directions).sum(), [x])
            total += gradient.double().flatten(1).square().sum(dim=1)
        squares.append(total * N_CLASSES / projections)
    network.load_state_dict(state)
    network.eval()
    return torch.cat(squares).numpy()


@pytest.mark.parametrize("projections", [1, 3])
def test_jacobian_matches_simple_loop_in_training_mode(projections):
    classifier, images = tiny_classifier(BatchNormNetwork()), tiny_images(N_IMAGES)
    columns = ["squared_norm", "squared_norm_sd", "norm"]
    result = measure("jacobian", images, classifier, projections=projections, columns=columns, **TRAINING_PARAMETERS)
    squares = squared_norms_from_loop(images, classifier, BatchNormNetwork(), projections)
    expected = {"squared_norm": squares.mean(), "squared_norm_sd": squares.std(), "norm": np.sqrt(squares).mean()}
    assert result == pytest.approx(expected, rel=1e-5)
    evaluation_result = measure("jacobian", images, classifier, projections=projections)
    assert evaluation_result["squared_norm"] != pytest.approx(result["squared_norm"], rel=0.05)


def test_projections_estimate_jacobian_of_whole_batch():
    classifier, images = tiny_classifier(BatchNormNetwork()), tiny_images(BATCH)
    result = measure("jacobian", images, classifier, projections=1000, **TRAINING_PARAMETERS | {"images": BATCH})
    ((x, _),) = batches_of(images, classifier)
    jacobian = torch.autograd.functional.jacobian(new_network_in_mode("training"), x)
    expected = float(jacobian.square().sum()) / BATCH
    assert result["squared_norm"] == pytest.approx(expected, rel=0.03)
    same_image_mean = sum(float(jacobian[n, :, n].square().sum()) for n in range(BATCH)) / BATCH
    assert expected > 1.04 * same_image_mean  # images of a batch affect each other's logits


def test_norm_is_mean_of_square_roots():
    classifier, images = tiny_classifier(BatchNormNetwork()), tiny_images(N_IMAGES)
    result = measure("jacobian", images, classifier, projections="exact", columns=["norm"])
    network, inputs = new_network_in_mode("evaluation"), normalised_images(images, classifier)
    norms = [float(torch.autograd.functional.jacobian(network, x[None]).norm()) for x in inputs]
    assert result == {"norm": pytest.approx(np.mean(norms), rel=1e-5)}


@pytest.mark.parametrize("key", KEYS)
def test_training_mode_preserves_network_and_ignores_running_statistics(key):
    network, images = BatchNormNetwork(dropout=0.3), tiny_images(N_IMAGES)
    classifier = tiny_classifier(network)
    state_before, random_state = copy.deepcopy(network.state_dict()), torch.get_rng_state()
    result = measure(key, images, classifier, **TRAINING_PARAMETERS)
    assert all(torch.equal(value, state_before[name]) for name, value in network.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random_state)
    assert not any(module.training for module in network.modules())
    assert measure(key, images, classifier, **TRAINING_PARAMETERS) == result
    assert measure(key, images, tiny_classifier(network, micro_batch=3), **TRAINING_PARAMETERS) == result
    network.stem[1].running_mean.add_(1.0)
    network.stem[1].running_var.mul_(7.0)
    assert measure(key, images, classifier, **TRAINING_PARAMETERS) == result


@pytest.mark.parametrize("key", KEYS)
def test_training_mode_depends_on_batches_and_rejects_unequal_batches(key):
    classifier, images = tiny_classifier(BatchNormNetwork()), tiny_images(N_IMAGES)
    result = measure(key, images, classifier, **TRAINING_PARAMETERS)
    assert measure(key, images, classifier, **TRAINING_PARAMETERS | {"batch": 6}) != pytest.approx(result, rel=1e-3)
    with pytest.raises(EvaluationError, match=rf"failed for {key}: 11 images are not a multiple of batch \(4\)"):
        measure(key, tiny_images(11), classifier, **TRAINING_PARAMETERS)


@pytest.mark.parametrize(
    ("key", "identity"),
    [
        ("jacobian", {"projections": 1, "input": "normalised"}),
        ("hessian_weights", {"tolerance": 0.01, "steps": 100, "batch": 256}),
        ("hessian_input", {"tolerance": 0.01, "steps": 100, "input": "normalised"}),
    ],
)
def test_identity_has_batch_only_if_the_result_depends_on_it(key, identity):
    task = find_task(key)
    default_columns = list(reversed(task.columns))
    for parameters in (task.parameters(), task.parameters(mode="evaluation", columns=default_columns)):
        assert parameters.identity() == identity | {"mode": "evaluation", "columns": list(task.columns)}
    assert task.with_parameters(task.parameters()) is task
    parameters = task.parameters(mode="training", columns=["norm"] if key == "jacobian" else ["batch_largest"])
    training_identity = {"mode": "training", "batch": 256, "columns": list(parameters.selected_columns)}
    assert parameters.identity() == identity | training_identity
    assert task.with_parameters(parameters).columns == parameters.selected_columns


@pytest.mark.parametrize(
    ("key", "fields", "message"),
    [
        ("jacobian", {"mode": "training", "projections": "exact"}, "Set projections: 10"),
        ("jacobian", {"mode": "training", "images": None}, r"a number of images in batches of 256, got null"),
        ("jacobian", {"mode": "training", "images": 300}, r"at most batch \(256\) or a multiple of it, got 300"),
        ("jacobian", {"mode": "training", "batch": 1}, "batches of 2 images or more"),
        ("jacobian", {"columns": ["largest"]}, "distinct names among squared_norm, squared_norm_sd, norm, got"),
        ("hessian_weights", {"columns": []}, "distinct names among largest"),
        ("hessian_weights", {"columns": ["largest", "largest"]}, "distinct names among largest"),
        ("hessian_input", {"mode": "training", "columns": ["largest"]}, r"mode: evaluation for the columns largest"),
        ("hessian_input", {"columns": ["batch_largest"], "images": 300}, r"at most batch \(256\) or a multiple of it"),
    ],
)
def test_parameters_reject_invalid_combinations(key, fields, message):
    with pytest.raises(ValidationError, match=message):
        find_task(key).parameters(**fields)
