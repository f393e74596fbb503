"""User files with networks, attacks and measures: execution, identity, consent and one-line errors."""

import json
import re
import runpy
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from robust201.core.errors import IncompleteError, RobustWarning
from robust201.dataset.diff import read_numbers
from robust201.dataset.reader import Dataset
from robust201.dataset.stored_outcomes import read_outcomes
from robust201.store.events import read_recent_events
from tests.conftest import REPOSITORY, THREE_KEYS, FinishedCommand, RunCommand, WriteSweep
from tests.run.test_extended_sweeps import read_columns
from tests.support.runs import read_rows
from tests.support.tiny_trainings import write_training_yaml

MODELS = """
from torch import nn

class Small(nn.Module):
    def __init__(self, width, n_classes):
        super().__init__()
        self.convolution = nn.Conv2d(3, width, 5, stride=4)
        self.head = nn.Linear(width, n_classes)

    def forward(self, images):
        return self.head(self.convolution(images).relu().mean(dim=(2, 3)))

def build(architecture, n_classes):
    return Small({"narrow": 4, "wide": 8}[architecture], n_classes)
"""
ATTACK = """
def perturb(model, images, labels, strength, step=1.0):
    return (images + step * strength / 255).clamp(0, 1)
"""
MEASURE = """
def measure(model, images, labels):
    logits = model(images)
    return {"mean": logits.mean(), "spread": [float(logits.min()), float(logits.max())]}
"""


@pytest.fixture
def write_custom_sweep(write_sweep: WriteSweep, tmp_path: Path) -> WriteSweep:
    """Return a function that writes a sweep over networks in a user file with the content `models`."""

    def write(keys: dict[str, Any], models: str = MODELS, **changes: Any) -> Path:
        (tmp_path / "my_models.py").write_text(models)
        fields = {
            "space": {"file": str(tmp_path / "my_models.py")},
            "architectures": ["narrow"],
            "network": {},
            "checkpoints": None,
            "weights": {"random": {"seeds": [0]}},
            "keys": keys,
        }
        return write_sweep(**(fields | changes))

    return write


def write_key(tmp_path: Path, code: str, name: str = "mine.py", **fields: Any) -> dict[str, Any]:
    """Write a user file, and return the fields of a key that uses it."""
    (tmp_path / name).write_text(code)
    return {"file": str(tmp_path / name), **fields}


def attack_keys(tmp_path: Path, code: str = ATTACK, **fields: Any) -> dict[str, Any]:
    return {"shift": write_key(tmp_path, code, **({"norm": "Linf", "strengths": [1, 8]} | fields))}


def measure_keys(tmp_path: Path, code: str = MEASURE, **fields: Any) -> dict[str, Any]:
    return {"logits": write_key(tmp_path, code, **({"kind": "measure", "columns": ["mean", "spread"]} | fields))}


def failure_line(result: FinishedCommand) -> str:
    """Check that nothing was computed, and return the only line about failed parts."""
    assert result.code == 3, result.err
    lines = [line for line in result.err.splitlines() if re.match(r"failed \d+ times?: ", line)]
    assert len(lines) == 1, result.err
    assert "Computed 0 evaluations" in result.err
    assert "Traceback" not in result.err
    return lines[0]


# --- the documented example -------------------------------------------------------------------------------------------


def documented_files() -> dict[str, str]:
    """Return the contents of the files in docs/your-own.md by name."""
    text = (REPOSITORY / "docs/your-own.md").read_text()
    return dict(re.findall(r"`([\w.-]+)`:\n\n```\w+\n(.*?)^```$", text, re.M | re.S))


