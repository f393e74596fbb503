"""Controls with published networks (jobs/papers/controls): conversion of their weights."""

import io
import tarfile
import zipfile

import h5py
import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view

from jobs.papers.controls import analyse, networks, prepare


def keras_arrays() -> dict[str, np.ndarray]:
    """Return random weights by ``LAYER/ARRAY``, with axes in Keras's order."""
    rng = np.random.default_rng(0)
    channels = [3, 64, 64, 128, 128, 64, 64]
    arrays = {}
    for layer_index in range(6):
        suffix = f"_{layer_index}" if layer_index else ""
        shape = (3, 3, channels[layer_index], channels[layer_index + 1])
        arrays[f"conv2d{suffix}/kernel"] = rng.normal(0, (2 / np.prod(shape[:3])) ** 0.5, shape)
        arrays[f"conv2d{suffix}/bias"] = rng.normal(0, 0.1, shape[3])
        for array_name in ("gamma", "beta", "moving_mean", "moving_variance"):
            arrays[f"batch_normalization{suffix}/{array_name}"] = rng.uniform(0.5, 1.5, shape[3])
    for layer_index, (n_inputs, n_outputs) in enumerate([(64, 1024), (1024, 512), (512, 10)]):
        suffix = f"_{layer_index}" if layer_index else ""
        arrays[f"dense{suffix}/kernel"] = rng.normal(0, (2 / n_inputs) ** 0.5, (n_inputs, n_outputs))
        arrays[f"dense{suffix}/bias"] = rng.normal(0, 0.1, n_outputs)
    return arrays


def keras_file_bytes(arrays: dict[str, np.ndarray]) -> bytes:
    """Return the bytes of a Keras file (HDF5) with these arrays."""
    stream = io.BytesIO()
    with h5py.File(stream, "w") as file:
        for name, array in arrays.items():
            layer, _, array_name = name.partition("/")
            file[f"model_weights/{layer}/{layer}/{array_name}:0"] = array.astype(np.float32)
    return stream.getvalue()


def keras_forward(arrays: dict[str, np.ndarray], pixels: np.ndarray) -> np.ndarray:
    """Compute the logits of pixels (B, H, W, 3) from 0 to 255 in float64, with the axes in Keras's order."""
    features = pixels.astype(np.float64)
    for layer_index in range(6):
        suffix = f"_{layer_index}" if layer_index else ""
        windows = sliding_window_view(features, (3, 3), axis=(1, 2))  # (B, H - 2, W - 2, in, 3, 3)
        features = np.einsum("bhwikl,klio->bhwo", windows, arrays[f"conv2d{suffix}/kernel"], optimize=True)
        features = np.maximum(features + arrays[f"conv2d{suffix}/bias"], 0)
        gamma, beta, mean, variance = (
            arrays[f"batch_normalization{suffix}/{array_name}"]
            for array_name in ("gamma", "beta", "moving_mean", "moving_variance")
        )
        features = gamma * (features - mean) / np.sqrt(variance + 1e-3) + beta
        if layer_index in {1, 3}:
            pooled_size = features.shape[1] // 2
            features = features[:, : 2 * pooled_size, : 2 * pooled_size]
            features = features.reshape(len(features), pooled_size, 2, pooled_size, 2, -1).max(axis=(2, 4))
    features = features.reshape(len(features), -1)
    for suffix in ("", "_1", "_2"):
        features = np.maximum(features @ arrays[f"dense{suffix}/kernel"] + arrays[f"dense{suffix}/bias"], 0)
    return features


def test_converted_keras_weights_give_logits_of_numpy_implementation(tmp_path):
    arrays = keras_arrays()
    with zipfile.ZipFile(tmp_path / "cifar_10_model-7.4.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr(prepare.KERAS_FILE, keras_file_bytes(arrays))
    network = networks.build("keras-cnn", 10)
    network.load_state_dict(prepare.read_keras(tmp_path))
    pixels = np.random.default_rng(1).integers(0, 256, (2, 32, 32, 3), np.uint8)
    images = torch.from_numpy(pixels.transpose(0, 3, 1, 2)).float() / 255
    logits = network.eval()(images).detach().numpy()
    expected = keras_forward(arrays, pixels)
    assert expected.max() > 0  # the last layer also has a ReLU, so all logits could be 0
    np.testing.assert_allclose(logits, expected, rtol=1e-3, atol=1e-3 * expected.max())


def test_lenet_weights_are_read_from_source_distribution(tmp_path):
    states = {}
    with tarfile.open(tmp_path / "advertorch-0.2.3.tar.gz", "w:gz") as archive:
        for name, member in prepare.LENETS.items():
            states[name] = networks.build(name, 10).state_dict()
            stream = io.BytesIO()
            torch.save(states[name], stream)
            tar_info = tarfile.TarInfo(f"advertorch-0.2.3/{member}")
            tar_info.size = stream.tell()
            stream.seek(0)
            archive.addfile(tar_info, stream)
    for name, state in states.items():
        torch.testing.assert_close(prepare.read_lenet(tmp_path, name), dict(state), rtol=0, atol=0)


def test_lenet_uses_only_first_channel():
    network = networks.build("lenet-robust", 10)
    images = torch.rand(2, 3, 28, 28, requires_grad=True)
    logits = network(images)
    torch.testing.assert_close(logits, network(images[:, :1]), rtol=0, atol=0)
    (gradient,) = torch.autograd.grad(logits.logsumexp(1).sum(), images)
    assert gradient[:, 0].abs().amax((1, 2)).min() > 0
    assert not gradient[:, 1:].any()


def test_engines_and_direct_calls_are_compared_image_by_image():
    fused, by_hand = np.arange(20) < 10, np.arange(20) < 2
    rows = [("keras-cnn", "pgd", "fused", 2.0, fused), ("keras-cnn", "pgd", analyse.BY_HAND, np.nan, by_hand)]
    text, p_values = analyse.compare_methods([*rows, ("lenet-plain", "clean", "fused", 0.0, fused)])
    assert p_values == [2 * 0.5**8]  # eight images are correct in one row only
    assert "| keras-cnn | `pgd` | 2 | 20 | 0.500 | – | 0.100 | – | 0.0078 |" in text
