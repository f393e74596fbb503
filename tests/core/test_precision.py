"""fp32, tf32 and bf16: what each computes, and where it is refused."""

import math
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from robust201.core.errors import ConfigError
from robust201.core.precision import check_precision, has_avx512
from robust201.models.classifier import Classifier
from robust201.runtime.devices import choose_device
from robust201.runtime.worker import Worker
from robust201.spaces.nasbench201.cells import constant_nodes, format_spec, specs
from robust201.spaces.nasbench201.compiled import compile_network, kernels
from robust201.spaces.nasbench201.compiled.folding import round_once
from robust201.spaces.nasbench201.network import build_network
from tests.conftest import MakeSweep, RunCommand, WriteSweep
from tests.spaces.test_inference import N_CLASSES, NORMALISATION, SPECIAL_CELLS, images_of, network_of
from tests.support.tiny_networks import PathlessNetwork

CPU = torch.device("cpu")
ROUNDING = 2.0**-8
"""Half the distance of neighbouring bfloat16 numbers, relative: they have 8 significant bits."""

CELLS = {name: format_spec(operations) for name, operations in SPECIAL_CELLS.items()} | {
    f"#{index}": specs()[index] for index in (0, 21, 309, 991, 13714)
}


def logits_and_gradients(network, spec, pixels, labels, precision):
    """What both engines' networks answer, by engine: logits and the gradient of the summed cross-entropy."""
    watched = pixels.clone().requires_grad_()
    logits = Classifier(network, NORMALISATION, N_CLASSES, precision=precision)(watched)
    (gradient,) = torch.autograd.grad(functional.cross_entropy(logits, labels, reduction="sum"), watched)
    compiled = compile_network(network, spec, NORMALISATION, n_classes=N_CLASSES, precision=precision)
    fast_logits, _, fast_gradient = compiled.loss_and_gradient(pixels, labels)
    assert torch.equal(fast_logits, compiled.logits(pixels))
    answers = {"reference": (logits.detach(), gradient), "fused": (fast_logits, fast_gradient)}
    assert {tensor.dtype for answer in answers.values() for tensor in answer} == {torch.float32}
    return answers


def relative_distance(x, y):
    return float((x - y).norm() / y.norm())


# fp32 is what it was


@pytest.mark.parametrize("name", ["#991", "#309", "constant map with a border", "no path, constant"])
def test_fp32_has_the_bits_of_the_published_module(name):
    network = network_of(CELLS[name], channels=8)
    pixels, labels = images_of(16)
    mean, std = (torch.tensor(values).view(1, 3, 1, 1) for values in (NORMALISATION.mean, NORMALISATION.std))
    watched = pixels.clone().requires_grad_()
    expected = network((watched - mean) / std)[1]
    (gradient,) = torch.autograd.grad(functional.cross_entropy(expected, labels, reduction="sum"), watched)
    answers = logits_and_gradients(network, CELLS[name], pixels, labels, "fp32")
    assert torch.equal(answers["reference"][0], expected.detach())
    assert torch.equal(answers["reference"][1], gradient)


def test_fp32_is_the_default_and_bf16_leaves_no_trace():
    network = network_of(CELLS["#991"], channels=8)
    weights = {name: value.clone() for name, value in network.state_dict().items()}
    pixels, labels = images_of(16)
    before = logits_and_gradients(network, CELLS["#991"], pixels, labels, "fp32")
    logits_and_gradients(network, CELLS["#991"], pixels, labels, "bf16")
    assert {name: (value.dtype, value.tolist()) for name, value in network.state_dict().items()} == {
        name: (value.dtype, value.tolist()) for name, value in weights.items()
    }
    after = logits_and_gradients(network, CELLS["#991"], pixels, labels, "fp32")
    for engine, answer in before.items():
        assert all(torch.equal(one, other) for one, other in zip(answer, after[engine], strict=True))
    default = compile_network(network, CELLS["#991"], NORMALISATION, n_classes=N_CLASSES)
    assert torch.equal(default.logits(pixels), before["fused"][0])
    assert torch.equal(Classifier(network, NORMALISATION, N_CLASSES)(pixels), before["reference"][0])


@pytest.mark.parametrize("fused", [False, True])
def test_fp32_weights_are_float64_rounded_once(fused):
    if fused and not kernels.fuses_on_cpu():
        pytest.skip("this PyTorch has no fused convolutions")
    weight, bias = torch.randn(6, 4, 3, 3, dtype=torch.float64), torch.randn(6, dtype=torch.float64)
    x = torch.randn(2, 4, 8, 8).contiguous(memory_format=torch.channels_last)
    got = kernels.Convolution(weight, bias, device=CPU, fused=fused)(x)
    expected = functional.conv2d(x, weight.float().contiguous(memory_format=torch.channels_last), bias.float(), 1, 1)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got, expected, rtol=1e-6 * fused, atol=1e-5 * fused)


