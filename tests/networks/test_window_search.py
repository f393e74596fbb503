"""Window searches give the same logits as full passes, and Square returns the same images."""

import gc
import weakref

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from robust201.attacks.batching import BatchedModel
from robust201.attacks.context import Request
from robust201.attacks.random_numbers import RandomNumbers
from robust201.attacks.runner import run_attack
from robust201.networks.nb201.cells import specs
from robust201.networks.nb201.compiled import compile_network
from robust201.networks.nb201.compiled.compiled_network import usable_library
from robust201.networks.nb201.compiled.native_network import NativeNetwork
from robust201.networks.nb201.compiled.native_search import NativeSearch
from robust201.networks.nb201.compiled.patches import Region
from robust201.tasks import TASKS
from tests.networks.test_inference import N_CLASSES, NORMALISATION, network_of

CONSTANT_CELLS = ("no path, zero", "no path, constant")
SQUARE = TASKS["aa_square"]
needs_library = pytest.mark.skipif(usable_library() is None, reason="the native library cannot be used here")


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
    assert region.spread_with_stride_2(8, 8) == affected_region(region, reach=1, stride=2)


# --- logits --------------------------------------------------------------------------------------------------------


def fix_depth(depth, monkeypatch):
    """Make every search compute only patches in the first `depth` blocks."""
    monkeypatch.setattr(NativeNetwork, "choose_search_depth", lambda self, *_: min(depth, len(self._blocks)))


def random_proposals(rng, n_images, size, n_proposals):
    """Yield (row, column, window, accepted) for random windows; `accepted` is (B,) bool."""
    for _ in range(n_proposals):
        side = int(rng.integers(1, size + 1))
        row, column = (int(start) for start in rng.integers(0, size - side + 1, 2))
        window = torch.from_numpy(rng.random((n_images, 3, side, side), np.float32))
        yield row, column, window, torch.from_numpy(rng.random(n_images) < 0.4)


def proposal_logits(network, *, size, n_images, n_proposals, seed=0):
    """Yield (full, incremental) logits for each proposal of a search that accepts proposals at random."""
    rng = np.random.default_rng(seed)
    pixels = torch.from_numpy(rng.random((n_images, 3, size, size), np.float32))
    search = network.window_search(pixels.clone(), [1] * n_proposals)
    for row, column, window, accepted in random_proposals(rng, n_images, size, n_proposals):
        proposal = pixels.clone()
        proposal[:, :, row : row + window.shape[2], column : column + window.shape[3]] = window
        yield network.logits(proposal), search.logits(row, column, window)
        search.accept(accepted)
        pixels = torch.where(accepted.view(-1, 1, 1, 1), proposal, pixels)


@needs_library
@pytest.mark.parametrize("index", [0, 21, 309, 13714])
def test_search_logits_are_bit_identical_for_published_width(index, monkeypatch):
    # Two images with many proposals show that errors do not accumulate; 64 images are a full batch.
    fix_depth(99, monkeypatch)
    spec = specs()[index]
    network = compile_network(network_of(spec, channels=16), spec, NORMALISATION)
    for n_images, n_proposals in ((2, 40), (64, 4)):
        for full, incremental in proposal_logits(network, size=32, n_images=n_images, n_proposals=n_proposals):
            assert torch.equal(full, incremental)


@needs_library
def test_search_returns_writable_tensors_and_copies_images(monkeypatch):
    fix_depth(99, monkeypatch)
    spec = specs()[0]
    network = compile_network(network_of(spec, channels=16), spec, NORMALISATION)
    pixels = torch.rand(3, 3, 16, 16)
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


# --- Square --------------------------------------------------------------------------------------------------------


class FullPasses:
    """A compiled network without window searches."""

    def __init__(self, network):
        self.logits = network.logits

    def loss_and_gradient(self, pixels, labels):
        raise NotImplementedError


