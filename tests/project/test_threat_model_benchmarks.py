"""What `benchmarks.attack_table` and `benchmarks.threat_model` derive: lengths, tables, what is left to do."""

from pathlib import Path

import pytest
import yaml

from benchmarks import threat_model
from benchmarks.attack_table import ATTACKS, LENGTHS, choose_parameters, fill, table
from benchmarks.threat_model import (
    JOB,
    TRAINING,
    describe_resnet,
    find_resnet,
    matrix_table,
    replace_tables,
    resnet_sweep,
    task_table,
)
from robust201.planning.loading import load_config, load_training
from robust201.tasks import TASKS
from robust201.weights.manifest import CheckpointRecord
from tests.conftest import REPOSITORY


@pytest.mark.parametrize("key", ATTACKS)
def test_lengths_are_cut_to_the_passes_and_no_further_than_they_may_be(key: str) -> None:
    whole, cut = (choose_parameters(key, passes, 10) for passes in (1e9, 30.0))
    assert len(whole.strengths) == 1
    assert TASKS[key].passes(whole, 10) >= TASKS[key].passes(cut, 10)
    for name, least in LENGTHS.items():
        if name in TASKS[key].parameters.model_fields:
            assert getattr(whole, name) == getattr(TASKS[key].parameters(), name)
            assert min(least, getattr(whole, name)) <= getattr(cut, name) <= getattr(whole, name)
    at_least = all(getattr(cut, name, least) <= least for name, least in LENGTHS.items())
    assert TASKS[key].passes(cut, 10) <= 30 or at_least


def test_what_is_kept_is_not_measured_again() -> None:
    kept, seen, n_kept = {"21/pgd": {"old": True}}, [], []

    def run(network: int, key: str) -> dict[str, object]:
        seen.append((network, key))
        return {}

    fill(kept, [(21, "pgd"), (21, "fgsm"), (0, "pgd")], run, lambda: n_kept.append(len(kept)))
    assert seen == [(21, "fgsm"), (0, "pgd")]
    assert n_kept == [2, 3]
    assert kept["21/pgd"] == {"old": True}


def test_ratios_are_of_the_least_times() -> None:
    row = {
        "parameters": {"steps": 4},
        "right": {"library": 5, "fused": 6},
        "only_library": 0,
        "only_fused": 1,
        "p_value": 1.0,
        "differing_bits": 0,
        "seconds": {"library": [9.0, 8.0], "library_channels_last": [6.0, 7.0], "fused": [2.0, 3.0]},
    }
    assert table({"21/pgd": row}).splitlines()[-1] == (
        "| #21 | `pgd` | 4 steps | 5 / 6 | 0 and 1, 1.00 | 0 | 2.00 | 4.00 | 3.00 |"
    )


def test_the_job_runs_every_perturbation(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ROBUST201_DATA", str(tmp_path))
    config = load_config(REPOSITORY / JOB)
    assert {key for key, row in TASKS.items() if row.kind != "measure"} <= set(config.tasks)
    assert config.transfers == {"transfer_21": 21, "transfer_309": 309}
    assert all(len(parameters.strengths) == 1 for parameters in config.parameters.values())
    assert yaml.safe_load((REPOSITORY / JOB).read_text())["name"] == "threat-model"


def test_the_resnet_is_the_one_that_its_job_trains(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ROBUST201_DATA", str(tmp_path))
    training = load_training(REPOSITORY / TRAINING)
    (name,) = training.selected_architectures
    (recipe,) = training.recipes
    record = CheckpointRecord(
        space="zoo",
        index=name,
        dataset="cifar10",
        epochs=2,
        seed=0,
        n_classes=10,
        parameters=1234,
        source="robust201",
        source_sha256="a" * 64,
        file="w.safetensors",
        sha256="b" * 64,
        recipe=recipe,
        test_accuracy=0.6683,
    )
    assert describe_resnet(record) == (
        "The ResNet-18 is `resnet18-w16` (1,234 parameters), trained for 2 epochs with seed 0. It classifies 66.8 % of "
        "the whole test split correctly."
    )
    monkeypatch.chdir(REPOSITORY)
    cells = load_config(JOB)
    sweep = resnet_sweep(cells, record, tmp_path, tmp_path / "out")
    assert sweep.selected_architectures == (name,)
    assert sweep.images == cells.images
    assert {*sweep.parameters} == {*cells.parameters} - {*cells.transfers}


def test_without_the_training_its_command_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fields = yaml.safe_load((REPOSITORY / TRAINING).read_text()) | {"store": str(tmp_path / "store")}
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(fields))
    monkeypatch.setenv("ROBUST201_DATA", str(tmp_path))
    monkeypatch.setattr(threat_model, "TRAINING", tmp_path / "job.yaml")
    with pytest.raises(SystemExit, match=r"expected the last weights of one training, got 0\. Run `robust201 train "):
        find_resnet()


def test_tables_have_a_cell_per_network_and_replace_those_of_a_page() -> None:
    one = {("clean", 0.0): {21: 0.75}, ("transfer_21", 1.0): {21: 0.5}}
    other = {("clean", 0.0): {"resnet18": 0.25}}
    lines = task_table({"#21": (one, 21), "ResNet-18": (other, "resnet18")}, 32).splitlines()
    assert lines[0] == "| task | strength | #21 | ResNet-18 |"
    assert lines[2].startswith("| `clean` | 0 | 0.75 (0.")
    assert lines[3].endswith(" |  |")
    jacobian = {("jacobian squared_norm", 0.0): {21: 65.81}}
    assert task_table({"#21": (jacobian, 21)}, 32).splitlines()[2] == "| `jacobian squared_norm` | 0 | 65.8 |"
    found = {
        ("clean", 0.0): {0: 1.0, 3: 0.5},
        ("transfer_0", 16.0): {0: 0.1, 3: 0.2},
        ("transfer_3", 16.0): {0: 0.3, 3: 0.4},
    }
    assert matrix_table(found, (0, 3)).splitlines()[2:] == [
        "| #0 | 1.00 | **0.10** | 0.30 |",
        "| #3 | 0.50 | 0.20 | **0.40** |",
    ]
    page = "a\n<!-- x: begin -->\nold\n<!-- x: end -->\nb\n"
    once = replace_tables(page, {"x": "new"})
    assert once == "a\n<!-- x: begin -->\n\nnew\n\n<!-- x: end -->\nb\n"
    assert replace_tables(once, {"x": "new"}) == once
    with pytest.raises(ValueError, match="<!-- y: begin -->"):
        replace_tables(page, {"y": "new"})
