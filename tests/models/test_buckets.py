"""Batch sizes for a GPU, tested on the CPU: memory estimates, choice of batch sizes, and bucketed models."""

import weakref
from contextlib import contextmanager

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from robust201.models import device as graphs
from robust201.models.buckets import BucketedModel
from robust201.models.capacity import (
    BUCKETS,
    Capacity,
    buckets_up_to,
    choose_capacity,
    split_into_batches,
)
from robust201.spaces.nasbench201.cells import format_spec, specs
from robust201.spaces.nasbench201.compiled import compile_network, kernels
from robust201.spaces.nasbench201.compiled.network import max_bytes_per_image
from tests.spaces.test_inference import N_CLASSES, NORMALISATION, SPECIAL_CELLS, images_of, network_of

GIGABYTE = 10**9
PUBLISHED_SKELETON = (16, 5, 32)
"""Channels, cells per stage and image size."""

ATTACK_BUFFERS_PER_SAMPLE = 100
"""Number of float32 images that an attack keeps in memory for each sample."""


# --- memory per sample -------------------------------------------------------------------------------------------


class PeakMemory(TorchDispatchMode):
    """Dispatch mode that records the peak memory of tensors created while it is active."""

    def __init__(self):
        super().__init__()
        self.live_bytes = {}
        self.peak_bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        output = func(*args, **(kwargs or {}))
        for tensor in tree_iter(output):
            storage = tensor.untyped_storage() if isinstance(tensor, torch.Tensor) else None
            if storage is not None and storage.data_ptr() not in self.live_bytes:
                self.live_bytes[storage.data_ptr()] = storage.nbytes()
                self.peak_bytes = max(self.peak_bytes, sum(self.live_bytes.values()))
                weakref.finalize(storage, self.live_bytes.pop, storage.data_ptr(), None)
        return output


def peak_bytes(spec, channels, cells, size, *, gradient):
    """Return the peak memory of a pass, in bytes per sample."""
    network = compile_network(network_of(spec, 0, channels, cells), spec, NORMALISATION, n_classes=N_CLASSES)
    network.chunk = None
    pixels, labels = images_of(size, n_images=8)
    labels = labels % N_CLASSES
    network.loss_and_gradient(pixels, labels)  # allocates the memory that does not depend on the number of samples
    with PeakMemory() as memory:
        network.loss_and_gradient(pixels, labels) if gradient else network.logits(pixels)
    return memory.peak_bytes / len(pixels)


MOST_EXPENSIVE_OPERATIONS = ("nor_conv_3x3",) * 6
CELL_WITH_MOST_MEMORY = specs()[14864]


@pytest.mark.parametrize("skeleton", [PUBLISHED_SKELETON, (4, 1, 32), (4, 3, 16), (8, 2, 8)])
@pytest.mark.parametrize("gradient", [False, True])
@pytest.mark.slow_combinations
def test_max_bytes_per_image_is_a_tight_upper_bound(skeleton, gradient, monkeypatch):
    monkeypatch.setattr(kernels, "has_fused_convolution", lambda *_: False)
    cells = {format_spec(cell) for cell in (*SPECIAL_CELLS.values(), MOST_EXPENSIVE_OPERATIONS)} | {
        CELL_WITH_MOST_MEMORY,
        specs()[0],
        specs()[991],
    }
    # A pass at the published width is slow, so only a few cells are tested there.
    cells = (
        {CELL_WITH_MOST_MEMORY, format_spec(MOST_EXPENSIVE_OPERATIONS), specs()[1462]}
        if skeleton == PUBLISHED_SKELETON
        else cells
    )
    measured_bytes = max(peak_bytes(spec, *skeleton, gradient=gradient) for spec in cells)
    estimated_bytes = max_bytes_per_image(*skeleton, gradient=gradient)
    # `USED_FRACTION` leaves memory for what is not estimated, such as a copy of the images.
    assert 0.7 * estimated_bytes < measured_bytes <= 1.1 * estimated_bytes


@pytest.mark.parametrize(("channels", "cells"), [(16, 5), (4, 1), (8, 2)])
def test_sample_bytes_uses_the_skeleton_of_the_network(channels, cells):
    spec = specs()[21]
    network = compile_network(network_of(spec, 0, channels, cells), spec, NORMALISATION, n_classes=N_CLASSES)
    for gradient in (False, True):
        assert network.sample_bytes(16, gradient=gradient) == max_bytes_per_image(
            channels, cells, 16, gradient=gradient
        )


