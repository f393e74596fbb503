"""The passes by the native library against those by PyTorch, and what happens without a library."""

import hashlib
import importlib.util
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from robust201.spaces.nasbench201.cells import EDGES, OPERATIONS, format_spec, specs
from robust201.spaces.nasbench201.compiled import compile_network, kernels, native
from robust201.spaces.nasbench201.compiled import network as network_module
from tests.spaces.test_inference import (
    N_CLASSES,
    NORMALISATION,
    SPECIAL_CELLS,
    images_of,
    network_of,
)
from tests.spaces.test_local_search import CONSTANT_CELLS, local_to, logits_both_ways

ROOT = Path(__file__).parents[2]

needs_library = pytest.mark.skipif(
    native.load_library() is None, reason="native.c was not compiled here, or the processor lacks AVX-512"
)


def both_ways(spec, *, size, cells=1, n_images=9, seed=0):
    """One network by the library and by PyTorch."""
    plain = network_of(spec, seed=seed, channels=16, cells=cells)
    by_library = compile_network(plain, spec, NORMALISATION, n_classes=N_CLASSES)
    by_torch = compile_network(plain, spec, NORMALISATION, n_classes=N_CLASSES)
    by_torch._native = None
    pixels, labels = images_of(size, n_images=n_images)
    return by_library, by_torch, pixels, labels % N_CLASSES


def assert_same_bits(spec, **shape):
    by_library, by_torch, pixels, labels = both_ways(spec, **shape)
    assert torch.equal(by_library.logits(pixels), by_torch.logits(pixels))
    found, expected = (network.loss_and_gradient(pixels, labels) for network in (by_library, by_torch))
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)


@needs_library
@pytest.mark.parametrize("size", [16, 32])
@pytest.mark.parametrize("name", SPECIAL_CELLS)
@pytest.mark.each_value
def test_special_cells_have_the_bits_of_pytorch(name, size):
    assert_same_bits(format_spec(SPECIAL_CELLS[name]), size=size)


@needs_library
@pytest.mark.parametrize("index", [0, 21, 302, 13714])
def test_the_published_depth_has_the_bits_of_pytorch(index):
    assert_same_bits(specs()[index], size=32, cells=5, n_images=19)


@needs_library
@settings(max_examples=15, deadline=None)
@given(st.tuples(*[st.sampled_from(OPERATIONS)] * len(EDGES)))
def test_any_cell_has_the_bits_of_pytorch(operations):
    assert_same_bits(format_spec(operations), size=16)


@needs_library
@pytest.mark.parametrize(("cells", "fits"), [(10, True), (11, False)])
def test_pytorch_computes_networks_that_native_c_has_no_room_for(cells, fits):
    """Two constant maps a cell, three stages, and room for sixty."""
    spec = format_spec(("none", "nor_conv_1x1", "nor_conv_1x1", "skip_connect", "nor_conv_1x1", "nor_conv_1x1"))
    network = compile_network(network_of(spec, channels=16, cells=cells), spec, NORMALISATION, n_classes=N_CLASSES)
    assert (network._native is not None) is fits
    pixels, labels = images_of(16, n_images=8)
    logits, _, gradient = network.loss_and_gradient(pixels, labels % N_CLASSES)
    assert torch.equal(logits, network.logits(pixels))
    assert gradient.shape == pixels.shape


@needs_library
@pytest.mark.parametrize("limit", ["MAX_SOURCES", "MAX_TAPS"])
def test_every_limit_of_native_c_is_heeded(limit, monkeypatch):
    monkeypatch.setattr(native, limit, 1)
    spec = format_spec(SPECIAL_CELLS["repeated pooling"])
    network = compile_network(network_of(spec, channels=16), spec, NORMALISATION, n_classes=N_CLASSES)
    assert network._native is None


@needs_library
def test_threads_share_images_and_change_no_bit():
    by_library, _, pixels, labels = both_ways(specs()[991], size=32, n_images=37)
    expected = [by_library.logits(pixels), *by_library.loss_and_gradient(pixels, labels)]
    threads = torch.get_num_threads()
    try:
        for n_threads in (2, 3):
            torch.set_num_threads(n_threads)
            found = [by_library.logits(pixels), *by_library.loss_and_gradient(pixels, labels)]
            assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
    finally:
        torch.set_num_threads(threads)


# --- windows ---------------------------------------------------------------------------------------------------------


def assert_windows_change_no_bit(spec, *, depth, size, n_images, monkeypatch):
    local_to(depth, monkeypatch)
    network = compile_network(network_of(spec, channels=16, cells=2), spec, NORMALISATION, n_classes=N_CLASSES)
    for whole, local in logits_both_ways(network, size=size, n_images=n_images, count=5):
        assert torch.equal(whole, local)


