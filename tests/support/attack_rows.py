"""Which rows of the table the table-wide tests run.

Both engines are held to the contract (shapes, range, ball, coverage) on every row, and every attack to its library by
the parity tests. All other properties (no trace of batches, order, parts, random state) come from an attack's loop: the
forms below share it with a row that is tested in full, and differ by norm, loss or grid. A new row is tested in full
unless it is added here.
"""

import pytest
from _pytest.mark import ParameterSet

from robust201.tasks import TASKS, Task

FORMS = (
    # Steps and projections of L2 and L1 are tested by aa_apgd-ce_l1, aa_fab_l1, aa_square_l2 and pgd_l2.
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
    # The loop of fmn; their projections have tests of their own.
    "fmn_l2",
    "fmn_l1",
    "fmn_l0",
    # The same function as grid775 and rot30, other defaults.
    "grid135",
    "grid775_10",
    "rot10",
)

MADE_OF_OTHERS = ("aa_standard", "aa_rand")
"""Rows whose attacks are other rows' in a sequence: by default they keep the contract, and the rest is slow."""

IN_TEST_OF_THEIR_OWN = ("bb", "bb_l2", "bb_l1", "bb_l0")
"""Rows that need a library which compiles for a minute: tests/tasks/test_minimum_norm.py."""

ROWS = [row for row in TASKS.values() if row.kind != "measure" and row.key not in IN_TEST_OF_THEIR_OWN]
ATTACKS = [row for row in ROWS if row.kind == "attack"]
ROWS_IN_FULL = [row for row in ROWS if row.key not in FORMS]
ATTACKS_IN_FULL = [row for row in ATTACKS if row.key not in FORMS]


def of_reference(rows: list[Task]) -> list[Task]:
    """The rows that the libraries have."""
    return [row for row in rows if "reference" in row.functions]


def by_default(rows: list[Task]) -> list[ParameterSet]:
    """The rows as cases of a test; those made of other rows are slow."""
    return [pytest.param(row, id=row.key, marks=pytest.mark.slow if row.key in MADE_OF_OTHERS else ()) for row in rows]
