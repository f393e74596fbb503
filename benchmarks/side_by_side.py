"""Train several networks of one architecture one after the other, or side by side in one vectorised call, and compare.

    python -m benchmarks.side_by_side [--networks lenet5 fc7500-w64] [--models 8] [--steps 10] [--device cpu]

Side by side, the parameters of all models are stacked (`torch.func.stack_module_state`), and `vmap` computes the
gradients of all, each on a batch of its own. Both forms make the same steps of SGD with momentum from the same
weights. Prints milliseconds per step of one model (the least of `--repeats` runs that alternate), and the largest
difference of a parameter afterwards, relative to the largest parameter. BatchNorm uses the batch's statistics and
keeps none, since `vmap` cannot change buffers.
"""

import argparse
import copy
import time
from collections.abc import Callable

import torch
from torch import nn
from torch.func import functional_call, grad, stack_module_state, vmap
from torch.nn import functional

from robust201.spaces.zoo.space import Zoo

LEARNING_RATE, MOMENTUM = 0.01, 0.9

Weights = dict[str, torch.Tensor]


def make_models(name: str, count: int, device: str) -> list[nn.Module]:
    """Make networks of different initial weights, whose BatchNorms keep no statistics."""
    models = []
    for seed in range(count):
        torch.manual_seed(seed)
        network = Zoo().build(name, n_classes=10).to(device).train()
        for module in network.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.track_running_stats = False
                module.running_mean = module.running_var = module.num_batches_tracked = None
        models.append(network)
    return models


def train_in_turn(models: list[nn.Module], images: torch.Tensor, labels: torch.Tensor, steps: int) -> list[Weights]:
    """Make `steps` steps of each model; images are (steps, M, B, 3, H, W)."""
    for place, model in enumerate(models):
        optimiser = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM)
        for step in range(steps):
            optimiser.zero_grad()
            functional.cross_entropy(model(images[step, place]), labels[step, place]).backward()  # type: ignore[no-untyped-call]
            optimiser.step()
    return [{name: value.detach() for name, value in model.named_parameters()} for model in models]


def train_side_by_side(
    models: list[nn.Module], images: torch.Tensor, labels: torch.Tensor, steps: int
) -> list[Weights]:
    """Do the same with all models in one call."""
    weights, _ = stack_module_state(models)
    weights = {name: value.detach() for name, value in weights.items()}
    momentum = {name: torch.zeros_like(value) for name, value in weights.items()}
    skeleton = copy.deepcopy(models[0]).to("meta")

    def loss(own: Weights, pixels: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(functional_call(skeleton, own, (pixels,)), targets)

    gradient = vmap(grad(loss))
    for step in range(steps):
        found = gradient(weights, images[step], labels[step])
        for name in weights:
            momentum[name].mul_(MOMENTUM).add_(found[name])
            weights[name] = weights[name] - LEARNING_RATE * momentum[name]
    return [{name: value[place] for name, value in weights.items()} for place in range(len(models))]


def largest_difference(one: list[Weights], other: list[Weights]) -> float:
    """Give the largest difference of a parameter, relative to the largest parameter."""
    pairs = [(a[name], b[name]) for a, b in zip(one, other, strict=True) for name in a]
    return float(max((a - b).abs().max() for a, b in pairs) / max(a.abs().max() for a, _ in pairs))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", default=["lenet5", "fc7500-w64", "fc7500", "resnet18-w4"])
    parser.add_argument("--models", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=125)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    generator = torch.Generator().manual_seed(0)
    shape = options.steps, options.models, options.batch_size
    images = torch.rand((*shape, 3, 32, 32), generator=generator).to(options.device)
    labels = torch.randint(10, shape, generator=generator).to(options.device)
    forms: dict[str, Callable[..., list[Weights]]] = {"in turn": train_in_turn, "side by side": train_side_by_side}
    print("| network | in turn, ms | side by side, ms | times as fast | largest difference |")
    print("|---|---|---|---|---|")
    for name in options.networks:
        seconds = dict.fromkeys(forms, float("inf"))
        trained: dict[str, list[Weights]] = {}
        for _ in range(options.repeats):
            for form, train in forms.items():
                models = make_models(name, options.models, options.device)
                train(copy.deepcopy(models), images[:1], labels[:1], 1)  # warm
                if options.device != "cpu":
                    torch.cuda.synchronize()
                began = time.perf_counter()
                trained[form] = train(models, images, labels, options.steps)
                if options.device != "cpu":
                    torch.cuda.synchronize()
                seconds[form] = min(seconds[form], time.perf_counter() - began)
        turn, side = (1000 * seconds[form] / (options.steps * options.models) for form in forms)
        difference = largest_difference(trained["in turn"], trained["side by side"])
        print(f"| {name} | {turn:.2f} | {side:.2f} | {turn / side:.2f} | {difference:.1e} |", flush=True)


if __name__ == "__main__":
    main()
