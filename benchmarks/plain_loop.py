"""A user's loop that attacks a network with Foolbox and AutoAttack at each epsilon; `user_loop` times it.

    python -m benchmarks.plain_loop images.npz weights.safetensors --mean .49 .48 .45 --std .25 .24 .26

The loop follows the examples in the libraries' documentation. From robust201 it uses only the definition of the
network, whose outputs equal those of the published module bit for bit. The loop prints accuracies as JSON.
"""

import argparse
import json
import os

os.environ.setdefault("GIT_PYTHON_REFRESH", "quiet")  # Otherwise, importing Foolbox fails if git is not installed.

import foolbox
import numpy as np
import torch
from pyautoattack import AutoAttack
from pyautoattack.autopgd_base import APGDAttack
from safetensors.torch import load_file
from torch import nn

from robust201.networks.spaces import find_architecture

ATTACKS = ("fgsm", "pgd", "apgd", "square")


class NormalisingNetwork(nn.Module):
    """A network that normalises pixels in [0, 1] and returns logits."""

    mean: torch.Tensor
    std: torch.Tensor

    def __init__(self, network: nn.Module, mean: list[float], std: list[float]) -> None:
        super().__init__()
        self.network = network
        self.register_buffer("mean", torch.tensor(mean).view(1, 3, 1, 1))
        self.register_buffer("std", torch.tensor(std).view(1, 3, 1, 1))

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.network((pixels - self.mean) / self.std)
        return logits


def attack_with_foolbox(
    name: str, model: nn.Module, images: torch.Tensor, labels: torch.Tensor, epsilon: float, options: argparse.Namespace
) -> torch.Tensor:
    """Attack with Foolbox, batch by batch, and return the adversarial images."""
    attack = foolbox.attacks.LinfFastGradientAttack()
    if name == "pgd":
        attack = foolbox.attacks.LinfPGD(rel_stepsize=0.01 / 0.3, steps=options.pgd_steps, random_start=True)
    foolbox_model = foolbox.PyTorchModel(model, bounds=(0, 1), device=images.device)
    batches = zip(torch.split(images, options.batch), torch.split(labels, options.batch), strict=True)
    return torch.cat(
        [attack(foolbox_model, batch, batch_labels, epsilons=epsilon)[1] for batch, batch_labels in batches]
    )


def attack_with_autoattack(
    name: str, model: nn.Module, images: torch.Tensor, labels: torch.Tensor, epsilon: float, options: argparse.Namespace
) -> torch.Tensor:
    """Attack with AutoAttack, which skips misclassified images and creates its own batches."""
    key = "apgd-ce" if name == "apgd" else "square"
    device = images.device
    adversary = AutoAttack(model, attacks=[key], eps=epsilon, norm="Linf", seed=0, version="custom", device=device)
    adversary.verbose = False
    adversary.apgd = APGDAttack(
        model, n_iter=options.apgd_steps, n_restarts=1, eps=epsilon, norm="Linf", seed=0, device=device
    )
    adversary.square.n_queries = options.queries
    adversarial_images: torch.Tensor = adversary.run_standard_evaluation(images, labels, batch_size=options.batch)[0]
    return adversarial_images


def compute_accuracy(model: nn.Module, images: torch.Tensor, labels: torch.Tensor, batch: int) -> float:
    """Return the accuracy, computed batch by batch."""
    with torch.no_grad():
        predicted_labels = torch.cat([model(pixels).argmax(dim=1) for pixels in torch.split(images, batch)])
    return int((predicted_labels == labels).sum()) / len(images)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("images", help=".npz with images (N, 3, H, W) uint8 and labels (N,)")
    parser.add_argument("weights", help="state_dict of the network, as safetensors")
    parser.add_argument(
        "--architecture", default="309", help="index of a cell, or name of a zoo network such as resnet18"
    )
    parser.add_argument("--channels", type=int, default=16)
    parser.add_argument("--cells", type=int, default=5)
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--mean", type=float, nargs=3, required=True)
    parser.add_argument("--std", type=float, nargs=3, required=True)
    parser.add_argument("--attacks", nargs="*", choices=ATTACKS, default=list(ATTACKS))
    parser.add_argument("--epsilons", type=float, nargs="+", default=[0.1, 0.5, 1, 2, 3, 4, 8], help="in 1/255")
    parser.add_argument(
        "--fgsm-epsilons", type=float, nargs="+", default=[0.1, 0.5, 1, 2, 3, 4, 5, 6, 7, 8, 255], help="in 1/255"
    )
    parser.add_argument("--pgd-steps", type=int, default=40)
    parser.add_argument("--apgd-steps", type=int, default=100)
    parser.add_argument("--queries", type=int, default=5000)
    parser.add_argument("--batch", type=int, default=250)
    parser.add_argument("--layout", choices=("default", "channels_last"), default="default")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    return parser.parse_args()


def main() -> None:
    """Evaluate the network under each attack and epsilon, and print the accuracies."""
    options = parse_arguments()
    torch.set_num_threads(options.threads)
    torch.backends.cudnn.allow_tf32 = False
    layout = torch.channels_last if options.layout == "channels_last" else torch.contiguous_format

    name = options.architecture
    space, architecture = find_architecture(int(name) if name.isdigit() else name)
    if space.is_sized:
        space = space.with_size(channels=options.channels, cells=options.cells)
    network = space.build(architecture, n_classes=options.classes)
    network.load_state_dict(load_file(options.weights))
    model = NormalisingNetwork(network, options.mean, options.std).eval().requires_grad_(requires_grad=False)
    model = model.to(options.device, memory_format=layout)  # type: ignore[call-overload]

    with np.load(options.images, allow_pickle=False) as arrays:
        images, labels = torch.from_numpy(arrays["images"]), torch.from_numpy(arrays["labels"]).long()
    images = (images.float() / 255).to(options.device, memory_format=layout)
    labels = labels.to(options.device)

    accuracies = {"clean": {0.0: compute_accuracy(model, images, labels, options.batch)}}
    for name in options.attacks:
        attack = attack_with_foolbox if name in ("fgsm", "pgd") else attack_with_autoattack
        accuracies[name] = {}
        for epsilon in options.fgsm_epsilons if name == "fgsm" else options.epsilons:
            adversarial_images = attack(name, model, images, labels, epsilon / 255, options)
            accuracies[name][epsilon] = compute_accuracy(model, adversarial_images, labels, options.batch)
    print(json.dumps(accuracies))


if __name__ == "__main__":
    main()
