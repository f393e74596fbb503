"""Slow steps report their progress and end."""

import re

from robust201.planning.inputs import Inputs
from tests.conftest import MakeSweep


def test_generating_corruptions_reports_progress_and_end(make_sweep: MakeSweep) -> None:
    lines: list[str] = []
    inputs = Inputs(make_sweep(keys={"fog": {}, "brightness": {}}), lines.append)
    inputs.generate_missing_corruptions("digits")
    assert re.fullmatch(r"Generating corrupted images of digits: \d+ of 100 done", lines[0])
    assert lines[-1] == "Generating corrupted images of digits: all 100 done"
    assert sum("all 100" in line for line in lines) == 1