@pytest.fixture
def example_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create a working folder with the documented files, and run make_inputs.py, which creates weights and images."""
    monkeypatch.chdir(tmp_path)
    content_by_name = documented_files()
    assert set(content_by_name) == {"sweep.yaml", "my_models.py", "my_attack.py", "my_measure.py", "make_inputs.py"}
    for name, content in content_by_name.items():
        Path(name).write_text(content)
    monkeypatch.syspath_prepend(tmp_path)
    runpy.run_path("make_inputs.py")
    sys.modules.pop("my_models")
    return tmp_path


def check_example(robust201: RunCommand, results: Path) -> None:
    columns = read_columns(results)
    assert columns["clean", "wide", ""]["cm"].shape == (1, 3, 3)
    for name in ("narrow", "wide"):
        assert columns["corners", name, ""]["accuracy"][-1] <= columns["clean", name, ""]["accuracy"]
        assert columns["margins", name, ""]["margin"] > 0
        assert columns["margins", name, ""]["margin_quartiles"].shape == (1, 3)
        assert columns["jacobian", name, ""]["squared_norm"] > 0
    assert robust201("export", results, "--out", "dataset", "--parquet").code == 0
    verify_result = robust201("verify", results, "--export", "dataset")
    assert verify_result.code == 0, verify_result.err
    comparison = json.loads(robust201("verify", results, "--against", "dataset", "--json").out)
    keys = {row["key"] for row in comparison["comparisons"]}
    assert keys >= {"clean", "corners", "margins margin", "jacobian squared_norm"}
    assert comparison["max_difference"] == 0


def test_documented_example_runs(example_folder, robust201):
    result = robust201("run", "--allow-code", "sweep.yaml")
    assert result.code == 0, result.err
    assert "accuracies come out too high" not in result.err
    messages = [line for line in result.err.splitlines() if line.startswith("Will execute ")]
    assert messages == [
        "Will execute my_models.py (space).",
        "Will execute my_attack.py (keys.corners).",
        "Will execute my_measure.py (keys.margins).",
    ]
    check_example(robust201, example_folder / "results")
    rerun = robust201("run", "--allow-code", "sweep.yaml")
    assert "0 missing" in rerun.err


# --- networks with unreliable results ---------------------------------------------------------------------------------


def test_unstable_network_blocks_its_parts_and_its_export(write_custom_sweep, robust201, tmp_path):
    unstable_marker = tmp_path / "unstable"
    models = MODELS.replace(
        "        return self.head(",
        f"        if __import__('pathlib').Path({str(unstable_marker)!r}).exists():\n"
        "            images = images + __import__('torch').rand(1)\n        return self.head(",
    )
    sweep = write_custom_sweep(THREE_KEYS, models, architectures=["narrow", "wide"])
    run, export = ("run", "--allow-code", sweep), ("export", tmp_path / "results", "--out", tmp_path / "dataset")
    assert robust201(*run, "--keys", "clean").code == 0
    unstable_marker.touch()
    result = robust201(*run, "--architectures", "narrow")
    assert result.code == 3
    assert "1 failure;" in result.err  # the other keys are not attempted
    unstable_marker.unlink()
    finished = robust201(*run)
    assert (finished.code, "narrow random-s0 digits" in finished.err) == (3, True)
    assert robust201("merge", tmp_path / "results", "--out", tmp_path / "merged").code == 0
    for folder in (tmp_path / "results", tmp_path / "merged"):
        with pytest.warns(RobustWarning, match="narrow random-s0 digits"):
            assert {*read_numbers(folder)["architecture"]} == {"wide"}
    with pytest.warns(RobustWarning, match="narrow random-s0 digits"), pytest.raises(IncompleteError):
        read_outcomes(tmp_path / "results", "digits", ["clean"])
    failed = robust201(*export)
    assert (failed.code, "narrow random-s0 digits" in failed.err, (tmp_path / "dataset").exists()) == (3, True, False)
    assert robust201(*export, "--partial").code == 3
    results = Dataset(tmp_path / "dataset").query()["digits"]
    assert {network for measures in results.values() for values in measures.values() for network in values} == {"wide"}
    assert robust201("verify", tmp_path / "results").code == 4
    shutil.rmtree(tmp_path / "results/events")
    assert robust201(*export).code == 0
    assert robust201("verify", tmp_path / "results").code == 0


def test_network_that_ends_in_softmax_is_reported_and_logged(write_custom_sweep, robust201, tmp_path):
    models = MODELS.replace(".mean(dim=(2, 3)))", ".mean(dim=(2, 3))).softmax(dim=1)")
    result = robust201("run", "--allow-code", write_custom_sweep({"clean": {}}, models=models))
    assert result.code == 0, result.err
    assert "softmax" in result.err
    (warning,) = [event for event in read_recent_events(tmp_path / "results") if event["event"] == "warning"]
    assert warning["part"].startswith("narrow")
    assert "softmax" in warning["message"]


# --- identity ---------------------------------------------------------------------------------------------------------


def test_edited_user_file_creates_new_units(write_custom_sweep, robust201, tmp_path):
    keys = {"clean": {}} | attack_keys(tmp_path) | measure_keys(tmp_path, name="measure.py")
    assert robust201("run", "--allow-code", write_custom_sweep(keys)).code == 0
    (tmp_path / "mine.py").write_text(ATTACK + "\n")
    result = robust201("run", "--allow-code", write_custom_sweep(keys))
    assert result.code == 0
    assert "2 missing" in result.err
    assert re.search(r"digits shift: 1 part is missing: .*file_sha256: \w+ → \w+", result.err)
    result = robust201("run", "--allow-code", write_custom_sweep(keys, models=MODELS + "\n"))
    assert "4 missing" in result.err
    assert len(list((tmp_path / "results/code").glob("*.py"))) == 5


def test_workers_execute_verified_copies(write_custom_sweep, robust201, tmp_path):
    """Files with CRLF line endings are copied unchanged. Modified copies are replaced and not executed."""
    sweep = write_custom_sweep(attack_keys(tmp_path, ATTACK.replace("\n", "\r\n")))
    (tmp_path / "mine.py").write_bytes(ATTACK.replace("\n", "\r\n").encode())
    assert robust201("run", "--allow-code", sweep, "--keys", "shift").code == 0
    copies = list((tmp_path / "results/code").glob("*.py"))
    assert {copy.read_bytes() for copy in copies} == {
        (tmp_path / name).read_bytes() for name in ("mine.py", "my_models.py")
    }
    assert not list((tmp_path / "results/code").rglob("*.pyc"))
    for copy in copies:
        copy.write_text("raise SystemExit('planted')")
    (tmp_path / "mine.py").write_bytes(ATTACK.encode())
    assert robust201("run", "--allow-code", sweep).code == 0


# --- consent ----------------------------------------------------------------------------------------------------------


def write_spy(folder: Path, code: str = MODELS) -> Path:
    """Write code that creates a file `executed` in its folder when it is executed."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "spy.py"
    file.write_text(f"from pathlib import Path\nPath({str(folder / 'executed')!r}).touch()\n{code}")
    return file


