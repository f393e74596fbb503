"""Zero-cost proxies: comparison of each proxy with an independent computation on small networks."""

import dataclasses

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from robust201.core.errors import EvaluationError
from robust201.spaces.nasbench201.cells import architecture
from robust201.spaces.nasbench201.network import build_network
from robust201.spaces.zoo.resnet import ResNet
from robust201.tasks import find_task
from robust201.tasks.evaluate import evaluate_part
from robust201.tasks.measures import proxies
from robust201.tasks.measures.parameters import PROXIES
from robust201.tasks.measures.trainable import normals
from tests.support.tiny_networks import (
    N_CLASSES,
    PathlessNetwork,
    TinyNetwork,
    part_of,
    request_of,
    tiny_classifier,
    tiny_context,
    tiny_images,
)


class MixedLayersNetwork(nn.Module):
    """Convolutions with and without bias, three forms of ReLU (module, in place, function), and a layer used twice."""

    def __init__(self):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(2)
            self.first = nn.Conv2d(3, 4, 3, bias=False)
            self.norm = nn.BatchNorm2d(4)
            self.act = nn.ReLU(inplace=True)
            self.second = nn.Conv2d(4, 4, 3, padding=1)
            self.linear = nn.Linear(4, N_CLASSES)

    def forward(self, pixels):
        maps = self.act(self.norm(self.first(pixels)))
        maps = functional.relu(self.second(torch.relu(self.second(maps))))
        return self.linear(maps.mean(dim=(2, 3)))


def measure(network, image_set, key="proxies", **parameters):
    task = find_task(key)
    context = tiny_context(key, tiny_classifier(network))
    values = task.load("fused")(context, task.parameters(**parameters), request_of(image_set, (0.0,)))
    return {name: float(value) for name, value in values.items()}


@pytest.fixture(scope="module")
def images():
    return tiny_images(12)


@pytest.fixture(scope="module")
def scores(images):
    return measure(MixedLayersNetwork(), images)


def network_and_batch(images):
    """Return a network in training mode, its inputs and the labels."""
    classifier = tiny_classifier()
    inputs = (torch.from_numpy(images.images) / 255 - classifier.mean) / classifier.std
    return MixedLayersNetwork().train(), inputs, torch.from_numpy(images.labels)


LAYER_WEIGHTS = ("first.weight", "second.weight", "linear.weight")


def loss_of_weights(images):
    """Return the loss as a function of the layers' weights, and the weights, in float64."""
    network, inputs, labels = network_and_batch(images)
    network, inputs = network.double(), inputs.double()
    all_weights = {name: value.detach() for name, value in network.named_parameters()}

    def loss(weights):
        return functional.cross_entropy(torch.func.functional_call(network, all_weights | weights, (inputs,)), labels)

    return loss, {name: all_weights[name] for name in LAYER_WEIGHTS}


def gradient_of(loss, weights):
    gradients = torch.autograd.functional.jacobian(
        lambda *values: loss(dict(zip(LAYER_WEIGHTS, values, strict=True))),
        tuple(weights[name] for name in LAYER_WEIGHTS),
    )
    return dict(zip(LAYER_WEIGHTS, gradients, strict=True))


def test_gradient_proxies_match_jacobian(images, scores):
    loss, weights = loss_of_weights(images)
    gradient = gradient_of(loss, weights)
    products = torch.cat([(weights[name] * gradient[name]).flatten() for name in LAYER_WEIGHTS])
    assert scores["plain"] == pytest.approx(float(products.sum()), rel=1e-4)
    assert scores["snip"] == pytest.approx(float(products.abs().sum()), rel=1e-4)
    assert scores["grad_norm"] == pytest.approx(sum(float(gradient[name].norm()) for name in LAYER_WEIGHTS), rel=1e-4)
    assert scores["l2_norm"] == pytest.approx(sum(float(weights[name].norm()) for name in LAYER_WEIGHTS), rel=1e-5)


