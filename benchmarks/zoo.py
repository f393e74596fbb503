"""Measure the networks of the zoo: multiply-accumulates, parameters, and the time of a training step per image.

    python -m benchmarks.zoo

One thread, one batch in the layout of the zoo: forward and backward pass with the gradients of the weights, BatchNorm
in training mode, without the optimiser; the median of the thread's CPU time over repetitions.
"""

import argparse
import time
from statistics import median

import torch
from torch.nn import functional

from robust201.engine.arithmetic import configure_torch
from robust201.spaces.zoo.space import NETWORKS, Zoo


def step_seconds(network: torch.nn.Module, batch: int, rounds: int) -> float:
    """Time of a pass forwards and backwards, in CPU seconds per image."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randn((batch, 3, 32, 32), generator=generator).contiguous(memory_format=torch.channels_last)
    labels = torch.arange(batch) % 10
    times = []
    for number in range(rounds + 1):
        network.zero_grad()
        start = time.thread_time()
        torch.autograd.backward(functional.cross_entropy(network(images), labels))
        if number:  # the first prepares weights and memory
            times.append(time.thread_time() - start)
    return median(times) / batch


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", default=list(NETWORKS), help="names, such as resnet18 or resnet18-w8")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    configure_torch(threads=1)
    zoo = Zoo()
    print("| network | parameters | GMACs | ms per image | GMACs per second |")
    print("|---|---|---|---|---|")
    for name in zoo.select(options.networks):
        torch.manual_seed(0)
        network = zoo.build(name, n_classes=10).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        parameters = sum(parameter.numel() for parameter in network.parameters())
        gmacs = zoo.macs(name, n_classes=10, image_size=32) / 1e9
        seconds = step_seconds(network, options.batch, options.rounds)
        # A backward pass computes about twice what the forward pass does.
        print(
            f"| {name} | {parameters:,} | {gmacs:.3g} | {1000 * seconds:.3g} | {3 * gmacs / seconds:.0f} |", flush=True
        )


if __name__ == "__main__":
    main()