# bf16: one rounding where one is promised


def nearest_bfloat16(value):
    mantissa, exponent = math.frexp(value)
    return math.ldexp(round(mantissa * 2**8), exponent - 8)  # Python rounds ties to even


@given(st.floats(min_value=2.0**-126, max_value=2.0**127), st.sampled_from([-1, 1]))
def test_float64_is_rounded_to_the_nearest_bfloat16(size, sign):
    assert round_once(torch.tensor([sign * size], dtype=torch.float64), torch.bfloat16).item() == nearest_bfloat16(
        sign * size
    )


def test_rounding_does_not_go_by_way_of_float32():
    just_above_a_tie = torch.tensor([[1 + 2**-8 + 2**-30, 0.0, -(1 + 2**-8 + 2**-40)]], dtype=torch.float64)
    # Turned round, as kernels are for their gradients, so that memory is not in order.
    assert round_once(just_above_a_tie.flip(1).T, torch.bfloat16).flatten().tolist() == [-1 - 2**-7, 0.0, 1 + 2**-7]
    assert just_above_a_tie.bfloat16().flatten().tolist() == [1.0, 0.0, -1.0]
    weight = just_above_a_tie[:, :1, None, None]
    one = torch.ones(1, 1, 1, 1, dtype=torch.bfloat16)
    assert kernels.Convolution(weight, None, device=CPU, dtype=torch.bfloat16, fused=False)(one).item() == 1 + 2**-7


