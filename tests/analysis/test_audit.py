"""Audits of a sweep pass if the engines agree, and detect a weak attack; inapplicable options are rejected."""

import json
from pathlib import Path
from typing import Any

import pytest

from robust201.attacks import pgd
from tests.conftest import WriteSweep

FIELDS: dict[str, Any] = {
    "checkpoints": {"path": "bundled:benchmark_data/demo"},
    "architectures": [0, 9, 309],
    "keys": {"clean": {}, "pgd": {"epsilons": ["8/255", "16/255"], "steps": 3, "rel_stepsize": 0.4}, "fog": {}},
    "images": {"count": None},
}
AUDIT_OPTIONS = ("--with-libraries", 1, "--images", 60)


@pytest.fixture
def sweep(write_sweep: WriteSweep) -> Path:
    """Write a sweep with three of the demo's trained networks."""
    return write_sweep(**FIELDS)


def test_audit_of_equal_engines_passes(sweep, robust201, tmp_path):
    result = robust201("verify", sweep, *AUDIT_OPTIONS, "--json")
    assert result.code == 0, result.err
    evaluations = json.loads(result.out)
    assert [(evaluation["key"], evaluation["strength"], evaluation["n_images"]) for evaluation in evaluations] == [
        ("pgd", 8, 60),
        ("pgd", 16, 60),
    ]
    assert len({evaluation["architecture"] for evaluation in evaluations}) == 1
    assert not (tmp_path / "results").exists()
    assert {path.name for path in (tmp_path / "results-audit").iterdir()} == {"reference", "fused"}
    text_result = robust201("verify", sweep, *AUDIT_OPTIONS)
    assert text_result.code == 0
    assert "Compared 2 evaluations: the engines differ in none." in text_result.out
    assert json.loads(robust201("verify", sweep, *AUDIT_OPTIONS, "--json").out) == evaluations


def test_audit_detects_weak_attack(sweep, robust201, monkeypatch):
    """The attack of the fused engine is replaced by one that returns the images unchanged."""
    monkeypatch.setattr(pgd, "attack", lambda _model, samples, _options: samples.clean)
    result = robust201("verify", sweep, *AUDIT_OPTIONS, "--json")
    assert result.code == 3
    evaluation = json.loads(result.out)[1]
    assert evaluation["differs"]
    n_more_correct = evaluation["fused"] - evaluation["reference"]
    assert n_more_correct == evaluation["only_fused"] - evaluation["only_reference"] > 20
    assert evaluation["p_value"] < evaluation["adjusted_p_value"] < 1e-5
    assert "the engines differ in" in robust201("verify", sweep, *AUDIT_OPTIONS).out


@pytest.mark.parametrize(
    ("options", "rejected_option"),
    [
        ((*AUDIT_OPTIONS, "--attack-flags"), "--attack-flags"),
        ((*AUDIT_OPTIONS, "--tolerance", "0.1"), "--tolerance"),
        (("--images", "60"), "--images"),
    ],
)
def test_verify_rejects_options_that_do_not_apply(sweep, robust201, tmp_path, options, rejected_option):
    assert f" failed for {rejected_option}: " in robust201("verify", sweep, *options).error_line(exit_code=2)
    assert {path.name for path in tmp_path.iterdir()} == {sweep.name}
