"""Plans have ids that depend only on content, bundles that cover all work once, cost estimates, and filters."""

from collections import Counter
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from robust201.core.input_facts import DatasetFacts, InputFacts
from robust201.core.records import Bundle, Part, Weights
from robust201.planning.bundles import make_bundles
from robust201.planning.identity import describe_difference
from robust201.planning.plan import Plan, assumed_facts, make_plan
from robust201.sweep.config import SweepConfig
from robust201.sweep.loading import parse_config
from robust201.tasks import ENGINES

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


def make_facts(*, pixels: str = "p", checkpoints: dict[int, str] | None = None, n_images: int = 100) -> InputFacts:
    weights = {0: "w0", 9: "w9", 21: "w21"} | (checkpoints or {})
    networks = {index: (Weights(digest),) for index, digest in weights.items()}
    return InputFacts({"digits": DatasetFacts(n_images, pixels, CORRUPTIONS)}, {"digits": networks})


def unit_ids(plan: Plan) -> dict[tuple[int, str], str]:
    return {(unit.architecture, unit.key): unit.id for unit in plan.units}


BASE_IDS_BY_ENGINE = {engine: unit_ids(make_plan(make_config(engine=engine), make_facts())) for engine in ENGINES}
BASE_IDS = unit_ids(make_plan(make_config(), make_facts()))


def test_unit_ids_are_unique_and_reproducible() -> None:
    assert len(set(BASE_IDS.values())) == len(BASE_IDS) == 3 * len(KEYS)
    assert unit_ids(make_plan(make_config(), make_facts())) == BASE_IDS


def test_additional_epsilon_keeps_unit_ids() -> None:
    keys = KEYS | {"pgd": {"epsilons": ["1/255", "4/255", "8/255"], "steps": 5}}
    assert unit_ids(make_plan(make_config(keys=keys), make_facts())) == BASE_IDS


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
    ],
)
@pytest.mark.parametrize("engine", ENGINES)
def test_unit_ids_change_only_with_fields_that_affect_results(
    engine: str,
    config_changes: dict[str, object],
    facts_changes: dict[str, str],
    changed_keys: set[str] | dict[str, set[str]],
) -> None:
    new_ids = unit_ids(make_plan(make_config(engine=engine, **config_changes), make_facts(**facts_changes)))
    expected_keys = changed_keys[engine] if isinstance(changed_keys, dict) else changed_keys
    assert {
        key for (index, key), identifier in new_ids.items() if identifier != BASE_IDS_BY_ENGINE[engine][index, key]
    } == expected_keys


def test_exact_jacobian_costs_one_gradient_per_class() -> None:
    keys = {"clean": {}, "jacobian": {"projections": "exact", "images": None}}
    costs = {}
    for dataset in ("cifar10", "cifar100"):
        plan = make_plan(config := make_config(datasets={dataset: {}}, keys=keys), assumed_facts(config))
        macs = {unit.key: plan.macs(Part(unit, unit.strengths, 0, 100)) for unit in plan.units}
        costs[dataset] = macs["jacobian"] / macs["clean"]
    assert costs == {"cifar10": 3 * 10, "cifar100": 3 * 100}  # a gradient costs as much as three forward passes


def whole_parts(plan: Plan) -> list[Part]:
    return [Part(unit, unit.strengths, 0, unit.n_images) for unit in plan.units]


def parts_of(bundles: Iterable[Bundle]) -> list[Part]:
    return [part for bundle in bundles for part in bundle.parts]


def list_evaluated_images(parts: list[Part]) -> list[tuple[str, float, int]]:
    return sorted((p.unit.id, strength, i) for p in parts for strength in p.strengths for i in range(p.start, p.stop))


MACHINES: list[dict[str, object]] = [
    {},
    {"threads": 16},
    {"device": "cpu"},
    {"device": "cuda"},
    {"gmacs_per_second": 1e-3, "part_minutes": 1e-3},
    {"gmacs_per_second": 1e6, "part_minutes": 1e3},
]


