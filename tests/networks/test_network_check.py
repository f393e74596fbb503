"""Networks whose logits depend on other images are rejected, and doubtful networks are reported before an attack."""

import re
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import robust201
from robust201.core.errors import NetworkError, RobustWarning
from robust201.core.records import NO_NORMALISATION
from robust201.networks.classifier import Classifier
from robust201.networks.network_check import CheckedImages, check_network
from robust201.networks.watch import Watch
from tests.support.tiny_networks import NORMALISATION, TinyNetwork, tiny_classifier, tiny_images

IMAGES = tiny_images(70)


class ChangedNetwork(nn.Module):
    """The tiny network with a changed forward pass."""

    def __init__(self, forward: Callable[[nn.Module, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.network = TinyNetwork()
        self.changed_forward = forward
        self.register_buffer("total", torch.zeros(()))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.changed_forward(self.network, images)


def mix_pairs(network: nn.Module, images: torch.Tensor) -> torch.Tensor:
    mixed = images.clone()
    n_pairs = len(images) // 2
    mixed[0 : 2 * n_pairs : 2] += 0.5 * images[1 : 2 * n_pairs : 2]
    return network(mixed)


def normalise_batch(network: nn.Module, images: torch.Tensor) -> torch.Tensor:
    return network(functional.batch_norm(images, None, None, training=True))


def squeeze(network: nn.Module, images: torch.Tensor) -> torch.Tensor:
    return network(images)[:, :, None].squeeze()


def index_squeezed(network: nn.Module, images: torch.Tensor) -> torch.Tensor:
    logits = network(images)[:, :, None].squeeze()
    return logits[:, list(range(logits.shape[1]))]


def pad_classes(logits: torch.Tensor, n_added: int) -> torch.Tensor:
    """Return the logits with added classes, which are never predicted."""
    return torch.cat([logits, torch.full((len(logits), n_added), -1e9)], dim=1)


def vary(logits: torch.Tensor) -> torch.Tensor:
    """Return logits with relative changes of at most 1e-6, so that no class has constant logits."""
    return logits * (1 + 1e-6 * torch.sin(logits[:, :1]))


DEPENDENT_PASSES: dict[str, Callable[[nn.Module, torch.Tensor], torch.Tensor]] = {
    "BatchNorm without running statistics": normalise_batch,
    "minus the mean image": lambda network, images: network(images - images.mean(dim=0)),
    "weak dependence": lambda network, images: network(images - 0.05 * images.mean(dim=0)),
    "pairs of images": mix_pairs,
    "masked classes": lambda network, images: pad_classes(network(images - images.mean(dim=0)), 2),
    "most classes masked": lambda network, images: pad_classes(network(images - images.mean(dim=0)), 20),
    "logits of masked classes vary": lambda network, images: vary(pad_classes(network(images - images.mean(0)), 20)),
    "cumulative sum": lambda network, images: network(images.cumsum(dim=0)),
    "large batches only": lambda network, images: network(images - (len(images) >= 32) * images.mean(dim=0)),
    "batch position": lambda network, images: network(images + torch.linspace(0, 1, len(images))[:, None, None, None]),
}


@pytest.mark.parametrize("n_images", [1, 2, 5, 20, 70])
@pytest.mark.parametrize("case", DEPENDENT_PASSES)
def test_dependence_on_other_images_is_rejected(case, n_images):
    if case in {"batch position", "cumulative sum"} and n_images == 1:
        n_images = 2
    classifier = tiny_classifier(ChangedNetwork(DEPENDENT_PASSES[case]))
    images = CheckedImages.of(tiny_images(n_images), torch.device("cpu"))
    with pytest.raises(
        NetworkError, match=r"^Checking the network failed for tiny: .* divided into batches.*batch_size=1"
    ):
        check_network(classifier, images, name="tiny")
    classifier.batch_sizes.limit = 1  # every image is evaluated alone
    if case != "batch position":
        check_network(classifier, images, name="tiny")


def evaluate_clean(network: nn.Module, n_images: int = 70, **options: Any) -> None:
    robust201.evaluate(
        network, IMAGES.images[:n_images], IMAGES.labels[:n_images], ["clean"], progress=False, **options
    )


@pytest.mark.parametrize("forward", [squeeze, index_squeezed])
@pytest.mark.parametrize("batch_size", [1, 250])
@pytest.mark.parametrize("n_images", [1, 70])
def test_networks_that_fail_for_a_single_image_are_rejected_before_attacks(forward, batch_size, n_images):
    with pytest.raises(NetworkError, match=r"ChangedNetwork: .*replace squeeze\(\) by flatten\(1\)"):
        evaluate_clean(ChangedNetwork(forward), n_images, batch_size=batch_size)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_rounding_errors_are_not_reported_as_dependence(dtype):
    torch.manual_seed(0)
    layers: list[nn.Module] = [nn.Conv2d(3, 16, 3, padding=1)]
    for _ in range(12):
        layers += [nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()]
    network = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 5)).to(dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RobustWarning)
        evaluate_clean(network)


def test_networks_whose_tensors_change_are_rejected_and_restored():
    class Counting(ChangedNetwork):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                self.total.add_(1e-6 * len(images))
            return self.network(images)

    for total in (torch.zeros(()), nn.Parameter(torch.zeros(()))):
        network = Counting(lambda _network, images: images)
        del network.total
        network.total = nn.Buffer(total) if not isinstance(total, nn.Parameter) else total
        with pytest.raises(NetworkError, match="total changes"):
            evaluate_clean(network)
        assert network.total == 0

    class Caching(ChangedNetwork):
        """A network that fills a buffer in its first pass only, and resizes another with the batch."""

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            self.total = self.total + (self.total == 0)
            self.register_buffer("indices", torch.arange(len(images)))
            return self.network(images)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RobustWarning)
        evaluate_clean(Caching(network.changed_forward))