@pytest.fixture
def spy_sweep(write_custom_sweep: WriteSweep, tmp_path: Path) -> Path:
    """Write a sweep YAML that names a spy."""
    return write_custom_sweep({"clean": {}}, space={"file": str(write_spy(tmp_path / "spy"))})


COMMANDS = (
    ("run",),
    ("run", "--executor", "inline"),
    ("run", "--share", "1/1"),
    ("verify", "--with-libraries", "1"),
    ("submit", "slurm", "--print"),
    ("submit", "slurm"),
    ("submit", "ray"),
)
"""Commands that execute a sweep's code, or prepare its execution on other machines."""


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_commands_require_consent_to_code(spy_sweep, robust201, tmp_path, arguments):
    if "--share" in arguments:
        assert robust201("plan", "--save", spy_sweep).code == 0
    error_line = robust201(*arguments, spy_sweep).error_line(exit_code=2)
    assert str(tmp_path / "spy" / "spy.py") in error_line
    assert "--allow-code" in error_line
    assert not (tmp_path / "spy" / "executed").exists()
    assert ("--share" in arguments) == (tmp_path / "results").exists()
    if "--share" in arguments:
        assert "--allow-code" in robust201("run", tmp_path / "results").error_line(exit_code=2)
        assert not (tmp_path / "spy" / "executed").exists()


def test_training_requires_consent_to_code(robust201, tmp_path):
    code = write_spy(tmp_path / "spy")
    training_yaml = write_training_yaml(tmp_path, space={"file": str(code)}, architectures=["narrow"], network={})
    for arguments in (("run",), ("submit", "slurm", "--print")):
        assert "--allow-code" in robust201(*arguments, training_yaml).error_line(exit_code=2)
    assert not code.with_name("executed").exists()
    assert " --allow-code" in robust201("submit", "slurm", "--print", training_yaml, "--allow-code").out
    result = robust201("run", training_yaml, "--allow-code")
    assert result.code == 0, result.err


