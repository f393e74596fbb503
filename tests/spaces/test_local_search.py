"""Square's window-local search against whole passes: the same logits, the same decisions, the same images."""

import gc
import weakref

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from robust201.spaces.nasbench201.cells import EDGES, OPERATIONS, format_spec, specs
from robust201.spaces.nasbench201.compiled import compile_network, kernels
from robust201.spaces.nasbench201.compiled.local import LocalKernels, LocalPass
from robust201.spaces.nasbench201.compiled.regions import Region, union
from robust201.tasks import TASKS
from robust201.tasks.attack_kit.attack_job import AttackJob
from robust201.tasks.attack_kit.batching import Batching
from robust201.tasks.attack_kit.draws import CounterDraws
from robust201.tasks.perturbations.square import fused
from tests.spaces.test_inference import N_CLASSES, NORMALISATION, SPECIAL_CELLS, network_of
from tests.tasks.test_fused_attacks import IMAGES, ExactModel, assert_same, attacked

CONSTANT_CELLS = ("no path, zero", "no path, constant")
SQUARE = TASKS["aa_square"]


# --- regions -------------------------------------------------------------------------------------------------------

SIDES = st.tuples(st.integers(0, 15), st.integers(1, 16)).map(lambda pair: (pair[0], min(pair[0] + pair[1], 16)))
REGIONS = st.builds(lambda rows, columns: Region(*rows, *columns), SIDES, SIDES)


def touched(region, reach, stride):
    """What a convolution really changes of a map of 16x16 pixels."""
    pixels = torch.zeros(1, 1, 16, 16)
    pixels[:, :, region.top : region.bottom, region.left : region.right] = 1
    weight = torch.ones(1, 1, 2 * reach + 1, 2 * reach + 1)
    rows, columns = functional.conv2d(pixels, weight, stride=stride, padding=reach)[0, 0].nonzero().T
    return Region(int(rows.min()), int(rows.max()) + 1, int(columns.min()), int(columns.max()) + 1)


@given(REGIONS, st.integers(0, 2))
def test_a_region_spreads_as_far_as_a_kernel_sees(region, reach):
    assert region.spread(reach, 16, 16) == touched(region, reach, stride=1)


@given(REGIONS)
def test_a_region_spreads_through_a_strided_kernel(region):
    half = region.spread_by_two(8, 8)
    assert half == touched(region, reach=1, stride=2)
    # What is read for it holds all that changed, so that the patch can be put into it.
    read = half.doubled(before=1)
    assert union([read, region]) == read


# --- logits --------------------------------------------------------------------------------------------------------


def local_to(depth, monkeypatch):
    """Let every search compute that many blocks locally."""
    monkeypatch.setattr(LocalKernels, "depth", lambda self, *_: min(depth, len(self.blocks)))


def proposals(generator, n_images, size, count):
    """Windows of any side at any place, the borders included, each with the images that accept it."""
    for _ in range(count):
        side = int(generator.integers(1, size + 1))
        row, column = (int(start) for start in generator.integers(0, size - side + 1, 2))
        window = torch.from_numpy(generator.random((n_images, 3, side, side), np.float32))
        yield row, column, window, torch.from_numpy(generator.random(n_images) < 0.4)


def logits_both_ways(network, *, size, n_images, count, seed=0):
    """Whole passes and local ones through a search in which a part of the proposals is accepted."""
    generator = np.random.default_rng(seed)
    pixels = torch.from_numpy(generator.random((n_images, 3, size, size), np.float32))
    search = network.window_search(pixels.clone(), [1] * count)
    for row, column, window, accepted in proposals(generator, n_images, size, count):
        proposal = pixels.clone()
        proposal[:, :, row : row + window.shape[2], column : column + window.shape[3]] = window
        yield network.logits(proposal), search.logits(row, column, window)
        search.accept(accepted)
        pixels = torch.where(accepted.view(-1, 1, 1, 1), proposal, pixels)


def assert_same_logits(spec, size, n_images=5, count=4):
    network = compile_network(network_of(spec, seed=size, cells=2), spec, NORMALISATION, n_classes=N_CLASSES)
    for whole, local in logits_both_ways(network, size=size, n_images=n_images, count=count, seed=size):
        torch.testing.assert_close(local, whole, rtol=0, atol=1e-5 * max(1.0, float(whole.abs().max())))


@pytest.fixture(params=["fused", "plain"])
def kernel(request, monkeypatch):
    """Both ways to compute a convolution, whatever this machine would choose."""
    if request.param == "plain":
        monkeypatch.setattr(kernels, "fuses_on_cpu", lambda *_: False)
    elif not kernels.fuses_on_cpu():
        pytest.skip("this PyTorch has no fused convolutions")


