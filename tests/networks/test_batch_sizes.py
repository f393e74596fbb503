"""Batch sizes: padding, limits, the memory of a GPU (simulated on the CPU), and passes captured as CUDA graphs."""

import weakref

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from robust201.core.errors import EvaluationError
from robust201.networks import gpu_memory
from robust201.networks.batch_sizes import SIZES, BatchSizes, Maxima, split_into_sizes
from robust201.networks.gpu_memory import USED_FRACTION, fit_memory
from robust201.networks.graphed_model import GraphedModel
from robust201.networks.nb201.cells import specs
from robust201.networks.nb201.compiled import MIN_BATCH, compile_network
from tests.networks.test_inference import N_CLASSES, NORMALISATION, images_of, network_of
from tests.support.tiny_networks import NORMALISATION as TINY_NORMALISATION
from tests.support.tiny_networks import TinyNetwork, tiny_classifier

CPU = torch.device("cpu")


# --- memory of a GPU -----------------------------------------------------------------------------------------------


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


@pytest.fixture(autouse=True)
def _simulate_memory(monkeypatch):
    """Measure the peak memory of CPU tensors instead of a GPU's peak memory."""

    def peak_bytes(_device, compute):
        with PeakMemory() as memory:
            compute()
        return memory.peak_bytes

    monkeypatch.setattr(gpu_memory, "peak_bytes", peak_bytes)


SPEC = specs()[21]


def compiled_network(**options):
    network = compile_network(network_of(SPEC, 0, 4, 1), SPEC, NORMALISATION)
    network.batch_sizes = BatchSizes(minimum=MIN_BATCH, **options)
    return network


@pytest.mark.parametrize("model", [compiled_network(), tiny_classifier()], ids=["compiled", "autograd"])
@pytest.mark.parametrize("megabytes", [0.5, 5, 50])
def test_maxima_fill_the_memory(model, megabytes):
    n_bytes = round(megabytes * 10**6)
    fit_memory(model, (3, 8, 8), CPU, (n_bytes, n_bytes), share=1.0, attack_bytes=0)
    assert model.batch_sizes.is_padded
    pixels, labels = images_of(8, n_images=16)
    for needs_gradient, maximum in zip((False, True), model.batch_sizes.maxima, strict=True):
        with PeakMemory() as memory:
            model.loss_and_gradient(pixels, labels % 5) if needs_gradient else model.logits(pixels)
        sample_bytes = memory.peak_bytes / 16
        assert maximum in SIZES
        # The images themselves, which the trial pass allocates, are not in this measurement.
        assert maximum == SIZES[0] or maximum * sample_bytes <= USED_FRACTION * n_bytes
        assert maximum == SIZES[-1] or 8 * maximum * sample_bytes > USED_FRACTION * n_bytes


def test_sizes_follow_from_the_share_of_memory_and_are_equal_on_equal_devices():
    model, sizes = tiny_classifier(), {}
    for free, total, share, attack_bytes in [
        (4, 4, 1.0, 0), (3.9, 4, 1.0, 0), (4, 8, 0.5, 0), (4, 4, 0.1, 0), (4, 4, 1.0, 10**6),
    ]:  # fmt: skip
        memory = round(free * 10**6), round(total * 10**6)
        fit_memory(model, (3, 8, 8), CPU, memory, share=share, attack_bytes=attack_bytes)
        sizes[free, total, share, attack_bytes] = model.batch_sizes.maxima
    equal_maxima, smaller_maxima = list(sizes.values())[:3], list(sizes.values())[3:]
    assert len(set(equal_maxima)) == 1
    assert all(max(maxima) < min(equal_maxima[0]) for maxima in smaller_maxima)


def test_smallest_size_is_used_if_a_trial_pass_runs_out_of_memory(monkeypatch):
    model = tiny_classifier()

    def fail(*_arguments):
        raise torch.OutOfMemoryError

    monkeypatch.setattr(model, "_logits", fail)
    fit_memory(model, (3, 8, 8), CPU, (10**9, 10**9), share=1.0, attack_bytes=0)
    assert model.batch_sizes.maxima == (SIZES[0], SIZES[0])


