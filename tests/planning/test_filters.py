"""What a sweep is narrowed to: what is kept, and names that are not in it."""

import pytest

from robust201.core.errors import ConfigError
from robust201.planning.config import SweepConfig
from robust201.planning.filters import EVERYTHING, Filters
from robust201.planning.loading import load_config
from robust201.planning.plan import assumed_facts, make_plan
from tests.conftest import REPOSITORY


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> SweepConfig:
    return load_config(REPOSITORY / "jobs/demo.yaml", results=str(tmp_path_factory.mktemp("filters")))


def test_units_that_are_asked_for_are_kept(config: SweepConfig) -> None:
    plan = make_plan(config, assumed_facts(config))
    assert EVERYTHING.narrow(plan).n_evaluations == plan.n_evaluations
    narrow = Filters(architectures=(0, 21, 15_000), keys=("clean", "fgsm"))
    narrow.check(config)
    found = {(unit.architecture, unit.key) for unit in narrow.narrow(plan).units}
    assert found == {(index, key) for index in (0, 21) for key in ("clean", "fgsm")}


@pytest.mark.parametrize(
    ("filters", "complaint"),
    [
        (Filters(datasets=("digit",)), "expected one of its datasets, got 'digit'. Did you mean 'digits'?"),
        (Filters(keys=("pdg",)), "expected one of its keys, got 'pdg'. Did you mean 'pgd'?"),
        (Filters(keys=("autoatack",)), "expected one of its keys, got 'autoatack'. Did you mean 'autoattack'?"),
        (Filters(architectures=(5, 6)), "failed for #5, #6: expected some of demo's architectures, got none"),
    ],
)
def test_what_is_not_in_the_sweep_is_refused(config: SweepConfig, filters: Filters, complaint: str) -> None:
    with pytest.raises(ConfigError) as refused:
        filters.check(config)
    assert complaint in str(refused.value)