@pytest.mark.parametrize(
    ("changes", "gpu_states"),
    [
        ({"space": "zoo", "architectures": ["resnet18"]}, [None, False, True]),
        ({"precision": "bf16"}, [None, False, True]),
        ({}, [None, True]),  # in float32 on a CPU, parts of these networks may be split at any image
    ],
)
def test_cuts_do_not_depend_on_workers_if_rounding_depends_on_batch(
    changes: dict[str, object], gpu_states: list[bool | None]
) -> None:
    def describe_parts(
        execution: dict[str, object], has_gpu: bool | None, n_workers: int, *, is_resumed: bool = False
    ) -> str:
        config = make_config(execution=execution, **changes)
        plan = make_plan(config, assumed_facts(config))

        def cut_parts(parts: list[Part]) -> list[Part]:
            return parts_of(make_bundles(plan, parts, n_workers=n_workers, has_gpu=has_gpu, slice_seconds=1e-2))

        parts = cut_parts(whole_parts(plan))
        assert len(parts) > 2 * len(plan.units)
        if is_resumed:
            completed_parts = parts[::3]
            parts = [*completed_parts, *cut_parts(join_adjacent(part for part in parts if part not in completed_parts))]
        return str(sorted(map(str, parts)))

    machines = [execution for execution in MACHINES if changes or execution.get("device") != "cpu"]
    expected = describe_parts({}, None, 1)
    for execution in machines:
        for has_gpu in gpu_states:
            assert describe_parts(execution, has_gpu, 1) == describe_parts(execution, has_gpu, 200) == expected
    assert describe_parts({}, True, 3, is_resumed=True) == expected


def join_adjacent(parts: Iterable[Part]) -> list[Part]:
    """Join adjacent slices, like a scan for missing results."""
    joined_parts: list[Part] = []
    for part in sorted(parts, key=lambda part: (part.unit.id, part.start)):
        if joined_parts and (joined_parts[-1].unit, joined_parts[-1].stop) == (part.unit, part.start):
            joined_parts[-1] = Part(part.unit, part.strengths, joined_parts[-1].start, part.stop)
        else:
            joined_parts.append(part)
    return joined_parts


def test_new_checkpoint_changes_ids_of_its_architecture_only() -> None:
    new_ids = unit_ids(make_plan(make_config(), make_facts(checkpoints={9: "retrained"})))
    assert {index for (index, key), identifier in new_ids.items() if identifier != BASE_IDS[index, key]} == {9}


@settings(max_examples=20)
@given(
    part_minutes=st.floats(1e-4, 10),
    batch_size=st.integers(1, 40),
    n_images=st.integers(1, 150),
    engine=st.sampled_from(ENGINES),
    n_workers=st.integers(1, 50),
    has_gpu=st.sampled_from([None, True, False]),
    speed=st.sampled_from([1e-4, 1.0]),
    data=st.data(),
)
def test_make_bundles_covers_each_missing_evaluation_once(
    part_minutes: float,
    batch_size: int,
    n_images: int,
    engine: str,
    n_workers: int,
    has_gpu: bool | None,
    speed: float,
    data: st.DataObject,
) -> None:
    config = make_config(
        engine=engine, batch_size=batch_size, execution={"part_minutes": part_minutes, "gmacs_per_second": speed}
    )
    plan = make_plan(config, make_facts(n_images=n_images))
    selected_units = data.draw(st.lists(st.sampled_from(plan.units), unique_by=lambda unit: unit.id, min_size=1))
    parts = [Part(unit, unit.strengths, 0, unit.n_images) for unit in selected_units]
    bundles = make_bundles(plan, parts, n_workers=n_workers, has_gpu=has_gpu)
    for bundle in bundles:
        for part in bundle.parts:
            assert (part.unit.architecture, part.unit.dataset) == (bundle.architecture, bundle.dataset)
            assert part.start % batch_size == 0 or (engine == "fused" and has_gpu is False)
    bundled_work = Counter(list_evaluated_images(parts_of(bundles)))
    assert bundled_work == Counter(list_evaluated_images(parts))
    assert bundles == make_bundles(plan, parts, n_workers=n_workers, has_gpu=has_gpu)


def test_narrow_keeps_matching_units() -> None:
    plan = make_plan(make_config(), make_facts())
    narrowed_plan = plan.narrow(architectures={9}, keys={"pgd", "fog"})
    assert [(unit.architecture, unit.key) for unit in narrowed_plan.units] == [(9, "pgd"), (9, "fog")]


def test_input_facts_survive_json_round_trip() -> None:
    facts = make_facts()
    assert InputFacts.from_payload(facts.to_payload()) == facts


def test_describe_difference_names_fields() -> None:
    old_payload, new_payload = ({"key": "pgd", "parameters": {"steps": steps}, "seed": 0} for steps in (40, 20))
    assert describe_difference(old_payload, new_payload) == ["parameters.steps: 40 → 20"]