def test_grasp_matches_difference_of_gradients(images, scores):
    """Compare with -w·Hg, where Hg is the directional derivative of the gradient along itself."""
    loss, weights = loss_of_weights(images)
    direction, step = gradient_of(loss, weights), 1e-6
    moved_gradients = [
        gradient_of(loss, {name: weights[name] + sign * step * direction[name] for name in LAYER_WEIGHTS})
        for sign in (1, -1)
    ]
    expected = -sum(
        float((weights[name] * (moved_gradients[0][name] - moved_gradients[1][name])).sum()) / (2 * step)
        for name in LAYER_WEIGHTS
    )
    assert scores["grasp"] == pytest.approx(expected, rel=1e-3)


def test_fisher_matches_gradients_of_channel_factors(images, scores):
    """An image's saliency in a channel is the loss's gradient with respect to a factor on this channel."""
    network, inputs, labels = network_and_batch(images)
    factors = []

    def scale(_layer, _inputs, output):
        factors.append(torch.ones(output.shape[:2], requires_grad=True))
        return output * (factors[-1][..., None, None] if output.ndim == 4 else factors[-1])

    for layer in (network.first, network.second, network.linear):
        layer.register_forward_hook(scale)
    functional.cross_entropy(network(inputs), labels).backward()
    fan_in = (27, 36, 36, 4)  # weights per output channel, for each call of a layer
    expected = sum(
        n_weights * 0.5 * float(factor.grad.square().mean(dim=0).sum())
        for n_weights, factor in zip(fan_in, factors, strict=True)
    )
    assert scores["fisher"] == pytest.approx(expected, rel=1e-4)


def jacobians_of(images):
    """Return the gradient of the sum of all logits with respect to each image, from the Jacobian of the whole batch."""
    network, inputs, _ = network_and_batch(images)
    batch_jacobian = torch.autograd.functional.jacobian(lambda x: network(x).sum(), inputs)
    return batch_jacobian.flatten(1).double().numpy()


def test_jacov_matches_explicit_correlations(images, scores):
    eigenvalues = np.linalg.eigvals(np.corrcoef(jacobians_of(images))).real
    expected = -sum(np.log(value + 1e-5) + 1 / (value + 1e-5) for value in eigenvalues)
    assert scores["jacov"] == pytest.approx(expected, rel=1e-3)


def test_epe_nas_matches_explicit_correlations(images, scores):
    rows, expected = jacobians_of(images), 0.0
    for label in set(images.labels.tolist()):
        class_rows = rows[images.labels == label]
        expected += abs(np.log(np.abs(np.atleast_2d(np.corrcoef(class_rows))) + 1e-5).sum())
    assert scores["epe_nas"] == pytest.approx(expected, rel=1e-3)


def test_epe_nas_compares_classes_if_there_are_many():
    """For many classes, EPE-NAS compares classes with each other and skips classes of a single image."""
    rows = np.random.default_rng(0).normal(size=(7, 20))
    labels = np.array([0, 0, 5, 5, 5, 9, 120])
    class_scores = [
        np.log(np.abs(np.corrcoef(rows[labels == label])) + 1e-5).sum() / n for label, n in ((0, 2), (5, 3))
    ]
    assert proxies.epe_nas(rows, labels, 121) == pytest.approx(abs(class_scores[0] - class_scores[1]))
    assert proxies.epe_nas(rows[-2:], labels[-2:], 121) == 0.0


def test_nwot_matches_explicit_codes(images, scores):
    network, inputs, _ = network_and_batch(images)
    with torch.no_grad():
        relu_inputs = [network.norm(network.first(inputs))]
        relu_inputs.append(network.second(relu_inputs[0].clamp_min(0)))
        relu_inputs.append(network.second(relu_inputs[1].clamp_min(0)))
    codes = torch.cat([maps.flatten(1) for maps in relu_inputs], dim=1).numpy() > 0
    agreements = [[float((code == other).sum()) for other in codes] for code in codes]
    sign, expected = np.linalg.slogdet(np.array(agreements))
    assert sign == 1
    assert scores["nwot"] == pytest.approx(expected, rel=1e-6)


def test_nwot_is_finite_for_equal_images_and_without_relu():
    # The only eigenvalue that is not zero is 4 × 9.
    assert proxies.nwot(torch.full((4, 4), 9.0, dtype=torch.float64)) == pytest.approx(np.log(36))
    assert proxies.nwot(torch.zeros(4, 4, dtype=torch.float64)) == 0.0
    assert proxies.nwot(None) == 0.0


