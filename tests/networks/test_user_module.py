"""A user's module computes in its own dtype and returns float32 logits; a module with a fixed mode is rejected."""

import warnings

import pytest
import torch
from torch import nn

from robust201.core.errors import NetworkError, RobustWarning
from robust201.images.user_arrays import as_image_set
from robust201.networks.user_module import as_classifier

PIXELS = torch.rand(6, 3, 8, 8, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(6) % 4
IMAGES = as_image_set(PIXELS, LABELS)


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Conv2d(3, 5, 3), nn.ReLU(), nn.Flatten(), nn.Linear(5 * 36, 4))
        self.input_dtype: torch.dtype | None = None

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        self.input_dtype = images.dtype
        return self.layers(images)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_as_classifier_computes_in_the_dtype_of_the_module_and_returns_float32(dtype):
    model = Network().to(dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RobustWarning)
        with as_classifier(model, IMAGES) as classifier:
            logits, losses, gradient = classifier.loss_and_gradient(PIXELS, LABELS)
    assert model.input_dtype is dtype
    assert {logits.dtype, losses.dtype, gradient.dtype} == {torch.float32}
    leaf = PIXELS.to(dtype).requires_grad_()
    expected_logits = model(leaf)
    torch.testing.assert_close(logits, expected_logits.detach().float(), rtol=0, atol=0)
    loss = nn.functional.cross_entropy(expected_logits.float(), LABELS, reduction="sum")
    (expected_gradient,) = torch.autograd.grad(loss, [leaf])
    torch.testing.assert_close(gradient, expected_gradient.float(), rtol=1e-6, atol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_as_classifier_warns_about_half_precision(dtype):
    dtype_name = str(dtype).removeprefix("torch.")
    with (
        pytest.warns(RobustWarning, match=rf"Network computes in {dtype_name}.*model\.float\(\)"),
        as_classifier(Network().to(dtype), IMAGES),
    ):
        pass


def test_as_classifier_uses_float32_for_mixed_dtypes():
    model = Network()
    model.register_parameter("scale", nn.Parameter(torch.ones((), dtype=torch.float16)))
    with as_classifier(model, IMAGES) as classifier:
        classifier.logits(PIXELS)
    assert model.input_dtype is torch.float32


def _freeze(model: nn.Module) -> nn.Module:
    frozen: nn.Module = torch.jit.freeze(torch.jit.trace(model, PIXELS))
    return frozen


def _export(model: nn.Module) -> nn.Module:
    return torch.export.export(model, (PIXELS,)).module()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("convert", "name"), [(_freeze, "torch.jit.freeze"), (_export, "torch.export")])
def test_module_with_a_fixed_mode_is_rejected(convert, name):
    model = convert(nn.Sequential(nn.Flatten(), nn.Linear(192, 3)).eval())
    with pytest.raises(NetworkError, match=f"no evaluation mode.*{name}"), as_classifier(model, PIXELS):
        pass
