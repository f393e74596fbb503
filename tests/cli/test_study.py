"""`robust201 study`: steps, sweeps and pages of a study, checks of published tables, and consent to run code."""

import json

import pandas as pd
import pytest
import yaml

from tests.support.planted_studies import plant_mixing


def test_study_checks_published_marks_without_data(robust201):
    result = robust201("study", "--published", "image-distribution")
    assert result.code == 0
    assert "117 of 118 published decisions on significance follow" in result.out
    assert "102 of 106 published significance marks remain" in result.out
    payload = json.loads(robust201("study", "--published", "image-distribution", "--json").out)
    assert (payload["marks_that_follow"], payload["comparisons_checked"]) == (117, 118)


def test_study_rejects_unknown_published_study_in_one_line(robust201):
    result = robust201("study", "--published", "image-distributions")
    assert (result.code, result.out) == (2, "")
    assert "Did you mean 'image-distribution'?" in result.err


def write_small_study(folder, *, note="Small."):
    """Write a study of one network in one group with two seeds."""
    store, results = folder / "store", folder / "results"
    recipe = {"epochs": 1, "batch_size": 20, "learning_rate": 0.1, "weight_decay": 0, "schedule": {"cosine": {}}}
    inline = {"executor": "inline", "device": "cpu"}
    common_fields = {"space": "zoo", "architectures": ["fc7500-w8"], "datasets": {"digits": {}}, "execution": inline}
    train_fields = {
        "name": "train",
        "store": str(store),
        "images": {"count": 40},
        "recipes": {"plain": recipe},
        "seeds": [0, 1],
    }
    weights = {"path": str(store), "recipe": "plain", "seeds": [0, 1]}
    sweep_fields = {"name": "sweep", "results": str(results), "weights": weights, "images": {"count": 20}}
    sweep_fields |= {"keys": {"clean": {}, "fgsm": {"epsilons_255": [8, 32]}}, "measurements": ["accuracy"]}
    study_fields = {
        "study": "image-distribution",
        "name": "tiny",
        "note": note,
        "steps": [f"robust201 run {folder / 'train.yaml'}"],
        "sweeps": [str(folder / "sweep.yaml")],
        "networks": {"FullyConnectedNet": {"architecture": "fc7500-w8"}},
        "groups": {"mnist": {"dataset": "digits", "recipes": ["plain"]}},
    }
    for name, fields in (
        ("train", common_fields | train_fields),
        ("sweep", common_fields | sweep_fields),
        ("study", study_fields),
    ):
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(fields))
    return folder / "study.yaml"


@pytest.mark.slow
def test_study_trains_evaluates_and_writes_page(robust201, tmp_path):
    study, out = write_small_study(tmp_path), tmp_path / "out"
    result = robust201("study", study, "--out", out)
    assert result.code == 0, result.err
    assert f"$ robust201 run {tmp_path / 'train.yaml'}" in result.err
    page = (out / "study.md").read_text()
    assert page.startswith("# tiny: ")
    assert "over strengths other than the paper's" in page
    networks = pd.read_csv(out / "tables/networks.csv")
    assert len(networks) == 2
    (row,) = pd.read_csv(out / "tables/robustness.csv").to_dict("records")
    assert (row["epoch"], row["n"]) == (1, (~networks["at_chance"]).sum())
    assert "(figures/attacked-fullyconnectednet.svg)" in page
    assert b"<svg" in (out / "figures/attacked-fullyconnectednet.svg").read_bytes()

    # Existing results are not recomputed, and the page can be written from the export.
    write_small_study(tmp_path, note="Again.")
    second_run = robust201("study", study, "--out", out, "--tables-only", out / "datasets/sweep")
    assert second_run.code == 0
    assert "$ robust201" not in second_run.err
    assert "Again." in (out / "study.md").read_text()


def test_study_writes_page_from_exports(robust201, tmp_path):
    planted_study, exports = plant_mixing(tmp_path)
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(planted_study.model_dump(mode="json")))
    options = ["--out", tmp_path / "out", "--tables-only", exports.readers[0].path]
    result = robust201("study", tmp_path / "study.yaml", *options)
    assert (result.code, result.out.strip()) == (0, str(tmp_path / "out" / "study.md"))
    assert "$ robust201" not in result.err


def test_study_returns_exit_code_of_failed_step(robust201, tmp_path):
    study = write_small_study(tmp_path)
    study.write_text(study.read_text().replace("train.yaml", "other.yaml"))
    result = robust201("study", study, "--out", tmp_path / "out")
    assert result.code == 2
    assert "other.yaml" in result.err.splitlines()[-1]
    assert not (tmp_path / "results").exists()


def test_study_rejects_bad_input_before_first_step(robust201, tmp_path, monkeypatch):
    monkeypatch.delenv("ROBUST201_UNSET", raising=False)
    study, out = write_small_study(tmp_path), tmp_path / "out"
    out.touch()
    result = robust201("study", study, "--out", out)
    assert result.code == 2
    assert "a file with this name exists" in result.err
    assert "$ robust201" not in result.err
    out.unlink()
    study.write_text(study.read_text().replace("train.yaml", "${ROBUST201_UNSET}/train.yaml"))
    assert "export ROBUST201_UNSET=FOLDER" in robust201("study", study, "--out", out).error_line(2)
    study.write_text("[]")
    assert "Reading the study failed" in robust201("study", study, "--out", out).error_line(2)
    assert not out.exists()


