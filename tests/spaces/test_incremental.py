"""Incremental passes give the same logits as full passes, and the same images in the attack Square."""

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
from robust201.spaces.nasbench201.compiled.incremental import IncrementalKernels, IncrementalPass
from robust201.spaces.nasbench201.compiled.regions import Region, union
from robust201.tasks import TASKS
from robust201.tasks.attack_kit.attack_job import AttackJob
from robust201.tasks.attack_kit.batching import Batching
from robust201.tasks.attack_kit.random_numbers import CounterRandomNumbers
from robust201.tasks.perturbations.square import fused
from tests.spaces.test_inference import N_CLASSES, NORMALISATION, SPECIAL_CELLS, network_of
from tests.tasks.test_fused_attacks import IMAGES, ExactModel, assert_equals_rows_of, attack_images

CONSTANT_CELLS = ("no path, zero", "no path, constant")
SQUARE = TASKS["aa_square"]


# --- regions -------------------------------------------------------------------------------------------------------

INTERVALS = st.tuples(st.integers(0, 15), st.integers(1, 16)).map(
    lambda start_and_length: (start_and_length[0], min(sum(start_and_length), 16))
)
REGIONS = st.builds(lambda rows, columns: Region(*rows, *columns), INTERVALS, INTERVALS)


def affected_region(region, reach, stride):
    """Return the region of a convolution's output that depends on a region of its 16x16 input."""
    pixels = torch.zeros(1, 1, 16, 16)
    pixels[:, :, region.top : region.bottom, region.left : region.right] = 1
    weight = torch.ones(1, 1, 2 * reach + 1, 2 * reach + 1)
    rows, columns = functional.conv2d(pixels, weight, stride=stride, padding=reach)[0, 0].nonzero().T
    return Region(int(rows.min()), int(rows.max()) + 1, int(columns.min()), int(columns.max()) + 1)


@given(REGIONS, st.integers(0, 2))
def test_region_spread_matches_a_kernel(region, reach):
    assert region.spread(reach, 16, 16) == affected_region(region, reach, stride=1)


@given(REGIONS)
def test_region_spread_with_stride_2_matches_a_strided_kernel(region):
    affected = region.spread_with_stride_2(8, 8)
    assert affected == affected_region(region, reach=1, stride=2)
    # The region that the kernel reads must contain the patch.
    read_region = affected.double(margin_before=1)
    assert union([read_region, region]) == read_region


# --- logits --------------------------------------------------------------------------------------------------------


def fix_depth(depth, monkeypatch):
    """Make every search compute the first `depth` blocks incrementally."""
    monkeypatch.setattr(IncrementalKernels, "choose_depth", lambda self, *_: min(depth, len(self.blocks)))


def random_proposals(rng, n_images, size, count):
    """Yield (row, column, window, accepted) for random windows; `accepted` is (B,) bool."""
    for _ in range(count):
        side = int(rng.integers(1, size + 1))
        row, column = (int(start) for start in rng.integers(0, size - side + 1, 2))
        window = torch.from_numpy(rng.random((n_images, 3, side, side), np.float32))
        yield row, column, window, torch.from_numpy(rng.random(n_images) < 0.4)


def full_and_incremental_logits(network, *, size, n_images, count, seed=0):
    """Yield (full, incremental) logits for each proposal of a search that accepts proposals at random."""
    rng = np.random.default_rng(seed)
    pixels = torch.from_numpy(rng.random((n_images, 3, size, size), np.float32))
    search = network.window_search(pixels.clone(), [1] * count)
    for row, column, window, accepted in random_proposals(rng, n_images, size, count):
        proposal = pixels.clone()
        proposal[:, :, row : row + window.shape[2], column : column + window.shape[3]] = window
        yield network.logits(proposal), search.logits(row, column, window)
        search.accept(accepted)
        pixels = torch.where(accepted.view(-1, 1, 1, 1), proposal, pixels)


def assert_same_logits(spec, size, n_images=5, count=4):
    """Check that incremental and full passes give equal logits up to rounding for `count` random proposals."""
    network = compile_network(network_of(spec, seed=size, cells=2), spec, NORMALISATION, n_classes=N_CLASSES)
    for full, incremental in full_and_incremental_logits(network, size=size, n_images=n_images, count=count, seed=size):
        torch.testing.assert_close(incremental, full, rtol=0, atol=1e-5 * max(1.0, float(full.abs().max())))


@pytest.fixture(params=["fused", "unfused"])
def convolution_implementation(request, monkeypatch):
    """Select an implementation of convolutions, independently of this machine's default."""
    if request.param == "unfused":
        monkeypatch.setattr(kernels, "has_fused_convolution", lambda *_: False)
    elif not kernels.has_fused_convolution():
        pytest.skip("this PyTorch has no fused convolutions")


