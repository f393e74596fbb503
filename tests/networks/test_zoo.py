"""The zoo: names, costs, and behaviour of its networks."""

import copy
import hashlib

import pytest
import torch
from safetensors.torch import load, save
from torch import nn
from torch.nn import functional

from robust201.core.errors import ArchitectureError, ConfigError
from robust201.core.records import Normalisation
from robust201.networks.classifier import Classifier
from robust201.networks.zoo.transformers import SpatialTransformer
from robust201.networks.zoo.zoo_space import NETWORKS, Zoo
from tests.support.zoo_networks import SMALL_NETWORKS

ZOO = Zoo()
NORMALISATION = Normalisation((0.49, 0.48, 0.45), (0.25, 0.24, 0.26))


def build_network(name="resnet18", n_classes=10):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return ZOO.build(name, n_classes=n_classes).eval()


def test_macs_depend_on_width_classes_and_image_size():
    assert ZOO.macs("ptn-resnet18-w2", n_classes=120, image_size=33) == 12_030_516
    assert ZOO.macs("resnet18-w5", n_classes=120, image_size=16) == 884_160


@pytest.mark.parametrize(
    ("name", "advice"), [("stn-resnet18-w4", "stn-resnet18-w8"), ("ptn-resnet34-w65", "ptn-resnet34-w72")]
)
def test_check_training_rejects_widths_that_corrupt_memory(name, advice):
    with pytest.raises(ArchitectureError, match=rf"^Training failed for {name}: .* multiple of 8.* Train {advice}, or"):
        ZOO.check_training_without_avx512(name)
    for valid_name in ("stn-resnet18", "ptn-resnet18", advice, "resnet18-w4", "lenet5"):
        ZOO.check_training_without_avx512(valid_name)


def test_macs_rejects_other_image_sizes_for_fixed_size_networks():
    fixed_size = [name for name, network in NETWORKS.items() if network.requires_32x32]
    assert {"vgg16", "stn-resnet18", "stn-resnet34", "lenet5", "fc7500"} <= {*fixed_size}
    for name in fixed_size:
        with pytest.raises(
            ArchitectureError, match=f"Planning failed for {name}: .* need images of 32x32 pixels, not 16x16"
        ):
            ZOO.macs(name, n_classes=10, image_size=16)


@pytest.mark.parametrize(
    ("name", "parameters", "macs"),
    [
        # The numbers of parameters are those of widely used implementations, or sums over the
        # published layers. Multiply-accumulates follow from the layers' shapes.
        ("resnet18", 11_173_962, 555_422_720),
        ("resnet34", 21_282_122, None),
        ("resnet50", 23_520_842, 1_297_829_888),
        ("vgg16", 14_728_266, 313_201_664),
        ("lenet5", 62_006, 651_720),
        ("fc7500", 23_122_510, 23_115_000),
        ("stn-resnet18", 11_733_936, 572_472_320),
        ("stn-resnet34", 21_842_096, None),
        ("ptn-resnet18", 11_230_698, 571_922_464),
        ("ptn-resnet34", 21_338_858, None),
    ],
)
def test_networks_have_the_expected_parameters_and_macs(name, parameters, macs):
    with torch.device("meta"):  # tensors have shapes but no values
        network = ZOO.build(name, n_classes=10)
    assert sum(parameter.numel() for parameter in network.parameters()) == parameters
    # The last linear layer is the classifier.
    last_linear = [module for module in network.modules() if isinstance(module, nn.Linear)][-1]
    assert last_linear.out_features == 10
    assert macs in (None, ZOO.macs(name, n_classes=10, image_size=32))


def test_initial_weights_of_resnet18_do_not_change():
    digest = hashlib.sha256()
    for name, tensor in build_network().state_dict().items():
        digest.update(name.encode() + tensor.numpy().tobytes())
    assert digest.hexdigest() == "a0ed38121d22c5cb16fc8fae526ad7709e2e0d94fe3d6f7f8fc22c4b05fefaef"


def test_select_sorts_names_and_suggests_the_closest():
    assert ZOO.select("evaluated") == ("resnet18",)  # so that existing sweeps over evaluated networks do not grow
    assert ZOO.select(list(NETWORKS)) == tuple(NETWORKS)
    assert ZOO.select(" resnet18 , resnet18") == ZOO.select(["resnet18"]) == ("resnet18",)
    with pytest.raises(ArchitectureError, match=r"'resnet81'.*Did you mean 'resnet18'|'resnet81'.*resnet18"):
        ZOO.select(["resnet81"])
    for misspelled in (
        "resnet81-w8",
        "resnet-18",
        "resnet18-w0",
        "resnet18-w08",
        "resnet18-w8-w8",
        "resnet18-w100000",
    ):
        with pytest.raises(ArchitectureError, match=rf"{misspelled}.*Did you mean "):
            ZOO.select([misspelled])
    names = "vgg16-w16, resnet18-w128, vgg16-w4, resnet18, vgg16-w64"
    assert ZOO.select(names) == ("resnet18", "resnet18-w128", "vgg16", "vgg16-w4", "vgg16-w16")
    for empty_selection in ("", []):
        with pytest.raises(ConfigError, match="empty list"):
            ZOO.select(empty_selection)


