"""Batch sizes of workers: micro-batches are halved when memory runs out. Devices are simulated."""

from collections.abc import Callable

import pytest
import torch

from robust201.networks import gpu_memory
from robust201.networks.classifier import Classifier
from robust201.networks.device import is_out_of_memory
from robust201.networks.nb201.compiled import InferenceNetwork
from robust201.networks.nb201.compiled import compiled_network as network
from robust201.run import networks
from robust201.store.events import read_recent_events
from tests.conftest import THREE_KEYS, TINY_KEYS
from tests.support.runs import export_bytes, run_sweep

N_IMAGES = 10
PGD = {"pgd": TINY_KEYS["pgd"]}
N_SAMPLES = 2 * N_IMAGES  # `PGD` has two strengths, and a sample is an image at one strength
GIGABYTE = 10**9


@pytest.fixture
def limit_memory(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], list[int]]:
    """Return a function that limits the images per batch and returns a list, to which batch sizes are added."""

    def limit_images_per_batch(limit: int) -> list[int]:
        sizes: list[int] = []
        network.usable_library()  # load the library first, so that its self-test is not recorded

        def limit_and_record(compute):
            def compute_with_limited_memory(self, pixels, *arguments):
                sizes.append(len(pixels))
                if len(pixels) > limit:
                    raise torch.OutOfMemoryError("too many images")
                return compute(self, pixels, *arguments)

            return compute_with_limited_memory

        # The batches of checks must not be recorded either.
        monkeypatch.setattr(networks, "check_compiled", lambda *_arguments, **_options: None)
        monkeypatch.setattr(networks, "check_network", lambda *_arguments, **_options: None)
        monkeypatch.setattr(Classifier, "_logits", limit_and_record(Classifier._logits))
        monkeypatch.setattr(InferenceNetwork, "_forward", limit_and_record(InferenceNetwork._forward))
        return sizes

    return limit_images_per_batch


@pytest.fixture
def set_device_memory(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Return a function that makes the CPU report a limited memory, as a GPU does."""

    def set_memory(gigabytes: float) -> None:
        free_and_total = round(gigabytes * GIGABYTE), round(gigabytes * GIGABYTE)
        monkeypatch.setattr(networks, "device_memory", lambda _: free_and_total)
        monkeypatch.setattr(gpu_memory, "peak_bytes", lambda *_: 0)

    return set_memory


def running_minima(sizes: list[int]) -> list[int]:
    """Return the sizes that are smaller than all previous sizes."""
    return [size for i, size in enumerate(sizes) if size < min(sizes[:i], default=size + 1)]


def raise_while_ending_capture(error: Exception) -> None:
    """Raise an error and then another, as PyTorch does if an error interrupts the capture of a CUDA graph."""
    try:
        raise error
    finally:
        raise RuntimeError("the capture was not ended")


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("too many"),
        MemoryError(),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate(handle)"),
        RuntimeError("GET was unable to find an engine to execute this computation"),
        torch.AcceleratorError("CUDA error: out of memory"),
    ],
)
def test_is_out_of_memory_recognises_errors_of_all_libraries(error):
    assert is_out_of_memory(error)
    assert not is_out_of_memory(RuntimeError("shapes differ"))
    with pytest.raises(RuntimeError, match="not ended") as chained_error:
        raise_while_ending_capture(error)
    assert is_out_of_memory(chained_error.value)


@pytest.mark.parametrize(
    ("engine", "limit", "sizes"),
    [
        ("reference", 2, [N_IMAGES, N_IMAGES // 2, N_IMAGES // 4]),
        ("fused", 8, [N_SAMPLES, N_SAMPLES // 2, 8]),  # the minimum batch size of an inference network is eight
    ],
)
def test_micro_batch_is_halved(make_sweep, limit_memory, engine, limit, sizes):
    recorded_sizes = limit_memory(limit)
    assert run_sweep(make_sweep(architectures=[21], keys=PGD, engine=engine, batch_size=250)).is_complete
    assert running_minima(recorded_sizes) == sizes


@pytest.mark.parametrize("key", ["pgd", "brightness"])
def test_padded_batch_is_halved_if_device_memory_runs_out(make_sweep, limit_memory, set_device_memory, key):
    set_device_memory(1)
    sizes = limit_memory(10)
    config = make_sweep(architectures=[21], keys={key: TINY_KEYS[key]}, engine="fused")
    assert run_sweep(config).is_complete
    assert sizes[:2] == [8, 8]  # trial passes
    assert running_minima(sizes[2:]) == [16, 8]


@pytest.mark.parametrize(("engine", "n_attempts"), [("reference", 4), ("fused", 3)])
def test_out_of_memory_with_smallest_batch_is_reported(make_sweep, limit_memory, tmp_path, engine, n_attempts):
    limit_memory(0)
    tally = run_sweep(make_sweep(architectures=[21], keys=PGD, engine=engine, batch_size=250))
    # The attempts have 10, 5, 2 and 1 images with the reference engine, and 20, 10 and 8 samples with the fused engine.
    (outcome,) = tally.failures
    assert outcome.failure.startswith("OutOfMemoryError")
    events = [event["event"] for event in read_recent_events(tmp_path / "results")]
    assert events.count("micro_batch_halved") == n_attempts - 1


def test_results_do_not_depend_on_device_memory_or_micro_batch(make_sweep, set_device_memory, tmp_path):
    exports = []
    for name, gigabytes, execution in (("cpu", None, {}), ("gpu", 24, {}), ("micro-batch", 24, {"micro_batch": 12})):
        if gigabytes is not None:
            set_device_memory(gigabytes)
        config = make_sweep(engine="fused", keys=THREE_KEYS | PGD, results=str(tmp_path / name), execution=execution)
        assert run_sweep(config).is_complete
        exports.append(export_bytes(config, tmp_path / f"json {name}"))
    assert len(exports[0]) == 4 * 3  # four keys, each with three measurements
    assert exports[0] == exports[1] == exports[2]


@pytest.mark.parametrize(("gpus_per_worker", "share"), [(0.5, 0.5), (1, 1), (2, 1)])
def test_device_memory_is_divided_among_workers(make_sweep, set_device_memory, monkeypatch, gpus_per_worker, share):
    set_device_memory(8)
    recorded_shares = []

    def record_and_fit_memory(model, shape, *arguments, **options):
        recorded_shares.append((options["share"], shape))
        gpu_memory.fit_memory(model, shape, *arguments, **options)

    monkeypatch.setattr(networks, "fit_memory", record_and_fit_memory)
    execution = {"gpus_per_worker": gpus_per_worker}
    config = make_sweep(architectures=[21], keys={"clean": {}}, execution=execution)
    assert run_sweep(config).is_complete
    assert recorded_shares == [(share, (3, 32, 32))]
