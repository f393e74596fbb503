"""Datasets of robust and non-robust features: distances to targets decrease, and resumed runs give equal bytes."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from robust201.core.errors import ConfigError, DatasetError, EvaluationError
from robust201.images import load_images
from robust201.images.specs import custom_dataset
from robust201.images.store import ArrayFolder
from robust201.networks.spaces import DEFAULT_SPACE, SPACES
from robust201.training import robust_features
from robust201.training.robust_features import FeatureSettings, Method, write_feature_images
from tests.conftest import read_tree
from tests.support.tiny_networks import (
    N_CLASSES,
    SIZE,
    Float64Network,
    TinyNetwork,
    tiny_classifier,
    tiny_images,
)

IMAGES = tiny_images()
SPEC = custom_dataset("made", n_classes=N_CLASSES, image_size=SIZE)
METHODS: tuple[Method, ...] = ("representation", "random-target", "next-target")


def write_features(
    folder: Path, method: Method = "representation", *, network: nn.Module | None = None, **settings: object
) -> str:
    feature_settings = FeatureSettings.of(method, **{"steps": 8, "batch_size": 8, **settings})  # type: ignore[arg-type]
    return write_feature_images(folder, IMAGES, tiny_classifier(network), feature_settings, network={"name": "tiny"})


def read_folder(folder: Path) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray], dict[str, float]]:
    """Return images, labels, other arrays by name, and the recorded outcome."""
    images = load_images(SPEC, path=folder, split="train")
    arrays = ArrayFolder(folder / "train")
    names = {path.stem for path in arrays.folder.glob("*.npy")} - {"images", "labels"}
    assert arrays.info("images")["images_sha256"] == images.sha256
    return images.images, images.labels, {name: arrays.read(name) for name in names}, arrays.info("images")["outcome"]


def test_representation_method_reduces_distances_and_keeps_labels(tmp_path):
    write_features(tmp_path, steps=60)
    images, labels, sources, outcome = read_folder(tmp_path)
    assert outcome["distance"] < 0.2 * outcome["distance_at_start"]
    np.testing.assert_array_equal(labels, IMAGES.labels)
    np.testing.assert_array_equal(sources["source_rows"], IMAGES.indices)
    assert set(sources["start_rows"].tolist()) <= set(IMAGES.indices.tolist())
    assert (sources["start_rows"] != sources["source_rows"]).all()
    assert np.abs(images.astype(int) - IMAGES.images).mean() > 20, "images must not be copies of the originals"


@pytest.mark.parametrize("method", METHODS[1:])
def test_target_methods_label_images_by_their_targets(tmp_path, method):
    write_features(tmp_path, method, steps=20, step_size=0.4, epsilon=3.0)
    images, labels, sources, outcome = read_folder(tmp_path)
    np.testing.assert_array_equal(sources["original_labels"], IMAGES.labels)
    if method == "next-target":
        np.testing.assert_array_equal(labels, (IMAGES.labels + 1) % N_CLASSES)
    else:
        assert set(labels.tolist()) == set(range(N_CLASSES))
    change = (images.astype(float) - IMAGES.images).reshape(len(images), -1) / 255
    assert np.linalg.norm(change, axis=1).max() <= 3.0 + 0.5 / 255 * np.sqrt(3 * SIZE**2)
    initial_predictions = tiny_classifier()(torch.from_numpy(IMAGES.images) / 255).argmax(dim=1).numpy()
    assert outcome["share_seen_as_target"] > (initial_predictions == labels).mean() + 0.3
    final_predictions = tiny_classifier()(torch.from_numpy(images) / 255).argmax(dim=1).numpy()
    assert outcome["share_seen_as_target"] == pytest.approx((final_predictions == labels).mean())


@pytest.mark.parametrize(
    ("method", "n_arrays"), [*((method, 2) for method in METHODS), (METHODS[0], 0), (METHODS[0], 4)]
)
def test_interrupted_and_resumed_run_gives_equal_bytes(tmp_path, monkeypatch, method, n_arrays):
    digest = write_features(tmp_path / "uninterrupted", method)
    written_names: list[str] = []
    write_array, is_interrupted = ArrayFolder.write, True

    def record_and_interrupt(store: ArrayFolder, name: str, *arguments: object, **options: object) -> None:
        if is_interrupted and len(written_names) == n_arrays:
            raise KeyboardInterrupt
        written_names.append(name)
        write_array(store, name, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(ArrayFolder, "write", record_and_interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_features(tmp_path / "resumed", method)
    is_interrupted = False
    assert write_features(tmp_path / "resumed", method) == digest
    blocks = [name for name in written_names if name.startswith("block-")]
    assert blocks == ["block-00000000", "block-00000008", "block-00000016"], "each block must be written once"
    assert read_tree(tmp_path / "resumed") == read_tree(tmp_path / "uninterrupted")
    monkeypatch.setattr(
        robust_features._FeatureGenerator, "generate", lambda *_: pytest.fail("complete images are generated again")
    )
    assert write_features(tmp_path / "resumed", method) == digest


@pytest.mark.parametrize("method", METHODS)
def test_images_do_not_depend_on_the_batch_size(tmp_path, method):
    digests = {
        write_features(tmp_path / str(size), method, network=Float64Network(), batch_size=size, steps=5)
        for size in (4, 7, 50)
    }
    assert len(digests) == 1


def test_folder_with_other_settings_is_rejected(tmp_path):
    write_features(tmp_path, seed=1)
    for changed_argument, message in (
        ({"seed": 2}, "`seed` 2, got images with 1"),
        ({"seed": 1, "steps": 9}, "`steps` 9"),
        ({"seed": 1, "network": TinyNetwork(seed=1)}, "`network`"),
        ({"seed": 1, "method": "next-target"}, "`epsilon` 0.5, got images with None"),
    ):
        with pytest.raises(DatasetError, match=message):
            write_features(tmp_path, **changed_argument)  # type: ignore[arg-type]
    start_rows = read_folder(tmp_path)[2]["start_rows"]
    write_features(tmp_path / "seed", seed=2)
    assert not np.array_equal(start_rows, read_folder(tmp_path / "seed")[2]["start_rows"])


def test_recorded_weights_hash_equals_hash_of_weights_file(tmp_path):
    from safetensors.torch import save_file

    from robust201.core.files import sha256_of

    save_file(TinyNetwork().state_dict(), tmp_path / "weights.safetensors")
    write_features(tmp_path / "made")
    recipe = json.loads((tmp_path / "made/train/made.json").read_text())["arrays"]["images"]["recipe"]
    assert recipe["network"]["weights_sha256"] == sha256_of(tmp_path / "weights.safetensors")
    assert recipe["network"]["name"] == "tiny"
    assert recipe["images"]["sha256"] == IMAGES.sha256


def test_settings_have_the_published_defaults():
    assert FeatureSettings.of("representation") == FeatureSettings("representation", 1000, 0.1, None, 0, 100)
    assert FeatureSettings.of("next-target") == FeatureSettings("next-target", 100, 0.1, 0.5, 0, 100)


def test_representation_is_the_input_of_the_last_linear_layer():
    network = TinyNetwork()
    pixels = torch.rand(4, 3, SIZE, SIZE)
    with robust_features._representation(network) as represent:
        torch.testing.assert_close(represent(network, pixels), network.stem(pixels).flatten(1))
    assert not network.classifier._forward_pre_hooks
    cell_network = SPACES[DEFAULT_SPACE].with_size(channels=4, cells=1).build(13714, n_classes=10).eval()
    pixels = torch.rand(2, 3, 32, 32)
    with torch.no_grad(), robust_features._representation(cell_network) as represent:
        torch.testing.assert_close(represent(cell_network, pixels), cell_network.features(pixels))


def test_networks_without_a_representation_are_rejected(tmp_path):
    convolutional_network = nn.Sequential(nn.Conv2d(3, N_CLASSES, SIZE), nn.Flatten())
    with pytest.raises(ConfigError, match=r"it has no torch\.nn\.Linear"):
        write_features(tmp_path, network=convolutional_network)
    write_features(tmp_path / "targets", "next-target", network=convolutional_network)
    layer = nn.Linear(3 * SIZE**2, N_CLASSES)

    class SharedLayer(nn.Module):
        """A network that calls its linear layer twice per pass."""

        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, pixels: torch.Tensor) -> torch.Tensor:
            return self.layer(pixels.flatten(1)) + self.layer(-pixels.flatten(1))

    with pytest.raises(EvaluationError, match="called once per pass on all images, got 2 calls"):
        write_features(tmp_path, network=SharedLayer())
    with torch.no_grad():
        layer.weight.fill_(float("nan"))
    with pytest.raises(EvaluationError, match="gradients are NaN or infinite"):
        write_features(tmp_path, "next-target", network=SharedLayer())