def evaluation_warnings(network: nn.Module, images: np.ndarray, labels: np.ndarray, **options: Any) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        robust201.evaluate(network, images, labels, ["clean"], progress=False, normalisation=NORMALISATION, **options)
    return [str(warning.message) for warning in caught]


VALID_DATA = {"images": IMAGES.images, "labels": IMAGES.labels}


def test_valid_network_causes_no_warning():
    """Three in four labels are the network's predictions."""
    assert evaluation_warnings(TinyNetwork(), **VALID_DATA) == []
    for n_images in (20, 25, 30):
        assert evaluation_warnings(TinyNetwork(), IMAGES.images[:n_images], IMAGES.labels[:n_images]) == []


def test_accuracies_at_chance_are_reported():
    labels = (IMAGES.labels + 1) % 5
    (message,) = evaluation_warnings(TinyNetwork(), IMAGES.images, labels)
    assert re.match(r"TinyNetwork classifies \d+ of 70 images correctly, which is not significantly", message)
    assert evaluation_warnings(TinyNetwork(), IMAGES.images[:9], labels[:9]) == []


def test_accuracies_above_chance_on_all_images_are_not_reported():
    """The network classifies 30% of 350 images correctly, but none of the first 245."""
    predictions = tiny_classifier().logits(torch.from_numpy(IMAGES.images) / 255).argmax(dim=1).numpy()
    is_correct = np.arange(350) >= 245
    labels = (np.tile(predictions, 5) + ~is_correct) % 5
    assert evaluation_warnings(TinyNetwork(), np.tile(IMAGES.images, (5, 1, 1, 1)), labels) == []


def test_sigmoid_heads_are_reported_before_attacks_and_in_comparisons():
    sigmoid = nn.Sequential(TinyNetwork(), nn.Sigmoid())
    (message,) = evaluation_warnings(sigmoid, **VALID_DATA)
    assert message.startswith("Sequential seems to end in a sigmoid: ")
    keys = ["clean", {"fgsm": {"epsilons": ["8/255"]}}]
    with pytest.warns(RobustWarning, match="^sigmoid seems to end in a sigmoid"):
        comparison = robust201.compare(
            {"plain": TinyNetwork(), "sigmoid": sigmoid},
            **VALID_DATA,
            keys=keys,
            progress=False,
            normalisation=NORMALISATION,
        )
    assert comparison.summary.startswith(f"sigmoid{message.removeprefix('Sequential')}\n")
    header, *rows = [line for line in comparison.latex().splitlines() if " & " in line]
    assert "plain & sigmoid (doubtful)" in header
    assert all(not row.split(" & ")[-1].startswith(r"\textbf") for row in rows)
    with pytest.warns(RobustWarning, match="seems to end in a sigmoid"):
        robust201.curves(
            sigmoid, **VALID_DATA, keys={"fmn": {"steps": 50}}, normalisation=NORMALISATION, progress=False
        )


def test_error_for_single_logits_states_the_remedy():
    for change in (lambda logits: logits[:, :1], lambda logits: logits[:, 0]):
        network = ChangedNetwork(lambda network, images, change=change: change(network(images)))
        with pytest.raises(NetworkError, match=r"got a single logit per image .*torch\.cat"):
            evaluate_clean(network)


def test_concurrent_evaluations_restore_the_module():
    network = TinyNetwork().train()

    def compute_accuracies(_call: int) -> list[float]:
        keys = ["clean", "fgsm"]
        result = robust201.evaluate(network, **VALID_DATA, keys=keys, progress=False, normalisation=NORMALISATION)
        return [float(accuracy) for accuracy in result.table["accuracy"]]

    expected = compute_accuracies(0)
    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(compute_accuracies, range(3))) == [expected] * 3
    assert all(module.training for module in network.modules())
    assert all(parameter.requires_grad for parameter in network.parameters())


@pytest.mark.parametrize("power", [0.5, 1.0])
def test_nan_is_detected_inside_function_transforms(power):
    """With power 0.5, the gradient is NaN for the image with a pixel of 0; with power 1, it is finite."""
    network = ChangedNetwork(lambda network, images: network((images * images).pow(power)))
    classifier = Classifier(network, NO_NORMALISATION, 5)
    pixels = (torch.from_numpy(IMAGES.images[:3]) / 255).clamp(min=0.1)
    pixels[1, 0, 0, 0] = 0
    watch = Watch(torch.device("cpu"))
    watched = classifier.watched(watch)
    jacobian = torch.func.jacrev(lambda x: watched(x[None])[0])(pixels[0])
    batched = torch.autograd.functional.jacobian(watched, pixels[:1], vectorize=True)
    torch.testing.assert_close(batched[0, :, 0], jacobian)
    assert not watch.n_faults
    gradients = torch.func.vmap(torch.func.grad(lambda x: watched(x[None])[0, 0]))(pixels)
    torch.testing.assert_close(jacobian[0], gradients[0])
    assert bool(watch.n_faults) == (power == 0.5) == bool(gradients.isnan().any())
    if power == 0.5:
        labels = torch.zeros(3, dtype=torch.int64)
        assert "gradient is NaN or infinite for image 8." in watch.describe_faults(
            classifier, pixels, labels, np.arange(7, 10)
        )
