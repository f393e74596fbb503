"""Compiled networks equal uncompiled networks: special and random cells, and both implementations of convolutions."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from robust201.core.records import Normalisation
from robust201.networks.batch_sizes import BatchSizes
from robust201.networks.classifier import Classifier
from robust201.networks.nb201.cells import EDGES, OPERATIONS, constant_nodes, format_spec, parse, specs
from robust201.networks.nb201.compiled import MIN_BATCH, compile_network, kernels, native
from robust201.networks.nb201.compiled.program import CellProgram, Node, Term, plan_cell
from robust201.networks.nb201.network import Network

NORMALISATION = Normalisation((0.49, 0.48, 0.45), (0.25, 0.24, 0.26))
N_CLASSES = 7
NONE, SKIP, CONV_1, CONV_3, POOL = OPERATIONS

# Cells by property; edges are in the order 0→1, 0→2, 1→2, 0→3, 1→3, 2→3.
SPECIAL_CELLS = {
    "identity": (NONE, NONE, NONE, SKIP, NONE, NONE),
    "identity via node 1": (SKIP, NONE, NONE, NONE, SKIP, NONE),
    "three paths of skips": (SKIP, SKIP, NONE, SKIP, SKIP, SKIP),
    "no path, zero": (CONV_3, CONV_3, CONV_1, NONE, NONE, NONE),
    "no path, constant": (NONE, NONE, CONV_3, NONE, CONV_1, CONV_3),
    "constant map with a border": (NONE, NONE, CONV_3, CONV_1, NONE, CONV_3),
    "pooled constant": (NONE, NONE, CONV_1, SKIP, CONV_3, POOL),
    "inlined constant": (NONE, CONV_3, CONV_1, NONE, NONE, SKIP),
    "constant and pooling only": (NONE, NONE, CONV_3, POOL, NONE, SKIP),
    "constant and identity": (NONE, NONE, CONV_1, SKIP, NONE, SKIP),
    "convolutions of one source": (SKIP, CONV_3, CONV_1, CONV_1, CONV_3, SKIP),
    "only 1x1": (CONV_1, SKIP, NONE, CONV_1, SKIP, NONE),
    "only pooling": (POOL, POOL, POOL, POOL, POOL, POOL),
    "repeated pooling": (POOL, SKIP, SKIP, POOL, SKIP, SKIP),
    "pooling shared by two nodes": (POOL, POOL, NONE, NONE, CONV_3, CONV_1),
    "pooling and skip of one node": (CONV_1, NONE, SKIP, NONE, POOL, SKIP),
    "all 3x3": (CONV_3,) * 6,
    "all skip": (SKIP,) * 6,
}


def network_of(spec, seed=0, channels=4, cells=1):
    """Return a network with random BatchNorm statistics and parameters, which reveal errors in folding."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        network = Network(spec, channels=channels, cells=cells, n_classes=N_CLASSES).eval()
        with torch.no_grad():
            for module in network.modules():
                if isinstance(module, torch.nn.BatchNorm2d):
                    module.running_mean.normal_(std=0.3)
                    module.running_var.uniform_(0.5, 1.5)
                    module.weight.normal_(0.5, 0.5)
                    module.bias.normal_(std=0.3)
    return network


def images_of(size, n_images=5):
    """Return random images and the labels 0, 1, 2 and so on."""
    generator = torch.Generator().manual_seed(size)
    return torch.rand(n_images, 3, size, size, generator=generator), torch.arange(n_images)


def assert_equal_within_rounding(network, spec, size, gradient_tolerance=1e-5):
    """Check that the compiled network equals the uncompiled network; return its logits and its gradient."""
    pixels, labels = images_of(size)
    classifier = Classifier(network, NORMALISATION, N_CLASSES)
    compiled = compile_network(network, spec, NORMALISATION)
    inputs = pixels.clone().requires_grad_()
    expected = classifier(inputs)
    expected_loss = functional.cross_entropy(expected, labels, reduction="none")
    (expected_gradient,) = torch.autograd.grad(expected_loss.sum(), inputs)
    scale = max(1.0, float(expected.detach().abs().max()))
    logits = compiled.logits(pixels)
    logits_with_gradient, loss, gradient = compiled.loss_and_gradient(pixels, labels)
    torch.testing.assert_close(logits, expected.detach(), rtol=0, atol=1e-5 * scale)
    assert torch.equal(logits, logits_with_gradient)
    torch.testing.assert_close(loss, expected_loss.detach(), rtol=0, atol=2e-5 * scale)
    max_gradient = float(expected_gradient.abs().max())
    torch.testing.assert_close(gradient, expected_gradient, rtol=0, atol=gradient_tolerance * max_gradient + 1e-12)
    return logits, gradient