@pytest.mark.parametrize("name", [name for name in SPECIAL_CELLS if name not in CONSTANT_CELLS])
@pytest.mark.usefixtures("kernel")
@pytest.mark.each_value
def test_special_cells(name, monkeypatch):
    for depth, size in ((99, 16), (99, 8), (1, 16), (3, 16)):
        local_to(depth, monkeypatch)
        assert_same_logits(format_spec(SPECIAL_CELLS[name]), size)


@settings(max_examples=10, deadline=None)
@given(
    st.tuples(*[st.sampled_from(OPERATIONS)] * len(EDGES)),
    st.sampled_from([8, 12, 16, 32]),
    st.sampled_from([2, 5, 99]),
)
def test_any_cell(operations, size, depth):
    spec = format_spec(operations)
    network = compile_network(network_of(spec), spec, NORMALISATION, n_classes=N_CLASSES)
    with pytest.MonkeyPatch.context() as monkeypatch:
        local_to(depth, monkeypatch)
        if network.window_search(torch.zeros(1, 3, size, size), [1]) is not None:
            assert_same_logits(spec, size)


@pytest.mark.parametrize("index", [0, 21, 309, 13714])
def test_the_published_width_bit_by_bit(index, monkeypatch):
    """As many images as a chunk holds, and fewer than the libraries' general kernels take; nothing drifts."""
    local_to(99, monkeypatch)
    spec = specs()[index]
    network = compile_network(network_of(spec, channels=16), spec, NORMALISATION, n_classes=N_CLASSES)
    for n_images, count in ((2, 40), (64, 4)):
        for whole, local in logits_both_ways(network, size=32, n_images=n_images, count=count):
            assert torch.equal(whole, local)


def test_results_are_ordinary_tensors(monkeypatch):
    local_to(99, monkeypatch)
    spec = specs()[0]
    network = compile_network(network_of(spec), spec, NORMALISATION, n_classes=N_CLASSES)
    pixels = torch.rand(3, 3, 8, 8)
    kept = pixels.clone()
    search = network.window_search(pixels, [1])
    logits = search.logits(2, 3, torch.rand(3, 3, 2, 2))
    assert logits.shape == (3, N_CLASSES)
    assert not logits.is_inference()
    logits[0] = 0.0
    search.accept(torch.tensor([True, False, True]))
    assert torch.equal(pixels, kept)
    # The images are copied: what the caller writes into them is not a proposal.
    before = search.logits(0, 0, torch.ones(3, 3, 1, 1))
    pixels.zero_()
    assert torch.equal(search.logits(0, 0, torch.ones(3, 3, 1, 1)), before)


def test_a_search_is_local_where_that_saves_something():
    def search(index, *, sides, size=32, n_images=8):
        spec = specs()[index]
        network = compile_network(network_of(spec, cells=5), spec, NORMALISATION, n_classes=N_CLASSES)
        return network.window_search(torch.zeros(n_images, 3, size, size), sides)

    assert search(309, sides=[4] * 64) is not None
    assert search(13714, sides=[4] * 64) is not None
    assert search(309, sides=[29] * 64) is None  # the window is nearly the image
    assert search(309, sides=[4]) is None  # keeping the maps would cost more
    assert search(309, sides=[]) is None
    assert search(309, sides=[1] * 64, size=4) is None
    assert search(309, sides=[4] * 64, n_images=0) is None
    assert search(309, sides=[4] * 64, n_images=65) is None  # more than a chunk
    (pathless,) = (spec for spec in specs() if spec == format_spec(SPECIAL_CELLS["no path, zero"]))
    assert search(specs().index(pathless), sides=[4] * 64) is None


# --- Square --------------------------------------------------------------------------------------------------------


class ExactSearch:
    """Keeps images of its own, so that it sees only what it is told; sums are exact."""

    def __init__(self, network, pixels):
        self._network = network
        self._accepted = pixels.clone()
        self._proposal = pixels.clone()
        self.n_logits = 0

    def logits(self, row, column, window):
        self.n_logits += 1
        self._proposal = self._accepted.clone()
        self._proposal[:, :, row : row + window.shape[2], column : column + window.shape[3]] = window
        return self._network(self._proposal)

    def accept(self, accepted):
        self._accepted = torch.where(accepted.view(-1, 1, 1, 1), self._proposal, self._accepted)


class ExactWindowModel(ExactModel):
    """A model with exact sums that offers a search where there is more than one query to come."""

    def __init__(self):
        super().__init__()
        self.searches = []

    def window_search(self, pixels, sides):
        if len(sides) == 1:
            return None
        self.searches.append(ExactSearch(self.network, pixels))
        return self.searches[-1]


