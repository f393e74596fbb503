"""Rows of the task table that the table-wide tests run.

Every row is tested against the contract (shapes, range, ball, coverage) with both engines, and every attack against its
library by the parity tests. All other properties (independence of batches, order, parts and random state) depend on the
attack's loop. The variants below share their loop with a row that is tested fully, and differ from it in norm, loss or
grid. A new row is tested fully unless it is added here.
"""

import pytest
from _pytest.mark import ParameterSet

from robust201.tasks import TASKS, Task

FORMS = (
    # Steps and projections in L2 and L1 are tested with aa_apgd-ce_l1, aa_fab_l1, aa_square_l2 and pgd_l2.
    "aa_apgd-ce_l2",
    "aa_apgd-dlr_l2",
    "aa_apgd-dlr_l1",
    "aa_apgd-t_l2",
    "aa_apgd-t_l1",
    "aa_fab_l2",
    "aa_fab-t_l2",
    "aa_fab-t_l1",
    "aa_square_l1",
    "aa_standard_l2",
    "aa_standard_l1",
    "aa_rand_l2",
    # The loop is that of fmn; the projections have their own tests.
    "fmn_l2",
    "fmn_l1",
    "fmn_l0",
    # The same function as grid775 and rot30 with other defaults.
    "grid135",
    "grid775_10",
    "rot10",
)

ENSEMBLES_OF_ROWS = ("aa_standard", "aa_rand")
"""Rows whose attacks are a sequence of other rows' attacks. Only their contract tests run by default; others are
slow."""

SEPARATELY_TESTED = ("bb", "bb_l2", "bb_l1", "bb_l0")
"""Rows that need a library which compiles for a minute, tested in tests/tasks/test_minimum_norm.py."""

ROWS = [row for row in TASKS.values() if row.kind != "measure" and row.key not in SEPARATELY_TESTED]
ATTACKS = [row for row in ROWS if row.kind == "attack"]
FULLY_TESTED_ROWS = [row for row in ROWS if row.key not in FORMS]
FULLY_TESTED_ATTACKS = [row for row in ATTACKS if row.key not in FORMS]


def with_reference(rows: list[Task]) -> list[Task]:
    """Return the rows that the reference libraries support."""
    return [row for row in rows if "reference" in row.functions]


def by_default(rows: list[Task]) -> list[ParameterSet]:
    """Return rows as test parameters; ensembles of other rows are slow."""
    return [
        pytest.param(row, id=row.key, marks=pytest.mark.slow if row.key in ENSEMBLES_OF_ROWS else ()) for row in rows
    ]
