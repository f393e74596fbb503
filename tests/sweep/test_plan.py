"""Plans: slices, costs, and unit ids, which depend only on content."""

from dataclasses import asdict
from typing import Any

import pytest

from robust201.core.records import ArchitectureId, Weights
from robust201.images import DATASETS
from robust201.store.folder import SliceFormat
from robust201.sweep.config import SweepConfig
from robust201.sweep.facts import DatasetFacts, Facts, ImageFacts, Network, assumed_facts
from robust201.sweep.loading import parse_config
from robust201.sweep.plan import Plan, choose_slices, make_plan
from robust201.sweep.protocol import list_differences
from robust201.tasks import ENGINES, TASKS

CORRUPTIONS = {"brightness": {"source": "generated", "sha256": "b"}, "fog": {"source": "generated", "sha256": "f"}}
KEYS = {
    "clean": {},
    "pgd": {"epsilons": ["1/255", "8/255"], "steps": 5},
    "aa_square": {"epsilons": ["1/255", "8/255"], "queries": 50},
    "brightness": {},
    "fog": {},
}


def make_config(**changes: object) -> SweepConfig:
    payload = {
        "name": "tiny",
        "results": "runs/tiny",
        "architectures": [0, 9, 21],
        "checkpoints": {"path": "weights"},
        "datasets": {"digits": {"corruptions": {"source": "generated"}}},
        "keys": KEYS,
        "batch_size": 8,
    }
    return parse_config(payload | changes, "test")


def make_facts(*, pixels: str = "p", checkpoints: dict[int, str] | None = None, n_images: int = 100) -> Facts:
    weights = {0: "w0", 9: "w9", 21: "w21"} | (checkpoints or {})
    networks = tuple(Network(index, Weights(digest)) for index, digest in weights.items())
    return Facts({"digits": DatasetFacts({"": ImageFacts(n_images, pixels)}, networks, CORRUPTIONS)})


def plan_of(facts: Facts | None = None, **changes: object) -> Plan:
    config = make_config(**changes)
    return make_plan(config, facts or make_facts(), choose_slices(config))


def _normalised(fields: dict[str, Any]) -> dict[str, Any]:
    return {"digits": {"corruptions": {"source": "generated"}, "normalisation": fields}}


def unit_ids(plan: Plan) -> dict[tuple[ArchitectureId, str], str]:
    return {
        (network.architecture, key.key): unit.decode()
        for key in plan.keys
        for network, unit in zip(key.networks, key.units, strict=True)
    }


BASE_IDS_BY_ENGINE = {engine: unit_ids(plan_of(engine=engine)) for engine in ENGINES}
BASE_IDS = unit_ids(plan_of())


def test_unit_ids_are_unique_and_reproducible():
    assert len(set(BASE_IDS.values())) == len(BASE_IDS) == 3 * len(KEYS)
    assert unit_ids(plan_of()) == BASE_IDS


def test_additional_epsilon_keeps_unit_ids():
    keys = KEYS | {"pgd": {"epsilons": ["1/255", "4/255", "8/255"], "steps": 5}}
    assert unit_ids(plan_of(keys=keys)) == BASE_IDS


@pytest.mark.parametrize(
    ("config_changes", "facts_changes", "changed_keys"),
    [
        ({"keys": KEYS | {"pgd": {"epsilons": ["1/255", "8/255"], "steps": 6}}}, {}, {"pgd"}),
        ({"keys": KEYS | {"aa_square": {"epsilons": ["1/255", "8/255"], "queries": 51}}}, {}, {"aa_square"}),
        ({"seed": 1}, {}, {"pgd", "aa_square"}),
        # The reference libraries draw random numbers once per batch.
        ({"batch_size": 9}, {}, {"reference": set(KEYS), "fused": set()}),
        ({"images": {"seed": 5}}, {}, set()),
        ({}, {"pixels": "q"}, set(KEYS)),
        ({"images": {"count": 50}}, {}, set(KEYS)),
        ({"network": {"channels": 8, "cells": 5}}, {}, set(KEYS)),
        ({"execution": {"workers": 7, "micro_batch": 3, "threads": 2}}, {}, set()),
        ({"results": "elsewhere", "name": "other"}, {}, set()),
        ({"execution": {"device": "cuda", "gmacs_per_second": 1.0}}, {}, set()),
        ({"precision": "bf16"}, {}, set(KEYS)),
        ({"datasets": _normalised({"mean": [0.5] * 3, "std": [0.25] * 3})}, {}, set(KEYS)),
        ({"datasets": _normalised(asdict(DATASETS["digits"].normalisation))}, {}, set()),
    ],
)
@pytest.mark.parametrize("engine", ENGINES)
def test_unit_ids_change_only_with_fields_that_affect_results(engine, config_changes, facts_changes, changed_keys):
    new_ids = unit_ids(plan_of(make_facts(**facts_changes), engine=engine, **config_changes))
    expected_keys = changed_keys[engine] if isinstance(changed_keys, dict) else changed_keys
    assert {
        key for (index, key), identifier in new_ids.items() if identifier != BASE_IDS_BY_ENGINE[engine][index, key]
    } == expected_keys