@pytest.fixture(params=["fused", "unfused"])
def convolution_implementation(request, monkeypatch):
    """Select an implementation of convolutions, independently of this machine's default."""
    if request.param == "unfused":
        monkeypatch.setattr(kernels, "has_fused_convolution", lambda *_: False)
    elif not kernels.has_fused_convolution():
        pytest.skip("this PyTorch has no fused convolutions")
    return request.param


@pytest.mark.parametrize("name", SPECIAL_CELLS)
@pytest.mark.parametrize("size", [16, 32])
@pytest.mark.slow_combinations
def test_compiled_special_cells_equal_the_uncompiled_network(name, size, convolution_implementation):
    spec = format_spec(SPECIAL_CELLS[name])
    logits, gradient = assert_equal_within_rounding(network_of(spec, cells=2), spec, size)
    assert bool((logits[0] == logits[1]).all()) == (3 in constant_nodes(spec))
    assert bool(gradient.any()) == (3 not in constant_nodes(spec))


@pytest.mark.parametrize("index", [0, 309, 991])
def test_compiled_network_of_published_size_equals_the_uncompiled_network(index, convolution_implementation):
    spec = specs()[index]
    # A few of a million ReLUs have inputs close to zero. If rounding changes the sign of such an input, the gradient
    # changes by far more than rounding, so the tolerance is larger.
    assert_equal_within_rounding(network_of(spec, seed=index, channels=16, cells=5), spec, 32, gradient_tolerance=5e-3)


@settings(max_examples=40)
@given(st.tuples(*[st.sampled_from(OPERATIONS)] * len(EDGES)), st.sampled_from([4, 8, 16, 32]))
def test_compiled_random_cell_equals_the_uncompiled_network(operations, size):
    spec = format_spec(operations)
    assert_equal_within_rounding(network_of(spec, seed=size), spec, size)


def assert_independent_of_the_batch(compiled, size, memory_format=torch.contiguous_format):
    """Check that an image's outputs depend neither on the other images nor on the maximum size of batches."""
    pixels, labels = images_of(size, n_images=37)
    labels = labels % N_CLASSES
    expected = compiled.loss_and_gradient(pixels, labels)
    pixels = pixels.contiguous(memory_format=memory_format)
    for limit, n_images in [(64, 1), (64, 2), (64, 3), (64, 8), (16, 37), (16, 19), (1, 9), (None, 36)]:
        compiled.batch_sizes = BatchSizes(limit=limit, minimum=MIN_BATCH)
        first_images = slice(0, n_images)
        for output, full_batch in zip(
            compiled.loss_and_gradient(pixels[first_images], labels[first_images]), expected, strict=True
        ):
            assert torch.equal(output, full_batch[first_images])
        last_images = slice(len(pixels) - n_images, None)
        assert torch.equal(compiled.logits(pixels[last_images]), expected[0][last_images])


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("index", [0, 21, 991])
def test_compiled_network_is_independent_of_the_batch(memory_format, index):
    # The batch size must not affect an image's logits, because it is not part of a result's identity.
    spec = specs()[index]
    compiled = compile_network(network_of(spec, channels=16), spec, NORMALISATION)
    assert_independent_of_the_batch(compiled, 32, memory_format)


def test_compiled_network_returns_writable_tensors():
    # Square writes to the logits, and callers may use them with autograd.
    spec = specs()[0]
    compiled = compile_network(network_of(spec), spec, NORMALISATION)
    pixels, labels = images_of(8)
    for tensor in (compiled.logits(pixels), *compiled.loss_and_gradient(pixels, labels)):
        assert not tensor.is_inference()
        assert not tensor.requires_grad
        tensor[0] = 0.0
    assert compiled.logits(pixels[:0]).shape == (0, N_CLASSES)


