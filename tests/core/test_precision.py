"""The precisions fp32, tf32 and bf16 round as documented, and unsupported devices are rejected."""

import contextlib
import math
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from robust201.core.errors import ConfigError
from robust201.networks.classifier import Classifier
from robust201.networks.device import check_device, has_avx512
from robust201.networks.nb201.cells import constant_nodes, format_spec, specs
from robust201.networks.nb201.compiled import compile_network, kernels
from robust201.networks.nb201.compiled.folding import round_once
from robust201.networks.nb201.network import Network
from robust201.run.worker import Worker
from tests.networks.test_inference import (
    N_CLASSES,
    NORMALISATION,
    SPECIAL_CELLS,
    assert_independent_of_the_batch,
    images_of,
    network_of,
)

CPU = torch.device("cpu")
ROUNDING = 2.0**-8
"""Maximum relative error of rounding to bfloat16, which has 8 significant bits."""

CELLS = {name: format_spec(operations) for name, operations in SPECIAL_CELLS.items()} | {
    f"#{index}": specs()[index] for index in (0, 21, 309, 991, 13714)
}


def logits_and_gradients(network, spec, pixels, labels, precision):
    """Return, by engine, the logits and the pixels' gradient of the summed cross-entropy."""
    inputs = pixels.clone().requires_grad_()
    logits = Classifier(network, NORMALISATION, N_CLASSES, precision=precision)(inputs)
    (gradient,) = torch.autograd.grad(functional.cross_entropy(logits, labels, reduction="sum"), inputs)
    compiled = compile_network(network, spec, NORMALISATION, precision=precision)
    compiled_logits, _, compiled_gradient = compiled.loss_and_gradient(pixels, labels)
    assert torch.equal(compiled_logits, compiled.logits(pixels))
    outputs = {"reference": (logits.detach(), gradient), "fused": (compiled_logits, compiled_gradient)}
    assert {tensor.dtype for output in outputs.values() for tensor in output} == {torch.float32}
    return outputs


def relative_distance(x, y):
    return float((x - y).norm() / y.norm())


# fp32: unaffected by other precisions


@pytest.mark.parametrize("name", ["#991", "#309", "constant map with a border", "no path, constant"])
def test_fp32_is_bit_identical_to_the_published_network(name):
    network = network_of(CELLS[name], channels=8)
    pixels, labels = images_of(16)
    mean, std = (torch.tensor(values).view(1, 3, 1, 1) for values in (NORMALISATION.mean, NORMALISATION.std))
    inputs = pixels.clone().requires_grad_()
    expected = network((inputs - mean) / std)
    (gradient,) = torch.autograd.grad(functional.cross_entropy(expected, labels, reduction="sum"), inputs)
    outputs = logits_and_gradients(network, CELLS[name], pixels, labels, "fp32")
    assert torch.equal(outputs["reference"][0], expected.detach())
    assert torch.equal(outputs["reference"][1], gradient)


def test_bf16_does_not_affect_later_fp32_computations():
    network = network_of(CELLS["#991"], channels=8)
    weights = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    pixels, labels = images_of(16)
    outputs_before = logits_and_gradients(network, CELLS["#991"], pixels, labels, "fp32")
    logits_and_gradients(network, CELLS["#991"], pixels, labels, "bf16")
    assert {name: (tensor.dtype, tensor.tolist()) for name, tensor in network.state_dict().items()} == {
        name: (tensor.dtype, tensor.tolist()) for name, tensor in weights.items()
    }
    outputs_after = logits_and_gradients(network, CELLS["#991"], pixels, labels, "fp32")
    for engine, tensors_before in outputs_before.items():
        assert all(
            torch.equal(before, after) for before, after in zip(tensors_before, outputs_after[engine], strict=True)
        )
    default = compile_network(network, CELLS["#991"], NORMALISATION)
    assert torch.equal(default.logits(pixels), outputs_before["fused"][0])
    assert torch.equal(Classifier(network, NORMALISATION, N_CLASSES)(pixels), outputs_before["reference"][0])


@pytest.mark.parametrize("fused", [False, True])
def test_fp32_weights_are_rounded_once_from_float64(fused):
    if fused and not kernels.has_fused_convolution():
        pytest.skip("this PyTorch has no fused convolutions")
    weight, bias = torch.randn(6, 4, 3, 3, dtype=torch.float64), torch.randn(6, dtype=torch.float64)
    x = torch.randn(2, 4, 8, 8).contiguous(memory_format=torch.channels_last)
    result = kernels.Convolution(weight, bias, device=CPU, fused=fused)(x)
    expected = functional.conv2d(x, weight.float().contiguous(memory_format=torch.channels_last), bias.float(), 1, 1)
    assert result.dtype == torch.float32
    torch.testing.assert_close(result, expected, rtol=1e-6 * fused, atol=1e-5 * fused)


# bf16: one rounding per operation


def nearest_bfloat16(number):
    mantissa, exponent = math.frexp(number)
    return math.ldexp(round(mantissa * 2**8), exponent - 8)  # Python rounds ties to even