def test_study_needs_out_unless_published(robust201, tmp_path):
    for arguments in ([], [tmp_path / "study.yaml"], ["--published", "image-distribution", "--out", tmp_path]):
        result = robust201("study", *arguments)
        assert (result.code, result.out) == (2, "")
        assert "STUDY.yaml with --out FOLDER" in result.err


def write_study_with_code(folder, code, steps):
    """Write a study whose sweep executes a Python file; return the study and the file that executing it creates."""
    folder.mkdir(parents=True, exist_ok=True)
    code.parent.mkdir(parents=True, exist_ok=True)
    marker = code.with_name("executed")
    touch = f"from pathlib import Path\nPath({str(marker)!r}).touch()\n"
    code.write_text(touch + "from torch import nn\ndef build(*arguments): return nn.Flatten()\n")
    study = write_small_study(folder)
    fields = yaml.safe_load(study.read_text()) | {"steps": steps}
    study.write_text(yaml.safe_dump(fields))
    sweep = yaml.safe_load((folder / "sweep.yaml").read_text())
    sweep |= {"space": {"file": str(code)}, "architectures": ["flat"]}
    (folder / "sweep.yaml").write_text(yaml.safe_dump(sweep))
    return study, marker


def test_study_does_not_execute_code_without_consent(robust201, tmp_path):
    code = tmp_path / "code.py"
    study, marker = write_study_with_code(tmp_path, code, [])
    assert str(code) in robust201("study", study, "--out", tmp_path / "out").error_line(2)
    assert not marker.exists()
    assert not (tmp_path / "out").exists()
    result = robust201("study", study, "--out", tmp_path / "out", "--allow-code")
    assert f"$ robust201 run {tmp_path / 'sweep.yaml'} --allow-code" in result.err
    assert f"Will execute {code} (space)." in result.err
    assert marker.exists()


@pytest.mark.parametrize("step", ["robust201 run {train} {flag}", "robust201 run {train} ${{UNSET:-{flag}}}"])
@pytest.mark.parametrize("flag", ["--allow-code={code}", "--allow-code {code}"])
def test_study_steps_cannot_give_consent(robust201, tmp_path, step, flag):
    code = tmp_path / "code.py"
    flag = flag.format(code=code)
    if "UNSET" in step and " " in flag:
        step = step.replace("{flag}", "--allow-code") + f" {code}"
    study, marker = write_study_with_code(tmp_path, code, [step.format(train=tmp_path / "train.yaml", flag=flag)])
    (tmp_path / "SHA256SUMS").touch()
    error_line = robust201("study", study, "--out", tmp_path / "out", "--allow-code").error_line(2)
    assert "--allow-code is not allowed in" in error_line
    assert not marker.exists()
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("last_command", ["run", "robustify"])
def test_study_checks_consent_of_all_steps_before_first_step(robust201, tmp_path, last_command):
    """Python files in a dataset folder are named by the steps and not by the sweep."""
    dataset, first_training = tmp_path / "dataset", tmp_path / "train.yaml"
    code, images = dataset / "code.py", tmp_path / "robust"
    study, marker = write_study_with_code(tmp_path, code, [])
    (dataset / "SHA256SUMS").touch()
    fields = yaml.safe_load(first_training.read_text())
    sweep = yaml.safe_load((tmp_path / "sweep.yaml").read_text())
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump(sweep | {"space": "zoo", "architectures": ["fc7500-w8"]}))
    code_fields = {"space": {"file": str(code)}, "architectures": ["flat"], "store": str(tmp_path / "second")}
    (tmp_path / "second.yaml").write_text(yaml.safe_dump(fields | code_fields))
    step_by_command = {
        "run": f"robust201 run {tmp_path / 'second.yaml'}",
        "robustify": f"robust201 robustify {code}:build --dataset digits --count 20 --out {images}",
    }
    steps = [f"robust201 run {first_training}", step_by_command[last_command]]
    study.write_text(yaml.safe_dump(yaml.safe_load(study.read_text()) | {"steps": steps}))
    result = robust201("study", study, "--out", tmp_path / "out")
    assert result.code == 2
    assert result.err.splitlines()[-1].endswith("--allow-code.")
    assert "$ robust201" not in result.err
    assert not (tmp_path / "store").exists()
    assert not marker.exists()


def test_study_step_with_custom_network_needs_consent(robust201, tmp_path):
    """FILE:FUNCTION in a study comes from the YAML, unlike on the command line, where it comes from the user."""
    code = tmp_path / "dataset" / "code.py"
    step = f"robust201 robustify {code}:build --dataset digits --count 20 --steps 1 --out {tmp_path / 'robust'}"
    study, marker = write_study_with_code(tmp_path / "dataset", code, [step])
    sweep = tmp_path / "dataset/sweep.yaml"
    sweep.write_text(
        yaml.safe_dump(yaml.safe_load(sweep.read_text()) | {"space": "zoo", "architectures": ["fc7500-w8"]})
    )
    (tmp_path / "dataset/SHA256SUMS").touch()
    result = robust201("study", study, "--out", tmp_path / "out")
    assert result.code == 2
    assert result.err.splitlines()[-1].endswith("--allow-code.")
    assert not marker.exists()
    robust201("study", study, "--out", tmp_path / "out", "--allow-code")
    assert marker.exists()
    assert f"Executing {code} " in robust201(*step.split()[1:]).err
