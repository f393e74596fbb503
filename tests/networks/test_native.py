"""The native library is bit-identical to PyTorch, and networks work without it."""

import hashlib
import importlib.util
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from robust201.networks.nb201.cells import EDGES, OPERATIONS, format_spec, specs
from robust201.networks.nb201.compiled import compile_network, kernels, native
from robust201.networks.nb201.compiled import compiled_network as network_module
from tests.networks.test_inference import (
    N_CLASSES,
    NORMALISATION,
    SPECIAL_CELLS,
    images_of,
    network_of,
)
from tests.networks.test_window_search import CONSTANT_CELLS, fix_depth, needs_library, proposal_logits

REPOSITORY = Path(__file__).parents[2]


@contextmanager
def use_threads(count):
    """Compute with this number of threads."""
    previous_count = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(previous_count)


def compile_both(spec, *, size, cells=1, n_images=9, seed=0):
    """Return (network with the native library, network without it, images, labels)."""
    uncompiled = network_of(spec, seed=seed, channels=16, cells=cells)
    native_network = compile_network(uncompiled, spec, NORMALISATION)
    torch_network = compile_network(uncompiled, spec, NORMALISATION)
    torch_network._native = None
    pixels, labels = images_of(size, n_images=n_images)
    return native_network, torch_network, pixels, labels % N_CLASSES


def assert_same_bits(spec, **shape):
    """Check that all outputs are bit-identical with and without the native library."""
    native_network, torch_network, pixels, labels = compile_both(spec, **shape)
    assert torch.equal(native_network.logits(pixels), torch_network.logits(pixels))
    outputs, expected_outputs = (
        network.loss_and_gradient(pixels, labels) for network in (native_network, torch_network)
    )
    for output, expected in zip(outputs, expected_outputs, strict=True):
        assert torch.equal(output, expected)


@needs_library
@pytest.mark.parametrize("size", [16, 32])
@pytest.mark.parametrize("name", SPECIAL_CELLS)
@pytest.mark.slow_combinations
def test_native_special_cells_are_bit_identical_to_pytorch(name, size):
    assert_same_bits(format_spec(SPECIAL_CELLS[name]), size=size)


@needs_library
@pytest.mark.parametrize("index", [0, 21, 302, 13714])
def test_native_networks_of_published_depth_are_bit_identical_to_pytorch(index):
    assert_same_bits(specs()[index], size=32, cells=5, n_images=19)


@needs_library
@settings(max_examples=15, deadline=None)
@given(st.tuples(*[st.sampled_from(OPERATIONS)] * len(EDGES)))
def test_native_random_cells_are_bit_identical_to_pytorch(operations):
    assert_same_bits(format_spec(operations), size=16)


@needs_library
@pytest.mark.parametrize(("cells", "is_native"), [(10, True), (11, False)])
def test_networks_with_too_many_constant_maps_use_pytorch(cells, is_native):
    # Each cell has two constant maps, and a network has 3 * `cells` cells. native.c supports sixty constant maps.
    spec = format_spec(("none", "nor_conv_1x1", "nor_conv_1x1", "skip_connect", "nor_conv_1x1", "nor_conv_1x1"))
    network = compile_network(network_of(spec, channels=16, cells=cells), spec, NORMALISATION)
    assert (network._native is not None) is is_native
    pixels, labels = images_of(16, n_images=8)
    logits, _, gradient = network.loss_and_gradient(pixels, labels % N_CLASSES)
    assert torch.equal(logits, network.logits(pixels))
    assert gradient.shape == pixels.shape


@needs_library
def test_native_results_are_independent_of_threads():
    native_network, _, pixels, labels = compile_both(specs()[991], size=32, n_images=37)
    expected = [native_network.logits(pixels), *native_network.loss_and_gradient(pixels, labels)]
    for n_threads in (2, 3):
        with use_threads(n_threads):
            outputs = [native_network.logits(pixels), *native_network.loss_and_gradient(pixels, labels)]
        assert all(torch.equal(output, reference) for output, reference in zip(outputs, expected, strict=True))


