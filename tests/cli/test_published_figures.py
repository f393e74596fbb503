"""`robust201 doctor --published-figures`, with small random networks in place of the official weights."""

from pathlib import Path

import pytest
import torch

from robust201.api import evaluate, load_model
from robust201.cli import published_figures
from robust201.cli.published_figures import examine_published_figures
from robust201.weights.importing import import_weights
from robust201.weights.store import CheckpointStore
from tests.support.natural_images import image_set
from tests.support.official_archives import random_weights

N_IMAGES = 40

pytestmark = pytest.mark.filterwarnings("ignore:.*not significantly more than by chance")  # random networks


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(published_figures, "load_images", lambda _dataset: image_set(N_IMAGES))
    torch.save(random_weights(0, "cifar10", 777, 200), tmp_path / "000000.pth")
    with CheckpointStore(tmp_path / "store") as checkpoint_store:
        import_weights(tmp_path, checkpoint_store, datasets=["cifar10"])
    return tmp_path / "store"


def measure_accuracies(store: Path) -> dict[str, dict[float, float]]:
    images = image_set(N_IMAGES)
    model = load_model(0, "cifar10", store)
    frame = evaluate(model, images.images, images.labels, ["clean", {"pgd": {"epsilons": ["1/255", "8/255"]}}])
    return {str(key): dict(zip(rows["strength"], rows["accuracy"], strict=True)) for key, rows in frame.groupby("key")}


def test_published_figures_check_fails_only_for_differing_accuracies(store: Path) -> None:
    accuracies = measure_accuracies(store)
    checks = list(examine_published_figures(count=None, store=store, published=accuracies))
    assert [check.what for check in checks] == ["#0 clean", "#0 pgd at 1/255", "#0 pgd at 8/255"]
    assert all(check.ok for check in checks)
    differing_accuracies = {"clean": {0.0: accuracies["clean"][0.0] + 0.011}, "pgd": accuracies["pgd"]}
    clean_check, *other_checks = examine_published_figures(count=None, store=store, published=differing_accuracies)
    assert not clean_check.ok
    assert "difference -0.0110" in clean_check.detail
    assert all(check.ok for check in other_checks)


def test_published_figures_check_allows_sampling_error_of_subset(store: Path) -> None:
    accuracies = measure_accuracies(store)
    nearby_accuracies = {"clean": {0.0: accuracies["clean"][0.0] + 0.05}}
    assert next(examine_published_figures(count=20, store=store, published=nearby_accuracies)).ok
    assert not next(examine_published_figures(count=None, store=store, published=nearby_accuracies)).ok


def test_published_figures_check_suggests_how_to_import_missing_weights(store: Path, tmp_path: Path) -> None:
    (check,) = examine_published_figures(count=20, store=tmp_path / "nothing")
    assert not check.ok
    assert "robust201 import" in check.fix
