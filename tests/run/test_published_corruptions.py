"""Published corrupted images: a run opens only the images that it needs."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from robust201.core.errors import DatasetError, InputError
from robust201.core.records import ImageSet
from robust201.images.corrupted import CorruptedStore
from robust201.run.status import read_status
from robust201.run.sweep import prepare_run
from robust201.sweep import inputs as inputs_module
from robust201.sweep.config import SweepConfig
from robust201.sweep.filters import Filters
from robust201.sweep.shares import Share
from tests.conftest import MakeSweep, read_tree
from tests.support.runs import run_share, run_sweep

Requests = list[tuple[bool, tuple[str, ...]]]


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> Requests:
    """Simulate published corruptions of the digits; return a list of all requests (verification, keys)."""
    requests: Requests = []

    def open_published(
        folder: Path, images: ImageSet, *, n_images: int, verify: bool = False, keys: Sequence[str]
    ) -> CorruptedStore:
        requests.append((verify, tuple(keys)))
        store = CorruptedStore(folder, images, rows=images.indices, n_images=n_images)
        for key in keys:
            store.check(key)
        return store

    monkeypatch.setattr(inputs_module, "open_published", open_published)
    return requests


@pytest.fixture
def config(make_sweep: MakeSweep, tmp_path: Path) -> SweepConfig:
    """Return a sweep with published corruptions, whose folder is empty."""
    config = make_sweep(keys={"clean": {}, "brightness": {"severities": [1]}, "fog": {"severities": [1, 5]}})
    section = config.datasets["digits"]
    assert section.corruptions is not None
    (tmp_path / "published").mkdir()
    corruptions = section.corruptions.model_copy(update={"source": "published", "path": tmp_path / "published"})
    return config.model_copy(update={"datasets": {"digits": section.model_copy(update={"corruptions": corruptions})}})


def write_published_images(config: SweepConfig, folder: Path, key: str) -> None:
    n_rows = 5 * config.dataset_spec("digits").n_test
    pixels = np.random.default_rng(0).integers(256, size=(n_rows, 32, 32, 3), dtype=np.uint8)
    np.save(folder / "published" / f"{key}.npy", pixels)


def count_evaluations(results: Path) -> tuple[int, int]:
    """Return the number of finished evaluations and the number of all evaluations."""
    status = read_status(results)
    return status.n_done, status.n_planned


def test_filtered_run_opens_published_images_of_its_keys_only(config, requests, tmp_path):
    assert run_sweep(config, filters=Filters(keys=("clean",))).is_complete
    assert requests == []
    assert count_evaluations(config.results) == (2, 8)
    write_published_images(config, tmp_path, "fog")
    assert run_sweep(config, filters=Filters(keys=("fog",))).is_complete
    assert {keys for verify, keys in requests if keys} == {("fog",)}
    assert (True, ("fog",)) in requests
    assert count_evaluations(config.results) == (6, 8)


def test_unfiltered_run_requires_all_published_images(config, requests, tmp_path):
    write_published_images(config, tmp_path, "fog")
    with pytest.raises(DatasetError, match=r"brightness\.npy"):
        run_sweep(config)
    assert requests
    assert not config.results.exists()


@pytest.mark.usefixtures("requests")
def test_share_rejects_keys_whose_images_are_not_in_the_saved_plan(config):
    with prepare_run(config, Filters(keys=("clean",)), lambda _line: None):
        pass
    tree_before = read_tree(config.results)
    with pytest.raises(InputError, match="digits brightness"):
        run_share(config, Share(1, 1))
    assert read_tree(config.results) == tree_before
    assert run_share(config, Share(1, 1), Filters(keys=("clean",))).is_complete
