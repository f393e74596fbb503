"""Generate `network.json`: features and logits of the published NAS-Bench-201 network for reproducible weights.

The reference is xautodl 1.0.0 from PyPI, which robust201 neither requires nor contains. To regenerate the file, run

    python3.11 -m venv reference && . reference/bin/activate
    pip install torch==2.13.0 numpy && pip install --no-deps xautodl==1.0.0
    python tests/golden/make_network_golden.py

The test imports `fill_state`, `make_pixels` and `state_signature` from here and applies them to robust201's network.
This script does not import `robust201`, so that the file depends only on the published source.
"""

import hashlib
import importlib.metadata
import json
import math
import random
from pathlib import Path

import numpy as np
import torch

GOLDEN_FILE = Path(__file__).with_name("network.json")
SOURCE_FILES = (
    "models/cell_infers/tiny_network.py",
    "models/cell_infers/cells.py",
    "models/cell_operations.py",
    "models/cell_searchs/genotypes.py",
)
N_IMAGES = 2
CHANNELS, CELLS = 16, 5
# Small and large cells, the paper's cells, and cells without a path from input to output (10, 12, 74, 172, 879, 1651).
CHOSEN_INDICES: tuple[int, ...] = (0, 1, 9, 10, 11, 12, 21, 50, 74, 123, 172, 284, 309, 879, 991, 1462, 1651, 1832)
CHOSEN_INDICES += (3365, 3456, 9930, 11472, 13433, 13714)
SPACED_INDICES = tuple(range(137, 15_625, 440))
CIFAR100_CASES = (0, 21, 1462, 13714)
IMAGENET16_CASES = (0, 12, 21, 991, 11472, 13714)


def _generator(name):
    key = np.frombuffer(hashlib.sha256(f"network golden file/{name}".encode()).digest()[:16], dtype="<u8")
    return np.random.Generator(np.random.Philox(key=key))


def fill_state(state, feature_scale):
    """Return a state_dict with random numbers, whose seeds are the tensors' names.

    Args:
        state: state_dict of a network; only its names, shapes and dtypes are used.
        feature_scale: standard deviation of the last BatchNorm's input, by which its running statistics are scaled.
            Without this, logits would be large in cells whose skip connections add their input several times.

    Returns:
        A new state_dict, with non-trivial running statistics in all BatchNorms.
    """
    filled = {}
    for name, tensor in state.items():
        generator, shape = _generator(name), tuple(tensor.shape)
        scale = feature_scale if name.startswith("lastact") else 1.0
        parameter_name = name.rpartition(".")[2]
        if parameter_name == "num_batches_tracked":
            values = np.asarray(generator.integers(1, 1000))
        elif parameter_name == "running_mean":
            values = scale * generator.normal(0, 0.3, shape)
        elif parameter_name == "running_var":
            values = scale**2 * generator.uniform(0.4, 1.2, shape)
        elif parameter_name == "bias":
            values = generator.normal(0, 0.3, shape)
        elif len(shape) == 1:
            values = generator.uniform(0.4, 1.2, shape)
        else:
            values = generator.normal(0, math.sqrt(2 / math.prod(shape[1:])), shape)
        filled[name] = torch.from_numpy(np.asarray(values)).to(tensor.dtype)
    return filled


def make_pixels(image_size):
    """Return two random normalised images of different colours: (2, 3, image_size, image_size) float32."""
    generator = _generator(f"pixels {image_size}")
    colours = generator.normal(0, 1, (N_IMAGES, 3, 1, 1))
    return torch.from_numpy(colours + generator.normal(0, 1, (N_IMAGES, 3, image_size, image_size))).float()


def state_signature(state):
    """Return the SHA-256 of a state_dict's names, shapes and dtypes, in their order, as 64 hex digits."""
    lines = [f"{name} {tuple(tensor.shape)} {tensor.dtype}" for name, tensor in state.items()]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _cases():
    indices = sorted({*CHOSEN_INDICES, *SPACED_INDICES})
    yield from ((index, 10, 32) for index in indices)
    yield from ((index, 100, 32) for index in CIFAR100_CASES)
    yield from ((index, 120, 16) for index in IMAGENET16_CASES)


def _specs(structure):
    cells = structure.gen_all(["none", "skip_connect", "nor_conv_1x1", "nor_conv_3x3", "avg_pool_3x3"], 4, False)
    random.Random(88).shuffle(cells)
    return [cell.tostr() for cell in cells]


def _shortest_floats(values):
    """Convert float32 values to floats with the same shortest decimal representation."""
    return [[float(str(value)) for value in row] for row in values.numpy()]


def _measure(network, pixels):
    network.eval()
    input_scales = []
    hook = network.lastact.register_forward_pre_hook(lambda _, inputs: input_scales.append(inputs[0].std().item()))
    with torch.inference_mode():
        network.load_state_dict(fill_state(network.state_dict(), 1.0))
        network(pixels)
        hook.remove()
        feature_scale = float(f"{max(input_scales[0], 1.0):.2g}")
        network.load_state_dict(fill_state(network.state_dict(), feature_scale))
        features, logits = network(pixels)
    return feature_scale, features, logits


def main():
    import xautodl
    from xautodl.models.cell_infers.tiny_network import TinyNetwork
    from xautodl.models.cell_searchs.genotypes import Structure

    torch.set_num_threads(1)
    specs = _specs(Structure)
    cases = []
    for index, n_classes, image_size in _cases():
        network = TinyNetwork(CHANNELS, CELLS, Structure.str2structure(specs[index]), n_classes)
        feature_scale, features, logits = _measure(network, make_pixels(image_size))
        cases.append(
            {
                "index": index,
                "spec": specs[index],
                "n_classes": n_classes,
                "image_size": image_size,
                "feature_scale": feature_scale,
                "parameters": sum(parameter.numel() for parameter in network.parameters()),
                "state_length": len(network.state_dict()),
                "state_signature": state_signature(network.state_dict()),
                "features": _shortest_floats(features),
                "logits": _shortest_floats(logits),
            }
        )
    root = Path(xautodl.__file__).parent
    golden = {
        "source": f"xautodl {importlib.metadata.version('xautodl')} from PyPI",
        "source_sha256": {name: hashlib.sha256((root / name).read_bytes()).hexdigest() for name in SOURCE_FILES},
        "torch": torch.__version__,
        "numpy": np.__version__,
        "channels": CHANNELS,
        "cells": CELLS,
        "cases": cases,
    }
    case_lines = ",\n".join(json.dumps(case) for case in cases)
    GOLDEN_FILE.write_text(json.dumps(golden | {"cases": []}).removesuffix("]}") + f"\n{case_lines}\n]}}\n")


if __name__ == "__main__":
    main()
