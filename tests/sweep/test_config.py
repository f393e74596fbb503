"""The sweep YAML has the paper's defaults, and invalid fields give one-line errors."""

from pathlib import Path

import pytest
import yaml

from robust201.networks.nb201.cell_space import NasBench201
from robust201.sweep.facts import assumed_facts
from robust201.sweep.loading import load_config, parse_config
from robust201.sweep.plan import choose_slices, make_plan
from robust201.tasks import CORRUPTIONS, PAPER_KEYS

REPOSITORY = Path(__file__).resolve().parents[2]

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
        # The excluded files describe clusters, training runs or studies; the paper's sweep has a separate test.
        if not path.name.startswith(
            ("kuberay", "cluster", "paper", "train-", "dataset-", "image-distribution", "robust-features")
        )
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
