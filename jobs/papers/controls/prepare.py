"""Write the weights and images of the control networks into runs/controls (README.md).

    pip download --no-deps --no-binary advertorch advertorch==0.2.3 cifar-10-model==7.4.0 -d PACKAGES
    python -m jobs.papers.controls.prepare PACKAGES DATA

DATA contains cifar10/ and mnist/ with the official files. The output is `weights/NAME.safetensors` with state_dicts for
`networks.py`, and the test images in `mnist/test.npz` and `cifar10/test.npz`. The weights of resnet18 are part of the
installed pyautoattack. Keras's file is read with h5py (`pip install h5py`), without TensorFlow. No code in the packages
is executed.
"""

import io
import sys
import tarfile
import zipfile
from importlib.resources import files
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

from robust201.images import load_images

RUNS = Path("runs/controls")
LENETS = {
    "lenet-plain": "advertorch_examples/trained_models/mnist_lenet5_clntrained.pt",
    "lenet-robust": "advertorch_examples/trained_models/mnist_lenet5_advtrained.pt",
}
KERAS_FILE = "cifar_10_model/trained_models/cnn_model.h5"

StateDict = dict[str, torch.Tensor]


def read_lenet(packages: Path, name: str) -> StateDict:
    """Read the weights of one of advertorch's two networks from the source distribution."""
    (package,) = packages.glob("advertorch-0.2.3.tar.gz")
    with tarfile.open(package) as archive:
        member = archive.extractfile(f"advertorch-0.2.3/{LENETS[name]}")
        if member is None:
            raise FileNotFoundError(f"{package} does not contain {LENETS[name]}")
        return load_pytorch(member.read())


def read_resnet18() -> StateDict:
    """Read the weights of the network in AutoAttack's examples from the installed package."""
    return load_pytorch((files("pyautoattack") / "examples" / "model_test.pt").read_bytes())


def load_pytorch(content: bytes) -> StateDict:
    """Load a state_dict without executing code that its pickle refers to."""
    state: StateDict = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    return {name: tensor.contiguous() for name, tensor in state.items()}


def read_keras(packages: Path) -> StateDict:
    """Read the weights of cifar-10-model's network from the wheel."""
    (package,) = packages.glob("cifar_10_model-7.4.0-*.whl")
    with zipfile.ZipFile(package) as archive:
        return convert_keras(archive.read(KERAS_FILE))


def convert_keras(content: bytes) -> StateDict:
    """Convert Keras's HDF5 file to the names and axes of `networks.KerasCNN`.

    Kernels of convolutions are (height, width, in, out) in Keras and (out, in, height, width) in PyTorch. Kernels of
    dense layers are transposed. The input of the first dense layer is a single pixel with 64 channels, so the order of
    its features is the same in both libraries.
    """
    import h5py

    state: StateDict = {}
    with h5py.File(io.BytesIO(content)) as file:

        def read_array(layer_name: str, layer_index: int, array_name: str) -> torch.Tensor:
            name = f"{layer_name}_{layer_index}" if layer_index else layer_name
            return torch.from_numpy(np.asarray(file["model_weights"][name][name][f"{array_name}:0"]))

        for layer_index in range(6):
            kernel = read_array("conv2d", layer_index, "kernel")
            state[f"convolutions.{layer_index}.weight"] = kernel.permute(3, 2, 0, 1).contiguous()
            state[f"convolutions.{layer_index}.bias"] = read_array("conv2d", layer_index, "bias")
            state[f"norms.{layer_index}.weight"] = read_array("batch_normalization", layer_index, "gamma")
            state[f"norms.{layer_index}.bias"] = read_array("batch_normalization", layer_index, "beta")
            state[f"norms.{layer_index}.running_mean"] = read_array("batch_normalization", layer_index, "moving_mean")
            state[f"norms.{layer_index}.running_var"] = read_array(
                "batch_normalization", layer_index, "moving_variance"
            )
            state[f"norms.{layer_index}.num_batches_tracked"] = torch.tensor(0)
        for layer_index in range(3):
            state[f"dense.{layer_index}.weight"] = read_array("dense", layer_index, "kernel").T.contiguous()
            state[f"dense.{layer_index}.bias"] = read_array("dense", layer_index, "bias")
    return state


def main(packages: Path, data: Path) -> None:
    weights = {name: read_lenet(packages, name) for name in LENETS}
    weights |= {"keras-cnn": read_keras(packages), "resnet18": read_resnet18()}
    (RUNS / "weights").mkdir(parents=True, exist_ok=True)
    for name, state in weights.items():
        save_file(state, RUNS / "weights" / f"{name}.safetensors")

    for dataset, folder in (("mnist-28", "mnist"), ("cifar10", "cifar10")):
        images = load_images(dataset, path=data / folder)
        (RUNS / folder).mkdir(exist_ok=True)
        n_copies = 3 // images.images.shape[1]  # grey images get three equal channels
        np.savez(RUNS / folder / "test.npz", images=images.images.repeat(n_copies, axis=1), labels=images.labels)
        print(f"{RUNS / folder}/test.npz: {len(images.labels):,} images")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
