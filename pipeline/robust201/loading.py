"""`robust201.load_model`: a trained network as a module."""

import operator
from pathlib import Path

import torch
from torch import nn

from robust201.core.errors import ConfigError
from robust201.core.files import resolve_bundled
from robust201.core.records import ArchitectureId
from robust201.images import dataset as dataset_spec
from robust201.networks.classifier import Classifier
from robust201.networks.device import available_device
from robust201.networks.model import CompiledNetwork
from robust201.networks.spaces import find_architecture
from robust201.weights.loading import fill_network, read_weights
from robust201.weights.published.base import infer_size
from robust201.weights.store import CheckpointStore


def load_model(
    architecture: ArchitectureId,
    dataset: str,
    store: str | Path | CheckpointStore | None = None,
    *,
    weights: str | Path | None = None,
    epochs: int | None = None,
    seed: int | None = None,
    recipe: str | None = None,
    device: torch.device | str = "cpu",
) -> Classifier:
    """Load a trained network as a module that includes its normalisation.

    Args:
        architecture: index or cell string of NAS-Bench-201 (isomorphic cells share weights), or the name of a network
            in the zoo, such as ``"resnet18"``.
        dataset: training dataset, a name in `robust201.images.DATASETS`; it determines normalisation and classes.
        store: checkpoint store or its folder (see ``robust201 import``). The prefix ``bundled:`` selects a
            store that ships with robust201.
        weights: safetensors or PyTorch file of the network's state_dict, instead of `store`.
        epochs: number of training epochs, for a `store`. None selects 200 or, if the store has no such training
            run, the highest number.
        seed: training seed, for a `store`. None selects 777 or, if the store has no such training run, the lowest
            seed.
        recipe: name of the training recipe, for a `store`; ``""`` is the published recipe. The name is required if
            several recipes match.
        device: device of the network.

    Returns:
        A frozen module in evaluation mode that maps (B, channels, H, W) float32 in [0, 1] to logits (B, C),
        differentiably.

    Raises:
        ArchitectureError: the architecture is unknown.
        ConfigError: the dataset or device is unknown, or `store` and `weights` are both set or both missing.
        CheckpointError: the weights are missing or damaged, or belong to a different network.

    Warns:
        RobustWarning: the file contains several state_dicts; the warning names the one that is used.
    """
    spec = dataset_spec(dataset)
    torch_device = available_device(device)
    if (store is None) == (weights is None):
        raise ConfigError(
            f"Loading a network failed for {architecture!r}: {'both' if store is not None else 'neither'} of `store` "
            f"and `weights` {'are' if store is not None else 'is'} set. Pass either `store` or `weights=FILE`."
        )
    space, name = find_architecture(_as_builtin_id(architecture))
    if store is not None:
        checkpoints = store if isinstance(store, CheckpointStore) else CheckpointStore(resolve_bundled(store))
        record = checkpoints.find(name, dataset, space=space.name, epochs=epochs, seed=seed, recipe=recipe)
        channels, cells = record.channels, record.cells
        tensors, source = checkpoints.load(record), f"{record.label} from {record.file}"
    else:
        tensors, source = read_weights(Path(str(weights))), str(weights)
        channels, cells = infer_size(tensors, source)[:2] if space.is_sized else (None, None)
    if channels is not None and cells is not None:
        space = space.with_size(channels=channels, cells=cells)
    network = space.build(name, n_classes=spec.n_classes)
    fill_network(network, tensors, source)
    classifier = Classifier(
        network, spec.normalisation, spec.n_classes, device=torch_device, channels_last=space.channels_last
    )

    def compile_network(network: nn.Module, device: torch.device) -> CompiledNetwork | None:
        return space.compile(name, network, spec.normalisation, device=device, precision="fp32")

    classifier.compiler = compile_network
    return classifier


def _as_builtin_id(architecture: ArchitectureId) -> ArchitectureId:
    """Convert an integer of any type, such as NumPy's, to int; return a name unchanged."""
    return architecture if isinstance(architecture, str) else operator.index(architecture)