def test_synflow_of_linear_chain_is_product_of_weights():
    """For linear layers, each layer contributes the sum of the entries of the product of all absolute weights."""

    class Chain(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.Sequential(
                nn.Conv2d(3, 4, 8, bias=False), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4, 6, bias=False),
                nn.ReLU(), nn.Linear(6, N_CLASSES, bias=False),
            )  # fmt: skip
            self.layers[1].running_mean.fill_(100.0)  # SynFlow skips BatchNorm

        def forward(self, pixels):
            return self.layers(pixels)

    chain = Chain()
    first_weight, second_weight, third_weight = (
        chain.layers[i].weight.detach().double().abs().flatten(1) for i in (0, 3, 5)
    )
    product = third_weight @ second_weight @ first_weight @ torch.ones(192, dtype=torch.float64)
    assert measure(chain, tiny_images(4))["synflow"] == pytest.approx(3 * float(product.sum()), rel=1e-9)


def test_zen_matches_explicit_computation():
    """Compare with an explicit computation of the last map and variances. Without BatchNorm the score is finite."""
    images, context = tiny_images(6), tiny_context("proxies")
    classifier = tiny_classifier(MixedLayersNetwork())
    score = measure(classifier.network, images)["zen"]
    weights = normals(context, "weights", (108 + 144 + 20,))
    first_weight, second_weight, _ = weights.split([108, 144, 20])
    map_and_variance, perturbed_map_and_variance = [], []
    for pixels, computed_values in (
        (normals(context, "images", (6, 3, 8, 8)), map_and_variance),
        (
            normals(context, "images", (6, 3, 8, 8)) + 0.01 * normals(context, "mixed in", (6, 3, 8, 8)),
            perturbed_map_and_variance,
        ),
    ):
        conv = functional.conv2d(pixels, first_weight.view(4, 3, 3, 3))
        variance = conv.var(dim=(0, 2, 3), correction=0)
        maps = (conv - conv.mean(dim=(0, 2, 3), keepdim=True)) / (variance + 1e-5).sqrt()[:, None, None]
        for _ in range(2):
            maps = functional.conv2d(maps.relu(), second_weight.view(4, 4, 3, 3), padding=1)
        computed_values += [maps.relu(), variance.mean()]
    distance = float((perturbed_map_and_variance[0] - map_and_variance[0]).abs().sum(dim=(1, 2, 3)).mean())
    assert score == pytest.approx(np.log(distance) + 0.5 * np.log(float(map_and_variance[1])), rel=1e-4)
    network_without_batch_norm = nn.Sequential(nn.Conv2d(3, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(72, N_CLASSES))
    assert np.isfinite(measure(network_without_batch_norm, images)["zen"])


def test_zen_ignores_batch_norm_with_constant_input(images):
    class NetworkWithDeadBranch(MixedLayersNetwork):
        def __init__(self):
            super().__init__()
            self.third, self.third_norm = nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4)

        def forward(self, pixels):
            dead = self.third_norm(self.third(pixels * 0)).mean()
            return super().forward(pixels) + dead

    # Random weights are assigned to layers in order, so the additional layer does not change the other layers' weights.
    assert measure(NetworkWithDeadBranch(), images)["zen"] == pytest.approx(
        measure(MixedLayersNetwork(), images)["zen"], rel=1e-6
    )


def test_zen_does_not_depend_on_weights(images, scores):
    scaled_network = MixedLayersNetwork()
    with torch.no_grad():
        for weight in scaled_network.parameters():
            weight.mul_(3)
    scaled_scores = measure(scaled_network, images)
    unchanged_proxies = {name for name in PROXIES if scaled_scores[name] == scores[name]}
    assert unchanged_proxies == {"zen", "params", "flops"}


@pytest.mark.parametrize(("index", "macs", "parameters"), [(0, 15.64737e6, 129_306), (1462, 220.11969e6, 1_531_546)])
def test_counts_match_nas_bench_201(index, macs, parameters):
    network = build_network(architecture(index).spec, n_classes=10)
    with torch.no_grad(), proxies.observe(network) as observed:
        network(torch.zeros(1, 3, 32, 32))
    assert proxies._count_macs(observed, 1) == pytest.approx(macs, abs=5)
    assert proxies._count_parameters(network) == parameters


