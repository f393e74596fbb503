"""`robust201 evaluate`: a user's network on a user's images, and one-line errors."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import save_file

from robust201.api import evaluate
from robust201.cli.evaluate import choose_device, read_resize
from robust201.core.errors import ConfigError
from robust201.images.specs import Resize, custom_dataset
from tests.support.dataset_files import write_parquet
from tests.support.tiny_networks import N_CLASSES, NORMALISATION, SIZE, TinyNetwork, tiny_images

IMAGES = tiny_images()
MODEL = """
from tests.support.tiny_networks import TinyNetwork

def build():
    return TinyNetwork(seed=5)

def returns_number():
    return 3

def needs_argument(argument):
    return None

def lazy():
    from torch import nn
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(3))

class FailsForGradients(TinyNetwork):
    def forward(self, images):
        if images.requires_grad:
            raise RuntimeError("no gradients here")
        return super().forward(images)
"""
NORMALISATION_OPTIONS = {
    "mean": ",".join(map(str, NORMALISATION.mean)),
    "std": ",".join(map(str, NORMALISATION.std)),
}


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "my_model.py").write_text(MODEL)
    save_file(TinyNetwork(seed=0).state_dict(), tmp_path / "w.safetensors")
    np.savez(tmp_path / "images.npz", images=IMAGES.images, labels=IMAGES.labels)
    spec = custom_dataset("images", n_classes=N_CLASSES, image_size=SIZE)
    write_parquet(tmp_path, spec, "test", IMAGES.images, IMAGES.labels)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def make_arguments(**changes: Any) -> list[object]:
    options = {"weights": "w.safetensors", "data": "images.npz", "keys": "clean,fgsm"}
    options |= NORMALISATION_OPTIONS | changes
    fields = {name: options.pop(name) for name in ("weights", "mean", "std")}
    network_fields = (f",{name}={value}" for name, value in fields.items() if value is not None)
    return [
        "evaluate",
        options.pop("network", "my_model.py:build") + "".join(network_fields),
        *(argument for name, value in options.items() if value is not None for argument in (f"--{name}", value)),
    ]


@pytest.mark.parametrize("data", ["images.npz", "test.parquet", "."])
def test_evaluate_prints_and_writes_results_of_the_api(files, robust201, data):
    result = robust201(*make_arguments(data=data, out="results.csv"))
    assert result.code == 0, result.err
    assert "Executing my_model.py (SHA-256 " in result.err
    expected = evaluate(
        TinyNetwork(seed=0),
        IMAGES.images,
        IMAGES.labels,
        ["clean", "fgsm"],
        normalisation=NORMALISATION,
        progress=False,
    )
    csv_table = pd.read_csv(files / "results.csv", keep_default_na=False)
    pd.testing.assert_frame_equal(csv_table.drop(columns="seconds"), expected.table.drop(columns="seconds"))
    assert all(f"{100 * accuracy:.1f} [" in result.out for accuracy in expected.table["accuracy"])


def test_evaluate_prints_table_as_json(files, robust201):
    result = robust201(*make_arguments(keys="clean,jacobian", images=10, out="results.csv"), "--json")
    assert result.code == 0, result.err
    payload = json.loads(result.out)
    csv_table = pd.read_csv(files / "results.csv")
    assert [row["key"] for row in payload["rows"]] == csv_table["key"].tolist()
    for column in ("accuracy", "seconds"):
        json_column = pd.Series([row[column] for row in payload["rows"]], dtype=float, name=column)
        pd.testing.assert_series_equal(json_column, csv_table[column])
    assert payload["rows"][1]["accuracy"] is None
    assert [f"warning: {text}" for text in payload["warnings"]] == [
        line for line in result.err.splitlines() if line.startswith("warning: ")
    ]


CUSTOM_TASKS = """
import torch

def perturb(model, images, labels, strength, tries=1):
    for _ in range(tries):
        images = (images + strength / 255 * torch.randn_like(images).sign()).clamp(0, 1) if tries > 1 else images
    return images