# --- searches --------------------------------------------------------------------------------------------------------


def assert_search_is_bit_identical(spec, *, depth, size, n_images, monkeypatch):
    fix_depth(depth, monkeypatch)
    network = compile_network(network_of(spec, channels=16, cells=2), spec, NORMALISATION)
    for full, incremental in proposal_logits(network, size=size, n_images=n_images, n_proposals=5):
        assert torch.equal(full, incremental)


@needs_library
@pytest.mark.parametrize("name", [name for name in SPECIAL_CELLS if name not in CONSTANT_CELLS])
def test_native_searches_of_special_cells_are_bit_identical(name, monkeypatch):
    spec = format_spec(SPECIAL_CELLS[name])
    for depth, size in ((99, 32), (99, 16), (2, 16), (3, 16)):
        assert_search_is_bit_identical(spec, depth=depth, size=size, n_images=9, monkeypatch=monkeypatch)


@needs_library
def test_native_search_with_several_threads_is_bit_identical(monkeypatch):
    with use_threads(3):
        assert_search_is_bit_identical(specs()[0], depth=99, size=16, n_images=20, monkeypatch=monkeypatch)


@needs_library
def test_native_searches_have_separate_memory(monkeypatch):
    fix_depth(99, monkeypatch)
    network = compile_network(network_of(specs()[0], channels=16), specs()[0], NORMALISATION)
    pixels, _ = images_of(16, n_images=16)
    first_search, second_search = (network.window_search(images, [1] * 9) for images in (pixels[:8], pixels[8:]))
    window = torch.zeros(8, 3, 2, 2)
    for search, images in ((first_search, pixels[:8]), (second_search, pixels[8:]), (first_search, pixels[:8])):
        proposal = images.clone()
        proposal[:, :, 5:7, 3:5] = 0
        assert torch.equal(search.logits(5, 3, window), network.logits(proposal))
        # The previous proposal was neither accepted nor rejected; the next proposal rejects it.
        proposal = images.clone()
        proposal[:, :, :2, :2] = 0
        assert torch.equal(search.logits(0, 0, window), network.logits(proposal))
    arenas = first_search._arenas
    del first_search, search
    assert network.window_search(pixels[:8], [1] * 9)._arenas == arenas


@needs_library
def test_native_search_exists_only_if_it_saves_time():
    def start_search(index, side, queries=64, *, size=32, n_images=8):
        spec = specs()[index]
        network = compile_network(network_of(spec, channels=16, cells=5), spec, NORMALISATION)
        return network.window_search(torch.zeros(n_images, 3, size, size), [side] * queries)

    assert start_search(309, 4) is not None
    assert start_search(309, 20) is None  # the window is too large
    assert start_search(309, 4, queries=2) is None  # filling the cache would take longer
    assert start_search(309, 4, queries=0) is None
    assert start_search(309, 1, size=4) is None
    assert start_search(309, 4, n_images=0) is None
    assert start_search(309, 4, n_images=65) is None  # more images than one batch
    assert start_search(0, 4) is None  # in this cell, changes spread too quickly
    assert start_search(21, 3) is not None


# --- without a library -----------------------------------------------------------------------------------------------


@pytest.fixture
def monkeypatch_without_caches(monkeypatch):
    """Clear all caches before and after the test; return `monkeypatch`."""
    caches = (
        native.unavailable_reason,
        native.open_library,
        network_module.usable_library,
    )
    for cache in caches:
        cache.cache_clear()
    yield monkeypatch
    monkeypatch.undo()
    for cache in caches:
        cache.cache_clear()


@needs_library
def test_native_library_is_not_used_if_results_differ(monkeypatch_without_caches):
    # An update of PyTorch may change the order of summation.
    compute = network_module.InferenceNetwork.loss_and_gradient

    def compute_with_error(self, pixels, labels):
        logits, loss, gradient = compute(self, pixels, labels)
        return logits, loss, gradient if self._native is None else gradient * (1 + 2**-23)

    monkeypatch_without_caches.setattr(network_module.InferenceNetwork, "loss_and_gradient", compute_with_error)
    with pytest.warns(RuntimeWarning, match="its results differ from those of PyTorch"):
        assert network_module.usable_library() is None
    network = compile_network(network_of(specs()[0], channels=16), specs()[0], NORMALISATION)
    assert network._native is None


