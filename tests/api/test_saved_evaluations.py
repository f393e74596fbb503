"""Saved evaluations: results of finished keys are kept, and the rest is computed by the same call later."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import robust201
from robust201.core.errors import ConfigError, FormatVersionError, ResultsError, RobustError
from tests.support.tiny_networks import NORMALISATION, TinyNetwork, tiny_images

# Networks with random weights classify images by chance.
pytestmark = pytest.mark.filterwarnings("ignore:.* by chance", "ignore:.*did not fool", "ignore:.*steps are few")

IMAGES = tiny_images()
KEYS = ["clean", "fgsm:4/255", "fgsm:8/255", "fog:3", {"fmn": {"epsilons": [1], "steps": 20}}, "input_gradient"]


class CountingNetwork(TinyNetwork):
    """A network that counts the calls with gradients, and can be interrupted."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed)
        self.calls, self.last_call = 0, 10**9

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        if self.calls > self.last_call:
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


def test_saved_evaluation_is_read_unchanged(tmp_path: Path) -> None:
    result = evaluate(CountingNetwork())
    result.save(tmp_path / "saved")
    loaded = robust201.Evaluation.load(tmp_path / "saved")
    assert_equal(loaded, result)
    assert str(loaded) == str(result)
    assert max(map(len, str(result).splitlines())) <= 80
    assert "fgsm            8/255" in str(result)
    assert loaded.latex() == result.latex()


def test_interrupted_evaluation_computes_only_what_is_missing(tmp_path: Path) -> None:
    network = CountingNetwork()
    expected = evaluate(network)
    n_calls, network.calls = network.calls, 0
    network.last_call = n_calls // 2
    with pytest.raises(KeyboardInterrupt):
        evaluate(network, save=tmp_path)
    finished = [*robust201.Evaluation.load(tmp_path).results]
    assert "clean" in finished
    assert len(finished) < 5
    network.calls, network.last_call = 0, 10**9
    assert_equal(evaluate(network, save=tmp_path), expected)
    assert network.calls < n_calls
    more_strengths = evaluate(network, ["fgsm:2/255", "fgsm:8/255"], save=tmp_path)
    assert_equal(more_strengths, evaluate(network, ["fgsm:2/255", "fgsm:8/255"]))
    assert robust201.Evaluation.load(tmp_path).results["fgsm"].strengths == {2.0, 4.0, 8.0}


@pytest.mark.parametrize(
    ("changes", "subject"),
    [
        ({"network": TinyNetwork(seed=1)}, "network"),
        ({"normalisation": None}, "network"),
        ({"count": 15}, "images"),
        ({"keys": {"fgsm": {"epsilons": ["8/255"]}}, "seed": 1}, "parameters of fgsm"),
    ],
)
def test_folders_of_other_evaluations_are_rejected(tmp_path: Path, changes: dict[str, Any], subject: str) -> None:
    evaluate(TinyNetwork(), "fgsm:8/255", save=tmp_path)
    before = (tmp_path / "evaluation.json").read_bytes()
    with pytest.raises(ConfigError, match=f"evaluation.json: expected .*, got other .*{subject}"):
        evaluate(**{"network": TinyNetwork(), "keys": "fgsm:8/255", "save": tmp_path} | changes)
    assert (tmp_path / "evaluation.json").read_bytes() == before


@pytest.mark.parametrize("damage", ["cut", "changed", "other format", "other file", "none"])
def test_damaged_files_are_one_line_errors(tmp_path: Path, damage: str) -> None:
    evaluate(TinyNetwork(), "clean").save(tmp_path)
    path = tmp_path / "evaluation.json"
    text = path.read_text()
    document = json.loads(text)
    content = {
        "cut": text[: len(text) // 2],
        "changed": text.replace('"accuracy": 0.', '"accuracy": 1.'),
        "other format": json.dumps(document | {"robust201_evaluation": 2}),
        "other file": "[1, 2]",
        "none": None,
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


def test_saved_evaluations_are_compared_with_modules_and_functions(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text("import parts\n\ndef build():\n    import parts\n    return parts.make()\n")
    (tmp_path / "parts.py").write_text(
        "from tests.support.tiny_networks import TinyNetwork\n\ndef make():\n    return TinyNetwork(seed=1)\n"
    )
    evaluate(TinyNetwork(), save=tmp_path / "saved")
    numbers = ",".join(map(str, NORMALISATION.mean)), ",".join(map(str, NORMALISATION.std))
    networks = {
        "saved": tmp_path / "saved",
        "function": f"{tmp_path}/net.py:build,mean={numbers[0]},std={numbers[1]}",
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
    with pytest.raises(ConfigError, match=r"short: fmn was evaluated only up to epsilon 0\.003922"):
        robust201.curves(tmp_path / "short")