def margins(model, images, labels):
    first, second = model(images).topk(2, dim=1).values.T
    return {"margin": (first - second).mean()}
"""


def settings_of(*settings: str) -> list[str]:
    return [argument for setting in settings for argument in ("--set", f"my_tasks.{setting}")]


def test_evaluate_accepts_custom_tasks_as_keys(files, robust201):
    (files / "my_tasks.py").write_text(CUSTOM_TASKS)
    attack = settings_of("norm=Linf", "strengths=8/255,32", "passes=2")
    result = robust201(*make_arguments(keys="clean,my_tasks.py", out="attack.csv"), *attack)
    assert result.code == 0, result.err
    assert "Executing my_tasks.py (SHA-256 " in result.err
    csv_table = pd.read_csv(files / "attack.csv")
    assert csv_table[["key", "strength"]].to_numpy().tolist() == [["clean", 0], ["my_tasks", 8], ["my_tasks", 32]]
    assert csv_table["accuracy"].nunique() == 1  # one try returns the images unchanged
    measure = settings_of("kind=measure", "columns=margin")
    assert robust201(*make_arguments(keys="my_tasks.py:margins", out="measure.csv"), *measure).code == 0
    assert pd.read_csv(files / "measure.csv")["margin"].notna().all()
    too_far = settings_of("norm=Linf", "strengths=8", "parameters.tries=2")
    error_line = robust201(*make_arguments(keys="my_tasks.py"), *too_far).error_line(exit_code=3)
    assert "expected Linf distances up to epsilon" in error_line


@pytest.mark.parametrize("command", ["evaluate", "compare"])
def test_commands_check_keys_before_executing_files(files, robust201, command):
    (files / "my_model.py").write_text("raise SystemExit('executed')")
    argv = [command, "my_model.py:build,weights=w.safetensors", "--data", "images.npz"]
    argv += ["other=my_model.py:build"] if command == "compare" else []
    for options, message in (
        (("--keys", "clean,nope"), "no such key"),
        (("--keys", "pgd", "--set", "pgd.steps=0"), "pgd: steps"),
        (("--keys", "clean", "--images", 99), "expected a count from 1 to 21"),
    ):
        result = robust201(*argv, *options)
        assert message in result.error_line(exit_code=2)
        assert "Executing" not in result.err


def write_invalid_files(folder: Path) -> None:
    (folder / "fails.py").write_text("1 / 0")
    (folder / "empty.npz").touch()
    for name in ("ants", "bees"):
        (folder / "classes" / name).mkdir(parents=True)
        (folder / "classes" / name / "1.jpg").touch()
    state_dict = TinyNetwork().state_dict()
    save_file(state_dict | {"more": state_dict["classifier.bias"].clone()}, folder / "more.safetensors")


INVALID_INPUTS: list[tuple[dict[str, Any], str]] = [
    ({"network": "my_model.py"}, "FILE:FUNCTION"),
    ({"network": "none.py:build"}, "none.py: No such file or directory"),
    ({"network": "my_model.py:make"}, "make in my_model.py"),
    ({"network": "fails.py:build"}, "ZeroDivisionError"),
    ({"network": "my_model.py:returns_number"}, "got int"),
    ({"network": "my_model.py:needs_argument"}, "without arguments"),
    ({"network": "my_model.py:lazy"}, "has no values"),
    ({"weights": "none.safetensors"}, "none.safetensors: No such file or directory"),
    ({"weights": "."}, "Is a directory"),
    ({"weights": "my_model.py"}, "safetensors file"),
    ({"weights": "more.safetensors"}, "TinyNetwork"),
    ({"data": "cifar01"}, "'cifar01'"),
    ({"data": "empty.npz"}, "empty.npz"),
    ({"data": "classes"}, "1.jpg"),
    ({"resize": "large"}, "--resize 'large'"),
    ({"network": "my_model.py:build,width=3"}, "'width=3'"),
    ({"mean": "a,b,c"}, "expected (mean, std)"),
    ({"std": None}, "expected (mean, std)"),
    ({"keys": "pdg:8/255"}, "Did you mean 'pgd'?"),
    ({"keys": "clean,fog:3/255"}, "fog: severities.0: expected severities, integers from 1 to 5, got '3/255'."),
    ({"keys": "auto-attack:8/255"}, "Did you mean 'autoattack'?"),
    ({"keys": "clean,fgsm,clean"}, "more than once"),
    ({"set": "pgd.steps=3"}, "'pgd.steps=3'"),
    ({"set": "fgsm=3"}, "'fgsm=3'"),
    ({"set": "fgsm.epsilon=3"}, "'epsilon'"),
    ({"keys": None, "set": "pgd.steps=3"}, "List its keys instead: --keys clean,fgsm,pgd,"),
    ({"keys": "my_tasks.py:8/255"}, "--set my_tasks.strengths=8/255"),
    ({"out": "."}, "Writing failed for ."),
    ({"out": "entry.json"}, "--json > FILE"),
    ({"out": "/proc/t.csv"}, "t.csv"),
]


@pytest.mark.parametrize(("changes", "subject"), INVALID_INPUTS)
def test_evaluate_reports_invalid_input_with_one_error_line(files, robust201, changes, subject):
    write_invalid_files(files)
    if "network" in changes:
        changes = {"weights": None, **changes}
    assert subject in robust201(*make_arguments(**{"out": "results.csv"} | changes)).error_line(exit_code=2)
    assert not (files / "results.csv").exists()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, (None, None)),
        ("256", (224, Resize(256, "bilinear"))),
        ("342,299", (299, Resize(342, "bilinear"))),
        ("256,bicubic", (224, Resize(256, "bicubic"))),
        ("256,224,bicubic", (224, Resize(256, "bicubic"))),
    ],
)
def test_resize_option_sets_shorter_side_crop_and_filter(text, expected):
    assert read_resize(text) == expected


def test_evaluate_reports_failure_during_an_attack_with_one_error_line(files, robust201):
    result = robust201(*make_arguments(network="my_model.py:FailsForGradients", out="results.csv"))
    assert "the network raised RuntimeError: no gradients here" in result.error_line(exit_code=3)
    assert not (files / "results.csv").exists()


def test_set_option_sets_parameters_of_keys(files, robust201):
    settings = ("pgd.steps=2", "pgd.epsilons=8/255", "pgd.rel_stepsize=1", "aa_standard.epsilons=8/255")
    settings += ("autoattack.queries=5", "autoattack.steps=3")
    options = [argument for setting in settings for argument in ("--set", setting)]
    result = robust201(*make_arguments(keys="clean,pgd,autoattack", out="results.csv"), *options)
    assert result.code == 0
    assert "Wrote results.csv." in result.err
    fields = {"pgd": {"steps": 2, "epsilons": ["8/255"], "rel_stepsize": 1}}
    autoattack = {"aa_standard": {"epsilons": ["8/255"], "queries": 5, "steps": 3}}
    arguments = (TinyNetwork(seed=0), IMAGES.images, IMAGES.labels, {"clean": {}, **fields, **autoattack})
    expected = evaluate(*arguments, normalisation=NORMALISATION, progress=False)
    csv_table = pd.read_csv(files / "results.csv", keep_default_na=False)
    pd.testing.assert_frame_equal(csv_table.drop(columns="seconds"), expected.table.drop(columns="seconds"))


def test_default_device_is_a_gpu_if_pytorch_can_use_one(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert choose_device("auto") == torch.device("cpu")
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.ones", lambda *_, device: torch.zeros(1, device="meta"))  # has no value
    with pytest.raises(ConfigError, match="'cuda'"):
        choose_device("auto")