def run_square(model, images, labels, *, queries, epsilons, restarts=1, batch_size=64, subset=None, p_init=0.8):
    """Return the attacked images (S, N, 3, H, W) of Square for S epsilons; NaN for images outside `subset`."""
    rows = np.arange(len(images)) if subset is None else np.asarray(subset)
    batched_model = BatchedModel(model, N_CLASSES, batch_size, 10_000)
    request = Request(tuple(255 * epsilon for epsilon in epsilons), images[rows], labels[rows], rows)
    attacked_images = torch.full((len(epsilons), len(images), *images.shape[1:]), torch.nan)
    parameters = SQUARE.parameters(queries=queries, restarts=restarts, p_init=p_init)
    for batch in run_attack(SQUARE, parameters, batched_model, request, RandomNumbers(0, "aa_square")):
        attacked_images[batch.strength_index][torch.from_numpy(rows[batch.positions])] = batch.images
    return attacked_images


@pytest.fixture
def network_images_labels():
    """Return a compiled network, 16x16 images with different logits, and their predicted labels."""
    spec = specs()[309]
    uncompiled = network_of(spec, channels=16, cells=1)
    images = torch.from_numpy(np.random.default_rng(3).integers(0, 256, (6, 3, 16, 16), np.uint8))
    pixels = images.float() / 255
    with torch.no_grad():
        for module in uncompiled.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                module.weight.mul_(4.0)
        logits = compile_network(uncompiled, spec, NORMALISATION).logits(pixels)
        uncompiled.classifier.bias.sub_(logits.mean(dim=0))
    network = compile_network(uncompiled, spec, NORMALISATION)
    return network, images, network.logits(pixels).argmax(dim=1)


def record_searches(monkeypatch):
    """Return a list to which an item is appended for each query of a search."""
    queries = []
    compute_logits = NativeSearch.logits
    monkeypatch.setattr(NativeSearch, "logits", lambda self, *args: queries.append(1) or compute_logits(self, *args))
    return queries


@needs_library
@pytest.mark.parametrize("p_init", [0.8, 0.05])  # windows with sides of 14 to 4, and of 4 to 1 pixels
def test_square_images_are_the_same_with_native_searches(network_images_labels, monkeypatch, p_init):
    fix_depth(99, monkeypatch)
    queries = record_searches(monkeypatch)
    epsilons = (0.1 / 255, 1 / 255, 4 / 255)
    options = {"queries": 625, "epsilons": epsilons, "restarts": 2, "p_init": p_init}
    incremental = run_square(*network_images_labels, **options)
    assert len(queries) > 900
    network, *images_labels = network_images_labels
    assert torch.equal(incremental, run_square(FullPasses(network), *images_labels, **options))
    is_changed = (incremental != network_images_labels[1].float() / 255).flatten(2).any(dim=2)
    assert is_changed.any()
    assert not is_changed.all()


@needs_library
def test_square_is_independent_of_batch_and_other_images(network_images_labels, monkeypatch):
    fix_depth(99, monkeypatch)
    queries = record_searches(monkeypatch)
    epsilons = (0.1 / 255, 1 / 255)
    expected = run_square(*network_images_labels, queries=30, epsilons=epsilons)
    assert queries
    for batch_size in (1, 5):
        assert torch.equal(
            run_square(*network_images_labels, queries=30, epsilons=epsilons, batch_size=batch_size), expected
        )
    separate_results = [run_square(*network_images_labels, queries=30, epsilons=(epsilon,))[0] for epsilon in epsilons]
    assert torch.equal(torch.stack(separate_results), expected)
    subset = run_square(*network_images_labels, queries=30, epsilons=epsilons, subset=[4, 1])
    assert torch.equal(subset[:, [1, 4]], expected[:, [1, 4]])


@needs_library
def test_network_is_freed_without_garbage_collection():
    network = compile_network(network_of(specs()[21], channels=16), specs()[21], NORMALISATION)
    search = network.window_search(torch.rand(8, 3, 32, 32), [3] * 64)
    assert search is not None
    reference = weakref.ref(network)
    gc.disable()  # with a reference cycle, networks would stay in memory until the next collection
    try:
        del network, search
        assert reference() is None
    finally:
        gc.enable()