@pytest.mark.parametrize(
    "network",
    [
        PathlessNetwork([1.0] * N_CLASSES),
        PathlessNetwork([1.0] * N_CLASSES, has_gradients=False),
        build_network("|none~0|+|none~0|none~1|+|none~0|none~1|none~2|", channels=4, cells=1, n_classes=N_CLASSES),
        nn.Sequential(nn.Flatten(), nn.Linear(192, N_CLASSES)),
    ],
    ids=["no layers", "no gradients", "no path", "no maps"],
)
def test_degenerate_networks_have_finite_scores(network):
    images = tiny_images(6, labels=[0, 0, 1, 1, 2, 2])
    assert all(np.isfinite(value) for value in measure(network, images).values())
    assert np.isfinite(measure(network, images, "croze")["score"])


def test_observe_sees_inputs_of_all_relus_of_zoo_networks():
    """The number of agreements of an image with itself is the number of inputs of ReLUs."""
    network = ResNet((1, 1, 1, 1), N_CLASSES)
    with torch.no_grad(), proxies.observe(network) as observed:
        network(torch.rand(2, 3, 16, 16))
    assert observed.agreements[0, 0] == 64 * 256 + 2 * (64 * 256 + 128 * 64 + 256 * 16 + 512 * 4)
    assert observed.last_map.shape == (2, 512, 2, 2)


def test_proxies_use_only_first_images(images):
    first_images = dataclasses.replace(
        images, images=images.images[:4], labels=images.labels[:4], indices=images.indices[:4]
    )
    assert measure(TinyNetwork(), images, images=4) == measure(TinyNetwork(), first_images)


@pytest.mark.parametrize("key", ["proxies", "croze"])
def test_proxies_reject_nan_weights(key, images):
    network = MixedLayersNetwork()
    network.linear.weight.data.fill_(torch.nan)
    task = find_task(key)
    parameters = task.parameters()
    results = evaluate_part(
        tiny_context(key, tiny_classifier(network)), task, parameters, part_of(task, parameters, images), images, (),
        provenance={},
    )  # fmt: skip
    with pytest.raises(EvaluationError, match=r"Checking a measure failed for .*to be finite, got nan"):
        list(results)


# --- CRoZe ------------------------------------------------------------------------------------------------------------


def test_croze_matches_numpy():
    """Compare with NumPy on a single linear layer."""
    images = tiny_images(6)
    network = nn.Sequential(nn.Flatten(), nn.Linear(192, N_CLASSES))
    classifier = tiny_classifier(network)
    mean, std = classifier.mean.double().numpy(), classifier.std.double().numpy()
    weight, bias = (np.abs(tensor.detach().double().numpy()) for tensor in (network[1].weight, network[1].bias))
    pixels, one_hot = images.images / 255, np.eye(N_CLASSES)[images.labels]

    def logits_and_gradient(images, matrix):
        inputs = ((images - mean) / std).reshape(6, -1)
        logits = inputs @ matrix.T + bias
        exponentials = np.exp(logits - logits.max(axis=1, keepdims=True))
        logit_gradient = (exponentials / exponentials.sum(axis=1, keepdims=True) - one_hot) / 6
        pixel_gradient = (logit_gradient @ matrix).reshape(pixels.shape) / std
        return logits, logit_gradient.T @ inputs, pixel_gradient

    def cosines(first, second):
        norms = np.linalg.norm(first, axis=0) * np.linalg.norm(second, axis=0)
        return (first * second).sum(axis=0) / norms

    logits, gradient, _ = logits_and_gradient(pixels, weight)
    moved_weight = weight + 2 * np.linalg.norm(weight) / np.linalg.norm(gradient) * gradient
    _, _, pixel_gradient = logits_and_gradient(pixels, moved_weight)
    moved_pixels = np.clip(pixels - 0.01 * np.sign(pixel_gradient), 0, 1)
    moved_logits, moved_gradient, _ = logits_and_gradient(moved_pixels, moved_weight)
    expected = (
        (1 + cosines(weight, moved_weight)).sum()
        * (1 + cosines(logits, moved_logits)).sum()
        * np.abs(cosines(gradient, moved_gradient)).sum()
    )
    assert measure(network, images, "croze")["score"] == pytest.approx(expected, rel=1e-6)