@pytest.fixture(params=["fused", "plain"])
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Both ways to compute a convolution, whatever this machine would choose."""
    if request.param == "plain":
        monkeypatch.setattr(kernels, "fuses_on_cpu", lambda *_: False)
    elif not kernels.fuses_on_cpu(torch.bfloat16):
        pytest.skip("this PyTorch has no fused convolutions in bfloat16")
    return request.param


def bfloat16_map(*shape):
    return torch.randn(shape).to(torch.bfloat16, memory_format=torch.channels_last)


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize(("size", "stride"), [(1, 1), (3, 1), (3, 2)])
def test_convolutions_add_up_in_float32(size, stride):
    torch.manual_seed(0)
    x = bfloat16_map(3, 64, 8, 8)
    weight, bias = torch.randn(32, 64, size, size).bfloat16().double(), torch.randn(32).bfloat16().double()
    got = kernels.Convolution(weight, bias, device=CPU, dtype=torch.bfloat16, stride=stride)(x)
    exact = functional.conv2d(x.double(), weight, bias, stride, size // 2)
    assert got.dtype == torch.bfloat16
    # One rounding of the sum; adding 576 products up in bfloat16 would be off by ten times as much.
    torch.testing.assert_close(got.double(), exact, rtol=1.01 * ROUNDING, atol=1e-4)


@pytest.mark.skipif(
    not has_avx512(),
    reason="PyTorch's transposed convolutions in bfloat16 are wrong on CPUs without AVX-512",
)
@pytest.mark.usefixtures("kernel")
def test_sums_rectifiers_and_gradients_keep_to_bfloat16s_rounding():
    torch.manual_seed(0)
    x, shortcut = bfloat16_map(2, 8, 8, 8), bfloat16_map(2, 8, 8, 8)
    weight = torch.randn(8, 8, 3, 3).bfloat16().double()
    convolution = kernels.Convolution(weight, None, device=CPU, dtype=torch.bfloat16)
    sums = functional.conv2d(x.double(), weight, None, 1, 1)
    two_roundings = 2.01 * ROUNDING * float(sums.abs().max())
    for in_place in (False, True):
        got = convolution(x, add=shortcut.clone(), in_place=in_place, rectify=True)
        torch.testing.assert_close(got.double(), (sums + shortcut).relu(), rtol=0, atol=two_roundings)
    got = kernels.StridedGradient(weight, device=CPU, dtype=torch.bfloat16)(x)
    exact = functional.conv_transpose2d(x.double(), weight, stride=2, padding=1, output_padding=1)
    torch.testing.assert_close(got.double(), exact, rtol=1.01 * ROUNDING, atol=1e-4)


def test_bf16_is_rejected_on_a_cpu_without_avx512(monkeypatch):
    monkeypatch.setattr("robust201.core.precision.has_avx512", lambda: False)
    with pytest.raises(ConfigError, match=r"got a CPU without it, .* wrong gradients .* Set precision to fp32"):
        choose_device("cpu", "bf16")
    assert choose_device("cpu", "fp32").type == "cpu"
    monkeypatch.setattr("robust201.core.precision.has_avx512", lambda: True)
    assert choose_device("cpu", "bf16").type == "cpu"


@pytest.mark.parametrize("factor", [1, 3])
@pytest.mark.parametrize("size", [1, 2, 8])
def test_pooling_is_not_biased(factor, size):
    """A ninth is no bfloat16 number: as a weight it would make every pooled map larger by .2 %."""
    torch.manual_seed(0)
    x, gradient = bfloat16_map(2, 4, size, size), bfloat16_map(2, 4, size, size)
    watched = x.double().requires_grad_()
    exact = factor * functional.avg_pool2d(watched, 3, 1, 1, count_include_pad=False)
    (exact_gradient,) = torch.autograd.grad(exact, watched, gradient.double())
    pooling = kernels.AveragePooling(4, factor, device=CPU, dtype=torch.bfloat16)
    torch.testing.assert_close(pooling(x).double(), exact.detach(), rtol=2.01 * ROUNDING, atol=1e-4)
    largest = float((2.25 * gradient).abs().max())
    for got in (pooling.backward(gradient), pooling.backward(gradient.clone(), consume=True)):
        torch.testing.assert_close(got.double(), exact_gradient, rtol=0, atol=3 * ROUNDING * largest * factor)
    constant = torch.full_like(x, 1.25)
    assert torch.equal(pooling(constant), factor * constant)


def test_halving_is_exact_but_for_one_rounding():
    x = bfloat16_map(2, 4, 8, 8)
    got = kernels.Halving(4, device=CPU, dtype=torch.bfloat16)(x)
    torch.testing.assert_close(got.double(), functional.avg_pool2d(x.double(), 2), rtol=1.01 * ROUNDING, atol=1e-6)


# bf16: whole networks


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("name", CELLS)
@pytest.mark.each_value
def test_bf16_is_near_fp32_and_is_not_fp32(name):
    network = network_of(CELLS[name], cells=2)
    pixels, labels = images_of(32)
    exact = logits_and_gradients(network, CELLS[name], pixels, labels, "fp32")
    rounded = logits_and_gradients(network, CELLS[name], pixels, labels, "bf16")
    for engine, (logits, gradient) in rounded.items():
        # A rounding a layer, of which most cancel: 1.7 of them on the worst of a hundred networks.
        assert relative_distance(logits, exact[engine][0]) < 4 * ROUNDING, engine
        if 3 not in constant_nodes(CELLS[name]):
            assert not torch.equal(logits, exact[engine][0]), engine
            # Roundings open and shut ReLUs near zero; single images may turn by more than the batch.
            cosine = functional.cosine_similarity(gradient.flatten(), exact[engine][1].flatten(), dim=0)
            assert float(cosine) > 0.97, engine
            assert not torch.equal(gradient, exact[engine][1]), engine
    assert relative_distance(rounded["fused"][0], rounded["reference"][0]) < 4 * ROUNDING


@pytest.mark.parametrize("name", [name for name in CELLS if 3 in constant_nodes(CELLS[name])])
def test_networks_without_a_path_have_constant_logits_in_both_engines(name):
    network = network_of(CELLS[name], cells=2)
    pixels, labels = images_of(16)
    answers = logits_and_gradients(network, CELLS[name], pixels, labels, "bf16")
    for logits, gradient in answers.values():
        assert torch.equal(logits, logits[:1].expand_as(logits))
        assert not gradient.any()
    torch.testing.assert_close(answers["fused"][0], answers["reference"][0], rtol=1e-5, atol=1e-5)


def test_constant_logits_are_those_of_bf16_maps():
    """Constant maps come from convolutions like all others: where they lead to the logits, they are bfloat16."""
    spec = CELLS["no path, constant"]
    network = network_of(spec)
    pixels, labels = images_of(16)
    exact = logits_and_gradients(network, spec, pixels, labels, "fp32")["fused"][0]
    rounded = logits_and_gradients(network, spec, pixels, labels, "bf16")["fused"][0]
    assert 0 < relative_distance(rounded, exact) < 4 * ROUNDING


def test_a_constant_outside_of_the_graph_has_zero_gradients():
    logits = [0.0, 1.0, -2.0]
    classifier = Classifier(PathlessNetwork(logits, in_graph=False), NORMALISATION, 3, precision="bf16")
    pixels = images_of(8)[0].requires_grad_()
    answered = classifier(pixels)
    (gradient,) = torch.autograd.grad(answered.sum(), pixels)
    assert torch.equal(answered, torch.tensor(logits).expand(len(pixels), -1))
    assert gradient.dtype == torch.float32
    assert not gradient.any()


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("name", ["#21", "#991", "constant map with a border"])
def test_an_image_does_not_see_its_batch_in_bf16(name):
    compiled = compile_network(
        network_of(CELLS[name], channels=8), CELLS[name], NORMALISATION, n_classes=N_CLASSES, precision="bf16"
    )
    pixels, labels = images_of(16, n_images=37)
    labels = labels % N_CLASSES
    expected = compiled.loss_and_gradient(pixels, labels)
    for chunk, n_images in [(64, 1), (64, 3), (64, 9), (16, 37), (1, 9), (None, 36)]:
        compiled.chunk = chunk
        first = slice(0, n_images)
        for one, other in zip(compiled.loss_and_gradient(pixels[first], labels[first]), expected, strict=True):
            assert torch.equal(one, other[first])


def test_the_head_is_float32_whatever_the_maps_are():
    classifier = Classifier(build_network(specs()[0], n_classes=10), NORMALISATION, 10, precision="bf16")
    seen = {}

    def note(name):
        def hook(_module, inputs):
            seen[name] = inputs[0].dtype

        return hook

    for name, module in classifier.network.named_modules():
        module.register_forward_pre_hook(note(name))
    classifier(images_of(8)[0])
    shown = {name: dtype for name, dtype in seen.items() if name.split(".")[0] in ("stem", "cells")}
    assert set(shown.values()) == {torch.bfloat16}
    assert {seen[name] for name in ("lastact.0", "lastact.1", "global_pooling", "classifier")} == {torch.float32}
    norms = [module for module in classifier.modules() if isinstance(module, torch.nn.BatchNorm2d)]
    assert {module.running_var.dtype for module in norms} == {torch.float32}


# tf32: on CUDA or not at all


def test_switches_are_set_and_set_back():
    # In a process of its own: these settings are for the whole process.
    command = """
