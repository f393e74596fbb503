"""A step that takes long tells of its count, and of its end."""

import re

from robust201.planning.inputs import Inputs
from tests.conftest import MakeSweep


def test_making_corrupted_images_tells_how_far_it_is_and_that_it_has_ended(make_sweep: MakeSweep) -> None:
    told: list[str] = []
    inputs = Inputs(make_sweep(keys={"fog": {}, "brightness": {}}), told.append)
    inputs.generate_missing_corruptions("digits")
    assert re.fullmatch(r"Making corrupted images of digits: \d+ of 100 so far", told[0])
    assert told[-1] == "Making corrupted images of digits: all 100 done"
    assert sum("all 100" in line for line in told) == 1