all_networks = pytest.mark.parametrize("name", SMALL_NETWORKS)


def images(count=4, size=32):
    return torch.rand((count, 3, size, size), generator=torch.Generator().manual_seed(1))


@all_networks
def test_classifier_is_repeatable_in_both_memory_formats_and_depends_on_inner_pixels(name):
    # Logits agree in both memory formats and in bfloat16.
    network = ZOO.build(name, n_classes=10)
    network(images(16))  # change the initial running statistics
    labels = torch.tensor([0, 3, 5, 9])
    outputs_by_layout = {}
    for is_channels_last in (False, True):
        classifier = Classifier(
            copy.deepcopy(network), Normalisation((0.5,) * 3, (0.25,) * 3), 10, channels_last=is_channels_last
        )
        logits, _, gradient = outputs_by_layout[is_channels_last] = classifier.loss_and_gradient(images(), labels)
        assert logits.shape == (4, 10)
        assert (logits[0] != logits[1]).any()
        assert (gradient.abs().amax(dim=(1, 2, 3)) > 0).all()
        # LeNet-5 and the transformers may ignore pixels near the border.
        assert (gradient.abs().amax(dim=(0, 1))[4:-4, 4:-4] > 0).all()
        for repeated, expected in zip(
            classifier.loss_and_gradient(images(), labels), outputs_by_layout[is_channels_last], strict=True
        ):
            assert torch.equal(repeated, expected)
    torch.testing.assert_close(outputs_by_layout[True][0], outputs_by_layout[False][0], rtol=1e-4, atol=1e-4)
    bf16_classifier = Classifier(
        network, Normalisation((0.5,) * 3, (0.25,) * 3), 10, precision="bf16", channels_last=True
    )
    logits, _, gradient = bf16_classifier.loss_and_gradient(images(), labels)
    assert logits.dtype == gradient.dtype == torch.float32
    torch.testing.assert_close(logits, outputs_by_layout[False][0], rtol=0.1, atol=0.1)


@all_networks
def test_network_computes_in_float64_and_rejects_images_of_unsupported_sizes(name):
    network = ZOO.build(name, n_classes=7).double().eval()
    logits = network(images(2).double())
    assert (logits.dtype, logits.shape) == (torch.float64, (2, 7))
    small_images = images(2, size=16).double()
    if NETWORKS[name.partition("-w")[0]].requires_32x32:
        with pytest.raises(RuntimeError):
            network(small_images)
    else:
        assert network(small_images).shape == (2, 7)


@all_networks
def test_training_is_deterministic_and_weights_round_trip(name):
    # Two runs of two training steps give equal weights, and a safetensors file restores them.
    previous_mode = torch.get_deterministic_debug_mode()
    torch.set_deterministic_debug_mode("error")
    try:
        initial_network = ZOO.build(name, n_classes=10)
        saved_weights = []
        for _ in range(2):
            network = copy.deepcopy(initial_network).train()
            for _step in range(2):
                loss = functional.cross_entropy(network(images()), torch.arange(4))
                gradients = torch.autograd.grad(loss, list(network.parameters()))
                with torch.no_grad():
                    for (parameter_name, parameter), gradient in zip(
                        network.named_parameters(), gradients, strict=True
                    ):
                        assert gradient.isfinite().all(), parameter_name
                        parameter.sub_(0.01 * gradient)  # importing an optimiser takes seconds
            saved_weights.append(save(network.state_dict()))
    finally:
        torch.set_deterministic_debug_mode(previous_mode)
    assert saved_weights[0] == saved_weights[1]
    loaded = ZOO.build(name, n_classes=10)
    loaded.load_state_dict(load(saved_weights[0]))
    assert torch.equal(loaded.eval()(images()), network.eval()(images()))


def test_gradient_is_finite_for_images_of_one_colour():
    for name in ("ptn-resnet18-w4", "stn-resnet18-w4"):
        inputs = torch.full((1, 3, 32, 32), 0.5, requires_grad=True)
        logits = ZOO.build(name, n_classes=10).eval()(inputs)
        (gradient,) = torch.autograd.grad(logits[0, 0], inputs)
        assert gradient.isfinite().all()


def test_spatial_transformer_starts_as_the_identity():
    transformer = SpatialTransformer()
    assert torch.equal(transformer(images()), images())
    # The last layer has a gradient in the first step.
    transformer(images()).square().mean().backward()
    assert (transformer.affine.weight.grad != 0).any()
