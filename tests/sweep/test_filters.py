"""Filters select the named units and reject names that are not in the sweep."""

import pytest

from robust201.core.errors import ConfigError
from robust201.sweep.config import SweepConfig
from robust201.sweep.facts import assumed_facts
from robust201.sweep.filters import EVERYTHING, Filters
from robust201.sweep.loading import load_config
from robust201.sweep.plan import choose_slices, make_plan
from tests.conftest import REPOSITORY


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> SweepConfig:
    return load_config(REPOSITORY / "jobs/demo.yaml", results=str(tmp_path_factory.mktemp("filters")))


def test_filters_keep_selected_units(config: SweepConfig) -> None:
    plan = make_plan(config, assumed_facts(config), choose_slices(config))
    assert EVERYTHING.narrow(plan).n_evaluations == plan.n_evaluations
    filters = Filters(architectures=(0, 21, 15_000), keys=("clean", "fgsm"))
    filters.check(config)
    selected_keys = {(network.architecture, key.key) for key in filters.narrow(plan).keys for network in key.networks}
    assert selected_keys == {(index, key) for index in (0, 21) for key in ("clean", "fgsm")}


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
