"""The study YAMLs that ship with robust201 are valid and consistent."""

import itertools
from pathlib import Path

import pytest
import typer

from robust201.cli.app import app
from robust201.core.errors import ConfigError
from robust201.planning.loading import load_config, load_training
from robust201.studies.config import STUDIES, load_study
from robust201.studies.image_distribution import EPSILONS
from robust201.studies.robust_features import published_numbers
from tests.conftest import REPOSITORY

JOBS = sorted(
    path.stem
    for path in (REPOSITORY / "jobs").glob("*.yaml")
    if path.name.startswith(("image-distribution", "robust-features"))
)


@pytest.fixture(autouse=True)
def _change_to_repository(monkeypatch):
    monkeypatch.chdir(REPOSITORY)
    monkeypatch.setenv("ROBUST201_DATA", "somewhere")


def read_snapshots(study):
    """Return, by (architecture, dataset, recipe, seed), the store and the snapshots in epochs and in steps."""
    snapshots_by_run = {}
    for argv in study.step_arguments():
        if argv[0] == "run":
            config = load_training(Path(argv[1]))
            for training in config.trainings():
                recipe = config.recipes[training.recipe]
                epochs = {recipe.epochs, *(recipe.snapshots.epochs or ())}
                steps = {recipe.iterations, *(recipe.snapshots.iterations or ())}
                snapshots_by_run[training.architecture, training.dataset, training.recipe, training.seed] = (
                    config.store,
                    epochs,
                    steps,
                )
    return snapshots_by_run


def test_each_study_has_a_full_and_a_small_job():
    assert set(JOBS) >= {f"{name}{size}" for name in STUDIES for size in ("", "-small")}


@pytest.mark.parametrize("name", JOBS)
def test_job_steps_are_valid_command_lines(name):
    root = typer.main.get_command(app)
    for argv in load_study(Path("jobs") / f"{name}.yaml").step_arguments():
        root.commands[argv[0]].make_context(argv[0], argv[1:])


@pytest.mark.parametrize("name", JOBS)
def test_job_trains_every_network_that_its_sweeps_evaluate(name):
    study = load_study(Path("jobs") / f"{name}.yaml")
    snapshots_by_run = read_snapshots(study)
    for path in study.sweeps:
        sweep = load_config(path)
        for architecture, dataset in itertools.product(sweep.selected_architectures, sweep.datasets):
            recipes = sweep.weights.recipes or {
                key[2] for key in snapshots_by_run if key[:2] == (architecture, dataset)
            }
            assert recipes
            for recipe, seed in itertools.product(recipes, sweep.weights.seeds or (0,)):
                store, epochs, steps = snapshots_by_run[architecture, dataset, recipe, seed]
                assert store == sweep.weights.path
                assert epochs.issuperset(sweep.weights.epochs or ())
                assert steps.issuperset(sweep.weights.steps or ())


@pytest.mark.parametrize("name", JOBS)
def test_job_trains_every_network_that_its_tables_name(name):
    study = load_study(Path("jobs") / f"{name}.yaml")
    trained_runs = {(architecture, dataset, recipe) for architecture, dataset, recipe, _ in read_snapshots(study)}
    if study.study == "image-distribution":
        named_runs = [
            (network.architecture, group.dataset, recipe)
            for network in study.networks.values()
            for group in study.groups.values()
            for recipe in group.recipes
        ]
    elif study.study == "robust-features-dynamics":
        named_runs = [(study.architecture, study.dataset, recipe) for recipe in study.runs.values()]
    elif study.study == "robust-features-mixing":
        pairs = itertools.product(study.networks.values(), study.alphas.values())
        named_runs = [(architecture, study.dataset, recipe) for architecture, recipe in pairs]
    elif study.study == "dataset":
        named_runs = [(13714, study.dataset, "plain")]
    else:
        named_runs = [
            (architecture, study.dataset, recipe)
            for architectures in study.networks.values()
            for architecture in architectures.values()
            for recipes in study.settings.values()
            for recipe in recipes
        ]
    assert trained_runs.issuperset(named_runs)


def test_full_image_distribution_job_has_the_published_number_of_evaluations():
    study = load_study(Path("jobs/image-distribution.yaml"))
    assert len(read_snapshots(study)) == 360
    sweeps = [load_config(path) for path in study.sweeps]
    weights = [sweep.weights for sweep in sweeps]
    network_counts = [
        len(sweep.selected_architectures) * len(sweep.datasets) * len(sweep_weights.epochs) * len(sweep_weights.seeds)
        for sweep, sweep_weights in zip(sweeps, weights, strict=True)
    ]
    assert sum(network_counts) * len(EPSILONS) == 19_440


def test_full_dynamics_job_has_the_published_snapshots():
    study = load_study(Path("jobs/robust-features-dynamics.yaml"))
    (sweep,) = (load_config(path) for path in study.sweeps)
    assert list(sweep.weights.steps) == published_numbers()["dynamics"]["iterations"]


def test_short_dynamics_job_has_snapshots_at_the_published_fractions_of_training():
    study = load_study(Path("jobs/robust-features-dynamics-cifar10.yaml"))
    (sweep,) = (load_config(path) for path in study.sweeps)
    published = published_numbers()["dynamics"]["iterations"]
    steps = list(sweep.weights.steps)
    assert {*steps} <= {round(iteration * study.iterations_per_printed) for iteration in published}
    assert steps[-1] == round(published[-1] * study.iterations_per_printed)
    assert len(steps) == 8


IMAGE_DISTRIBUTION = """study: image-distribution
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
    ("study_yaml", "message"),
    [
        (f"{DYNAMICS}\niterations_per_printed: .001", "line 9: iterations_per_printed: expected at least 0.0016"),
        (
            f"{IMAGE_DISTRIBUTION}\ngroups:\n  mnst: {{dataset: a, recipes: [a]}}",
            "line 6: groups.mnst: .*Did you mean 'mnist'",
        ),
        (
            f"{IMAGE_DISTRIBUTION}\nmixed_model: sometimes",
            "line 5: mixed_model: expected true or false, got 'sometimes'",
        ),
        ("study: image-distributions", r"one of image-distribution, .*Did you mean 'image-distribution'"),
        ("study: image-distribution\nname: x y\nsweeps: [a]", r"study.yaml, line 2: name: "),
        (f"{MIXING}\nepochs: 3\nepcohs: 3", r"line 9: expected a known field, got 'epcohs'.*'epochs'"),
        (
            "study: image-distribution\nname: x\nsweeps: [a]\nsteps: [rm -r x]",
            "a step must call robust201 with one of the commands fetch",
        ),
        ('study: image-distribution\nname: x\nsweeps: [a]\nsteps: ["robust201 \'a"]', "not a valid command line"),
        ("study: robust-features-mixing\nname: x\nsweeps: [a]", "expected the field 'dataset', got none"),
    ],
)
def test_load_study_rejects_invalid_fields(study_yaml, message, tmp_path):
    study_path = tmp_path / "study.yaml"
    study_path.write_text(study_yaml)
    with pytest.raises(ConfigError, match=message) as error:
        load_study(study_path)
    assert "\n" not in str(error.value)
