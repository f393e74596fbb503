"""The studies that ship with robust201: their files are valid, and fit each other."""

import itertools
from pathlib import Path

import pytest
import typer

from robust201.cli.app import app
from robust201.core.errors import ConfigError
from robust201.planning.loading import load_config, load_training
from robust201.studies.config import STUDIES, load_study
from robust201.studies.robust_features import printed_numbers
from tests.conftest import REPOSITORY

JOBS = sorted(
    path.stem
    for path in (REPOSITORY / "jobs").glob("*.yaml")
    if path.name.startswith(("dataset", "image-distribution", "robust-features"))
)


@pytest.fixture(autouse=True)
def _at_the_repository(monkeypatch):
    monkeypatch.chdir(REPOSITORY)
    monkeypatch.setenv("ROBUST201_DATA", "somewhere")


def trained(study):
    """Every (architecture, dataset, recipe, seed) that is trained, with its store and snapshots by either axis."""
    made = {}
    for words in study.step_words():
        if words[0] == "train":
            config = load_training(Path(words[1]))
            for one in config.trainings():
                recipe = config.recipes[one.recipe]
                epochs = {recipe.epochs, *(recipe.snapshots.epochs or ())}
                steps = {recipe.iterations, *(recipe.snapshots.iterations or ())}
                made[one.architecture, one.dataset, one.recipe, one.seed] = (config.store, epochs, steps)
    return made


def test_there_is_a_full_and_a_small_job_of_each_study():
    assert set(JOBS) >= {f"{name}{size}" for name in STUDIES if name != "dataset" for size in ("", "-small")}
    assert any(name.startswith("dataset") for name in JOBS)


@pytest.mark.parametrize("name", JOBS)
def test_its_steps_are_command_lines(name):
    root = typer.main.get_command(app)
    for words in load_study(Path("jobs") / f"{name}.yaml").step_words():
        root.commands[words[0]].make_context(words[0], words[1:])


@pytest.mark.parametrize("name", JOBS)
def test_every_network_that_a_sweep_evaluates_is_trained(name):
    study = load_study(Path("jobs") / f"{name}.yaml")
    made = trained(study)
    for path in study.sweeps:
        sweep = load_config(path)
        for architecture, dataset in itertools.product(sweep.selected_architectures, sweep.datasets):
            recipes = sweep.weights.recipes or {key[2] for key in made if key[:2] == (architecture, dataset)}
            assert recipes
            for recipe, seed in itertools.product(recipes, sweep.weights.seeds or (0,)):
                store, epochs, steps = made[architecture, dataset, recipe, seed]
                assert store == sweep.weights.path
                assert epochs.issuperset(sweep.weights.epochs or ())
                assert steps.issuperset(sweep.weights.steps or ())


@pytest.mark.parametrize("name", JOBS)
def test_what_the_tables_name_is_trained(name):
    study = load_study(Path("jobs") / f"{name}.yaml")
    made = {(architecture, dataset, recipe) for architecture, dataset, recipe, _ in trained(study)}
    if study.study == "image-distribution":
        wanted = [
            (network.architecture, group.dataset, recipe)
            for network in study.networks.values()
            for group in study.groups.values()
            for recipe in group.recipes
        ]
    elif study.study == "robust-features-dynamics":
        wanted = [(study.architecture, study.dataset, recipe) for recipe in study.runs.values()]
    elif study.study == "robust-features-mixing":
        pairs = itertools.product(study.networks.values(), study.alphas.values())
        wanted = [(architecture, study.dataset, recipe) for architecture, recipe in pairs]
    elif study.study == "dataset":
        wanted = [(13714, study.dataset, "plain")]
    else:
        wanted = [
            (architecture, study.dataset, recipe)
            for several in study.networks.values()
            for architecture in several.values()
            for recipes in study.settings.values()
            for recipe in recipes
        ]
    assert made.issuperset(wanted)


def test_the_full_study_of_image_distributions_has_the_papers_counts():
    study = load_study(Path("jobs/image-distribution.yaml"))
    assert len(trained(study)) == 360
    sweeps = [load_config(path) for path in study.sweeps]
    weights = [sweep.weights for sweep in sweeps]
    networks = [
        len(sweep.selected_architectures) * len(sweep.datasets) * len(one.epochs) * len(one.seeds)
        for sweep, one in zip(sweeps, weights, strict=True)
    ]
    assert sum(networks) * 9 == 19_440


def test_the_full_dynamics_have_the_printed_snapshots():
    study = load_study(Path("jobs/robust-features-dynamics.yaml"))
    (sweep,) = (load_config(path) for path in study.sweeps)
    assert list(sweep.weights.steps) == printed_numbers()["dynamics"]["iterations"]


def test_the_shorter_dynamics_have_snapshots_at_the_printed_shares_of_the_training():
    study = load_study(Path("jobs/robust-features-dynamics-cifar10.yaml"))
    (sweep,) = (load_config(path) for path in study.sweeps)
    printed = printed_numbers()["dynamics"]["iterations"]
    assert list(sweep.weights.steps) == [round(place * study.iterations_per_printed) for place in printed]


IMAGES = """study: image-distribution
name: x
sweeps: [a]
networks: {LeNet: {architecture: lenet5}}"""

MIXING = """study: robust-features-mixing
name: x
sweeps: [a]
dataset: cifar10
networks: {ResNet-18: resnet18}
alphas: {0: a, 1: b}
panels: {}"""

DYNAMICS = """study: robust-features-dynamics
name: x
sweeps: [a]
dataset: cifar10
architecture: resnet32-narrow
runs: {std: a}
attacks: [rot30]
iterations_per_epoch: 8"""


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (f"{DYNAMICS}\niterations_per_printed: .001", "line 9: iterations_per_printed: expected at least 0.0016"),
        (f"{IMAGES}\ngroups:\n  mnst: {{dataset: a, recipes: [a]}}", "line 6: groups.mnst: .*Did you mean 'mnist'"),
        (f"{IMAGES}\nmixed_model: sometimes", "line 5: mixed_model: expected true or false, got 'sometimes'"),
        ("study: image-distributions", r"one of image-distribution, .*Did you mean 'image-distribution'"),
        ("study: image-distribution\nname: x y\nsweeps: [a]", r"study.yaml, line 2: name: "),
        (f"{MIXING}\nepochs: 3\nepcohs: 3", r"line 9: expected a known field, got 'epcohs'.*'epochs'"),
        ("study: image-distribution\nname: x\nsweeps: [a]\nsteps: [rm -r x]", "expected robust201 with one of fetch"),
        ('study: image-distribution\nname: x\nsweeps: [a]\nsteps: ["robust201 \'a"]', "expected a command line"),
        ("study: robust-features-mixing\nname: x\nsweeps: [a]", "expected the field 'dataset', got none"),
    ],
)
def test_a_wrong_study_is_one_line(fields, message, tmp_path):
    file = tmp_path / "study.yaml"
    file.write_text(fields)
    with pytest.raises(ConfigError, match=message) as caught:
        load_study(file)
    assert "\n" not in str(caught.value)
