"""The YAML files of the papers are valid, run.sh names only existing files, and pages follow from committed numbers."""

import re
import shutil
import subprocess
from importlib import import_module

import pytest

from robust201.sweep.loading import load_config, load_training
from tests.conftest import REPOSITORY

PAPERS = REPOSITORY / "jobs/papers"
YAMLS = sorted(path.relative_to(REPOSITORY) for path in PAPERS.rglob("*.yaml"))
SCRIPTS = sorted(PAPERS.rglob("run.sh"))


@pytest.fixture(autouse=True)
def _change_to_repository(monkeypatch):
    monkeypatch.chdir(REPOSITORY)
    monkeypatch.setenv("ROBUST201_DATA", "somewhere")


@pytest.mark.parametrize("path", YAMLS, ids=str)
def test_yaml_is_valid(path):
    load = load_training if path.name.startswith("train") else load_config
    load(path)


def test_sweeps_evaluate_snapshots_that_are_trained():
    """Sweeps of snapshots use only recipes, epochs and seeds that a training YAML in the same folder trains."""
    for path in YAMLS:
        if path.name.startswith("train") or path.parent.name not in {"full", "lenet", "mnist28", "cifar10"}:
            continue
        weights = load_config(path).weights
        training_configs = [
            load_training(other) for other in YAMLS if other.parent == path.parent and other.name.startswith("train")
        ]
        training_configs = [training for training in training_configs if training.store == weights.path]
        recipes = [item for training in training_configs for item in training.recipes.items()]
        assert training_configs, path
        names = [weights.recipe] if isinstance(weights.recipe, str) else weights.recipe or ()
        assert {*names} <= {name for name, _ in recipes}, path
        assert {*weights.seeds} <= {seed for training in training_configs for seed in training.seeds}, path
        for epochs in weights.epochs or ():
            assert any(epochs in {recipe.epochs, *(recipe.snapshots.epochs or ())} for _, recipe in recipes), path


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.parent.name)
def test_script_is_valid_and_names_existing_modules(script):
    subprocess.run(["sh", "-n", script], check=True)
    text = script.read_text()
    modules = re.findall(r"python -m (jobs[\w.]+)", text)
    assert modules
    for module in modules:
        assert (REPOSITORY / f"{module.replace('.', '/')}.py").is_file(), module
    paths = [path.replace("$jobs", str(script.parent)) for path in re.findall(r"\$jobs/[\w./-]+(?:yaml|py)", text)]
    assert [path for path in paths if not (REPOSITORY / path).is_file()] == []


@pytest.mark.parametrize("paper", ["image_distribution", "robust_features"])
def test_page_and_tables_follow_from_committed_numbers(tmp_path, monkeypatch, paper):
    folder = PAPERS / paper
    shutil.copytree(folder / "tables", tmp_path / "tables")
    shutil.copy(folder / "README.md", tmp_path)
    (tmp_path / "figures").mkdir()
    monkeypatch.setattr("sys.argv", ["analyse", "--folder", str(tmp_path)])
    import_module(f"jobs.papers.{paper}.analyse").main()
    for path in (folder / "README.md", *(folder / "tables").glob("*.csv")):
        assert (tmp_path / path.relative_to(folder)).read_text() == path.read_text()
    assert {path.name for path in (folder / "figures").iterdir()} == {
        path.name for path in (tmp_path / "figures").iterdir()
    }
