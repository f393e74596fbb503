"""The zoo: names, costs and networks."""

import subprocess
import sys

import pytest
import torch
from torch import nn

from robust201.core.errors import ArchitectureError, ConfigError
from robust201.core.records import Normalisation
from robust201.engine.classifier import Classifier
from robust201.spaces.zoo.space import NETWORKS, Zoo

ZOO = Zoo()
NORMALISATION = Normalisation((0.49, 0.48, 0.45), (0.25, 0.24, 0.26))


def built(name="resnet18", n_classes=10):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return ZOO.build(name, n_classes=n_classes).eval()


def counted_macs(network, size):
    """Multiply-accumulates of convolutions and linear layers, by what they put out."""
    counted = []

    def count(module, _inputs, output):
        weights_per_value = module.weight[0].numel()
        counted.append(weights_per_value * output.numel())

    hooks = [
        module.register_forward_hook(count) for module in network.modules() if isinstance(module, nn.Conv2d | nn.Linear)
    ]
    with torch.no_grad():
        network(torch.zeros(1, 3, size, size))
    for hook in hooks:
        hook.remove()
    return sum(counted)


@pytest.mark.parametrize("name", NETWORKS)
def test_costs_are_counted(name):
    network = built(name)
    assert counted_macs(network, 32) == NETWORKS[name].macs_at_32
    assert ZOO.macs(name, n_classes=10, image_size=32) == NETWORKS[name].macs_at_32
    assert ZOO.macs(name, n_classes=100, image_size=16) == pytest.approx(counted_macs(built(name, 100), 16), rel=1e-3)


def test_resnet18_is_the_known_network():
    network = built()
    assert sum(parameter.numel() for parameter in network.parameters()) == 11_173_962
    assert sum(parameter.numel() for parameter in built(n_classes=100).parameters()) == 11_173_962 + 90 * 513


def expected_names():
    """Names of the state_dict, spelt out from their pattern."""
    norm = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")

    def pair(convolution, batch_norm):
        return [f"{convolution}.weight", *(f"{batch_norm}.{name}" for name in norm)]

    names = pair("conv1", "bn1")
    for stage in (1, 2, 3, 4):
        for block in (0, 1):
            prefix = f"layer{stage}.{block}"
            names += pair(f"{prefix}.conv1", f"{prefix}.bn1") + pair(f"{prefix}.conv2", f"{prefix}.bn2")
            if stage > 1 and block == 0:
                names += pair(f"{prefix}.shortcut.0", f"{prefix}.shortcut.1")
    return [*names, "linear.weight", "linear.bias"]


def test_names_of_the_state_dict_are_the_documented_ones():
    state = built().state_dict()
    assert list(state) == expected_names()
    assert state["layer3.0.shortcut.0.weight"].shape == (256, 128, 1, 1)
    assert state["linear.weight"].shape == (10, 512)


@pytest.mark.parametrize(("n_classes", "size"), [(10, 32), (100, 32), (120, 16)])
def test_logits_and_gradients(n_classes, size):
    classifier = Classifier(built(n_classes=n_classes), NORMALISATION, n_classes)
    pixels = torch.rand((3, 3, size, size), generator=torch.Generator().manual_seed(0))
    logits, _, gradient = classifier.loss_and_gradient(pixels, torch.tensor([0, 1, n_classes - 1]))
    assert logits.shape == (3, n_classes)
    assert (logits[0] != logits[1]).all()
    assert gradient.isfinite().all()
    # Every pixel of every image reaches the answer.
    assert (gradient.abs().amax(dim=1) > 0).all()


def test_the_zoo_asks_for_channels_last():
    classifier = Classifier(built(), NORMALISATION, 10, channels_last=ZOO.channels_last)
    weight = classifier.network.layer2[0].conv1.weight
    assert weight.is_contiguous(memory_format=torch.channels_last)
    assert not weight.is_contiguous()


def test_channels_last_changes_rounding_only():
    pixels = torch.rand((3, 3, 32, 32), generator=torch.Generator().manual_seed(0))
    plain = Classifier(built(), NORMALISATION, 10)
    turned = Classifier(built(), NORMALISATION, 10, channels_last=True)
    labels = torch.tensor([0, 1, 9])
    logits, loss, gradient = plain.loss_and_gradient(pixels, labels)
    found = turned.loss_and_gradient(pixels, labels)
    torch.testing.assert_close(found[0], logits, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found[1], loss, rtol=1e-5, atol=1e-5)
    # A ReLU within rounding of zero may open in one and not in the other.
    assert (found[2] - gradient).norm() < 1e-2 * gradient.norm()


def test_selections():
    assert ZOO.select("evaluated") == tuple(NETWORKS)
    assert ZOO.select(" resnet18 , resnet18") == ZOO.select(["resnet18"]) == ("resnet18",)
    with pytest.raises(ArchitectureError, match=r"'resnet81'.*Did you mean 'resnet18'|'resnet81'.*resnet18"):
        ZOO.select(["resnet81"])
    for nothing in ("", []):
        with pytest.raises(ConfigError, match="empty list"):
            ZOO.select(nothing)


def test_a_name_is_all_there_is():
    assert (ZOO.name, ZOO.identity()) == ("zoo", {})
    compiled = ZOO.compile(
        "resnet18", built(), NORMALISATION, n_classes=10, device=torch.device("cpu"), precision="fp32"
    )
    assert compiled is None


def test_names_and_costs_need_no_torch():
    command = (
        "import sys; from robust201.spaces.zoo.space import Zoo; "
        "Zoo().macs(*Zoo().select('evaluated'), n_classes=10, image_size=32); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", command], check=False).returncode == 0
