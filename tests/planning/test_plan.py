"""Plans have ids that depend only on content, bundles that cover all work once, cost estimates, and filters."""

import math
from collections import Counter
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from robust201.core.records import Bundle, Part, Weights
from robust201.planning.bundles import BUNDLES_AHEAD, CPU_SLICE_SAMPLES, MIN_SECONDS, make_bundles
from robust201.planning.config import CPU_GMACS, GPU_GMACS, SweepConfig
from robust201.planning.estimates import estimate
from robust201.planning.identity import describe_difference
from robust201.planning.input_facts import DatasetFacts, InputFacts
from robust201.planning.loading import parse_config
from robust201.planning.plan import Plan, assumed_facts, make_plan
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


def test_fused_engine_is_default() -> None:
    assert BASE_IDS_BY_ENGINE["fused"] == BASE_IDS
    assert not set(BASE_IDS_BY_ENGINE["fused"].values()) & set(BASE_IDS_BY_ENGINE["reference"].values())


def test_unit_ids_are_unique_and_reproducible() -> None:
    assert len(set(BASE_IDS.values())) == len(BASE_IDS) == 3 * len(KEYS)
    assert unit_ids(make_plan(make_config(), make_facts())) == BASE_IDS


def test_describe_lists_protocols_in_order_of_keys() -> None:
    keys = [protocol["key"] for protocol in make_plan(make_config(), make_facts()).describe()["protocols"]]
    assert keys == list(make_config().parameters)


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


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("device", ["auto", "cpu", "cuda"])
@pytest.mark.parametrize("speed", [None, 1.0, 2000.0])
def test_unit_ids_do_not_depend_on_worker_speed(engine: str, device: str, speed: float | None) -> None:
    execution = {"device": device, "threads": 3} | ({} if speed is None else {"gmacs_per_second": speed})
    assert (
        unit_ids(make_plan(make_config(engine=engine, execution=execution), make_facts())) == BASE_IDS_BY_ENGINE[engine]
    )


def test_assumed_speed_is_lower_on_cpus_by_default() -> None:
    def assumed_speeds(**execution: object) -> tuple[float, float | None]:
        summary = estimate(make_plan(make_config(execution=execution), make_facts()))
        return summary["assumed_gmacs_per_second"], summary["assumed_cpu_gmacs_per_second"]

    assert assumed_speeds(device="cpu", threads=4) == (4 * CPU_GMACS, None)
    assert assumed_speeds(device="cuda") == (GPU_GMACS, None)
    assert assumed_speeds(threads=2) == (GPU_GMACS, 2 * CPU_GMACS)
    assert assumed_speeds(device="cpu", gmacs_per_second=7) == assumed_speeds(gmacs_per_second=7) == (7.0, None)


def test_exact_jacobian_costs_one_gradient_per_class() -> None:
    keys = {"clean": {}, "jacobian": {"projections": "exact", "images": None}}
    costs = {}
    for dataset in ("cifar10", "cifar100"):
        plan = make_plan(config := make_config(datasets={dataset: {}}, keys=keys), assumed_facts(config))
        macs = {unit.key: plan.macs(Part(unit, unit.strengths, 0, 100)) for unit in plan.units}
        costs[dataset] = macs["jacobian"] / macs["clean"]
    assert costs == {"cifar10": 3 * 10, "cifar100": 3 * 100}  # a gradient costs as much as three forward passes


def test_estimate_includes_bytes_of_all_measurements() -> None:
    def estimated_bytes(*measurements: str) -> tuple[int, int]:
        summary = estimate(make_plan(make_config(measurements=list(measurements)), make_facts()))
        return summary["estimated_shard_bytes"], summary["estimated_json_bytes"]

    n_rows = 3 * (1 + 2 + 2 + 5 + 5)  # three networks at the strengths of each key
    n_classes, n_images = 10, 100
    # A count takes 1 byte in Parquet and 3 in JSON, and a mean takes 6 and 22.
    row_bytes, cm = 670, n_classes**2
    means = 2 * n_classes**2 + 2
    assert estimated_bytes("accuracy") == estimated_bytes("cm") == (n_rows * (row_bytes + cm), n_rows * 3 * cm)
    assert estimated_bytes("confidence") == (n_rows * (row_bytes + cm + 6 * means), n_rows * (3 * cm + 22 * means))
    assert estimated_bytes("predictions") == (n_rows * (row_bytes + cm + n_images), n_rows * 3 * (cm + n_images))


def whole_parts(plan: Plan) -> list[Part]:
    return [Part(unit, unit.strengths, 0, unit.n_images) for unit in plan.units]


