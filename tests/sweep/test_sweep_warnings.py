"""Omitted evaluations and doubtful values of sweeps give warnings, and epsilons may be fractions of the pixel range."""

import json
import re
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from robust201.sweep.sweep_warnings import find_sweep_warnings
from robust201.tasks import TASKS

WITHOUT_CORRUPTION_SOURCE: dict[str, Any] = {"datasets": {"digits": {}}}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"keys": {"clean": {}, "corruptions": {}}, **WITHOUT_CORRUPTION_SOURCE},
            "not evaluated on digits: 15 corruptions",
        ),
        ({"keys": None, **WITHOUT_CORRUPTION_SOURCE}, "not evaluated on digits: 15 corruptions"),
        (
            {"keys": {"clean": {}, "fog": {}}, "datasets": {"digits": {"corruptions": None}}},
            "not evaluated on digits: fog",
        ),
    ],
    ids=["group", "default keys", "explicit null"],
)
def test_omitted_corruptions_are_reported(robust201, write_sweep, sweep_fields, changes, message):
    sweep = write_sweep(**changes)
    if changes["keys"] is None:
        fields = yaml.safe_load(sweep.read_text())
        del fields["keys"]
        sweep.write_text(yaml.safe_dump(fields))
    result = robust201("plan", "--json", sweep)
    assert result.code == 0
    assert f"warning: {message}" in result.err
    assert any(message in line for line in json.loads(result.out)["warnings"])


@pytest.mark.parametrize(
    ("key", "parameters", "message"),
    [
        ("pgd", {"steps": 10}, "rel_stepsize = 10 × 0.0333 = 0.3333, so the attack does not reach"),
        ("pgd", {"steps": 10, "rel_stepsize": 0.0999}, "rel_stepsize = 10 × 0.0999 = 0.999"),
        ("pgd", {"steps": 5, "rel_stepsize": 0.1, "random_start": False}, "rel_stepsize = 5 × 0.1 = 0.5"),
        ("pgd_linf7", {"rel_stepsize": 0.1}, "rel_stepsize = 7 × 0.1 = 0.7"),
        (
            "pgd_l2",
            {"epsilons": [0.25, 20]},
            "step_size = 100 × 0.1 = 10, so the attack does not reach the edge of a ball of",
        ),
    ],
)
def test_steps_too_short_for_the_ball_give_warning(make_sweep, key, parameters, message):
    config = make_sweep(keys={"clean": {}, key: parameters})
    (warning,) = find_sweep_warnings(config)
    assert warning.startswith(f"keys.{key}.steps: steps × {message}")
    ((field, step_size),) = re.findall(r"such as (\w+): ([\d.]*\d)\.", warning)
    assert find_sweep_warnings(make_sweep(keys={"clean": {}, key: parameters | {field: float(step_size)}})) == []


@pytest.mark.parametrize("key", [key for key, task in TASKS.items() if task.kind == "attack"])
@given(n_steps=st.integers(1, 999))
def test_defaults_and_steps_that_reach_the_edge_give_no_warning(key, n_steps):
    fields = TASKS[key].field_names
    assert TASKS[key].parameters().cautions == ()
    exact_lengths = {"rel_stepsize": 1 / n_steps, "step_size": 0.5 / n_steps}.items()
    parameters = {field_name: length for field_name, length in exact_lengths if field_name in fields}
    if parameters:
        assert TASKS[key].parameters(steps=n_steps, **parameters).cautions == ()


@pytest.mark.parametrize(
    ("epsilons", "expected"),
    [
        (["8/255"], (8.0,)),
        (["1/255", 8 / 255, "0.5/255"], (0.5, 1.0, 8.0)),
        ([" 4 / 255 ", "0.1/255"], (0.1, 4.0)),
        ("8/255", (8.0,)),
        (8 / 255, (8.0,)),
        ([1, "0.5"], (127.5, 255.0)),
    ],
)
def test_epsilons_are_converted_from_fractions_of_the_pixel_range(epsilons, expected):
    assert TASKS["pgd"].parameters(epsilons=epsilons).strengths == expected


def test_fractions_of_255_are_converted_exactly():
    for numerator in range(1, 256):
        for epsilon in (numerator / 255, f"{numerator}/255"):
            assert TASKS["pgd"].parameters(epsilons=[epsilon]).strengths == (float(numerator),)


def test_default_normalisation_of_user_networks_gives_warning(make_sweep, tmp_path):
    (tmp_path / "networks.py").write_text("def build(): ...\n")
    space = {
        "space": {"file": str(tmp_path / "networks.py"), "gmacs": 0.1},
        "architectures": ["a"],
        "keys": {"clean": {}},
        "network": {},
    }

    def find_warnings(**fields: Any) -> list[str]:
        return find_sweep_warnings(make_sweep(**space, datasets={"cifar10": fields}))

    (warning,) = find_warnings()
    assert "get the images of cifar10 normalised with mean [0.4" in warning
    assert "normalisation: {mean: [0, 0, 0], std: [1, 1, 1]}" in warning
    assert find_warnings(normalisation={"mean": [0, 0, 0], "std": [1, 1, 1]}) == []
    del space["space"]["gmacs"]
    (warning,) = find_warnings(normalisation={"mean": [0, 0, 0], "std": [1, 1, 1]})
    assert warning.startswith("space.gmacs: not set")