def test_exact_jacobian_costs_one_gradient_per_class():
    keys = {"clean": {}, "jacobian": {"projections": "exact", "images": None}}
    costs = {}
    for dataset in ("cifar10", "cifar100"):
        config = make_config(datasets={dataset: {}}, keys=keys)
        clean, jacobian = make_plan(config, assumed_facts(config), choose_slices(config)).keys
        costs[dataset] = jacobian.macs[0] / clean.macs[0]
    assert costs == {"cifar10": 3 * 10, "cifar100": 3 * 100}  # a gradient costs as much as three forward passes


def test_new_checkpoint_changes_ids_of_its_architecture_only():
    new_ids = unit_ids(plan_of(make_facts(checkpoints={9: "retrained"})))
    assert {index for (index, key), identifier in new_ids.items() if identifier != BASE_IDS[index, key]} == {9}


def test_narrow_keeps_matching_units():
    plan = plan_of()
    narrowed_plan = plan.narrow(architectures={9}, keys={"pgd", "fog"})
    assert unit_ids(narrowed_plan) == {name: BASE_IDS[name] for name in ((9, "pgd"), (9, "fog"))}
    assert plan.narrow(datasets=["mnist"]).n_evaluations == 0


ATTACKS = [key for key, task in TASKS.items() if task.kind == "attack"]
EXECUTION = {"workers": 7, "micro_batch": 3, "threads": 2, "device": "cpu", "gmacs_per_second": 1.0}


@pytest.mark.parametrize("change", [{"measurements": ["accuracy"]}, {"name": "other"}, {"execution": EXECUTION}, {}])
def test_fields_outside_the_protocol_do_not_change_units_and_slices(change, tmp_path):
    """An attack's number of strengths and a user's cost estimates do not change units and slices either."""
    (tmp_path / "mine.py").write_text("")
    mine = {"file": str(tmp_path / "mine.py")}
    network = {"architectures": ["narrow"], "space": mine | {"gmacs": 0.2}}
    slices = SliceFormat(5e3, 8, is_cpu=True)
    images, weights = {"": ImageFacts(10_000, "p")}, (Network("narrow", Weights("w")),)
    facts = Facts({"digits": DatasetFacts(images, weights)}, {"space": "s", "keys.mine": "m"})
    keys = {key: {} for key in ATTACKS} | {"mine": mine | {"strengths": [1.0]}}
    changed = {key: _single_epsilon(key) for key in ATTACKS} | {"mine": mine | {"strengths": [1, 2], "passes": 9}}
    plans = [
        make_plan(make_config(**network, keys=keys), facts, slices),
        make_plan(make_config(**network | {"space": mine | {"gmacs": 0.7}} | change, keys=changed), facts, slices),
    ]
    for first, second in zip(*(plan.keys for plan in plans), strict=True):
        assert (first.units.tolist(), first.n_slices.tolist()) == (second.units.tolist(), second.n_slices.tolist())
        assert first.n_slices[0] < 1250, first.key
        assert first.macs.tolist() != second.macs.tolist()
    assert sum(key.n_slices[0] > 1 for key in plans[0].keys) > len(ATTACKS) / 2


def _single_epsilon(key: str) -> dict[str, Any]:
    parameters = TASKS[key].parameters()
    return {"epsilons": parameters.epsilons[:1]} if "epsilons" in type(parameters).model_fields else {}


def test_differences_of_protocols_name_fields():
    old_payload, new_payload = ({"key": "pgd", "parameters": {"steps": steps}, "seed": 0} for steps in (40, 20))
    assert list_differences(old_payload, new_payload) == ["parameters.steps: 40 → 20"]