def parts_of(bundles: Iterable[Bundle]) -> list[Part]:
    return [part for bundle in bundles for part in bundle.parts]


@pytest.mark.parametrize("engine", ENGINES)
def test_make_bundles_cuts_gpu_parts_for_cpus(engine: str) -> None:
    """The cut parts cover the same images and strengths, and equal the parts of the same sweep planned for CPUs."""
    minutes = 1e-5
    plan = make_plan(make_config(engine=engine, execution={"part_minutes": minutes}), make_facts())
    parts = parts_of(make_bundles(plan, whole_parts(plan)))
    cut_parts = parts_of(make_bundles(plan, parts, has_gpu=False))
    assert len(cut_parts) > len(parts)
    assert list_evaluated_images(cut_parts) == list_evaluated_images(parts)
    cpu_plan = make_plan(make_config(engine=engine, execution={"part_minutes": minutes, "device": "cpu"}), make_facts())
    assert sorted(map(str, parts_of(make_bundles(cpu_plan, cut_parts)))) == sorted(map(str, cut_parts))
    assert make_bundles(cpu_plan, parts, has_gpu=False) == make_bundles(cpu_plan, parts)


def list_evaluated_images(parts: list[Part]) -> list[tuple[str, float, int]]:
    return sorted((p.unit.id, strength, i) for p in parts for strength in p.strengths for i in range(p.start, p.stop))


def test_fused_engine_parts_are_not_cut_by_strength() -> None:
    plan = make_plan(make_config(), make_facts())
    parts = parts_of(make_bundles(plan, whole_parts(plan), slice_seconds=1e-3))
    assert len(parts) > len(plan.units)
    assert all(part.strengths == part.unit.strengths for part in parts)


def test_reference_engine_parts_are_cut_by_strength_first() -> None:
    config = make_config(engine="reference", execution={"gmacs_per_second": 1})
    (unit,) = (unit for unit in make_plan(config, make_facts()).units if (unit.architecture, unit.key) == (0, "pgd"))
    whole_part = Part(unit, unit.strengths, 0, unit.n_images)
    minutes = 0.9 * make_plan(config, make_facts()).seconds(whole_part) / 60
    execution = {"gmacs_per_second": 1, "part_minutes": minutes}
    parts = parts_of(
        make_bundles(make_plan(make_config(engine="reference", execution=execution), make_facts()), [whole_part])
    )
    assert parts == [Part(unit, (strength,), 0, unit.n_images) for strength in unit.strengths]


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


def test_fused_engine_slices_on_cpu_may_be_smaller_than_batch_size() -> None:
    """Otherwise, an attack on few images of one network could not be divided among workers."""
    fields = {"batch_size": 250, "execution": {"device": "cpu", "part_minutes": 1e-6}}
    slices: dict[str, set[int]] = {}
    for engine in ENGINES:
        plan = make_plan(make_config(engine=engine, **fields), make_facts(n_images=250))
        parts = parts_of(make_bundles(plan, whole_parts(plan)))
        slices[engine] = {part.stop - part.start for part in parts if part.unit.key == "pgd"}
    assert slices["reference"] == {250}
    n_epsilons = 2  # of pgd in KEYS
    assert {n_images * n_epsilons // CPU_SLICE_SAMPLES for n_images in slices["fused"]} == {1}


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


@pytest.mark.parametrize("n_workers", [8, *(pytest.param(count, marks=pytest.mark.slow) for count in (2, 100))])
def test_bundles_do_not_exceed_their_fraction_of_remaining_work(n_workers: int) -> None:
    execution = {"device": "cpu", "gmacs_per_second": 1e-3, "part_minutes": 1e6}
    plan = make_plan(make_config(execution=execution, batch_size=1), make_facts(n_images=1000))
    parts = whole_parts(plan)
    bundle_seconds = [
        sum(map(plan.seconds, bundle.parts))
        for bundle in make_bundles(plan, parts, n_workers=n_workers, slice_seconds=math.inf)
    ]
    max_image_seconds = max(plan.seconds(Part(part.unit, part.strengths, 0, 1)) for part in parts)
    remaining_work = sum(bundle_seconds)
    assert remaining_work == pytest.approx(sum(map(plan.seconds, parts)))
    for seconds in bundle_seconds:
        assert seconds <= max(MIN_SECONDS, max_image_seconds, remaining_work / (BUNDLES_AHEAD * n_workers)) * (1 + 1e-9)
        remaining_work -= seconds
    assert bundle_seconds[0] > 3 * bundle_seconds[-1]
    assert make_bundles(plan, parts) == make_bundles(plan, parts, n_workers=1)


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