def test_compile_network_changes_neither_network_nor_pixels():
    spec = format_spec(SPECIAL_CELLS["pooled constant"])
    network = network_of(spec)
    original_state = {name: value.clone() for name, value in network.state_dict().items()}
    pixels, labels = images_of(16)
    original_pixels = pixels.clone()
    compiled = compile_network(network, spec, NORMALISATION)
    first_outputs = compiled.loss_and_gradient(pixels, labels)
    assert all(torch.equal(original_state[name], value) for name, value in network.state_dict().items())
    assert torch.equal(pixels, original_pixels)
    # If the backward pass overwrote its inputs, the second outputs would differ.
    for first_output, second_output in zip(first_outputs, compiled.loss_and_gradient(pixels, labels), strict=True):
        assert torch.equal(first_output, second_output)


def return_zeros(self, x, add, *, in_place, rectify):
    return torch.zeros(x.shape)


def raise_attribute_error(self, x, add, *, in_place, rectify):
    raise AttributeError("'_OpNamespace' 'mkldnn' object has no attribute '_convolution_pointwise'")


@pytest.mark.parametrize("broken_convolution", [return_zeros, raise_attribute_error])
def test_has_fused_convolution_is_false_for_broken_operators(broken_convolution, monkeypatch):
    kernels.has_fused_convolution.cache_clear()
    monkeypatch.setattr(kernels.Convolution, "_convolve_fused", broken_convolution)
    assert not kernels.has_fused_convolution()
    spec = format_spec(SPECIAL_CELLS["all 3x3"])
    assert_equal_within_rounding(network_of(spec), spec, 16)
    kernels.has_fused_convolution.cache_clear()


# Programs are tested with symbols instead of feature maps. A node is a multiset of chains: the operations that are
# applied to the input, one after another. A program and a cell are equivalent if and only if each chain occurs the same
# number of times in the outputs of both.


def chains_of_cell(spec):
    """Return, by node of a cell, the multiset {chain: count} of the operation chains from the input to the node."""
    nodes = {0: {"x": 1}}
    no_chains = {}
    for edge, (source, target) in enumerate(EDGES):
        operation = parse(spec)[edge]
        source_chains = nodes.get(source, no_chains)
        target_chains = nodes.setdefault(target, {})
        for chain, count in append_operation(operation, edge, source_chains).items():
            target_chains[chain] = target_chains.get(chain, 0) + count
    return nodes


def append_operation(operation, edge, source_chains):
    """Return the chains of an edge's output, given those of its source; a convolution merges them into one chain."""
    if operation == NONE:
        return {}
    if operation == SKIP:
        return source_chains
    if operation == POOL:
        return {("pool", chain): count for chain, count in source_chains.items()}
    return {(edge, frozenset(source_chains.items())): 1}


def chains_of_program(program):
    """Return, by node of a program, the multiset {chain: count} of operation chains."""
    operations = parse(program.spec)
    cell_chains = chains_of_cell(program.spec)
    nodes = {0: {"x": 1}}
    for node in program.nodes:
        node_chains = {}
        counted_chains = [
            (count, chain)
            for edge in node.constants
            for chain, count in append_operation(operations[edge], edge, cell_chains[EDGES[edge][0]]).items()
        ]
        for term in node.terms:
            source_chains = nodes[term.source]
            counted_chains += [(term.skips * count, chain) for chain, count in source_chains.items()]
            counted_chains += [(term.pools * count, ("pool", chain)) for chain, count in source_chains.items()]
            counted_chains += [(1, (edge, frozenset(source_chains.items()))) for edge in term.convolutions]
        for count, chain in counted_chains:
            if count:
                node_chains[chain] = node_chains.get(chain, 0) + count
        nodes[node.index] = node_chains
    return nodes


