"""Networks that would silently give wrong numbers are rejected or reported; correct variants give correct numbers."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import robust201
from robust201.core.errors import EvaluationError, NetworkError, RobustWarning
from robust201.core.records import ImageSet
from robust201.images import load_images, select

EPSILON = "8/255"
FGSM = {"fgsm": {"epsilons": [EPSILON]}}
GRADIENT_ATTACKS: dict[str, dict[str, Any]] = {
    "fgsm": {"epsilons": [EPSILON]},
    "pgd": {"epsilons": [EPSILON], "steps": 3, "rel_stepsize": 1, "random_start": False},
    "pgd_linf7": {"epsilons": [EPSILON]},
    "pgd_l2": {"epsilons": [0.5], "steps": 3, "step_size": 0.5, "random_start": False},
    "aa_apgd-ce": {"epsilons": [EPSILON], "steps": 3},
    "aa_apgd-t": {"epsilons": [EPSILON], "steps": 3, "targets": 1},
    "aa_fab-t": {"epsilons": [EPSILON], "steps": 2, "targets": 1},
    "aa_standard": {"epsilons": [EPSILON], "steps": 3, "queries": 3},
    "fmn": {"epsilons": [EPSILON], "steps": 5},
    "fmn_l2": {"epsilons": [0.5], "steps": 5},
    "fmn_l1": {"epsilons": [5.0], "steps": 5},
}


@pytest.fixture(scope="module")
def images() -> ImageSet:
    return select(load_images("digits"), count=20, seed=0)


@pytest.fixture(scope="module")
def core() -> nn.Module:
    """Return a trained network, which classifies nearly all images correctly."""
    return robust201.load_model(13714, "digits", "bundled:benchmark_data/demo")


class ChangedNetwork(nn.Module):
    """A network whose images and logits are changed by functions."""

    def __init__(
        self,
        core: nn.Module,
        change_images: Callable[[torch.Tensor], torch.Tensor] = lambda images: images,
        change_logits: Callable[[torch.Tensor], Any] = lambda logits: logits,
    ) -> None:
        super().__init__()
        self.core = core
        self.change_images, self.change_logits = change_images, change_logits

    def forward(self, images: torch.Tensor) -> Any:
        return self.change_logits(self.core(self.change_images(images)))


def pixels_of(images: ImageSet) -> torch.Tensor:
    return torch.from_numpy(images.images).float() / 255


def loop_accuracy(network: nn.Module, images: ImageSet, epsilon: float = 0.0) -> float:
    """Return the accuracy under FGSM that a plain PyTorch loop computes, one image at a time."""
    n_correct = 0
    for pixels, label in zip(pixels_of(images).split(1), torch.from_numpy(images.labels).split(1), strict=True):
        leaf = pixels.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(functional.cross_entropy(network(leaf), label), [leaf])
        attacked = (pixels + epsilon * gradient.sign()).clamp(0, 1)
        n_correct += int((network(attacked).argmax(dim=1) == label).sum())
    return n_correct / len(images)


def accuracies_of(network: nn.Module, images: ImageSet, *keys: Any, **options: Any) -> list[float]:
    result = robust201.evaluate(network, images, keys=list(keys), progress=False, **options)
    return result.table["accuracy"].tolist()


# --- outputs that are not one tensor ----------------------------------------------------------------------------------


@dataclass
class ModelOutput:
    loss: torch.Tensor | None
    logits: torch.Tensor


NON_TENSOR_OUTPUTS: dict[str, Callable[[torch.Tensor], Any]] = {
    "tuple": lambda logits: (logits, -logits),
    "dict": lambda logits: {"aux": -logits, "logits": logits},
    "ModelOutput": lambda logits: ModelOutput(None, logits),
    "NoneType": lambda _logits: None,
    "ndarray": lambda logits: logits.detach().numpy(),
    "sparse_coo": lambda logits: logits.detach().to_sparse(),
    "meta": lambda logits: logits.detach().to("meta"),
}


@pytest.mark.parametrize("type_name", NON_TENSOR_OUTPUTS)
def test_outputs_that_are_not_one_tensor_are_rejected(type_name, core, images):
    network = ChangedNetwork(core, change_logits=NON_TENSOR_OUTPUTS[type_name])
    message = rf"failed for ChangedNetwork: expected a dense tensor of logits .*, got .*{type_name}\)?\. Wrap"
    with pytest.raises(NetworkError, match=message):
        robust201.evaluate(network, images, keys=["clean"], progress=False)
    with pytest.raises(NetworkError, match=message):
        robust201.attack(network, images.images, images.labels, "fgsm")
    with pytest.raises(NetworkError, match=message):
        robust201.compare([core, network], images, keys=["clean"], progress=False)
    with pytest.raises(NetworkError, match=message):
        robust201.curves(network, images, progress=False)


# --- outputs that are bounded or masked -------------------------------------------------------------------------------


@pytest.mark.parametrize("head", [nn.Softmax(1), nn.Tanh(), nn.ReLU6()], ids=str)
def test_bounded_heads_are_reported(head, core, images):
    network = nn.Sequential(core, head)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        accuracies = accuracies_of(network, images, "clean", FGSM)
    assert accuracies == [loop_accuracy(network, images), loop_accuracy(network, images, 8 / 255)]
    assert str(caught[0].message).startswith("Sequential seems to end in a ")


@pytest.mark.parametrize("factor", [1e-3, 0.05, 1.0, 1e3])
@pytest.mark.parametrize("head", [nn.Identity(), nn.LogSoftmax(dim=1)], ids=str)
def test_logits_of_any_scale_cause_no_warning(factor, head, core, images):
    network = ChangedNetwork(core, change_logits=lambda logits: head(factor * logits))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert accuracies_of(network, images, "clean")[0] > 0.9


def test_class_masks_with_finite_logits_change_no_accuracy_and_infinite_ones_are_rejected(core, images):
    def mask(value: float) -> nn.Module:
        return ChangedNetwork(
            core, change_logits=lambda logits: torch.cat([logits, torch.full((len(logits), 90), value)], dim=1)
        )

    assert accuracies_of(mask(-1e9), images, "clean", FGSM) == accuracies_of(core, images, "clean", FGSM)
    with pytest.raises(NetworkError, match=r"NaN or infinity .* large negative logit, such as -1e4"):
        accuracies_of(mask(-torch.inf), images, "clean")


def test_results_that_depend_on_earlier_passes_are_rejected(core, images):
    attacked: list[bool] = []

    def record(pixels: torch.Tensor) -> torch.Tensor:
        attacked.append(pixels.requires_grad)
        return pixels

    network = ChangedNetwork(core, record, lambda logits: -logits if any(attacked) else logits)
    with pytest.raises(EvaluationError, match="results depend on earlier passes"):
        accuracies_of(network, images, "clean", FGSM)


# --- gradients and logits that are not finite -------------------------------------------------------------------------


def add_contrast(images: torch.Tensor, constant: float) -> torch.Tensor:
    """Add a tenth of the standard deviation over channels, which is 0 for grey pixels."""
    return images + 0.1 * (images.var(dim=1, keepdim=True) + constant).sqrt()


@pytest.mark.parametrize("engine", ["fused", "reference"])
@pytest.mark.parametrize("key", GRADIENT_ATTACKS)
@pytest.mark.slow_combinations
@pytest.mark.filterwarnings("ignore:.*steps are few")
def test_attack_with_nan_gradients_is_rejected(key, engine, core, images):
    network = ChangedNetwork(core, lambda pixels: add_contrast(pixels, 0))
    assert accuracies_of(network, images, "clean") == [1.0]
    few_images = select(images, count=5, seed=0)
    with pytest.raises(EvaluationError, match=rf"^Attacking images failed for ChangedNetwork images {key}: the net"):
        robust201.evaluate(network, few_images, keys=[{key: GRADIENT_ATTACKS[key]}], engine=engine, progress=False)


def test_network_with_finite_gradients_has_the_accuracy_of_a_plain_loop(core, images):
    network = ChangedNetwork(core, lambda pixels: add_contrast(pixels, 1e-12))
    expected = [loop_accuracy(network, images), loop_accuracy(network, images, 8 / 255)]
    assert accuracies_of(network, images, "clean", FGSM) == expected
    assert expected[1] < expected[0]


def scale_gradient(images: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:
    """Return the images unchanged, with gradients that are multiplied by factors."""
    scaled: torch.Tensor = _ScaleGradient.apply(images, factors)
    return scaled


class _ScaleGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, images: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(factors)
        return images.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        (factors,) = ctx.saved_tensors
        return gradient * factors, None


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("engine", ["fused", "reference"])
def test_error_names_the_only_image_with_a_gradient_that_is_not_finite(value, engine, core, images):
    marked_images = images.images.copy()
    marked_images[17, :, 0, 0] = 251
    factors = torch.ones(images.images.shape[1:])
    factors[1, 2, 3] = value

    def change(pixels: torch.Tensor) -> torch.Tensor:
        is_marked = (pixels[:, :1, :1, :1] * 255).round() == 251
        return scale_gradient(pixels, torch.where(is_marked, factors, 1.0))

    network = ChangedNetwork(core, change)
    arguments = {"images": marked_images, "labels": images.labels, "keys": FGSM, "engine": engine, "progress": False}
    with pytest.raises(EvaluationError, match=r"gradient is NaN or infinite for image 17\. "):
        robust201.evaluate(network, **arguments)
    with pytest.raises(EvaluationError, match="image 17"):
        robust201.attack(network, marked_images, images.labels, "fgsm", epsilon="8/255", engine=engine)


def test_nan_gradients_of_images_that_are_not_attacked_are_accepted(core, images):
    """APGD does not attack misclassified images."""
    marked_images, labels = images.images.copy(), images.labels.copy()
    marked_images[17, :, 0, 0] = 251
    labels[17] = (labels[17] + 1) % 10

    def change(pixels: torch.Tensor) -> torch.Tensor:
        is_marked = (pixels[:, :1, :1, :1] * 255).round() == 251
        return scale_gradient(pixels, torch.where(is_marked, torch.nan, 1.0))

    network, keys = ChangedNetwork(core, change), {"aa_apgd-ce": {"epsilons": ["1/255"], "steps": 2}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RobustWarning)
        for engine in ("fused", "reference"):
            result = robust201.evaluate(network, marked_images, labels, keys, engine=engine, progress=False)
            assert result.table["accuracy"].item() < 1


FORWARD_ATTACKS: dict[str, dict[str, Any]] = {
    "aa_square": {"epsilons": ["4/255"], "queries": 10},
    "aa_square_l2": {"epsilons": [0.5], "queries": 10},
    "rot10": {"rotations": 5},
}


@pytest.mark.parametrize("engine", ["fused", "reference"])
@pytest.mark.parametrize("key", FORWARD_ATTACKS)
def test_nan_logits_of_perturbed_images_are_rejected(key, engine, core, images):
    """Without this check, Square would discard such a perturbation, and the image would seem robust."""
    clean = pixels_of(images)

    def change(logits: torch.Tensor) -> torch.Tensor:
        return logits.masked_fill(is_perturbed[0], torch.nan)

    is_perturbed = [torch.zeros(1, 1, dtype=torch.bool)]

    def record(pixels: torch.Tensor) -> torch.Tensor:
        distances = (pixels[:, None] - clean[None]).flatten(2).abs().amax(dim=2)
        is_perturbed[0] = distances.amin(dim=1, keepdim=True) > 1e-3
        return pixels

    network = ChangedNetwork(core, record, change)
    few_images, keys = select(images, count=10, seed=0), {key: FORWARD_ATTACKS[key]}
    with pytest.raises(EvaluationError, match="logits are NaN or infinite for a perturbed image"):
        robust201.evaluate(network, few_images, keys=keys, engine=engine, progress=False)


@pytest.mark.parametrize("key", ["jacobian", "input_gradient", "hessian_input"])
def test_measures_of_nan_gradients_are_rejected(key, core, images):
    """The error names the images, except for second derivatives."""
    network = ChangedNetwork(core, lambda pixels: add_contrast(pixels, 0))
    few_images = select(images, count=3, seed=0)
    message = "finite" if key == "hessian_input" else f"for images {', '.join(map(str, few_images.indices))}"
    with pytest.raises(EvaluationError, match=message):
        robust201.evaluate(network, few_images, keys=[key], progress=False)


# --- networks without gradients ---------------------------------------------------------------------------------------


def without_gradients(core: nn.Module, variant: str) -> nn.Module:
    if variant == "almost detached":
        return AlmostDetached(core, 1e-12)
    if variant == "detached":
        return ChangedNetwork(core, change_logits=lambda logits: logits.detach())
    return ChangedNetwork(core, lambda images: torch.from_numpy((images.detach().numpy() * 255).round() / 255).float())


class AlmostDetached(nn.Module):
    """A network whose logits depend on a detached copy of the images, and hardly on the images in the graph."""

    def __init__(self, core: nn.Module, factor: float) -> None:
        super().__init__()
        self.core, self.factor = core, factor

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.core(images.detach()) + self.factor * self.core(1 - images)
        return logits


BLACK_BOX_KEYS = {"aa_square": {"epsilons": ["4/255"], "queries": 20}, "rot10": {"rotations": 5}}


@pytest.mark.parametrize("variant", ["detached", "almost detached", "another library"])
def test_networks_without_gradients_support_only_attacks_without_gradients(variant, core, images):
    network = without_gradients(core, variant)
    calls: list[tuple[int, int]] = []
    result = robust201.evaluate(
        network, images, keys={"clean": {}} | BLACK_BOX_KEYS, progress=lambda *call: calls.append(call)
    )
    assert len(result.table) == 3
    assert calls == [(1, 3), (2, 3), (3, 3)]
    assert result.table["accuracy"][0] == loop_accuracy(core, images)
    for engine in ("fused", "reference"):
        with pytest.raises(EvaluationError, match="its logits depend on the images, but have no gradient"):
            robust201.evaluate(network, images, keys=FGSM, engine=engine, progress=False)


def test_compare_accepts_networks_without_gradients_but_curves_reject_them(core, images):
    network = without_gradients(core, "detached")
    comparison = robust201.compare([network, core], images, keys=BLACK_BOX_KEYS, progress=False)
    assert len(comparison.table) == 2
    with pytest.raises(EvaluationError, match="have no gradient"):
        robust201.curves(network, images, progress=False)
