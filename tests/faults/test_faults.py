"""The short form: faults that cost little, once each. The long form is `python -m tests.faults`, or `-m cluster`."""

from pathlib import Path

import pytest

from tests.faults.table import FAULTS, Fault, run_fault, run_undisturbed

SEED = 1


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The export of the same sweep without a fault."""
    return run_undisturbed(tmp_path_factory.mktemp("undisturbed") / "sweep")


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "fault",
    [pytest.param(fault, id=fault.name, marks=[] if fault.is_short else [pytest.mark.cluster]) for fault in FAULTS],
)
def test_a_fault_leaves_every_evaluation_once_and_the_bytes_of_an_undisturbed_run(
    fault: Fault, undisturbed: dict[str, bytes], tmp_path: Path
) -> None:
    outcome = run_fault(fault, tmp_path / "trial", undisturbed, seed=SEED, repeats=1)
    if outcome.skipped:
        pytest.skip(outcome.skipped)
    assert outcome.injected
    assert outcome.problems == (), f"seed {SEED}"
