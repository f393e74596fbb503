"""The sweeps in jobs/ have the expected keys, networks and parameters, and one of them runs with fewer images."""

import re
from pathlib import Path

import pytest

from robust201.run.environment import require_explicit_device
from robust201.sweep.filters import Filters
from robust201.sweep.loading import is_training_yaml, load_config, load_training
from robust201.weights.importing import import_weights
from robust201.weights.store import CheckpointStore
from tests.support.runs import read_rows, run_sweep

REPOSITORY = Path(__file__).resolve().parents[2]


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
        unit.architecture: float(rows[0.0]["accuracy"]) for unit, rows in read_rows(config.results, ("clean",))
    }
    # On all 10,000 images, the accuracies are 0.6354 and 0.7326. A sample of 40 almost surely differs by less than
    # 0.25.
    assert clean_accuracies[0] == pytest.approx(0.6354, abs=0.25)
    assert clean_accuracies[21] == pytest.approx(0.7326, abs=0.25)


def test_jobs_that_the_docs_submit_name_their_device(monkeypatch, tmp_path):
    monkeypatch.setenv("ROBUST201_DATA", str(tmp_path))
    pages = "\n".join(path.read_text() for path in sorted((REPOSITORY / "docs").rglob("*.md")))
    jobs = set(re.findall(r"robust201 (?:submit \w+|plan --save) (jobs/\S+\.yaml)", pages))
    assert {"jobs/paper.yaml", "jobs/train-digits.yaml"} <= jobs
    for name in jobs | {
        str(path.relative_to(REPOSITORY)) for path in (REPOSITORY / "jobs").glob("papers/*/full/*.yaml")
    }:
        load = load_training if is_training_yaml(REPOSITORY / name) else load_config
        require_explicit_device(load(REPOSITORY / name).execution)
