"""Attack a control network with Foolbox and AutoAttack, without robust201 (jobs/papers/controls/README.md).

    python -m jobs.papers.controls.by_hand NETWORK

Keys and their parameters come from the network's YAML, and the images from the export of its sweep with the fused
engine. LeNets get grey images (B, 1, 28, 28), as in their authors' code. runs/controls/by-hand/NETWORK.json has, for
each key, which images are classified correctly. It is written after each key, so an interrupted run can be resumed.
"""

import json
import os
import sys
import time
from fractions import Fraction
from pathlib import Path
from typing import Any

os.environ.setdefault("GIT_PYTHON_REFRESH", "quiet")  # otherwise Foolbox cannot be imported if git is not installed

import foolbox
import numpy as np
import pandas as pd
import torch
import yaml
from pyautoattack import AutoAttack
from safetensors.torch import load_file

from jobs.papers.controls.networks import SWEEPS, build

RUNS = Path("runs/controls")
BATCH = 250


def make_foolbox_attack(key: str, parameters: dict[str, Any]) -> foolbox.attacks.base.Attack:
    """Return Foolbox's attack for a key. Omitted parameters have Foolbox's (`pgd_l2`: robust201's) defaults."""
    if key == "fgsm":
        return foolbox.attacks.LinfFastGradientAttack()
    if key == "pgd":
        return foolbox.attacks.LinfPGD(
            rel_stepsize=parameters.get("rel_stepsize", 0.01 / 0.3),
            steps=parameters.get("steps", 40),
            random_start=parameters.get("random_start", True),
        )
    return foolbox.attacks.L2PGD(
        abs_stepsize=parameters.get("step_size", 0.1), steps=parameters.get("steps", 100), random_start=False
    )


def make_autoattack(key: str, parameters: dict[str, Any], model: torch.nn.Module, epsilon: float) -> AutoAttack:
    """Return AutoAttack's standard version, or one of its attacks with one restart and nine targets."""
    name = key.removeprefix("aa_")
    if name == "standard":
        adversary = AutoAttack(model, norm="Linf", eps=epsilon, seed=0, version="standard")
    else:
        adversary = AutoAttack(model, norm="Linf", eps=epsilon, seed=0, version="custom", attacks=[name])
        adversary.apgd.n_restarts = 1  # as in the standard version
        adversary.apgd_targeted.n_target_classes = adversary.fab.n_target_classes = 9
    steps = parameters.get("steps", 100)
    adversary.apgd.n_iter = adversary.apgd_targeted.n_iter = adversary.fab.n_iter = steps
    adversary.square.n_queries = parameters.get("queries", 5000)
    return adversary


def perturb(
    key: str, parameters: dict[str, Any], model: torch.nn.Module, images: torch.Tensor, labels: torch.Tensor
) -> torch.Tensor:
    """Attack images (B, C, H, W) as configured for a key; return the attacked images."""
    if key == "clean":
        return images
    (epsilon,) = (float(Fraction(str(value))) for value in parameters["epsilons"])
    if key.startswith("aa_"):
        adversary = make_autoattack(key, parameters, model, epsilon)
        adversarial: torch.Tensor = adversary.run_standard_evaluation(images, labels, batch_size=BATCH)[0]
        return adversarial
    attack = make_foolbox_attack(key, parameters)
    foolbox_model = foolbox.PyTorchModel(model, bounds=(0, 1), device="cpu")
    batches = zip(torch.split(images, BATCH), torch.split(labels, BATCH), strict=True)
    return torch.cat([attack(foolbox_model, *batch, epsilons=epsilon)[1] for batch in batches])


def classify(model: torch.nn.Module, images: torch.Tensor) -> torch.Tensor:
    """Return the predicted classes (B,)."""
    with torch.no_grad():
        return torch.cat([model(batch).argmax(dim=1) for batch in torch.split(images, BATCH)])


def main(network: str) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    (sweep,) = [name for name, networks in SWEEPS.items() if network in networks]
    model = build(network, 10)
    model.load_state_dict(load_file(RUNS / f"weights/{network}.safetensors"))
    model.eval().requires_grad_(requires_grad=False)

    image_rows = pd.read_parquet(RUNS / f"{sweep}-fused-dataset/images").sort_values("position")["row"].to_numpy()
    with np.load(RUNS / ("mnist" if sweep == "mnist" else "cifar10") / "test.npz") as arrays:
        pixels, classes = arrays["images"][image_rows], arrays["labels"][image_rows]
    if sweep == "mnist":
        pixels = pixels[:, :1]
    images, labels = torch.from_numpy(pixels).float() / 255, torch.from_numpy(classes).long()

    output_path = RUNS / f"by-hand/{network}.json"
    output_path.parent.mkdir(parents=True, exist_ok=True)
    result_by_key = json.loads(output_path.read_text()) if output_path.exists() else {}
    for key, parameters in yaml.safe_load(Path(f"jobs/papers/controls/{sweep}.yaml").read_text())["keys"].items():
        if key in result_by_key:
            continue
        start = time.process_time()
        adversarial = perturb(key, parameters, model, images, labels)
        is_correct = classify(model, adversarial) == labels
        result_by_key[key] = {"correct": is_correct.int().tolist(), "seconds": round(time.process_time() - start, 1)}
        output_path.write_text(json.dumps(result_by_key))
        print(network, key, f"{is_correct.float().mean():.3f}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