@needs_library
@pytest.mark.parametrize("name", [name for name in SPECIAL_CELLS if name not in CONSTANT_CELLS])
def test_windows_of_special_cells_have_the_bits_of_whole_passes(name, monkeypatch):
    spec = format_spec(SPECIAL_CELLS[name])
    for depth, size in ((99, 32), (99, 16), (2, 16), (3, 16)):
        assert_windows_change_no_bit(spec, depth=depth, size=size, n_images=9, monkeypatch=monkeypatch)


@needs_library
def test_threads_share_a_search(monkeypatch):
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        assert_windows_change_no_bit(specs()[0], depth=99, size=16, n_images=20, monkeypatch=monkeypatch)
    finally:
        torch.set_num_threads(threads)


@needs_library
def test_searches_side_by_side_have_memory_of_their_own(monkeypatch):
    local_to(99, monkeypatch)
    network = compile_network(network_of(specs()[0], channels=16), specs()[0], NORMALISATION, n_classes=N_CLASSES)
    pixels, _ = images_of(16, n_images=16)
    first, second = (network.window_search(part, [1] * 9) for part in (pixels[:8], pixels[8:]))
    window = torch.zeros(8, 3, 2, 2)
    for search, part in ((first, pixels[:8]), (second, pixels[8:]), (first, pixels[:8])):
        proposal = part.clone()
        proposal[:, :, 5:7, 3:5] = 0
        assert torch.equal(search.logits(5, 3, window), network.logits(proposal))
        # A proposal that nobody decides on is not accepted.
        proposal = part.clone()
        proposal[:, :, :2, :2] = 0
        assert torch.equal(search.logits(0, 0, window), network.logits(proposal))
    arenas = first._arenas
    del first, search
    assert network.window_search(pixels[:8], [1] * 9)._arenas == arenas


@needs_library
def test_windows_are_searched_where_the_library_gains_by_them():
    def search(index, side, queries=64):
        spec = specs()[index]
        network = compile_network(network_of(spec, channels=16, cells=5), spec, NORMALISATION, n_classes=N_CLASSES)
        return network.window_search(torch.zeros(8, 3, 32, 32), [side] * queries)

    assert search(309, 4) is not None
    assert search(309, 14) is None
    assert search(309, 4, queries=2) is None
    assert search(0, 4) is None
    assert search(21, 3) is not None


# --- without a library -----------------------------------------------------------------------------------------------


@pytest.fixture
def fresh(monkeypatch):
    """Forget what was found, before and after."""
    caches = (native.load_library, native.is_expected, native.why_not, native._open, network_module.usable_library)
    for cache in caches:
        cache.cache_clear()
    yield monkeypatch
    monkeypatch.undo()
    for cache in caches:
        cache.cache_clear()


def assert_pytorch_answers():
    assert native.load_library() is None
    network = compile_network(network_of(specs()[0], channels=16), specs()[0], NORMALISATION, n_classes=N_CLASSES)
    assert network._native is None
    assert torch.isfinite(network.logits(images_of(16)[0])).all()


@needs_library
def test_a_library_of_other_bits_is_not_used(fresh):
    """As after an update of PyTorch whose sums have another order."""
    compute = network_module.InferenceNetwork.loss_and_gradient

    def rounded(self, pixels, labels):
        loss, logits, gradient = compute(self, pixels, labels)
        return loss, logits, gradient if self._native is None else gradient * (1 + 2**-23)

    fresh.setattr(network_module.InferenceNetwork, "loss_and_gradient", rounded)
    with pytest.warns(RuntimeWarning, match="expected PyTorch's bits, got others"):
        assert network_module.usable_library() is None
    network = compile_network(network_of(specs()[0], channels=16), specs()[0], NORMALISATION, n_classes=N_CLASSES)
    assert network._native is None


def test_without_a_library_pytorch_answers(fresh, tmp_path):
    fresh.setattr(native, "LIBRARY", tmp_path / "none.so")
    assert "not compiled" in native.why_not()
    assert_pytorch_answers()


def test_a_processor_without_the_instructions_runs_none_of_them(fresh):
    fresh.setattr(native, "LIBRARY", Path(__file__))
    fresh.setattr(native, "has_avx512", lambda: False)
    assert "AVX-512" in native.why_not()
    assert_pytorch_answers()