def test_trial_passes_of_black_images_do_not_decide_whether_a_network_has_gradients():
    class Detached(TinyNetwork):
        def forward(self, images):
            with torch.no_grad():
                return super().forward(images)

    model = tiny_classifier(Detached())
    fit_memory(model, (3, 8, 8), CPU, (10**9, 10**9), share=1.0, attack_bytes=0)
    assert model.batch_sizes.maxima.logits > model.batch_sizes.maxima.gradients == SIZES[0]
    pixels, labels = images_of(8, n_images=2)
    with pytest.raises(EvaluationError):
        model.loss_and_gradient(pixels, labels % 5)
    nearly_detached = tiny_classifier(NearlyDetached())
    fit_memory(nearly_detached, (3, 8, 8), CPU, (10**9, 10**9), share=1.0, attack_bytes=0)
    with pytest.raises(EvaluationError):
        nearly_detached.loss_and_gradient(pixels, labels % 5)


_MEAN, _STD = (torch.tensor(values).view(1, 3, 1, 1) for values in (TINY_NORMALISATION.mean, TINY_NORMALISATION.std))


class NearlyDetached(TinyNetwork):
    """A network whose gradient is far too small, except for black images, whose gradient is correctly 0."""

    def forward(self, images):
        pixels = images * _STD + _MEAN
        return super().forward(1e-9 * pixels**2 + (pixels**2).detach())


# --- sizes -----------------------------------------------------------------------------------------------------------


def test_limit_is_halved_down_to_the_minimum():
    sizes = BatchSizes(Maxima(64, 64), limit=50, minimum=8)
    sizes.split(100)
    halved_limits = []
    while sizes.halve():
        halved_limits.append(sizes.limit)
        sizes.split(100)
    assert halved_limits == [25, 12, 6]
    assert sizes.maximum() == 8
    sizes.limit = None
    assert (sizes.maximum(), sizes.largest_batch) == (64, 0)
    assert not sizes.halve()


@given(
    st.integers(0, 300), st.integers(1, 300), st.none() | st.integers(1, 300), st.integers(1, 8), st.booleans(),
    st.none() | st.integers(1, 100),
)  # fmt: skip
def test_batches_cover_all_samples_within_the_limits(n_samples, maximum, limit, minimum, is_padded, extra_maximum):
    sizes = BatchSizes(Maxima(maximum, maximum), limit=limit, minimum=minimum, is_padded=is_padded)
    batches = sizes.split(n_samples, maximum=extra_maximum)
    assert [sample for batch in batches for sample in range(batch.start, batch.stop)] == list(range(n_samples))
    allowed = max(minimum, min(bound for bound in (maximum, limit, extra_maximum) if bound is not None))
    for batch in batches:
        assert minimum <= batch.size <= allowed
        assert 0 < batch.stop - batch.start <= batch.size
        assert batch.size in {*SIZES, allowed} or not is_padded
        rows = batch.rows(torch.arange(n_samples))
        assert batch.without_padding(rows).tolist() == list(range(batch.start, batch.stop))
        assert len(rows) == batch.size
        assert set(rows[batch.stop - batch.start :].tolist()) <= {batch.stop - 1}


@given(st.integers(1, 60_000))
def test_padding_is_limited(n_samples):
    n_computed = sum(batch.size for batch in split_into_sizes(n_samples, SIZES))
    assert n_computed <= max(SIZES[0], 4 / 3 * n_samples + SIZES[0])


# --- captured passes -------------------------------------------------------------------------------------------------


