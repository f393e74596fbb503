"""The Python API: `evaluate`, `attack` and `load_model`."""

import copy
import functools
from contextlib import nullcontext

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import robust201
from robust201.api import attack
from robust201.attacks.context import Context
from robust201.core.errors import ArchitectureError, CheckpointError, ConfigError, EvaluationError, RobustWarning
from robust201.core.radii import parse_radius
from robust201.dataset.reader import Dataset
from robust201.evaluation.evaluate import evaluate_part
from robust201.images import dataset as dataset_spec
from robust201.images import load_images, select
from robust201.loading import load_model
from robust201.networks.zoo.zoo_space import Zoo
from robust201.statistics.intervals import accuracy_intervals
from robust201.tasks import find_task
from robust201.weights.store import CheckpointStore
from tests.support.precision_settings import FP32_SETTINGS, effective_settings, raw_settings, tf32_everywhere
from tests.support.tiny_networks import (
    BATCH_SIZE,
    N_CLASSES,
    NORMALISATION,
    TinyNetwork,
    part_of,
    tiny_classifier,
    tiny_images,
)

# Networks with random weights classify images at chance level.
pytestmark = pytest.mark.filterwarnings("ignore:.* by chance")

IMAGES = tiny_images()
PIXELS, LABELS = IMAGES.images, IMAGES.labels
KEYS = [
    "clean",
    {"pgd": {"epsilons": ["128/255", "1/255"], "steps": 10, "rel_stepsize": 0.1}},
    {"fog": {"severities": [1, 5]}},
]
OPTIONS = {"normalisation": NORMALISATION, "progress": False}


def evaluate(*arguments: object, **options: object) -> pd.DataFrame:
    return robust201.evaluate(*arguments, **options).table