@pytest.mark.parametrize("samples", [64, 5])
def test_square_tells_a_search_all_that_it_needs(samples):
    parameters = SQUARE.parameters(epsilons_255=(2.0, 8.0, 24.0), queries=150, restarts=2)
    model = ExactWindowModel()
    local = attacked(SQUARE, parameters=parameters, model=model, samples=samples)
    assert sum(search.n_logits for search in model.searches) > 100
    assert_same(local, attacked(SQUARE, parameters=parameters, samples=samples))
    assert any((images != attacked_clean()).any() for images in local.values())


def attacked_clean():
    return torch.from_numpy(IMAGES.images).float() / 255


class WholePasses:
    """A compiled network that answers with whole passes only."""

    def __init__(self, network):
        self.logits = network.logits

    def loss_and_gradient(self, pixels, labels):
        raise NotImplementedError


def square_on(model, images, labels, *, queries, epsilons, samples=64, together=None):
    """Run Square; (S, N, 3, H, W)."""
    chosen = np.arange(len(images)) if together is None else np.asarray(together)
    job = AttackJob(
        model=model,
        batching=Batching(samples, 10_000),
        draws=CounterDraws(0, "aa_square"),
        images=images[chosen],
        labels=labels[chosen],
        indices=chosen,
        epsilons=epsilons,
    )
    found = torch.full((len(epsilons), len(images), *images.shape[1:]), torch.nan)
    for batch in fused(job, SQUARE.parameters(queries=queries)):
        found[batch.strength][torch.from_numpy(chosen[batch.positions])] = batch.images
    return found


@pytest.fixture
def compiled():
    """A compiled network, images of 16x16 that it tells apart, and their labels: what it says."""
    spec = specs()[309]
    plain = network_of(spec, cells=1)
    images = torch.from_numpy(np.random.default_rng(3).integers(0, 256, (6, 3, 16, 16), np.uint8))
    pixels = images.float() / 255
    with torch.no_grad():
        for module in plain.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                module.weight.mul_(4.0)
        logits = compile_network(plain, spec, NORMALISATION, n_classes=N_CLASSES).logits(pixels)
        plain.classifier.bias.sub_(logits.mean(dim=0))
    network = compile_network(plain, spec, NORMALISATION, n_classes=N_CLASSES)
    return network, images, network.logits(pixels).argmax(dim=1)


def counted(monkeypatch):
    calls = []
    plain = LocalPass.logits
    monkeypatch.setattr(LocalPass, "logits", lambda self, *args: calls.append(1) or plain(self, *args))
    return calls


def test_all_queries_of_square_end_in_the_same_images(compiled, monkeypatch):
    calls = counted(monkeypatch)
    epsilons = (0.1 / 255, 1 / 255, 4 / 255)
    # Windows of all sides in the order of 5,000 queries, a quarter as many of each.
    local = square_on(*compiled, queries=1250, epsilons=epsilons)
    assert len(calls) > 900
    whole = square_on(WholePasses(compiled[0]), *compiled[1:], queries=1250, epsilons=epsilons)
    assert torch.equal(local, whole)
    fooled = (local != compiled[1].float() / 255).flatten(2).any(dim=2)
    assert fooled.any()
    assert not fooled.all()


def test_who_else_is_attacked_leaves_no_trace(compiled, monkeypatch):
    local_to(99, monkeypatch)
    calls = counted(monkeypatch)
    epsilons = (0.1 / 255, 1 / 255)
    expected = square_on(*compiled, queries=30, epsilons=epsilons)
    assert calls
    for samples in (1, 5):
        assert torch.equal(square_on(*compiled, queries=30, epsilons=epsilons, samples=samples), expected)
    apart = [square_on(*compiled, queries=30, epsilons=(epsilon,))[0] for epsilon in epsilons]
    assert torch.equal(torch.stack(apart), expected)
    some = square_on(*compiled, queries=30, epsilons=epsilons, together=[4, 1])
    assert torch.equal(some[:, [1, 4]], expected[:, [1, 4]])


def test_a_network_that_is_left_is_freed_at_once():
    network = compile_network(network_of(specs()[21]), specs()[21], NORMALISATION, n_classes=N_CLASSES)
    search = network.window_search(torch.rand(8, 3, 32, 32), [3] * 64)
    assert search is not None
    left = weakref.ref(network)
    gc.disable()  # a cycle would wait for the collector, through thousands of networks
    try:
        del network, search
        assert left() is None
    finally:
        gc.enable()