import torch
from robust201.models.arithmetic import (configure_torch)

def switches():
    return (torch.get_float32_matmul_precision(), torch.backends.cuda.matmul.allow_tf32,
            torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction)

configure_torch(1, "tf32")
assert switches() == ("high", True, True, False), switches()
for precision in ("fp32", "tf32", "bf16"):
    configure_torch(1, precision)
    tf32 = precision == "tf32"
    assert switches() == ("high" if tf32 else "highest", tf32, tf32, False), (precision, switches())
configure_torch(1, "tf32")
configure_torch(1)
assert switches() == ("highest", False, False, False), switches()
"""
    subprocess.run([sys.executable, "-W", "error", "-c", command], env=dict(os.environ), check=True)


@pytest.mark.parametrize("executor", ["inline", "ray"])
def test_tf32_on_a_cpu_is_refused_as_it_is_read(robust201: RunCommand, write_sweep: WriteSweep, executor: str) -> None:
    path = write_sweep(precision="tf32", execution={"executor": executor, "device": "cpu"})
    for command in ("run", "plan"):
        line = robust201(command, path).refusal(2)
        assert "execution.device: expected auto or cuda, since CPUs have no precision tf32, got cpu" in line


def test_tf32_is_refused_wherever_a_network_is_made(make_sweep: MakeSweep, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    spec = specs()[0]
    network = network_of(spec)
    with pytest.raises(ConfigError, match="got a CPU"):
        Classifier(network, NORMALISATION, N_CLASSES, precision="tf32")
    with pytest.raises(ConfigError, match="got a CPU"):
        compile_network(network, spec, NORMALISATION, n_classes=N_CLASSES, precision="tf32")
    with pytest.raises(ConfigError, match="got a CPU"):
        Worker(make_sweep(precision="tf32"), {})


@pytest.mark.parametrize(
    ("version", "capability", "got"),
    [("12.4", (7, 5), "7.5"), (None, (9, 4), "cuda without CUDA"), ("12.4", (8, 0), "")],
)
def test_tf32_needs_a_gpu_that_has_it(version, capability, got, monkeypatch):
    """Older GPUs, and AMD's, which go by the name of cuda, ignore the switches and compute float32."""
    monkeypatch.setattr(torch.version, "cuda", version)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: capability)
    if not got:
        check_precision("tf32", torch.device("cuda"))
        return
    with pytest.raises(ConfigError, match=rf"got {got}\. Set precision"):
        check_precision("tf32", torch.device("cuda"))


def test_an_unknown_precision_in_a_sweep_names_the_closest(robust201: RunCommand, write_sweep: WriteSweep) -> None:
    line = robust201("run", write_sweep(precision="bf61")).refusal(2)
    assert "precision: expected 'fp32', 'tf32' or 'bf16', got 'bf61'. Did you mean 'bf16'?" in line
