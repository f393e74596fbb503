"""The sweep YAML has the paper's defaults, and the sweeps in jobs/ are valid."""

import re
from pathlib import Path

import pytest
import yaml

from robust201.networks.nb201.cell_space import NasBench201
from robust201.run.environment import require_explicit_device
from robust201.sweep.facts import assumed_facts
from robust201.sweep.filters import Filters
from robust201.sweep.loading import is_training_yaml, load_config, load_training, parse_config
from robust201.sweep.plan import choose_slices, make_plan
from robust201.tasks import CORRUPTIONS, PAPER_KEYS
from robust201.weights.importing import import_weights
from robust201.weights.store import CheckpointStore
from tests.conftest import REPOSITORY
from tests.support.runs import read_rows, run_sweep

MINIMAL = {
    "name": "tiny",
    "results": "runs/tiny",
    "checkpoints": {"path": "weights"},
    "datasets": {"digits": {"corruptions": {"source": "generated"}}},
}


def sweep_fields(**changes: object) -> dict[str, object]:
    return MINIMAL | changes


def test_sweep_defaults_match_the_paper():
    config = parse_config(MINIMAL, "test")
    assert tuple(config.parameters) == PAPER_KEYS
    assert len(config.selected_architectures) == 6466
    assert (config.network.channels, config.network.cells) == (16, 5)
    assert config.parameters["aa_square"].queries == 5000
    assert config.parameters["pgd"].steps == 40


@pytest.mark.parametrize(
    "file_name",
    sorted(
        path.name
        for path in (REPOSITORY / "jobs").glob("*.yaml")
        # The excluded files describe clusters or training runs; the paper's sweep has a separate test.
        if not path.name.startswith(("kuberay", "cluster", "paper", "train-"))
    ),
)
def test_shipped_sweep_is_valid(file_name, monkeypatch):
    monkeypatch.setenv("ROBUST201_DATA", "somewhere")
    config = load_config(REPOSITORY / "jobs" / file_name)
    assert make_plan(config, assumed_facts(config), choose_slices(config)).n_evaluations


def test_paper_sweep_has_published_counts(monkeypatch):
    monkeypatch.setenv("ROBUST201_DATA", "somewhere")
    config = load_config(REPOSITORY / "jobs/paper.yaml")
    plan = make_plan(config, assumed_facts(config), choose_slices(config))
    assert (sum(len(key.networks) for key in plan.keys), plan.n_evaluations) == (290_970, 1_610_034)


def test_corruption_group_is_expanded_and_overridden_by_single_key():
    config = parse_config(
        sweep_fields(keys={"corruptions": {"severities": [5, 1]}, "fog": {"severities": [3]}}), "test"
    )
    assert tuple(config.parameters) == CORRUPTIONS
    assert config.parameters["snow"].strengths == (1.0, 5.0)
    assert config.parameters["fog"].strengths == (3.0,)


def test_dataset_without_corruptions_has_no_corruption_keys():
    config = parse_config(sweep_fields(datasets={"digits": {}}), "test")
    assert config.keys_of("digits") == ("clean", "aa_apgd-ce", "aa_square", "fgsm", "pgd")


def test_environment_variables_in_paths_are_substituted(monkeypatch):
    monkeypatch.setenv("SOMEWHERE", "/data")
    config = parse_config(
        sweep_fields(checkpoints={"path": "${SOMEWHERE}/weights"}, results="${NOWHERE:-here}/runs"), "test"
    )
    assert config.checkpoints.path == Path("/data/weights")
    assert config.results == Path("here/runs")


def test_select_resolves_ranges_and_isomorphic_cells():
    assert NasBench201().select(("0-30",)) == (*range(25), 26, 27, 28)
    assert NasBench201().select((1832, "3365", 21)) == (21, 309, 991)
    assert NasBench201().select("0,5-7") == (0, 5, 6, 7)


def test_sweep_survives_yaml_round_trip(tmp_path):
    yaml_path = tmp_path / "sweep.yaml"
    config = parse_config(sweep_fields(architectures=["0-9", 309], images={"count": 20}), "test")
    yaml_path.write_text(yaml.safe_dump(config.model_dump(mode="json")))
    assert load_config(yaml_path) == config


@pytest.mark.shared
@pytest.mark.slow
def test_cifar10_job_gives_plausible_accuracies(shared_data, tmp_path, monkeypatch):
    archive = shared_data / "checkpoints" / "NATS-tss-v1_0-3ffb9-full"
    if not archive.exists():
        pytest.skip(f"{archive} does not exist: set ROBUST201_DATA to a data folder with trained networks")
    with CheckpointStore(tmp_path / "checkpoints") as store:
        import_weights(archive, store, indices=[0, 21])
    monkeypatch.setenv("ROBUST201_DATA", str(shared_data))
    monkeypatch.setenv("ROBUST201_CHECKPOINTS", str(tmp_path / "checkpoints"))
    config = load_config(
        REPOSITORY / "jobs/cifar10-parquet.yaml",
        results=str(tmp_path / "results"),
        images={"count": 40, "seed": 0},
        execution={"executor": "inline"},
    )
    assert run_sweep(config, filters=Filters(keys=("clean", "fgsm", "pixelate"))).is_complete
    clean_accuracies = {
        unit.architecture: float(columns["accuracy"][0]) for unit, columns in read_rows(config.results, ("clean",))
    }
    # On all 10,000 images, the accuracies are 0.6354 and 0.7326. A sample of 40 almost surely differs by less than
    # 0.25.
    assert clean_accuracies[0] == pytest.approx(0.6354, abs=0.25)
    assert clean_accuracies[21] == pytest.approx(0.7326, abs=0.25)


def test_jobs_submitted_in_the_docs_set_their_device(monkeypatch, tmp_path):
    monkeypatch.setenv("ROBUST201_DATA", str(tmp_path))
    pages = "\n".join(path.read_text() for path in sorted((REPOSITORY / "docs").rglob("*.md")))
    jobs = set(re.findall(r"robust201 (?:submit \w+|plan --save) (jobs/\S+\.yaml)", pages))
    assert {"jobs/paper.yaml", "jobs/train-digits.yaml"} <= jobs
    for name in jobs | {
        str(path.relative_to(REPOSITORY)) for path in (REPOSITORY / "jobs").glob("papers/*/full/*.yaml")
    }:
        load = load_training if is_training_yaml(REPOSITORY / name) else load_config
        require_explicit_device(load(REPOSITORY / name).execution)
