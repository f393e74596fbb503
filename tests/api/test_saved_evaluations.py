"""Saved evaluations: results of finished keys are kept, and a repeated call computes the rest."""

import json
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import robust201
from robust201.comparing import find_names
from robust201.core.errors import (
    ConfigError,
    EvaluationError,
    FormatVersionError,
    ResultsError,
    RobustError,
    RobustWarning,
)
from robust201.core.files import sole_writer
from tests.support.tiny_networks import NORMALISATION, TinyNetwork, tiny_images

# Networks with random weights classify images at chance level.
pytestmark = pytest.mark.filterwarnings("ignore:.* by chance", "ignore:.*did not fool", "ignore:.*steps are few")

IMAGES = tiny_images()
KEYS = ["clean", "fgsm:4/255", "fgsm:8/255", "fog:3", {"fmn": {"epsilons": [1], "steps": 20}}, "input_gradient"]


class CountingNetwork(TinyNetwork):
    """A network that counts its calls, and raises KeyboardInterrupt after its last allowed call."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed)
        self.counts = {"calls": 0, "last call": 10**9}  # a dict does not affect the network's hash

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        self.counts["calls"] += 1
        if self.counts["calls"] > self.counts["last call"]:
            raise KeyboardInterrupt
        return super().forward(pixels)


def evaluate(network: nn.Module, keys: Any = KEYS, **options: Any) -> robust201.Evaluation:
    defaults = {"normalisation": NORMALISATION, "progress": False}
    return robust201.evaluate(network, IMAGES.images, IMAGES.labels, keys, **defaults | options)


def assert_equal(first: robust201.Evaluation, second: robust201.Evaluation) -> None:
    pd.testing.assert_frame_equal(first.table.drop(columns="seconds"), second.table.drop(columns="seconds"))
    pd.testing.assert_frame_equal(first.outcomes, second.outcomes)
    pd.testing.assert_frame_equal(first.distances, second.distances)
    assert (first.protocols, first.notices, first.images_sha256) == (
        second.protocols,
        second.notices,
        second.images_sha256,
    )


def test_saved_evaluation_is_read_unchanged(tmp_path):
    result = evaluate(CountingNetwork())
    result.save(tmp_path / "saved")
    loaded = robust201.Evaluation.load(tmp_path / "saved")
    assert_equal(loaded, result)
    assert str(loaded) == str(result)
    assert max(map(len, str(result).splitlines())) <= 80
    assert "fgsm            8/255" in str(result)
    assert loaded.latex() == result.latex()


def test_interrupted_evaluation_computes_only_missing_results(tmp_path):
    network = CountingNetwork()
    expected = evaluate(network)
    n_calls = network.counts["calls"]
    network.counts = {"calls": 0, "last call": n_calls // 2}
    with pytest.raises(KeyboardInterrupt):
        evaluate(network, save=tmp_path)
    finished_keys = [*robust201.Evaluation.load(tmp_path).results]
    assert "clean" in finished_keys
    assert len(finished_keys) < 5
    network.counts = {"calls": 0, "last call": 10**9}
    assert_equal(evaluate(network, save=tmp_path), expected)
    assert network.counts["calls"] < n_calls
    more_strengths = evaluate(network, ["fgsm:2/255", "fgsm:8/255"], save=tmp_path)
    assert_equal(more_strengths, evaluate(network, ["fgsm:2/255", "fgsm:8/255"]))
    assert robust201.Evaluation.load(tmp_path).results["fgsm"].strengths == {2.0, 4.0, 8.0}


@pytest.mark.parametrize(
    ("changes", "difference"),
    [
        ({"network": TinyNetwork(seed=1)}, "network"),
        ({"normalisation": None}, "network"),
        ({"count": 15}, "images"),
        ({"keys": {"fgsm": {"epsilons": ["8/255"]}}, "seed": 1}, "parameters of fgsm"),
    ],
)
def test_evaluate_rejects_a_folder_with_a_different_evaluation(tmp_path, changes, difference):
    evaluate(TinyNetwork(), "fgsm:8/255", save=tmp_path)
    before = (tmp_path / "evaluation.json").read_bytes()
    with pytest.raises(ConfigError, match=f"evaluation.json: expected .*, but these differ: .*{difference}"):
        evaluate(**{"network": TinyNetwork(), "keys": "fgsm:8/255", "save": tmp_path} | changes)
    assert (tmp_path / "evaluation.json").read_bytes() == before


@pytest.mark.parametrize("damage", ["truncated", "changed", "other format", "other content", "missing"])
def test_load_rejects_damaged_files_with_a_one_line_error(tmp_path, damage):
    evaluate(TinyNetwork(), "clean").save(tmp_path)
    path = tmp_path / "evaluation.json"
    text = path.read_text()
    document = json.loads(text)
    content = {
        "truncated": text[: len(text) // 2],
        "changed": text.replace('"accuracy": 0.', '"accuracy": 1.'),
        "other format": json.dumps(document | {"robust201_evaluation": 1}),
        "other content": "[1, 2]",
        "missing": None,
    }[damage]
    assert content != text
    path.unlink()
    if content is not None:
        path.write_text(content)
    error = FormatVersionError if damage == "other format" else ResultsError
    with pytest.raises(error, match=str(tmp_path)) as caught:
        robust201.Evaluation.load(tmp_path)
    assert isinstance(caught.value, RobustError)
    assert "\n" not in str(caught.value)


def test_saved_evaluations_are_compared_with_modules_and_functions(tmp_path):
    (tmp_path / "net.py").write_text("import parts\n\ndef build():\n    import parts\n    return parts.make()\n")
    (tmp_path / "parts.py").write_text(
        "from tests.support.tiny_networks import TinyNetwork\n\ndef make():\n    return TinyNetwork(seed=1)\n"
    )
    evaluate(TinyNetwork(), save=tmp_path / "saved")
    mean, std = (",".join(map(str, values)) for values in (NORMALISATION.mean, NORMALISATION.std))
    networks = {
        "saved": tmp_path / "saved",
        "function": f"{tmp_path}/net.py:build,mean={mean},std={std}",
        "module": TinyNetwork(seed=1),
    }
    arguments = (IMAGES.images, IMAGES.labels, ["clean", "fgsm:8/255"])
    comparison = robust201.compare(networks, *arguments, normalisation=NORMALISATION, progress=False)
    assert comparison.table["difference"].tolist()[:2] == comparison.table["difference"].tolist()[2:4]
    assert comparison.table["difference"].tolist()[4:] == [0.0, 0.0]
    assert "Strength & saved & function" in comparison.latex()
    curves = robust201.curves({"a": tmp_path / "saved", "b": tmp_path / "saved"}, keys={"fmn": {"steps": 20}})
    expected = robust201.curves(
        TinyNetwork(), *arguments[:2], {"fmn": {"steps": 20}}, normalisation=NORMALISATION, progress=False
    )
    np.testing.assert_array_equal(curves.distances["a"], expected.distances["TinyNetwork"])
    evaluate(TinyNetwork(), {"fmn": {"epsilons": ["1/255"], "steps": 20}}, save=tmp_path / "short")
    with pytest.raises(ConfigError, match="short: it was evaluated only up to fmn:1/255"):
        robust201.curves(tmp_path / "short")


class ScaledNetwork(TinyNetwork):
    """A network with a temperature, a function that scales its logits, and a stride."""

    def __init__(self, temperature: float = 1.0, scale: Any = abs, stride: int = 1) -> None:
        super().__init__()
        self.temperature, self.scale = temperature, scale
        self.stem[0].stride = (stride, stride)
        self.stem[3] = nn.AdaptiveAvgPool2d(2)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        return super().forward(pixels) / self.temperature * self.scale(1.0)


@pytest.mark.parametrize("changes", [{"temperature": -1.0}, {"stride": 2}, {"scale": lambda factor: -factor}])
def test_saving_rejects_networks_with_other_code_or_settings(tmp_path, changes):
    result = evaluate(ScaledNetwork(), ["clean", "fgsm:8/255"], save=tmp_path)
    with pytest.raises(ConfigError, match="differ: network"):
        evaluate(ScaledNetwork(**changes), "clean", save=tmp_path)
    other = evaluate(ScaledNetwork(**changes), "clean")
    with pytest.raises(ConfigError, match="differ: network"):
        other.save(tmp_path)  # `save` compares the networks, too
    evaluate(ScaledNetwork(), "clean").save(tmp_path)
    assert_equal(robust201.Evaluation.load(tmp_path), result)


def test_protocols_identify_versions_corruptions_device_and_neighbours(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(
        "import helper\n\ndef perturb(model, images, labels, epsilon):\n    return helper.noise(images)\n"
    )
    helper = tmp_path / "helper.py"
    helper.write_text("def noise(images):\n    return images\n")
    keys = ["fog:3", {"mine": {"file": str(tmp_path / "mine.py"), "norm": "Linf", "strengths": [8]}}]
    protocols = evaluate(TinyNetwork(), keys, save=tmp_path / "saved").protocols
    assert (protocols["fog"]["version"], protocols["fog"]["device"]) == (1, "cpu")
    assert protocols["fog"]["corruption"]["libraries"].keys() >= {"numpy", "scipy"}
    assert len(protocols["mine"]["neighbours"]["helper"]) == len(protocols["mine"]["file_sha256"]) == 64
    helper.write_text("def noise(images):\n    return 1 - images\n")
    with pytest.raises(ConfigError, match=r"differ: parameters of mine \(neighbours\)"):
        evaluate(TinyNetwork(), keys, save=tmp_path / "saved")
    monkeypatch.setattr("robust201.corruptions.generator.GENERATOR_VERSION", 99)
    with pytest.raises(ConfigError, match=r"differ: parameters of fog \(corruption\)"):
        evaluate(TinyNetwork(), "fog:3", save=tmp_path / "saved")
    with pytest.raises(ConfigError, match=r"fog has different parameters \(corruption\)"):
        robust201.compare({"a": tmp_path / "saved", "b": evaluate(TinyNetwork(seed=1), "fog:3")})


def test_saved_minimum_norm_attacks_reject_other_epsilons(tmp_path):
    evaluate(TinyNetwork(), {"fmn": {"epsilons": [1], "steps": 20}}, save=tmp_path)
    with pytest.raises(ConfigError, match=r"parameters of fmn \(epsilons\)"):
        evaluate(TinyNetwork(), {"fmn": {"epsilons": [0.5], "steps": 20}}, save=tmp_path)


def test_warnings_about_a_network_are_saved(tmp_path):
    class Constant(nn.Module):
        def forward(self, pixels: torch.Tensor) -> torch.Tensor:
            return 0.0 * pixels.flatten(1)[:, :5] + torch.from_numpy(-np.bincount(IMAGES.labels, minlength=5)).float()

    with pytest.warns(RobustWarning, match="zero gradients"):
        result = evaluate(Constant(), "fgsm:8/255", normalisation=None, save=tmp_path)
    notices = robust201.Evaluation.load(tmp_path).notices
    assert notices == result.notices
    assert any("by chance" in notice for notice in notices)
    assert any("See docs/trust.md" in notice for notice in notices)


def test_compare_and_curves_reject_arguments_that_saved_evaluations_cannot_satisfy(tmp_path):
    fmn = {"fmn": {"epsilons": [1], "steps": 20}}
    saved = {name: evaluate(TinyNetwork(seed), ["clean", fmn]) for seed, name in enumerate(("a", "b"))}
    for options in ({"images": IMAGES.images}, {"seed": 1}):
        with pytest.raises(ConfigError, match="not evaluated again"):
            robust201.compare(saved, **options)
        with pytest.raises(ConfigError, match="not evaluated again"):
            robust201.curves(saved, **options)
    with pytest.raises(ConfigError, match="data='cifar10'"):
        robust201.compare(saved, data="cifar10")
    with pytest.raises(ConfigError, match=r"a: fmn was evaluated with other parameters \(steps\)"):
        robust201.curves(saved, keys={"fmn": {"steps": 30}})
    other = evaluate(TinyNetwork(), {"fmn": {"epsilons": [1], "steps": 21}})
    with pytest.raises(ConfigError, match=r"fmn has different parameters \(steps\)"):
        robust201.curves({"a": saved["a"], "other": other})
    fewer = evaluate(TinyNetwork(), fmn, count=15)
    with pytest.raises(ConfigError, match="2 different sets of images"):
        robust201.curves({"a": saved["a"], "fewer": fewer})
    module = CountingNetwork()
    with pytest.raises(ConfigError, match="'fgsm': it was not evaluated"):
        robust201.compare({"a": saved["a"], "module": module}, IMAGES.images, IMAGES.labels, "quick")
    assert module.counts["calls"] == 0
    saved["a"].save(tmp_path)
    with pytest.raises(ConfigError, match="TinyNetwork: it is listed more than once"):
        robust201.compare([f"TinyNetwork={tmp_path}", TinyNetwork(seed=1)], IMAGES.images, IMAGES.labels)


def test_writers_of_a_folder_wait_for_each_other(tmp_path):
    result = evaluate(TinyNetwork(), "clean")
    with ThreadPoolExecutor(1) as threads:
        with sole_writer(tmp_path, "Testing"):
            saving = threads.submit(result.save, tmp_path)
            assert not wait([saving], timeout=0.2).done
        saving.result(timeout=60)
    assert_equal(robust201.Evaluation.load(tmp_path), result)


def test_find_names_expands_presets_and_strips_paths_of_files():
    assert find_names("robustbench-l2") == ["clean", "aa_standard_l2"]
    assert find_names(["a/mine.py", "a/yours.py:attack", "pgd:8/255"]) == ["mine", "yours", "pgd:8/255"]


class TenClassNetwork(CountingNetwork):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.classifier = nn.Linear(24, 10)


def test_interrupted_autoattack_continues_after_its_last_finished_attack(tmp_path):
    network = TenClassNetwork().eval()
    with torch.inference_mode():
        labels = network(torch.from_numpy(IMAGES.images) / 255).argmax(dim=1).numpy()
    keys = {"autoattack": {"epsilons": ["0.1/255", "2/255", "32/255"], "steps": 3, "queries": 10}}

    def evaluate_autoattack(folder, last_call=10**9):
        network.counts = {"calls": 0, "last call": last_call}
        result = robust201.evaluate(network, IMAGES.images, labels, keys, save=folder, progress=False)
        return result, network.counts["calls"]

    expected, n_calls = evaluate_autoattack(None)
    assert expected.table.accuracy.nunique() == 3
    n_remaining_calls = []
    for number, fraction in enumerate((0.2, 0.5, 0.7, 0.9, 0.97)):
        folder = tmp_path / str(number)
        with pytest.raises(KeyboardInterrupt):
            evaluate_autoattack(folder, round(fraction * n_calls))
        result, n_calls_when_resumed = evaluate_autoattack(folder)
        n_remaining_calls.append(n_calls_when_resumed)
        assert_equal(result, expected)
        assert [path.name for path in folder.glob("[!.]*")] == ["evaluation.json"]
    assert n_remaining_calls == sorted(n_remaining_calls, reverse=True)
    assert n_remaining_calls[-1] < n_calls / 3
    with pytest.raises(KeyboardInterrupt):
        evaluate_autoattack(tmp_path / "damaged", round(0.9 * n_calls))
    (path,) = (tmp_path / "damaged").glob("*.stages")
    path.write_bytes(path.read_bytes()[:-100])
    result, n_calls_when_resumed = evaluate_autoattack(tmp_path / "damaged")
    assert_equal(result, expected)
    assert n_calls_when_resumed > n_calls - 10


class FaultyNetwork(TenClassNetwork):
    """A network whose gradients are NaN for some calls, or whose logits change, in the first attack of AutoAttack."""

    fault = ""

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        if self.fault == "gradient" and pixels.requires_grad and self.counts["calls"] < 13:
            pixels = pixels * 1.0
            pixels.register_hook(lambda gradient: gradient * torch.nan)
        logits = super().forward(pixels)
        return logits.flip(1) if self.fault == "logits" and self.counts["calls"] > 6 else logits


@pytest.mark.parametrize("fault", ["gradient", "logits"])
def test_finished_attacks_of_faulty_networks_are_not_saved(tmp_path, fault):
    network = FaultyNetwork().eval()
    with torch.inference_mode():
        labels = network(torch.from_numpy(IMAGES.images) / 255).argmax(dim=1).numpy()
    network.fault = fault
    keys = {"autoattack": {"epsilons": ["0.1/255"], "steps": 3, "queries": 10}}
    for _ in range(2):
        network.counts["calls"] = 0
        with pytest.raises(EvaluationError, match=r"NaN or infinite|depend on earlier passes"):
            robust201.evaluate(network, IMAGES.images, labels, keys, save=tmp_path, progress=False)
    assert not [*tmp_path.iterdir()]


def test_saving_keeps_unrelated_files_in_the_folder(tmp_path):
    (tmp_path / "clean-images.npz").touch()
    evaluate(TinyNetwork(), "clean", save=tmp_path)
    assert {"clean-images.npz", "evaluation.json"} <= {path.name for path in tmp_path.iterdir()}