@pytest.mark.parametrize("name", [name for name in SPECIAL_CELLS if name not in CONSTANT_CELLS])
@pytest.mark.usefixtures("convolution_implementation")
@pytest.mark.slow_combinations
def test_incremental_logits_equal_full_logits_for_special_cells(name, monkeypatch):
    for depth, size in ((99, 16), (99, 8), (1, 16), (3, 16)):
        fix_depth(depth, monkeypatch)
        assert_same_logits(format_spec(SPECIAL_CELLS[name]), size)


@settings(max_examples=10, deadline=None)
@given(
    st.tuples(*[st.sampled_from(OPERATIONS)] * len(EDGES)),
    st.sampled_from([8, 12, 16, 32]),
    st.sampled_from([2, 5, 99]),
)
def test_incremental_logits_equal_full_logits_for_random_cells(operations, size, depth):
    spec = format_spec(operations)
    network = compile_network(network_of(spec), spec, NORMALISATION, n_classes=N_CLASSES)
    with pytest.MonkeyPatch.context() as monkeypatch:
        fix_depth(depth, monkeypatch)
        if network.window_search(torch.zeros(1, 3, size, size), [1]) is not None:
            assert_same_logits(spec, size)


@pytest.mark.parametrize("index", [0, 21, 309, 13714])
def test_incremental_logits_are_bit_identical_for_published_width(index, monkeypatch):
    # Few images with many proposals show that errors do not accumulate; 64 images are a full chunk.
    fix_depth(99, monkeypatch)
    spec = specs()[index]
    network = compile_network(network_of(spec, channels=16), spec, NORMALISATION, n_classes=N_CLASSES)
    for n_images, count in ((2, 40), (64, 4)):
        for full, incremental in full_and_incremental_logits(network, size=32, n_images=n_images, count=count):
            assert torch.equal(full, incremental)


def test_incremental_pass_returns_writable_tensors_and_copies_images(monkeypatch):
    fix_depth(99, monkeypatch)
    spec = specs()[0]
    network = compile_network(network_of(spec), spec, NORMALISATION, n_classes=N_CLASSES)
    pixels = torch.rand(3, 3, 8, 8)
    original = pixels.clone()
    search = network.window_search(pixels, [1])
    logits = search.logits(2, 3, torch.rand(3, 3, 2, 2))
    assert logits.shape == (3, N_CLASSES)
    assert not logits.is_inference()
    logits[0] = 0.0
    search.accept(torch.tensor([True, False, True]))
    assert torch.equal(pixels, original)
    # The search copies the images, so changes by the caller have no effect.
    expected = search.logits(0, 0, torch.ones(3, 3, 1, 1))
    pixels.zero_()
    assert torch.equal(search.logits(0, 0, torch.ones(3, 3, 1, 1)), expected)


def test_window_search_exists_only_if_it_saves_time():
    def start_search(index, *, sides, size=32, n_images=8):
        spec = specs()[index]
        network = compile_network(network_of(spec, cells=5), spec, NORMALISATION, n_classes=N_CLASSES)
        return network.window_search(torch.zeros(n_images, 3, size, size), sides)

    assert start_search(309, sides=[4] * 64) is not None
    assert start_search(13714, sides=[4] * 64) is not None
    assert start_search(309, sides=[29] * 64) is None  # the window is almost the whole image
    assert start_search(309, sides=[4]) is None  # filling the cache would take longer
    assert start_search(309, sides=[]) is None
    assert start_search(309, sides=[1] * 64, size=4) is None
    assert start_search(309, sides=[4] * 64, n_images=0) is None
    assert start_search(309, sides=[4] * 64, n_images=65) is None  # more images than a chunk
    (spec_without_path,) = (spec for spec in specs() if spec == format_spec(SPECIAL_CELLS["no path, zero"]))
    assert start_search(specs().index(spec_without_path), sides=[4] * 64) is None


# --- Square --------------------------------------------------------------------------------------------------------


class ExactSearch:
    """A search that passes copies of whole images through a network with exact sums."""

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
    """A model with exact sums that supports searches with more than one query."""

    def __init__(self):
        super().__init__()
        self.searches = []

    def window_search(self, pixels, sides):
        if len(sides) == 1:
            return None
        self.searches.append(ExactSearch(self.network, pixels))
        return self.searches[-1]


@pytest.mark.parametrize("batch_size", [64, 5])
def test_square_images_are_the_same_with_window_searches(batch_size):
    parameters = SQUARE.parameters(epsilons_255=(2.0, 8.0, 24.0), queries=150, restarts=2)
    model = ExactWindowModel()
    images_with_searches = attack_images(SQUARE, parameters=parameters, model=model, batch_size=batch_size)
    assert sum(search.n_logits for search in model.searches) > 100
    assert_equals_rows_of(attack_images(SQUARE, parameters=parameters, batch_size=batch_size), images_with_searches)
    assert any((images != clean_images()).any() for images in images_with_searches.values())