def without_seconds(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.drop(columns="seconds")


# --- evaluate


class SmallMemoryNetwork(nn.Module):
    """A network that runs out of memory if it computes gradients of more than eight images."""

    def __init__(self, max_images: int = 8) -> None:
        super().__init__()
        self.network, self.max_images, self.batches = TinyNetwork(), max_images, []

    def forward(self, images):
        if images.requires_grad:
            self.batches.append(len(images))
            if len(images) > self.max_images:
                raise torch.OutOfMemoryError("CUDA out of memory")
        return self.network(images)


def test_batches_are_halved_if_memory_runs_out():
    network = SmallMemoryNetwork()
    unlimited = copy.deepcopy(network)
    unlimited.max_images = len(PIXELS)
    table, expected = (evaluate(model, PIXELS, LABELS, ["fgsm"], **OPTIONS) for model in (network, unlimited))
    assert max(network.batches) > 8 >= network.batches[-1]
    pd.testing.assert_frame_equal(without_seconds(table), without_seconds(expected))
    network.max_images = 0
    with pytest.raises(torch.OutOfMemoryError):
        evaluate(network, PIXELS, LABELS, ["fgsm"], **OPTIONS)


def test_evaluate_returns_one_row_per_key_and_strength():
    frame = evaluate(TinyNetwork(), PIXELS, LABELS, KEYS, **OPTIONS)
    assert list(frame["key"]) == ["clean", "pgd", "pgd", "fog", "fog"]
    assert list(frame["strength"]) == [0, 1, 128, 1, 5]
    assert " ".join(frame.columns) == "key strength unit accuracy low high confidence n_images seconds"
    assert (frame["n_images"] == len(LABELS)).all()
    low, high = accuracy_intervals(frame["accuracy"], frame["n_images"])
    assert (frame["low"].tolist(), frame["high"].tolist()) == (low.tolist(), high.tolist())
    assert frame["confidence"].between(1 / N_CLASSES, 1).all()
    assert frame["accuracy"][2] < frame["accuracy"][0]


def test_clean_results_match_the_logits():
    frame = evaluate(TinyNetwork(), PIXELS, LABELS, "clean", **OPTIONS)
    softmax = tiny_classifier()(torch.from_numpy(PIXELS) / 255).softmax(dim=1)
    assert frame["accuracy"].item() == (softmax.argmax(dim=1).numpy() == LABELS).mean()
    assert frame["confidence"].item() == pytest.approx(softmax.amax(dim=1).mean().item(), abs=1e-6)


@pytest.mark.parametrize("engine", ["fused", "reference"])
def test_evaluate_matches_accuracy_of_evaluate_part(engine):
    task = find_task("pgd")
    parameters = task.parameters(epsilons=("1/255", "8/255"), steps=4, rel_stepsize=0.25)
    images = tiny_images()
    images.indices[:] = np.arange(len(images))  # the API numbers images from 0
    context = Context(tiny_classifier(), seed=3, batch_size=BATCH_SIZE, engine=engine)
    part = part_of(task, parameters, images)
    sweep_results = evaluate_part(context, task, parameters, part, images, ("accuracy",), provenance={})
    keys = {"pgd": {"epsilons": ["1/255", "8/255"], "steps": 4, "rel_stepsize": 0.25}}
    options = OPTIONS | {"seed": 3, "engine": engine, "batch_size": BATCH_SIZE}
    frame = evaluate(TinyNetwork(), PIXELS, LABELS, keys, **options)
    assert dict(zip(frame["strength"], frame["accuracy"], strict=True)) == {
        result.strength: float(result.values["accuracy"]) for result in sweep_results
    }


@pytest.mark.parametrize(
    "images",
    [
        torch.from_numpy(PIXELS),
        PIXELS.transpose(0, 2, 3, 1),
        PIXELS / 255,
        (torch.from_numpy(PIXELS) / 255).permute(0, 2, 3, 1),
    ],
    ids=["tensor", "channels last", "float64", "float32 tensor, channels last"],
)
def test_evaluate_accepts_images_in_all_formats(images):
    expected = evaluate(TinyNetwork(), PIXELS, LABELS, KEYS, **OPTIONS)
    frame = evaluate(TinyNetwork(), images, torch.from_numpy(LABELS), KEYS, **OPTIONS)
    pd.testing.assert_frame_equal(without_seconds(frame), without_seconds(expected))


def test_normalisation_argument_matches_normalising_model():
    mean, std = NORMALISATION.mean, NORMALISATION.std

    class NetworkWithNormalisation(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = TinyNetwork()

        def forward(self, pixels: torch.Tensor) -> torch.Tensor:
            shape = (1, 3, 1, 1)
            return self.network((pixels - torch.tensor(mean).view(shape)) / torch.tensor(std).view(shape))

    expected = without_seconds(evaluate(TinyNetwork(), PIXELS, LABELS, KEYS, **OPTIONS))
    frame = evaluate(TinyNetwork(), PIXELS, LABELS, KEYS, normalisation=(list(mean), list(std)), progress=False)
    pd.testing.assert_frame_equal(without_seconds(frame), expected)
    for model in (NetworkWithNormalisation(), tiny_classifier()):
        pd.testing.assert_frame_equal(without_seconds(evaluate(model, PIXELS, LABELS, KEYS, progress=False)), expected)


def test_evaluate_returns_measure_in_separate_columns():
    frame = evaluate(TinyNetwork(), PIXELS, LABELS, ["clean", {"jacobian": {"projections": "exact"}}], **OPTIONS)
    clean, jacobian = frame.iloc[0], frame.iloc[1]
    assert clean[["squared_norm", "squared_norm_sd"]].isna().all()
    assert jacobian[["accuracy", "low", "high", "confidence"]].isna().all()
    assert jacobian["squared_norm"] > 0
    # A `Classifier` contains its normalisation, so its Jacobian equals the one with the argument `normalisation`.
    classifier_frame = evaluate(
        tiny_classifier(), PIXELS, LABELS, [{"jacobian": {"projections": "exact"}}], progress=False
    )
    assert classifier_frame["squared_norm"].item() == pytest.approx(jacobian["squared_norm"])


# --- the caller's module


def get_state(model: nn.Module) -> list[object]:
    return [
        *((module.training,) for module in model.modules()),
        *((tensor.requires_grad, tensor.grad, tensor.device) for tensor in model.parameters()),
    ]


@pytest.mark.parametrize("raises_error", [False, True])
@pytest.mark.parametrize("make_model", [TinyNetwork, tiny_classifier])
def test_evaluate_does_not_change_the_module(make_model, raises_error):
    model = make_model().train()
    model.get_submodule("network.stem" if make_model is tiny_classifier else "stem").eval()
    first, second, *_ = model.parameters()
    first.requires_grad_(requires_grad=False)
    second.requires_grad_()
    state_before, weights = get_state(model), copy.deepcopy(model.state_dict())
    with pytest.raises(EvaluationError) if raises_error else nullcontext():
        keys = ["clean", {"fgsm": {"epsilons": ["8/255"]}}]
        evaluate(model, PIXELS, LABELS, keys, progress=False, n_classes=4 if raises_error else None)
    assert get_state(model) == state_before
    assert all(torch.equal(tensor, weights[name]) for name, tensor in model.state_dict().items())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU that PyTorch can use")
def test_evaluate_copies_module_to_other_device():
    model = TinyNetwork().train()
    state_before, tf32 = get_state(model), torch.backends.cudnn.allow_tf32
    frame = evaluate(model, PIXELS, LABELS, KEYS, device="cuda", **OPTIONS)
    expected = evaluate(model, PIXELS, LABELS, KEYS, **OPTIONS)
    assert frame["confidence"].to_numpy() == pytest.approx(expected["confidence"].to_numpy(), abs=1e-3)
    assert (get_state(model), torch.backends.cudnn.allow_tf32) == (state_before, tf32)
    assert attack(model, PIXELS, LABELS, "fgsm", epsilon="8/255", device="cuda").is_cuda


CONTEXT_KEYS = [*KEYS, "rot30", {"jacobian": {"projections": "exact"}}, "hessian_input", "hessian_weights"]


@functools.cache
def results_outside_contexts(engine: str) -> tuple[pd.DataFrame, torch.Tensor]:
    table = evaluate(TinyNetwork(), PIXELS, LABELS, CONTEXT_KEYS, engine=engine, **OPTIONS)
    return table, attack(TinyNetwork(), PIXELS, LABELS, "pgd", epsilon="8/255", engine=engine)


@pytest.mark.parametrize("engine", ["fused", "reference"])
@pytest.mark.parametrize(
    "torch_context",
    [
        lambda: torch.autocast("cpu", dtype=torch.bfloat16),
        torch.inference_mode,
        torch.no_grad,
    ],
    ids=["autocast", "inference mode", "no_grad"],
)
def test_results_do_not_depend_on_the_callers_torch_contexts(torch_context, engine):
    expected, images = results_outside_contexts(engine)
    with torch_context():
        frame = evaluate(TinyNetwork(), torch.from_numpy(PIXELS), LABELS, CONTEXT_KEYS, engine=engine, **OPTIONS)
        images_in_context = attack(TinyNetwork(), PIXELS, LABELS, "pgd", epsilon="8/255", engine=engine)
    pd.testing.assert_frame_equal(without_seconds(frame), without_seconds(expected), check_exact=True)
    assert torch.equal(images_in_context, images)
    assert not images_in_context.is_inference()


@pytest.mark.parametrize("make_model", [TinyNetwork, tiny_classifier])
def test_evaluate_accepts_module_created_in_inference_mode(make_model):
    keys = [{"pgd": {"epsilons": ["8/255"]}}, {"jacobian": {"projections": "exact"}}]
    expected = evaluate(make_model(), PIXELS, LABELS, keys, progress=False)
    with torch.inference_mode():
        model = make_model().train()
        frame_in_inference_mode = evaluate(model, PIXELS, LABELS, keys, progress=False)
    state_before = [(parameter.requires_grad, parameter.is_inference()) for parameter in model.parameters()]
    frame_afterwards = evaluate(model, PIXELS, LABELS, keys, progress=False)
    for frame in (frame_in_inference_mode, frame_afterwards):
        pd.testing.assert_frame_equal(without_seconds(frame), without_seconds(expected), check_exact=True)
    assert [(parameter.requires_grad, parameter.is_inference()) for parameter in model.parameters()] == state_before
    assert all(is_inference for _, is_inference in state_before)
    assert model.training


def test_evaluate_ignores_the_callers_precision():
    recorded_settings = []

    class PrecisionRecorder(TinyNetwork):
        def forward(self, pixels: torch.Tensor) -> object:
            recorded_settings.append((*effective_settings(), torch.is_autocast_enabled("cpu")))
            return super().forward(pixels)

    with tf32_everywhere():
        settings_before = raw_settings()
    with tf32_everywhere():
        evaluate(PrecisionRecorder(), PIXELS, LABELS, "clean", progress=False)
        assert raw_settings() == settings_before
    assert recorded_settings
    assert set(recorded_settings) == {(*FP32_SETTINGS, False)}


# --- attack


@pytest.mark.parametrize(("key", "epsilon", "order"), [("pgd", ["8/255", 1 / 255], "inf"), ("pgd_l2", [0.5, 0.25], 2)])
def test_attack_returns_images_within_balls_in_requested_order(key, epsilon, order):
    attacked = attack(tiny_classifier(), PIXELS, LABELS, key, epsilon=epsilon)
    assert attacked.dtype == torch.float32
    assert attacked.shape == (2, *PIXELS.shape)
    difference = (attacked - torch.from_numpy(PIXELS) / 255).flatten(2)
    norms = difference.abs().amax(dim=2) if order == "inf" else difference.norm(dim=2)
    epsilons = torch.tensor([float(parse_radius(radius)) for radius in epsilon])
    assert (norms <= epsilons[:, None] + 1e-5).all()
    assert (norms.amax(dim=1) > 0.9 * epsilons).all()


def test_attack_matches_accuracy_of_evaluate():
    model = tiny_classifier()
    adversarial = attack(model, PIXELS, LABELS, "pgd", epsilon="8/255", steps=2, rel_stepsize=1)
    accuracy = (model(adversarial[0]).argmax(dim=1).numpy() == LABELS).mean()
    frame = evaluate(
        model, PIXELS, LABELS, {"pgd": {"epsilons": ["8/255"], "steps": 2, "rel_stepsize": 1}}, progress=False
    )
    assert frame["accuracy"].item() == accuracy


# --- load_model


@pytest.mark.parametrize("is_folder", [True, False])
def test_load_model_returns_classifier_of_pixels(tiny_weights, is_folder):
    store = tiny_weights if is_folder else CheckpointStore(tiny_weights)
    model = load_model(309, "digits", store)
    pixels = torch.rand(2, 3, 32, 32, requires_grad=True)
    logits = model(pixels)
    assert logits.shape == (2, 10)
    (gradient,) = torch.autograd.grad(logits.sum(), pixels)
    assert gradient.isfinite().all()
    spec = dataset_spec("digits")
    assert model.mean.flatten().tolist() == pytest.approx(spec.normalisation.mean)


def test_loaded_network_matches_sweep_bit_for_bit(write_sweep, robust201, tiny_weights, tmp_path):
    keys = {
        "clean": {},
        "fgsm": {"epsilons": ["1/255", "8/255"]},
        "pgd": {"epsilons": ["2/255"], "steps": 3, "rel_stepsize": 0.5},
    }
    assert robust201("run", write_sweep(architectures=[309], keys=keys, images={"count": 200, "seed": 0})).code == 0
    assert robust201("export", tmp_path / "results", "--out", tmp_path / "dataset").code == 0
    dataset = Dataset(tmp_path / "dataset")
    images = select(load_images("digits"), count=200, seed=0)
    model = load_model(309, "digits", tiny_weights)
    frame = evaluate(model, images.images, images.labels, keys, progress=False)
    merged = frame.merge(dataset.table.astype({"key": str}), on=["key", "strength"], suffixes=("", "_of_sweep"))
    assert len(merged) == len(frame) == 4
    assert (merged["accuracy"] == merged["accuracy_of_sweep"]).all()


def test_loaded_network_uses_weights_changed_after_loading(tiny_weights):
    images = load_images("digits")
    model = load_model(309, "digits", tiny_weights)
    model.network.classifier.weight.zero_()
    model.network.classifier.bias.copy_(torch.arange(10.0))
    frame = evaluate(model, images.images, images.labels, ["clean"], progress=False)
    assert frame["accuracy"].item() == (images.labels == 9).mean()
    # The hook changes the logits of the original network, but not those of its compiled form.
    model.network.register_forward_hook(lambda _module, _inputs, logits: logits.softmax(dim=1))
    with (
        pytest.warns(RobustWarning, match="softmax"),
        pytest.raises(EvaluationError, match="engine: reference"),
    ):
        evaluate(model, images.images, images.labels, ["clean"], progress=False)


def test_load_model_reads_weights_file(tmp_path, tiny_weights):
    resnet = Zoo().build("resnet18", n_classes=10)
    save_file(resnet.state_dict(), tmp_path / "resnet18.safetensors")
    loaded = load_model("resnet18", "cifar10", weights=tmp_path / "resnet18.safetensors")
    assert torch.equal(loaded.network.linear.weight, resnet.linear.weight)
    (file,) = (tiny_weights / "digits").glob("000309-*.safetensors")
    pixels = torch.rand(2, 3, 32, 32)
    assert torch.equal(load_model(309, "digits", weights=file)(pixels), load_model(309, "digits", tiny_weights)(pixels))


def test_load_model_rejects_wrong_arguments(tmp_path, tiny_weights):
    file = tmp_path / "wrong.safetensors"
    save_file({"a": torch.zeros(1)}, file)
    for error, message, arguments in (
        (CheckpointError, "expected a checkpoint, got", (5, "digits", tiny_weights)),
        (ConfigError, "'digit'", (21, "digit", tiny_weights)),
        (ArchitectureError, "99999", (99_999, "digits", tiny_weights)),
        (ConfigError, "neither of `store` and `weights` is set", (21, "digits")),
    ):
        with pytest.raises(error, match=message):
            load_model(*arguments)
    with pytest.raises(CheckpointError, match="the tensors are not those of ResNet"):
        load_model("resnet18", "cifar10", weights=file)