@pytest.mark.parametrize(
    "first_operation",
    [OPERATIONS[0], *(pytest.param(operation, marks=pytest.mark.slow) for operation in OPERATIONS[1:])],
)
def test_programs_are_equivalent_to_their_cells(first_operation):
    for spec in specs():
        if parse(spec)[0] != first_operation:
            continue
        program = plan_cell(spec)
        if program.output_node is None:
            assert 3 in constant_nodes(spec)
            continue
        assert chains_of_program(program)[program.output_node] == chains_of_cell(spec)[3], spec


def test_programs_have_no_unused_nodes_and_fit_the_limits_of_the_native_library():
    for spec in specs():
        program = plan_cell(spec)
        read_nodes = {program.output_node} | {term.source for node in program.nodes for term in node.terms}
        assert all(node.index in read_nodes for node in program.nodes), spec
        assert all(term.skips or term.pools or term.convolutions for node in program.nodes for term in node.terms), spec
        for node in program.nodes:
            n_sources = sum(bool(term.skips) + bool(term.pools) for term in node.terms) + bool(node.constants)
            assert n_sources <= native.MAX_SOURCES, spec


@pytest.mark.parametrize(
    ("name", "nodes", "output"),
    [
        ("identity via node 1", (), 0),
        ("no path, constant", (), None),
        ("only 1x1", (Node(3, (Term(0, convolutions=(0, 3)),)),), 3),
        ("repeated pooling", (Node(3, (Term(0, skips=1, pools=3),)),), 3),
        ("convolutions of one source", (Node(3, (Term(0, convolutions=(1, 2, 3, 4)),)),), 3),
        ("pooled constant", (Node(3, (Term(0, skips=1),), constants=(4, 5)),), 3),
    ],
)
def test_plan_cell_simplifies_special_cells(name, nodes, output):
    spec = format_spec(SPECIAL_CELLS[name])
    assert plan_cell(spec) == CellProgram(spec, nodes, output)


@pytest.mark.parametrize("size", [(1, 1), (2, 2), (1, 4), (5, 3)])
def test_average_pooling_and_gradient_match_pytorch(size):
    torch.manual_seed(0)
    x = torch.randn(2, 3, *size).contiguous(memory_format=torch.channels_last)
    inputs = x.clone().requires_grad_()
    expected = 2 * functional.avg_pool2d(inputs, 3, 1, 1, count_include_pad=False)
    gradient = torch.randn_like(x)
    (expected_gradient,) = torch.autograd.grad(expected, inputs, gradient)
    pooling = kernels.AveragePooling(3, 2, device=torch.device("cpu"))
    torch.testing.assert_close(pooling(x), expected.detach())
    torch.testing.assert_close(pooling.backward(gradient), expected_gradient)
    torch.testing.assert_close(pooling.backward(gradient, add=x), expected_gradient + x)
    torch.testing.assert_close(pooling.backward(gradient.clone(), overwrite=True), expected_gradient)


def sequential_product(x, weight):
    """Return x @ weight.T in float32, with fused multiply-adds in the order of the inputs, up to double rounding."""
    total = torch.zeros(len(x), len(weight))
    for inputs, weights in zip(x.double().T, weight.double().T, strict=True):
        total = (total.double() + inputs[:, None] * weights).float()
    return total


@pytest.mark.skipif(
    not kernels.has_fused_convolution() or torch.backends.cpu.get_cpu_capability() != "AVX512",
    reason="oneDNN's fused convolutions with AVX-512 are not available",
)
@pytest.mark.parametrize(("n_inputs", "n_outputs"), [(64, 10), (64, 120), (16, 7)])
@pytest.mark.parametrize("n_images", [1, 8, 64])
def test_linear_sums_its_inputs_in_order(n_inputs, n_outputs, n_images):
    generator = torch.Generator().manual_seed(0)
    weight, bias = (torch.randn(*shape, generator=generator) for shape in ((n_outputs, n_inputs), (n_outputs,)))
    x, gradient = (torch.randn(n_images, n, generator=generator) for n in (n_inputs, n_outputs))
    layer = kernels.Linear(weight, bias, device=torch.device("cpu"))
    assert torch.equal(layer(x), sequential_product(x, weight) + bias)
    assert torch.equal(layer.backward(gradient), sequential_product(gradient, weight.T))