def test_share_executes_the_prepared_copy(write_custom_sweep, robust201, tmp_path):
    sweep = write_custom_sweep({"clean": {}})
    assert robust201("plan", "--save", sweep).code == 0
    file = tmp_path / "my_models.py"
    file.write_text(f"{file.read_text()}\nraise AssertionError\n")
    result = robust201("run", sweep, "--share", "1/2", "--allow-code")
    assert (result.code, f"{file} has changed" in result.err) == (0, True), result.err
    file.unlink()
    result = robust201("run", sweep, "--share", "2/2", "--allow-code")
    assert (result.code, "has changed" in result.err) == (0, False), result.err


def test_commands_that_compute_nothing_execute_no_code(write_custom_sweep, robust201, tmp_path):
    marker = tmp_path / "executed"
    spy = f"from pathlib import Path\nPath({str(marker)!r}).touch()\n"
    sweep = write_custom_sweep(
        {"clean": {}} | attack_keys(tmp_path, spy + ATTACK) | measure_keys(tmp_path, spy + MEASURE, name="measure.py"),
        models=spy + MODELS,
    )
    for arguments in (("plan",), ("plan", "--check"), ("plan", "--save")):
        assert robust201(*arguments, sweep).code == 0
    assert robust201("doctor", sweep).code in {0, 2}
    results = tmp_path / "results"
    assert robust201("status", results).code in {0, 3}
    assert not marker.exists()
    assert robust201("run", "--allow-code", sweep).code == 0
    assert marker.exists()
    marker.unlink()
    for name in [name for name in sys.modules if "robust201_user" in name]:
        del sys.modules[name]
    for arguments in (("status", results), ("verify", results), ("merge", results, "--compact"), ("plan", sweep)):
        assert robust201(*arguments).code == 0
    assert not marker.exists()


# --- invalid files ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("models", "expected"),
    [
        ("1 / 0", "executing the file raised ZeroDivisionError: division by zero"),
        ("def build(:", "executing the file raised SyntaxError"),
        ("import no_such_package_of_mine", "No module named 'no_such_package_of_mine'"),
        ("def built(architecture, n_classes): pass", "the file does not define this function"),
        ("raise KeyboardInterrupt", "executing the file raised KeyboardInterrupt"),
        (MODELS.replace("(architecture, n_classes):", "(architecture):"), "2 arguments"),
    ],
)
def test_user_files_that_cannot_be_loaded_are_rejected(write_custom_sweep, robust201, tmp_path, models, expected):
    """The error has the path of the user's file, and nothing is written."""
    sweep = write_custom_sweep({"clean": {}}, models=models)
    error_line = robust201("run", "--allow-code", sweep).error_line(exit_code=2)
    assert expected in error_line
    assert str(tmp_path / "my_models.py") in error_line
    assert not (tmp_path / "results").exists()


PERTURB_HEAD = "def perturb(model, images, labels, strength, **parameters): "
MEASURE_HEAD = "def measure(model, images, labels): "