@given(st.floats(min_value=2.0**-126, max_value=2.0**127), st.sampled_from([-1, 1]))
def test_round_once_rounds_float64_to_the_nearest_bfloat16(magnitude, sign):
    number = torch.tensor([sign * magnitude], dtype=torch.float64)
    assert round_once(number, torch.bfloat16).item() == nearest_bfloat16(sign * magnitude)


def test_round_once_does_not_round_to_float32_first():
    just_above_ties = torch.tensor([[1 + 2**-8 + 2**-30, 0.0, -(1 + 2**-8 + 2**-40)]], dtype=torch.float64)
    flipped = just_above_ties.expand(2, 3).flip(1).T  # not contiguous, like a kernel for gradients
    assert round_once(flipped, torch.bfloat16)[:, 0].tolist() == [-1 - 2**-7, 0.0, 1 + 2**-7]
    assert just_above_ties.bfloat16().flatten().tolist() == [1.0, 0.0, -1.0]
    weight = just_above_ties[:, :1, None, None]
    pixel = torch.ones(1, 1, 1, 1, dtype=torch.bfloat16)
    assert kernels.Convolution(weight, None, device=CPU, dtype=torch.bfloat16, fused=False)(pixel).item() == 1 + 2**-7


@pytest.fixture(params=["fused", "plain"])
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Select each convolution implementation in turn (a machine uses only one); return its name."""
    if request.param == "plain":
        monkeypatch.setattr(kernels, "has_fused_convolution", lambda *_: False)
    elif not kernels.has_fused_convolution(torch.bfloat16):
        pytest.skip("this PyTorch has no fused convolutions in bfloat16")
    return request.param


def random_bfloat16_map(*shape):
    return torch.randn(shape).to(torch.bfloat16, memory_format=torch.channels_last)


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize(("size", "stride"), [(1, 1), (3, 1), (3, 2)])
def test_bf16_convolutions_accumulate_in_float32(size, stride):
    torch.manual_seed(0)
    x = random_bfloat16_map(3, 64, 8, 8)
    weight, bias = torch.randn(32, 64, size, size).bfloat16().double(), torch.randn(32).bfloat16().double()
    result = kernels.Convolution(weight, bias, device=CPU, dtype=torch.bfloat16, stride=stride)(x)
    exact = functional.conv2d(x.double(), weight, bias, stride, size // 2)
    assert result.dtype == torch.bfloat16
    # The sum is rounded once. If 576 products were accumulated in bfloat16, the error would be ten times as large.
    torch.testing.assert_close(result.double(), exact, rtol=1.01 * ROUNDING, atol=1e-4)


@pytest.mark.skipif(
    not has_avx512(),
    reason="PyTorch's transposed convolutions in bfloat16 are wrong on CPUs without AVX-512",
)
@pytest.mark.usefixtures("kernel")
def test_bf16_sums_relus_and_gradients_have_bfloat16_accuracy():
    torch.manual_seed(0)
    x, shortcut = random_bfloat16_map(2, 8, 8, 8), random_bfloat16_map(2, 8, 8, 8)
    weight = torch.randn(8, 8, 3, 3).bfloat16().double()
    convolution = kernels.Convolution(weight, None, device=CPU, dtype=torch.bfloat16)
    sums = functional.conv2d(x.double(), weight, None, 1, 1)
    tolerance = 2.01 * ROUNDING * float(sums.abs().max())
    for in_place in (False, True):
        result = convolution(x, add=shortcut.clone(), in_place=in_place, rectify=True)
        torch.testing.assert_close(result.double(), (sums + shortcut).relu(), rtol=0, atol=tolerance)
    result = kernels.StridedGradient(weight, device=CPU, dtype=torch.bfloat16)(x)
    exact = functional.conv_transpose2d(x.double(), weight, stride=2, padding=1, output_padding=1)
    torch.testing.assert_close(result.double(), exact, rtol=1.01 * ROUNDING, atol=1e-4)


@pytest.mark.parametrize("factor", [1, 3])
@pytest.mark.parametrize("size", [1, 2, 8])
def test_bf16_average_pooling_is_unbiased(factor, size):
    """1/9 is not a bfloat16 number, and as a weight it would scale all pooled values up by 0.2%."""
    torch.manual_seed(0)
    x, gradient = random_bfloat16_map(2, 4, size, size), random_bfloat16_map(2, 4, size, size)
    inputs = x.double().requires_grad_()
    exact = factor * functional.avg_pool2d(inputs, 3, 1, 1, count_include_pad=False)
    (exact_gradient,) = torch.autograd.grad(exact, inputs, gradient.double())
    pooling = kernels.AveragePooling(4, factor, device=CPU, dtype=torch.bfloat16)
    torch.testing.assert_close(pooling(x).double(), exact.detach(), rtol=2.01 * ROUNDING, atol=1e-4)
    max_gradient = float((2.25 * gradient).abs().max())
    for result in (pooling.backward(gradient), pooling.backward(gradient.clone(), overwrite=True)):
        torch.testing.assert_close(result.double(), exact_gradient, rtol=0, atol=3 * ROUNDING * max_gradient * factor)
    constant = torch.full_like(x, 1.25)
    assert torch.equal(pooling(constant), factor * constant)


def test_bf16_strided_pooling_is_rounded_once():
    x = random_bfloat16_map(2, 4, 8, 8)
    result = kernels.StridedPooling(4, device=CPU, dtype=torch.bfloat16)(x)
    torch.testing.assert_close(result.double(), functional.avg_pool2d(x.double(), 2), rtol=1.01 * ROUNDING, atol=1e-6)


# bf16: whole networks


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("name", CELLS)
@pytest.mark.slow_combinations
def test_bf16_network_is_close_to_fp32(name):
    network = network_of(CELLS[name], cells=2)
    pixels, labels = images_of(32)
    fp32_outputs = logits_and_gradients(network, CELLS[name], pixels, labels, "fp32")
    bf16_outputs = logits_and_gradients(network, CELLS[name], pixels, labels, "bf16")
    is_constant = 3 in constant_nodes(CELLS[name])
    for engine, (logits, gradient) in bf16_outputs.items():
        # Each layer rounds once, and most errors cancel: in a hundred networks, the largest error was 1.7 roundings.
        assert relative_distance(logits, fp32_outputs[engine][0]) < 4 * ROUNDING, engine
        if is_constant:
            assert torch.equal(logits, logits[:1].expand_as(logits))
            assert not gradient.any()
        else:
            assert not torch.equal(logits, fp32_outputs[engine][0]), engine
            # Rounding switches ReLUs near zero on or off, so gradients of single images may differ more than this.
            cosine = functional.cosine_similarity(gradient.flatten(), fp32_outputs[engine][1].flatten(), dim=0)
            assert float(cosine) > 0.97, engine
            assert not torch.equal(gradient, fp32_outputs[engine][1]), engine
    tolerance = 1e-5 if is_constant else 4 * ROUNDING
    assert relative_distance(bf16_outputs["fused"][0], bf16_outputs["reference"][0]) < tolerance


def test_bf16_constant_maps_are_rounded():
    """Constant feature maps are rounded to bfloat16, like outputs of convolutions, so the logits change slightly."""
    spec = CELLS["no path, constant"]
    network = network_of(spec)
    pixels, labels = images_of(16)
    fp32_logits = logits_and_gradients(network, spec, pixels, labels, "fp32")["fused"][0]
    bf16_logits = logits_and_gradients(network, spec, pixels, labels, "bf16")["fused"][0]
    assert 0 < relative_distance(bf16_logits, fp32_logits) < 4 * ROUNDING


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("name", ["#21", "#991", "constant map with a border"])
def test_bf16_outputs_do_not_depend_on_the_batch(name):
    compiled = compile_network(network_of(CELLS[name], channels=8), CELLS[name], NORMALISATION, precision="bf16")
    assert_independent_of_the_batch(compiled, 16)


def test_bf16_classifier_head_is_float32():
    classifier = Classifier(Network(specs()[0], n_classes=10), NORMALISATION, 10, precision="bf16")
    input_dtypes = {}

    def record_dtype(name):
        def hook(_module, inputs):
            input_dtypes[name] = inputs[0].dtype

        return hook

    for name, module in classifier.network.named_modules():
        module.register_forward_pre_hook(record_dtype(name))
    classifier(images_of(8)[0])
    map_dtypes = {name: dtype for name, dtype in input_dtypes.items() if name.split(".")[0] in ("stem", "cells")}
    assert set(map_dtypes.values()) == {torch.bfloat16}
    assert {input_dtypes[name] for name in ("lastact.0", "lastact.1", "global_pooling", "classifier")} == {
        torch.float32
    }
    batch_norms = [module for module in classifier.modules() if isinstance(module, torch.nn.BatchNorm2d)]
    assert {module.running_var.dtype for module in batch_norms} == {torch.float32}


# tf32: CUDA only


def test_tf32_is_rejected_by_networks_and_workers_without_a_gpu(make_sweep, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    spec = specs()[0]
    network = network_of(spec)
    with pytest.raises(ConfigError, match="got a CPU"):
        Classifier(network, NORMALISATION, N_CLASSES, precision="tf32")
    with pytest.raises(ConfigError, match="got a CPU"):
        compile_network(network, spec, NORMALISATION, precision="tf32")
    with pytest.raises(ConfigError, match="got a CPU"):
        Worker(make_sweep(precision="tf32", execution={"device": "auto"}), None, None, None)


@pytest.mark.parametrize(
    ("cuda_version", "capability", "has_tf32"), [("12.4", (7, 5), False), (None, (9, 4), False), ("12.4", (8, 0), True)]
)
def test_check_device_rejects_gpus_without_tf32(cuda_version, capability, has_tf32, monkeypatch):
    """Older GPUs, and AMD GPUs (PyTorch also calls them cuda), ignore the TF32 settings and compute in float32."""
    monkeypatch.setattr(torch.version, "cuda", cuda_version)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _device: "a GPU")
    with contextlib.nullcontext() if has_tf32 else pytest.raises(ConfigError, match=r"got a GPU\."):
        check_device(torch.device("cuda"), "tf32")