def clean_images():
    """Return the test images as pixels in [0, 1]."""
    return torch.from_numpy(IMAGES.images).float() / 255


class FullPasses:
    """A compiled network without incremental passes."""

    def __init__(self, network):
        self.logits = network.logits

    def loss_and_gradient(self, pixels, labels):
        raise NotImplementedError


def run_square(model, images, labels, *, queries, epsilons, batch_size=64, subset=None):
    """Return the attacked images (S, N, 3, H, W) of Square for S epsilons; NaN for images outside `subset`."""
    rows = np.arange(len(images)) if subset is None else np.asarray(subset)
    job = AttackJob(
        model=model,
        batching=Batching(batch_size, 10_000),
        random_numbers=CounterRandomNumbers(0, "aa_square"),
        images=images[rows],
        labels=labels[rows],
        indices=rows,
        epsilons=epsilons,
    )
    attacked_images = torch.full((len(epsilons), len(images), *images.shape[1:]), torch.nan)
    for batch in fused(job, SQUARE.parameters(queries=queries)):
        attacked_images[batch.strength_index][torch.from_numpy(rows[batch.positions])] = batch.images
    return attacked_images


@pytest.fixture
def network_images_labels():
    """Return a compiled network, 16x16 images with different logits, and their predicted labels."""
    spec = specs()[309]
    uncompiled = network_of(spec, cells=1)
    images = torch.from_numpy(np.random.default_rng(3).integers(0, 256, (6, 3, 16, 16), np.uint8))
    pixels = images.float() / 255
    with torch.no_grad():
        for module in uncompiled.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                module.weight.mul_(4.0)
        logits = compile_network(uncompiled, spec, NORMALISATION, n_classes=N_CLASSES).logits(pixels)
        uncompiled.classifier.bias.sub_(logits.mean(dim=0))
    network = compile_network(uncompiled, spec, NORMALISATION, n_classes=N_CLASSES)
    return network, images, network.logits(pixels).argmax(dim=1)


def record_incremental_passes(monkeypatch):
    """Return a list to which an item is appended for each incremental pass."""
    calls = []
    compute_logits = IncrementalPass.logits
    monkeypatch.setattr(IncrementalPass, "logits", lambda self, *args: calls.append(1) or compute_logits(self, *args))
    return calls


def test_square_images_are_the_same_with_incremental_passes(network_images_labels, monkeypatch):
    passes = record_incremental_passes(monkeypatch)
    epsilons = (0.1 / 255, 1 / 255, 4 / 255)
    # Windows have the same sizes as with 5,000 queries, but there are a quarter as many of each size.
    incremental = run_square(*network_images_labels, queries=1250, epsilons=epsilons)
    assert len(passes) > 900
    full = run_square(FullPasses(network_images_labels[0]), *network_images_labels[1:], queries=1250, epsilons=epsilons)
    assert torch.equal(incremental, full)
    is_fooled = (incremental != network_images_labels[1].float() / 255).flatten(2).any(dim=2)
    assert is_fooled.any()
    assert not is_fooled.all()


def test_square_is_independent_of_batch_and_other_images(network_images_labels, monkeypatch):
    fix_depth(99, monkeypatch)
    passes = record_incremental_passes(monkeypatch)
    epsilons = (0.1 / 255, 1 / 255)
    expected = run_square(*network_images_labels, queries=30, epsilons=epsilons)
    assert passes
    for batch_size in (1, 5):
        assert torch.equal(
            run_square(*network_images_labels, queries=30, epsilons=epsilons, batch_size=batch_size), expected
        )
    separate_results = [run_square(*network_images_labels, queries=30, epsilons=(epsilon,))[0] for epsilon in epsilons]
    assert torch.equal(torch.stack(separate_results), expected)
    subset = run_square(*network_images_labels, queries=30, epsilons=epsilons, subset=[4, 1])
    assert torch.equal(subset[:, [1, 4]], expected[:, [1, 4]])


def test_network_is_freed_without_garbage_collection():
    network = compile_network(network_of(specs()[21]), specs()[21], NORMALISATION, n_classes=N_CLASSES)
    search = network.window_search(torch.rand(8, 3, 32, 32), [3] * 64)
    assert search is not None
    reference = weakref.ref(network)
    gc.disable()  # with a reference cycle, networks would stay in memory until the next collection
    try:
        del network, search
        assert reference() is None
    finally:
        gc.enable()