# --- choice of batch sizes -----------------------------------------------------------------------------------------


def choose_for_memory(free_gigabytes, total_gigabytes=None, memory_fraction=1.0, skeleton=PUBLISHED_SKELETON):
    """Return the capacity that is chosen for a device with this memory."""
    total_gigabytes = free_gigabytes if total_gigabytes is None else total_gigabytes
    return choose_capacity(
        free_bytes=round(free_gigabytes * GIGABYTE),
        total_bytes=round(total_gigabytes * GIGABYTE),
        share=memory_fraction,
        sample_bytes=Capacity(*(max_bytes_per_image(*skeleton, gradient=gradient) for gradient in (False, True))),
        image_size=skeleton[2],
        images_per_sample=ATTACK_BUFFERS_PER_SAMPLE,
    )


@pytest.mark.parametrize(
    ("gigabytes", "expected"),
    [
        (150, (8192, 8192)),
        (80, (8192, 8192)),
        (24, (8192, 4096)),
        (16, (4096, 2048)),
        (4, (1024, 512)),
        (0, (256, 256)),
    ],
)
def test_choose_capacity_for_common_devices(gigabytes, expected):
    assert choose_for_memory(gigabytes) == expected


@given(st.floats(0.1, 200), st.floats(0.1, 200), st.sampled_from([1.0, 0.5, 0.25, 0.1]), st.booleans())
def test_choose_capacity_fits_and_grows_with_memory(
    free_gigabytes, total_gigabytes, memory_fraction, uses_small_images
):
    skeleton = (16, 5, 16) if uses_small_images else PUBLISHED_SKELETON
    capacity = choose_for_memory(free_gigabytes, total_gigabytes, memory_fraction, skeleton)
    assert set(capacity) <= set(BUCKETS)
    assert capacity.gradients <= capacity.logits
    usable_bytes = min(free_gigabytes, memory_fraction * total_gigabytes) * GIGABYTE
    for batch_size, gradient in zip(capacity, (False, True), strict=True):
        image_bytes = 3 * 4 * skeleton[2] ** 2  # three channels of float32
        sample_bytes = max_bytes_per_image(*skeleton, gradient=gradient) + ATTACK_BUFFERS_PER_SAMPLE * image_bytes
        assert batch_size * sample_bytes <= usable_bytes or batch_size == BUCKETS[0]
    larger_capacity = choose_for_memory(free_gigabytes * 1.5, total_gigabytes * 1.5, memory_fraction, skeleton)
    assert all(small <= large for small, large in zip(capacity, larger_capacity, strict=True))


def test_choose_capacity_is_equal_on_equal_devices():
    # A second worker has less free memory than the first, and other processes change the free memory slightly.
    capacity = choose_for_memory(24, 24, memory_fraction=0.5)
    assert {choose_for_memory(free, 24, memory_fraction=0.5) for free in (24, 23, 17, 12)} == {capacity}
    assert choose_for_memory(24, 24) == choose_for_memory(23.2, 24)


def test_buckets_up_to_ends_at_the_limit():
    assert buckets_up_to(8192) == BUCKETS
    assert buckets_up_to(1000) == (256, 512, 1000)
    assert buckets_up_to(5) == (5,)


bucket_sizes = st.lists(st.integers(1, 40), min_size=1, max_size=4, unique=True).map(sorted)


@given(st.integers(0, 300), bucket_sizes)
def test_split_into_batches_covers_all_samples_in_order(n_samples, buckets):
    batches = split_into_batches(n_samples, buckets)
    assert [i for batch in batches for i in range(batch.start, batch.stop)] == list(range(n_samples))
    assert all(batch.bucket in buckets and 0 < batch.stop - batch.start <= batch.bucket for batch in batches)
    # A batch is filled to less than three quarters only if it has fewer samples than the smallest size.
    for batch in batches:
        n_filled = batch.stop - batch.start
        assert n_filled >= 0.75 * batch.bucket or n_filled < buckets[0]


@given(st.integers(1, 60_000))
def test_split_into_batches_limits_padding(n_samples):
    n_computed = sum(batch.bucket for batch in split_into_batches(n_samples, BUCKETS))
    assert n_computed <= max(BUCKETS[0], 4 / 3 * n_samples + BUCKETS[0])


