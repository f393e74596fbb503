"""Tasks for tests that are parametrised by task.

Every task but measures is tested against the contract (shapes, range, ball, coverage) with each engine that supports
it. The parity tests compare every attack with its library. All other properties (independence of batches, order, parts
and random state) depend on the attack's loop. Each task in `VARIANTS` has the same loop as a fully tested task, and
differs from it only in norm, loss or grid. A new task is tested fully unless it is added to `VARIANTS`.
"""

import pytest
from _pytest.mark import ParameterSet

from robust201.tasks import TASKS, Task

VARIANTS = (
    # aa_apgd-ce_l1, aa_fab-t, aa_square_l2 and pgd_l2, which are fully tested, use the same steps and projections.
    "aa_apgd-ce_l2",
    "aa_apgd-t_l2",
    "aa_apgd-t_l1",
    "aa_fab-t_l2",
    "aa_fab-t_l1",
    "aa_square_l1",
    "aa_standard_l2",
    "aa_standard_l1",
    # These have the loop of fmn; their projections have separate tests.
    "fmn_l2",
    "fmn_l1",
    # These have the functions of grid775 and rot30, with other defaults.
    "grid135",
    "grid775_10",
    "rot10",
)

ENSEMBLES = ("aa_standard",)
"""Keys of tasks that run the attacks of several other tasks. Tests that are parametrised by task are slow for them and
run only on request; tests of the contract always run."""

COVERED_TASKS = [task for task in TASKS.values() if task.kind != "measure" and "reference" in task.engines]
"""All tasks that tests of the reference engine cover: attacks, corruptions and `clean`."""

FULLY_TESTED_TASKS = [task for task in COVERED_TASKS if task.key not in VARIANTS]
FULLY_TESTED_ATTACKS = [task for task in FULLY_TESTED_TASKS if task.kind == "attack"]
FULLY_TESTED_FUSED_ATTACKS = [task for task in TASKS.values() if task.kind == "attack" and task.key not in VARIANTS]


def mark_ensembles_slow(tasks: list[Task]) -> list[ParameterSet]:
    """Return tasks as test parameters, with the ensembles marked as slow."""
    return [pytest.param(task, id=task.key, marks=pytest.mark.slow if task.key in ENSEMBLES else ()) for task in tasks]