def test_a_library_that_is_none_is_not_loaded(fresh, tmp_path):
    content = Path(__file__).read_bytes()
    (tmp_path / "text.so").write_bytes(content + hashlib.sha256(content).digest())
    fresh.setattr(native, "LIBRARY", tmp_path / "text.so")
    fresh.setattr(native, "has_avx512", lambda: True)
    assert "cannot be loaded" in native.why_not()
    assert_pytorch_answers()


DAMAGE = {
    "cut in half": lambda whole: whole[: len(whole) // 2],
    "cut at its end": lambda whole: whole[: int(0.99 * len(whole))],
    "zeroed": lambda whole: bytes(len(whole)),
    "zeroed behind its header": lambda whole: whole[:4096].ljust(len(whole), b"\0"),
    "a bit flipped": lambda whole: whole[:5000] + bytes([whole[5000] ^ 1]) + whole[5001:],
    "without its hash": lambda whole: whole[:-32],
    "empty": lambda whole: b"",
}


@needs_library
@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_library_is_not_loaded(fresh, tmp_path, damage):
    """Loading it could kill the process with SIGBUS or SIGSEGV."""
    (tmp_path / "damaged.so").write_bytes(damage(native.LIBRARY.read_bytes()))
    fresh.setattr(native, "LIBRARY", tmp_path / "damaged.so")
    assert "is damaged" in native.why_not()
    with pytest.warns(RuntimeWarning, match="is damaged"):
        assert_pytorch_answers()


@needs_library
def test_a_library_of_another_version_is_not_called(fresh):
    fresh.setattr(native, "_STRUCTURES", (native.OperationStruct, native.BufferStruct, native.ViewStruct))
    assert "another version of native.c" in native.why_not()
    assert_pytorch_answers()


@needs_library
def test_a_library_of_another_source_is_not_called(fresh, tmp_path):
    """As after an edit of native.c, or an update of a checkout, that did not compile it again."""
    edited = tmp_path / "native.c"
    edited.write_bytes(native.C_SOURCE.read_bytes() + b"\n")
    fresh.setattr(native, "C_SOURCE", edited)
    assert "another version of native.c" in native.why_not()
    assert_pytorch_answers()


@needs_library
def test_the_library_stands_in_for_onednn_only(monkeypatch):
    monkeypatch.setattr(kernels, "fuses_on_cpu", lambda *_: False)
    network = compile_network(network_of(specs()[0], channels=16), specs()[0], NORMALISATION, n_classes=N_CLASSES)
    assert network._native is None


@pytest.fixture
def hatch_build():
    """The build hook, as a module."""
    pytest.importorskip("hatchling")
    found = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


@pytest.mark.parametrize("compiler", ["no-such-compiler", "false"])
def test_a_build_without_a_compiler_goes_on(compiler, hatch_build, monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("CC", compiler)
    (tmp_path / hatch_build.FOLDER).mkdir(parents=True)
    (tmp_path / hatch_build.FOLDER / "native.c").touch()
    assert hatch_build.build(tmp_path) is None
    assert "native.c was not compiled" in capsys.readouterr().err
    hook = hatch_build.CustomBuildHook(str(tmp_path), {}, None, None, str(tmp_path), "wheel")
    build_data = {"artifacts": [], "pure_python": True}
    hook.initialize("standard", build_data)
    assert build_data == {"artifacts": [], "pure_python": True}


def test_a_build_that_is_to_be_pure_compiles_nothing(hatch_build, monkeypatch, tmp_path, capsys):
    def compile_anyway(*_arguments, **_options):
        raise AssertionError

    monkeypatch.setattr(hatch_build.subprocess, "run", compile_anyway)
    monkeypatch.setenv("ROBUST201_NATIVE", "0")
    build_data = {"artifacts": [], "pure_python": True}
    hatch_build.CustomBuildHook(str(tmp_path), {}, None, None, str(tmp_path), "wheel").initialize(
        "standard", build_data
    )
    assert build_data == {"artifacts": [], "pure_python": True}
    assert "ROBUST201_NATIVE is 0" in capsys.readouterr().err


def test_a_wheel_with_the_library_is_of_its_platform(hatch_build, monkeypatch, tmp_path):
    monkeypatch.setattr(hatch_build, "build", lambda root: root / hatch_build.FOLDER / "_native.so")
    build_data = {"artifacts": []}
    hatch_build.CustomBuildHook(str(tmp_path), {}, None, None, str(tmp_path), "wheel").initialize(
        "standard", build_data
    )
    assert build_data["artifacts"] == [str(native.LIBRARY.relative_to(ROOT))]
    assert build_data["pure_python"] is False
    assert build_data["tag"].startswith("py3-none-")