@pytest.mark.parametrize(
    ("kind", "code", "expected"),
    [
        ("network", "def build(architecture, n_classes): return 3", "it returned int instead of a torch.nn.Module"),
        ("network", MODELS.replace('"narrow"', '"thin"'), "KeyError: 'narrow'"),
        ("network", MODELS.replace("return self.head", "return images, self.head"), "got an object of type tuple"),
        ("network", MODELS.replace("(images)", "(images - images.mean(dim=0))"), "depends on how images are divided"),
        ("attack", PERTURB_HEAD + "return None", "expected a tensor of images, got NoneType"),
        ("attack", PERTURB_HEAD + "raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("attack", PERTURB_HEAD + "return images[:1]", "expected float32 images of shape"),
        ("attack", PERTURB_HEAD + "return images * float('nan')", "must not divide by zero"),
        ("attack", PERTURB_HEAD + "return 1 - images", "expected Linf distances up to epsilon"),
        ("measure", MEASURE_HEAD + "return 3.0", "expected numbers by column, got float"),
        ("measure", MEASURE_HEAD + "return {'mean': 1.0, 'spread': 2.0, 'more': 3.0}", "got mean, spread, more"),
        ("measure", MEASURE_HEAD + "return {'mean': float('nan'), 'spread': 2.0}", "mean to be finite, got nan"),
        ("measure", MEASURE_HEAD + "return {'mean': '1.0', 'spread': 2.0}", "list of numbers, got '1.0'"),
        (
            "measure",
            MEASURE_HEAD + "model.train(); return {'mean': 1.0, 'spread': 2.0}",
            "it changed the network (mode",
        ),
    ],
)
def test_parts_with_faulty_user_code_fail(write_custom_sweep, robust201, tmp_path, kind, code, expected):
    keys = {
        "network": lambda: {"clean": {}, "fgsm": {"epsilons": ["8/255"]}},
        "attack": lambda: attack_keys(tmp_path, code),
        "measure": lambda: measure_keys(tmp_path, code),
    }
    models = code if kind == "network" else MODELS
    result = robust201("run", "--allow-code", write_custom_sweep(keys[kind](), models=models))
    assert expected in failure_line(result)
    assert not list((tmp_path / "results/shards").rglob("*.parquet"))


def read_measure(results: Path) -> dict[str, list[float]]:
    """Read the columns of the measure; other keys of the sweep may be incomplete."""
    ((_, columns),) = read_rows(results, ("logits",))
    return {name: column[0].tolist() for name, column in columns.items()}


MODIFICATIONS = {
    "in place": "next(model.parameters()).data.mul_(2)",
    "another tensor": "model.network.head.bias = type(model.network.head.bias)(model.network.head.bias + 1)",
    "additional buffer": "model.network.register_buffer('count', labels)",
}


def test_attack_that_modifies_network_fails_and_has_no_effect(write_custom_sweep, robust201, tmp_path):
    """If the change had an effect, later keys would measure the modified network."""
    measure = measure_keys(tmp_path, name="measure.py")
    assert robust201("run", "--allow-code", write_custom_sweep(measure), "--out", tmp_path / "alone").code == 0
    for name, modification in MODIFICATIONS.items():
        code = f"def perturb(model, images, labels, strength):\n    {modification}\n    return images\n"
        sweep = write_custom_sweep(attack_keys(tmp_path, code) | measure)
        result = robust201("run", "--allow-code", sweep, "--out", tmp_path / name)
        assert (result.code, "it changed the network (" in result.err) == (3, True)
        assert read_measure(tmp_path / name) == read_measure(tmp_path / "alone")


@pytest.mark.parametrize(
    ("fields", "changes", "expected"),
    [
        ({"kind": "measure"}, {}, "columns: expected one or more"),
        ({"kind": "measure", "columns": ["mean", "strength"]}, {}, "columns"),
        ({"kind": "measure", "columns": ["mean"], "strengths": [1]}, {}, "strengths"),
        ({"columns": ["mean"]}, {}, "allowed only with `kind: measure`"),
        ({"norm": "Linf"}, {}, "strengths: expected the radii"),
        ({"norm": "L3", "strengths": [1]}, {}, "norm: expected 'Linf', 'L2' or 'L1'"),
        ({"norm": "Linf", "strengths": [1], "parameters": {"steps": 2.0}}, {}, "'steps'"),
        ({}, {"space": "zooo"}, "space"),
        ({}, {"space": {}}, "space.file"),
        ({}, {"space": {"file": "no-such-file.py"}}, "no-such-file.py"),
        ({}, {"space": {"file": "x", "gmacs": 0}}, "space.gmacs: expected more than 0, got 0."),
        *(({}, {"architectures": names}, "architectures") for names in ("evaluated", [], ["../up"], [3])),
    ],
)
def test_invalid_custom_keys_and_spaces_are_rejected(
    write_custom_sweep, robust201, tmp_path, fields, changes, expected
):
    keys = {"mine": write_key(tmp_path, ATTACK, **fields)} if fields else {"clean": {}}
    assert expected in robust201("run", "--allow-code", write_custom_sweep(keys, **changes)).error_line(exit_code=2)
    assert not (tmp_path / "results").exists()