# --- bucketed models -----------------------------------------------------------------------------------------------


class RecordingModel:
    """Model that records batch sizes and computes each row independently."""

    def __init__(self):
        self.sizes = []

    def logits(self, pixels):
        self.sizes.append(len(pixels))
        return torch.stack([pixels.flatten(1).sum(dim=1), pixels[:, 0, 0, 0]], dim=1)

    def loss_and_gradient(self, pixels, labels):
        logits = self.logits(pixels)
        return logits, logits.gather(1, labels[:, None])[:, 0], pixels * (labels.view(-1, 1, 1, 1) + 1)


class RecordingPreparation:
    """Stand-in for CUDA graphs: a replay overwrites the previous outputs. It counts prepared passes and releases."""

    def __init__(self):
        self.n_prepared = 0
        self.n_released = 0

    def __call__(self, compute):
        self.n_prepared += 1
        outputs = tuple(output.clone() for output in compute())

        def replay():
            for output, new_output in zip(outputs, compute(), strict=True):
                output.copy_(new_output)
            return outputs

        return replay

    def release(self):
        self.n_released += 1


def pixels_and_labels(n_samples, seed=0, size=2):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand((n_samples, 3, size, size), generator=generator), torch.arange(n_samples) % 2


@given(st.lists(st.integers(0, 40), min_size=1, max_size=4), st.integers(1, 16), st.integers(1, 16), st.booleans())
def test_bucketed_model_equals_the_original_model(sample_counts, max_logits, max_gradients, is_inference):
    original_model, recording_model = RecordingModel(), RecordingModel()
    bucketed = BucketedModel(recording_model, Capacity(max_logits, max_gradients), prepare=RecordingPreparation())
    for seed, n_samples in enumerate(sample_counts):
        pixels, labels = pixels_and_labels(n_samples, seed, size=2 + seed % 2)
        with torch.inference_mode(is_inference):
            outputs = [bucketed.logits(pixels), *bucketed.loss_and_gradient(pixels, labels)]
            expected = [original_model.logits(pixels), *original_model.loss_and_gradient(pixels, labels)]
        assert all(torch.equal(output, reference) for output, reference in zip(outputs, expected, strict=True))
    assert max(recording_model.sizes) <= max(max_logits, max_gradients)


@settings(max_examples=8)
@given(st.sampled_from([0, 21, 991]), st.integers(1, 60), st.sampled_from([8, 9, 24, 64]))
def test_bucketed_compiled_network_is_bit_identical(index, n_samples, limit):
    spec = specs()[index]
    network = compile_network(network_of(spec, channels=16), spec, NORMALISATION, n_classes=N_CLASSES)
    network.chunk = None
    bucketed = BucketedModel(network, Capacity(limit, limit), prepare=RecordingPreparation())
    pixels, labels = images_of(32, n_images=n_samples)
    assert torch.equal(bucketed.logits(pixels), network.logits(pixels))
    expected = network.loss_and_gradient(pixels, labels % N_CLASSES)
    for output, reference in zip(bucketed.loss_and_gradient(pixels, labels % N_CLASSES), expected, strict=True):
        assert torch.equal(output, reference)


def test_bucketed_outputs_do_not_depend_on_earlier_batches():
    bucketed = BucketedModel(RecordingModel(), Capacity(16, 16))
    pixels, labels = pixels_and_labels(5)
    expected = bucketed.loss_and_gradient(pixels, labels)
    bucketed.loss_and_gradient(torch.full((16, 3, 2, 2), torch.nan), torch.ones(16, dtype=torch.int64))
    for output, reference in zip(bucketed.loss_and_gradient(pixels, labels), expected, strict=True):
        assert torch.equal(output, reference)


def test_bucketed_outputs_do_not_change_with_the_next_batch():
    bucketed = BucketedModel(RecordingModel(), Capacity(4, 4), prepare=RecordingPreparation())
    logits = bucketed.logits(pixels_and_labels(4, 0)[0])
    original_logits = logits.clone()
    bucketed.logits(pixels_and_labels(4, 1)[0])
    assert torch.equal(logits, original_logits)
    assert not logits.is_inference()


