"""Groups of keys in lists of keys, and suggestions for unknown names."""

import json

import pytest

from robust201.api import evaluate
from robust201.tasks import CORRUPTIONS, KEY_GROUPS, PAPER_KEYS, TASKS, expand_keys, suggest_key
from tests.support.tiny_networks import NORMALISATION, TinyNetwork, tiny_images


def test_expand_keys_replaces_groups_in_place():
    assert expand_keys(["pgd", "corruptions", "fog", "pgd"]) == ("pgd", *CORRUPTIONS)
    assert expand_keys(["fog", "corruptions"], {"snow", "fog", "pgd"}) == ("fog", "snow")
    assert expand_keys(["corruptions", "mine"], {"pgd"}) == ("corruptions", "mine")


@pytest.mark.parametrize("task", TASKS.values(), ids=lambda task: task.key)
def test_suggest_key_recognises_figure_labels(task):
    assert suggest_key(task.label, TASKS) == f" Did you mean {task.key!r}?"
    assert suggest_key("Auto-Attack", [*TASKS, *KEY_GROUPS]) == " Did you mean 'autoattack'?"


def test_expand_keys_knows_autoattack_and_paper_keys():
    assert expand_keys(["autoattack", "autoattack_l2", "clean"]) == ("aa_standard", "aa_standard_l2", "clean")
    assert expand_keys(["paper"]) == PAPER_KEYS


def test_plan_keys_option_selects_corruptions_of_sweep(robust201, write_sweep):
    datasets = {"digits": {"corruptions": {"source": "generated"}}}
    sweep = write_sweep(keys={"clean": {}, "fog": {}, "snow": {}}, datasets=datasets)
    units = json.loads(robust201("plan", "--json", sweep, "--keys", "corruptions").out)["units"]
    assert units == json.loads(robust201("plan", "--json", sweep, "--keys", "fog,snow").out)["units"] == 4
    sweep = write_sweep(keys={"clean": {}})
    for group in ("corruptions", "autoattack"):
        assert f"got '{group}'" in robust201("plan", sweep, "--keys", group).error_line(exit_code=2)


def test_evaluate_accepts_parameters_of_group():
    images = tiny_images()
    keys = ["clean", {"corruptions": {"severities": [1]}}, {"fog": {"severities": [2, 3]}}]
    evaluation = evaluate(
        TinyNetwork(seed=5), images.images[:2], images.labels[:2], keys, normalisation=NORMALISATION, progress=False
    )
    assert {*evaluation.table["key"]} == {"clean", *CORRUPTIONS}
    strengths_by_key = evaluation.table.groupby("key")["strength"].apply(list)
    assert strengths_by_key["fog"] == [2, 3]
    assert strengths_by_key["snow"] == [1]