DAMAGE_FUNCTIONS = {
    "flipped bit": lambda content: content[:5000] + bytes([content[5000] ^ 1]) + content[5001:],
    "text": lambda _content: b"text" + hashlib.sha256(b"text").digest(),
}


@needs_library
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("no library", "not compiled"),
        ("no AVX-512", "AVX-512"),
        ("flipped bit", "is damaged"),
        ("text", "cannot be loaded"),
        ("other structures", "another version of"),
        ("edited source", "another version of"),
    ],
)
def test_unusable_libraries_are_not_loaded(monkeypatch_without_caches, tmp_path, fault, reason):
    """Loading a damaged library could crash the process with SIGBUS or SIGSEGV."""
    patch, path = monkeypatch_without_caches.setattr, tmp_path / "file"
    if fault in DAMAGE_FUNCTIONS:
        path.write_bytes(DAMAGE_FUNCTIONS[fault](native.LIBRARY.read_bytes()))
    if fault == "edited source":
        path.write_bytes(native.C_SOURCE.read_bytes() + b"\n")
        patch(native, "C_SOURCE", path)
    elif fault == "no AVX-512":
        for module in (native, network_module):
            patch(module, "has_avx512", lambda: False)
    elif fault == "other structures":
        patch(native, "_STRUCTURES", (native.OperationStruct, native.BufferStruct, native.ViewStruct))
    else:
        patch(native, "LIBRARY", path)
    assert reason in native.unavailable_reason()
    network = compile_network(network_of(specs()[0], channels=16), specs()[0], NORMALISATION)
    assert network._native is None
    assert torch.isfinite(network.logits(images_of(16)[0])).all()


@needs_library
def test_native_library_is_not_used_without_onednns_fused_convolutions(monkeypatch):
    monkeypatch.setattr(kernels, "has_fused_convolution", lambda *_: False)
    network = compile_network(network_of(specs()[0], channels=16), specs()[0], NORMALISATION)
    assert network._native is None


@pytest.fixture
def hatch_build():
    """Return the build hook as a module."""
    pytest.importorskip("hatchling")
    spec = importlib.util.spec_from_file_location("hatch_build", REPOSITORY / "hatch_build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def build_wheel(hatch_build, folder):
    """Run the build hook on a folder, and return the build data that hatch receives."""
    build_data = {"artifacts": [], "pure_python": True}
    hook = hatch_build.CustomBuildHook(str(folder), {}, None, None, str(folder), "wheel")
    hook.initialize("standard", build_data)
    return build_data


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("CC", "no-such-compiler", "native.c was not compiled"),
        ("CC", "false", "native.c was not compiled"),
        ("ROBUST201_NATIVE", "0", "ROBUST201_NATIVE is 0"),
    ],
)
def test_wheel_is_built_without_the_library(hatch_build, monkeypatch, tmp_path, capsys, variable, value, message):
    monkeypatch.setenv(variable, value)
    if variable == "ROBUST201_NATIVE":
        monkeypatch.setattr(hatch_build.subprocess, "run", lambda *_arguments, **_options: pytest.fail("compiled"))
    (tmp_path / hatch_build.FOLDER).mkdir(parents=True)
    (tmp_path / hatch_build.FOLDER / "native.c").touch()
    assert build_wheel(hatch_build, tmp_path) == {"artifacts": [], "pure_python": True}
    assert message in capsys.readouterr().err


def test_wheel_with_the_library_is_platform_specific(hatch_build, monkeypatch, tmp_path):
    monkeypatch.setattr(hatch_build, "build", lambda root: root / hatch_build.FOLDER / "_native.so")
    build_data = build_wheel(hatch_build, tmp_path)
    assert build_data["artifacts"] == [str(native.LIBRARY.relative_to(REPOSITORY))]
    assert build_data["pure_python"] is False
    assert build_data["tag"].startswith("py3-none-")
