"""The generation of corrupted images, a slow step of opening inputs, reports its progress."""

import re

from robust201.planning.inputs import Inputs
from tests.conftest import MakeSweep


def test_generating_corruptions_reports_progress_and_end(make_sweep: MakeSweep) -> None:
    messages: list[str] = []
    inputs = Inputs(make_sweep(keys={"fog": {}, "brightness": {}}), messages.append)
    inputs.generate_missing_corruptions("digits")
    assert re.fullmatch(r"Generating corrupted images of digits: \d+ of 100 done", messages[0])
    assert messages[-1] == "Generating corrupted images of digits: all 100 done"
    assert sum("all 100" in message for message in messages) == 1
