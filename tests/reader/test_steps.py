"""Per-image steps in exported files, the metrics derived from them, and curves of a few networks."""

from pathlib import Path

import numpy as np
import pytest

from robust201 import RobustnessDataset
from robust201.analysis.dataset_results import read_results
from robust201.core.errors import ResultsError
from robust201.figures.figure_data import step_curves
from robust201.reader.steps import has_steps, iter_steps, read_steps
from robust201.tasks.columns import steps_of
from tests.support.fabricated import N_IMAGES, export, make_plan, make_unit, make_values

ARCHITECTURES = (0, 9, 21)
STRENGTHS = (0.5, 1.0, 8.0)


@pytest.fixture(scope="module", params=["json", "parquet"])
def dataset(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> RobustnessDataset:
    folder: Path = tmp_path_factory.mktemp(request.param)
    plan = make_plan(ARCHITECTURES, measurements=("accuracy", "steps"))
    export(folder, plan, formats=(request.param,))
    return RobustnessDataset(folder)


def make_expected_steps(architecture: int, key: str, strength: float) -> np.ndarray:
    return steps_of(make_values(make_unit(architecture, "cifar10", key, STRENGTHS), strength)["steps"])


def test_read_steps_returns_stored_steps(dataset: RobustnessDataset) -> None:
    architectures_and_strengths = [
        (network_steps.architecture, network_steps.strength)
        for network_steps in iter_steps(dataset.files, "cifar10", "pgd")
    ]
    assert sorted(architectures_and_strengths) == [
        (architecture, strength) for architecture in ARCHITECTURES for strength in STRENGTHS
    ]
    for strength in STRENGTHS:
        for architecture, steps in read_steps(dataset.files, "cifar10", "pgd", strength).items():
            np.testing.assert_array_equal(steps, make_expected_steps(architecture, "pgd", strength))
    assert has_steps(dataset.files, "cifar10", "fgsm")


def test_read_steps_rejects_strength_without_steps(dataset: RobustnessDataset) -> None:
    with pytest.raises(ResultsError, match="there are no steps at strength 4"):
        read_steps(dataset.files, "cifar10", "pgd", 4.0)


def test_step_metrics_use_fooled_images_only(dataset: RobustnessDataset) -> None:
    frame = dataset.metrics(keys=["pgd"]).to_frame()
    for metric, average in (("mean_steps_of_success", np.mean), ("median_steps_of_success", np.median)):
        rows = frame[frame["metric"] == metric]
        assert len(rows) == len(ARCHITECTURES) * len(STRENGTHS)
        for row in rows.itertuples():
            steps = make_expected_steps(row.architecture, "pgd", row.strength)
            steps_of_fooled_images = steps[(steps > 0) & np.isfinite(steps)]
            assert (
                row.value == pytest.approx(average(steps_of_fooled_images))
                if len(steps_of_fooled_images)
                else np.isnan(row.value)
            )


def test_step_curves_start_at_clean_accuracy_and_end_at_last_change(dataset: RobustnessDataset) -> None:
    (results,) = read_results(dataset)
    frame = step_curves(results)
    assert set(frame["key"]) == {"fgsm", "pgd"}
    assert set(frame["strength"]) == {1.0}
    for (network, key), rows in frame.groupby(["network", "key"]):
        steps = make_expected_steps(int(network.removeprefix("#")), key, 1.0)
        assert rows["step"].tolist() == sorted(rows["step"])
        expected = [(steps > step).sum() / N_IMAGES for step in rows["step"]]
        np.testing.assert_allclose(rows["accuracy"], expected)
        assert rows["step"].iloc[0] == 0
        assert rows["accuracy"].iloc[-1] == pytest.approx(np.isinf(steps).mean())
        assert ((rows["low"] <= rows["accuracy"]) & (rows["accuracy"] <= rows["high"])).all()


def test_metrics_list_steps_as_requirement(tmp_path: Path) -> None:
    export(tmp_path, make_plan(ARCHITECTURES, measurements=("accuracy",)))
    requirements = RobustnessDataset(tmp_path).metrics().needs
    assert requirements["mean_steps_of_success, median_steps_of_success"] == "the measurement `steps`"
