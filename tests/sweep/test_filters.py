"""Filters reject names that are not in the sweep."""

import pytest

from robust201.core.errors import ConfigError
from robust201.sweep.config import SweepConfig
from robust201.sweep.filters import Filters
from robust201.sweep.loading import load_config
from tests.conftest import REPOSITORY


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> SweepConfig:
    return load_config(REPOSITORY / "jobs/demo.yaml", results=str(tmp_path_factory.mktemp("filters")))


@pytest.mark.parametrize(
    ("filters", "subject"),
    [
        (Filters(datasets=("digit",)), "'digit'"),
        (Filters(keys=("pdg",)), "'pdg'"),
        (Filters(architectures=(5, 6)), "#5, #6"),
    ],
)
def test_filters_reject_names_outside_sweep(config: SweepConfig, filters: Filters, subject: str) -> None:
    with pytest.raises(ConfigError, match=subject):
        filters.check(config)
