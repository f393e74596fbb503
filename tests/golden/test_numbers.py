"""The numbers of attacks, corruptions, measures, training, exports and analyses have not changed (see `record.py`)."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from tests.golden.numbers import SECTIONS, processor
from tests.golden.record import FOLDER, format_rows

RELATIVE_TOLERANCE = {"measures": 1e-6}
"""Maximum relative difference of floats by section; 1e-9 in others, for the last digits of p-values and means."""


def differs(expected: Any, actual: Any, tolerance: float) -> bool:
    if isinstance(expected, dict) and isinstance(actual, dict):
        return expected.keys() != actual.keys() or any(
            differs(value, actual[name], tolerance) for name, value in expected.items()
        )
    if isinstance(expected, float) and isinstance(actual, float):
        return not math.isclose(expected, actual, rel_tol=tolerance, abs_tol=1e-12)
    return bool(expected != actual)


@pytest.mark.parametrize("section", SECTIONS)
def test_numbers_are_unchanged(section: str, tmp_path: Path) -> None:
    golden = json.loads((FOLDER / f"{section}.json").read_text(encoding="utf-8"))
    expected = {row["name"]: row for row in golden["rows"]}
    actual = {row["name"]: row for row in json.loads(format_rows(SECTIONS[section](tmp_path)))["rows"]}
    assert len(expected) == len(golden["rows"])
    assert actual.keys() == expected.keys()
    tolerance = RELATIVE_TOLERANCE.get(section, 1e-9)
    changed = [name for name in expected if differs(expected[name]["numbers"], actual[name]["numbers"], tolerance)]
    if golden["processor"] == processor():
        changed += [name for name in expected if expected[name]["bits"] != actual[name]["bits"]]
    lines = [f"{name}: expected {expected[name]}, got {actual[name]}" for name in dict.fromkeys(changed)]
    assert not lines, "\n".join([f"{len(lines)} of {len(expected)} rows changed:", *lines[:10]])
