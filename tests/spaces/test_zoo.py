"""The zoo: names, costs and networks."""

import hashlib
import subprocess
import sys

import pytest
import torch
from torch import nn

from robust201.core.errors import ArchitectureError, ConfigError
from robust201.core.records import Normalisation
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


def parameters(network):
    return sum(parameter.numel() for parameter in network.parameters())


@pytest.mark.parametrize("name", NETWORKS)
def test_costs_are_counted(name):
    """At widths that do not divide what is scaled."""
    small = f"{name}-w5"
    assert ZOO.macs(small, n_classes=10, image_size=32) == counted_macs(built(small), 32)


@pytest.mark.parametrize(
    ("name", "advice"), [("stn-resnet18-w4", "stn-resnet18-w8"), ("ptn-resnet34-w65", "ptn-resnet34-w72")]
)
def test_training_without_avx512_is_rejected_if_it_would_corrupt_memory(name: str, advice: str) -> None:
    with pytest.raises(ArchitectureError, match=rf"^Training failed for {name}: .* multiple of 8.* Train {advice}, or"):
        ZOO.check_training_without_avx512(name)
    for valid in ("stn-resnet18", "ptn-resnet18", advice, "resnet18-w4", "lenet5"):
        ZOO.check_training_without_avx512(valid)


@pytest.mark.parametrize("size", [16, 33])
@pytest.mark.parametrize("name", ["resnet18-w2", "resnet50-imagenet-stem-w2", "ptn-resnet18-w2"])
def test_costs_are_counted_at_other_sizes(name, size):
    assert ZOO.macs(name, n_classes=120, image_size=size) == counted_macs(built(name, 120), size)


def test_networks_that_take_one_size_are_refused_when_a_sweep_is_planned():
    refused = [name for name, network in NETWORKS.items() if network.is_for_32]
    assert refused == ["vgg16", "stn-resnet18", "stn-resnet34", "lenet5", "fc7500"]
    for name in refused:
        with pytest.raises(ArchitectureError, match=f"Planning failed for {name}: expected images of 32x32.*16x16"):
            ZOO.macs(name, n_classes=10, image_size=16)


LOCALISATION = 3 * 32 * 9 + 3 * 32 * 32 * 9 + (512 + 1) * 1024 + (1024 + 1) * 6
PREDICTOR = 3 * 32 * 25 + 32 * 32 * 25 + 4 * 32
POLAR = 2 * PREDICTOR + 3 * 32 * 5
LIFTED = 23 * 3 * 9


def group_stages(counts):
    """Parameters of a group network: kernels (O, 8 I, 3, 3), and two numbers per channel in each BatchNorm."""
    widths = (23, 45, 91, 181)
    total = LIFTED + 2 * widths[0]
    before = widths[0]
    for width, count in zip(widths, counts, strict=True):
        total += 8 * 9 * width * (before + (2 * count - 1) * width) + 2 * width * 2 * count
        total += (8 * before * width + 2 * width) if width != before else 0
        before = width
    return total + (8 * 181 + 1) * 10


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # These are the published counts, of many implementations.
        ("resnet18", 11_173_962),
        ("resnet34", 21_282_122),
        ("resnet50", 23_520_842),
        ("resnet50-imagenet-stem", 23_528_522),
        ("vgg16", 14_728_266),
        ("resnet32-narrow", 464_154),
        ("lenet5", 62_006),
        ("fc7500", 23_122_510),
        ("gresnet18", group_stages((2, 2, 2, 2))),
        ("gresnet34", group_stages((3, 4, 6, 3))),
        ("stn-resnet18", 11_173_962 + LOCALISATION),
        ("stn-resnet34", 21_282_122 + LOCALISATION),
        ("ptn-resnet18", 11_173_962 + POLAR),
        ("ptn-resnet34", 21_282_122 + POLAR),
    ],
)
def test_networks_have_the_published_number_of_parameters(name, expected):
    # Shapes alone, except where the first normal draw on `meta` would import for seconds.
    with torch.device("cpu" if name == "resnet32-narrow" else "meta"):
        network = ZOO.build(name, n_classes=10)
    assert parameters(network) == expected
    # The last linear layer is the classifier.
    last = [module for module in network.modules() if isinstance(module, nn.Linear)][-1]
    assert last.out_features == 10


def test_resnet18_has_the_weights_that_a_seed_has_always_given():
    digest = hashlib.sha256()
    for name, tensor in built().state_dict().items():
        digest.update(name.encode() + tensor.numpy().tobytes())
    assert digest.hexdigest() == "a0ed38121d22c5cb16fc8fae526ad7709e2e0d94fe3d6f7f8fc22c4b05fefaef"


def test_selections():
    assert ZOO.select("evaluated") == ("resnet18",)  # sweeps over all networks keep their size
    assert ZOO.select(list(NETWORKS)) == tuple(NETWORKS)
    assert ZOO.select(" resnet18 , resnet18") == ZOO.select(["resnet18"]) == ("resnet18",)
    with pytest.raises(ArchitectureError, match=r"'resnet81'.*Did you mean 'resnet18'|'resnet81'.*resnet18"):
        ZOO.select(["resnet81"])
    names = "vgg16-w16, resnet18-w128, vgg16-w4, resnet18, vgg16-w64"
    assert ZOO.select(names) == ("resnet18", "resnet18-w128", "vgg16", "vgg16-w4", "vgg16-w16")
    for wrong, near in {
        "resnet81-w8": "resnet18-w8", "vgg-w16": "vgg16-w16", "gresnet-18": "gresnet18", "resnet18-w0": "resnet18",
        "resnet18-w08": "resnet18", "resnet18-w8-w8": "resnet18-w8", "resnet18-w100000": "resnet18",
    }.items():  # fmt: skip
        with pytest.raises(ArchitectureError, match=rf"{wrong}.*Did you mean '{near}'"):
            ZOO.select([wrong])
    for nothing in ("", []):
        with pytest.raises(ConfigError, match="empty list"):
            ZOO.select(nothing)


def test_names_and_costs_need_no_torch():
    command = (
        "import sys; from robust201.spaces.zoo.space import Zoo; "
        "Zoo().macs(*Zoo().select('evaluated'), n_classes=10, image_size=32); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", command], check=False).returncode == 0