def test_bucketed_prepares_each_size_of_logits_and_gradients_once():
    prepare = RecordingPreparation()
    bucketed = BucketedModel(RecordingModel(), Capacity(1024, 512), prepare=prepare)
    for n_samples in (1024, 200, 3, 1000, 1024):
        pixels, labels = pixels_and_labels(n_samples)
        bucketed.logits(pixels)
    assert prepare.n_prepared == 2
    assert bucketed.last_batch_size == 1024
    bucketed.loss_and_gradient(pixels, labels)
    assert prepare.n_prepared == 3
    assert bucketed.last_batch_size == 512


def test_limit_and_release_discard_prepared_passes():
    prepare, model = RecordingPreparation(), RecordingModel()
    bucketed = BucketedModel(model, Capacity(1024, 512), prepare=prepare)
    pixels, _ = pixels_and_labels(1024)
    bucketed.logits(pixels)
    bucketed.limit(300)
    assert bucketed.capacity == (300, 300)
    assert prepare.n_released == 1
    model.sizes.clear()
    expected = bucketed.logits(pixels)
    assert set(model.sizes) <= {256, 300}
    bucketed.limit(300)
    assert prepare.n_released == 1
    bucketed.limit(None)
    assert torch.equal(bucketed.logits(pixels), expected)
    assert bucketed.capacity == (1024, 512)
    bucketed.release()
    assert torch.equal(bucketed.logits(pixels), expected)


class SimulatedCuda:
    """Mock of `torch.cuda` that records the order of calls."""

    def __init__(self):
        self.events = []
        self.n_pools = 0
        self.CUDAGraph = self._graph

    def _graph(self):
        simulated_cuda = self

        class Graph:
            def replay(self):
                simulated_cuda.events.append("replay")

            def reset(self):
                simulated_cuda.events.append("reset")

        return Graph()

    def graph_pool_handle(self):
        self.n_pools += 1
        return self.n_pools

    def Stream(self, _device):
        events = self.events

        class Stream:
            def wait_stream(self, _other):
                events.append("side waits")

        return Stream()

    def current_stream(self, _device):
        events = self.events

        class Stream:
            def wait_stream(self, _other):
                events.append("caller waits")

        return Stream()

    @contextmanager
    def device(self, _device):
        yield

    @contextmanager
    def stream(self, _stream):
        self.events.append("on the side")
        yield
        self.events.append("back")

    @contextmanager
    def graph(self, _graph, *, pool, stream):
        assert stream is not None
        self.events.append(f"capture into pool {pool}")
        yield
        self.events.append("captured")

    def set_stream(self, _stream):
        self.events.append("caller's stream")

    def synchronize(self, _device):
        self.events.append("synchronize")


def test_graph_capture_warms_up_on_a_side_stream_and_frees_its_pool(monkeypatch):
    cuda = SimulatedCuda()
    monkeypatch.setattr(graphs.torch, "cuda", cuda)
    monkeypatch.setattr(graphs, "_side_stream", cuda.Stream)
    capture = graphs.GraphCapture(torch.device("cpu"))

    def compute():
        assert not torch.is_inference_mode_enabled()
        cuda.events.append("compute")
        return (torch.zeros(2, 1),)

    with torch.inference_mode():
        replay = capture(compute)
    warm_up = ["side waits", "on the side", "compute", "compute", "back", "caller waits"]
    assert cuda.events == [*warm_up, "capture into pool 1", "compute", "captured", "caller's stream"]
    cuda.events.clear()
    assert not replay()[0].is_inference()
    assert replay()[0] is replay()[0]
    capture.release()
    capture.release()
    assert cuda.events == ["replay"] * 3 + ["synchronize", "reset"]
    capture(compute)
    assert any(event.startswith("capture into pool") and event != "capture into pool 1" for event in cuda.events)


def test_graph_capture_restores_the_stream_after_a_failure(monkeypatch):
    class FailingCuda(SimulatedCuda):
        @contextmanager
        def graph(self, _graph, *, pool, stream):
            yield
            raise RuntimeError("no end")

    cuda = FailingCuda()
    monkeypatch.setattr(graphs.torch, "cuda", cuda)
    monkeypatch.setattr(graphs, "_side_stream", cuda.Stream)
    with pytest.raises(RuntimeError, match="no end"):
        graphs.GraphCapture(torch.device("cpu"))(lambda: (torch.zeros(1),))
    assert cuda.events[-1] == "caller's stream"