class RecordingModel:
    """Model that records batch sizes and computes each row independently."""

    device = CPU

    def __init__(self, max_logits=16, max_gradients=16):
        self.sizes = []
        self.batch_sizes = BatchSizes(Maxima(max_logits, max_gradients), is_padded=True)

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
def test_graphed_model_equals_the_original_model(sample_counts, max_logits, max_gradients, is_inference):
    original_model, recording_model = RecordingModel(), RecordingModel(max_logits, max_gradients)
    graphed = GraphedModel(recording_model, RecordingPreparation())
    for seed, n_samples in enumerate(sample_counts):
        pixels, labels = pixels_and_labels(n_samples, seed, size=2 + seed % 2)
        with torch.inference_mode(is_inference):
            outputs = [graphed.logits(pixels), *graphed.loss_and_gradient(pixels, labels)]
            expected = [original_model.logits(pixels), *original_model.loss_and_gradient(pixels, labels)]
        assert all(torch.equal(output, reference) for output, reference in zip(outputs, expected, strict=True))
    assert max(recording_model.sizes) <= max(max_logits, max_gradients)


@settings(max_examples=8)
@given(st.sampled_from([0, 21, 991]), st.integers(1, 60), st.sampled_from([8, 9, 24, 64]), st.booleans())
def test_padded_compiled_network_is_bit_identical(index, n_samples, limit, is_prepared):
    spec = specs()[index]
    network = compile_network(network_of(spec, channels=16), spec, NORMALISATION)
    pixels, labels = images_of(32, n_images=n_samples)
    expected = network.logits(pixels), *network.loss_and_gradient(pixels, labels % N_CLASSES)
    network.batch_sizes = BatchSizes(Maxima(limit, limit), minimum=MIN_BATCH, is_padded=True)
    model = GraphedModel(network, RecordingPreparation()) if is_prepared else network
    outputs = model.logits(pixels), *model.loss_and_gradient(pixels, labels % N_CLASSES)
    assert all(torch.equal(output, reference) for output, reference in zip(outputs, expected, strict=True))


def test_outputs_do_not_depend_on_earlier_batches():
    graphed = GraphedModel(RecordingModel(), RecordingPreparation())
    pixels, labels = pixels_and_labels(5)
    expected = graphed.loss_and_gradient(pixels, labels)
    graphed.loss_and_gradient(torch.full((16, 3, 2, 2), torch.nan), torch.ones(16, dtype=torch.int64))
    for output, reference in zip(graphed.loss_and_gradient(pixels, labels), expected, strict=True):
        assert torch.equal(output, reference)


def test_outputs_do_not_change_with_the_next_batch():
    graphed = GraphedModel(RecordingModel(4, 4), RecordingPreparation())
    logits = graphed.logits(pixels_and_labels(4, 0)[0])
    original_logits = logits.clone()
    graphed.logits(pixels_and_labels(4, 1)[0])
    assert torch.equal(logits, original_logits)
    assert not logits.is_inference()


def test_each_size_of_logits_and_gradients_is_prepared_once():
    prepare = RecordingPreparation()
    graphed = GraphedModel(RecordingModel(1024, 512), prepare)
    for n_samples in (1024, 200, 3, 1000, 1024, 16):
        pixels, labels = pixels_and_labels(n_samples)
        graphed.logits(pixels)
    assert prepare.n_prepared == 3
    graphed.loss_and_gradient(pixels, labels)
    assert prepare.n_prepared == 4
    assert graphed.batch_sizes.largest_batch == 1024


def test_released_passes_are_prepared_again():
    prepare, model = RecordingPreparation(), RecordingModel(1024, 512)
    graphed = GraphedModel(model, prepare)
    pixels, _ = pixels_and_labels(1024)
    expected = graphed.logits(pixels)
    graphed.batch_sizes.limit = 300
    graphed.release()
    model.sizes.clear()
    assert torch.equal(graphed.logits(pixels), expected)
    assert set(model.sizes) <= {16, 64, 256, 300}
    assert (prepare.n_prepared, prepare.n_released) == (1 + len(set(model.sizes)), 1)
