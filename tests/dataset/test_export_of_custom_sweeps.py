"""Exports with measures, several sets of weights, other search spaces and custom tasks."""

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from robust201.core.errors import ConfigError
from robust201.core.records import CLEAN_STRENGTH, Weights
from robust201.dataset.diff import compare_results
from robust201.tasks import TASKS, Task
from robust201.tasks.constraints import L2
from robust201.tasks.parameters import Parameters
from tests.support.fabricated import FabricatedPlan, FabricatedStore, export, make_unit, make_values

RANDOM_WEIGHTS = {f"random-s{seed}": Weights("c" * 64, seed=seed, is_random=True) for seed in (0, 1)}


def load_json(folder: Path, name: str) -> Any:
    return json.loads((folder / name).read_text())


def make_task(key: str, kind: Any, **changes: Any) -> Task:
    return Task(key, kind, Parameters, 1, {}, lambda _: 1.0, **changes)


def make_plan_with_weights(names: Any = tuple(RANDOM_WEIGHTS)) -> FabricatedPlan:
    units = [
        make_unit(network, "cifar10", key, (CLEAN_STRENGTH,) if key == "clean" else (1.0, 8.0), weights=name)
        for key in ("clean", "pgd")
        for network in ("narrow", "wide")
        for name in names
    ]
    return FabricatedPlan(tuple(units), weights=RANDOM_WEIGHTS, space_name="file")


@pytest.mark.parametrize("space", ["nasbench201", "file"])
def test_export_writes_one_file_per_measure_column(tmp_path, space):
    networks: Any = (0, 2) if space == "nasbench201" else ("narrow", "wide")
    columns = ("squared_norm", "list_of_norms")
    spectrum = make_task("spectrum", "measure", columns=columns)
    protocol = {"key": "spectrum", "parameters": {"kind": "measure", "columns": columns}}
    units = [make_unit(network, "cifar10", "clean", (CLEAN_STRENGTH,)) for network in networks]
    units += [make_unit(network, "cifar10", "spectrum", (CLEAN_STRENGTH,), columns=columns) for network in networks]
    plan = FabricatedPlan(tuple(units), tasks=TASKS | {"spectrum": spectrum}, space_name=space, protocols=(protocol,))
    out = tmp_path / "out"
    report = export(out, plan, formats=("json", "parquet"), key_style="published")
    assert report.n_evaluations == 4
    assert not (out / "cifar10/spectrum_accuracy.json").exists()
    for unit in units[2:]:
        values = make_values(unit, CLEAN_STRENGTH)
        for name in columns:
            exported_value = load_json(out, f"cifar10/spectrum_{name}.json")["cifar10"]["spectrum"][name][
                str(unit.architecture)
            ]
            assert exported_value == values[name].tolist()
    table = pq.read_table(out / "parquet/dataset=cifar10/key=spectrum/part-0.parquet")
    assert table.schema.field("squared_norm").type == pa.float64()
    assert pa.types.is_list(table.schema.field("list_of_norms").type)
    assert not {"accuracy", "cm", "confidence_label"} & {*table.schema.names}
    assert table["list_of_norms"].to_pylist() == [
        make_values(unit, CLEAN_STRENGTH)["list_of_norms"].tolist() for unit in units[2:]
    ]
    assert table["n_classes"].to_pylist() == [10, 10]
    changed_export = shutil.copytree(out, tmp_path / "other", ignore=shutil.ignore_patterns("parquet"))
    changed_path = changed_export / "cifar10/spectrum_list_of_norms.json"
    # Add a fifth element to every list, and change the second element of the first list.
    changed_path.write_text(changed_path.read_text().replace("]", ", 1.0]").replace(", ", ", 1", 1))
    comparison = compare_results(out, changed_export)
    keys = ["squared_norm", *(f"list_of_norms[{index}]" for index in range(4))]
    assert comparison.comparisons["key"].tolist() == ["clean", *sorted(f"spectrum {key}" for key in keys)]
    assert comparison.differing_comparisons["key"].tolist() == ["spectrum list_of_norms[1]"]
    assert comparison.only_second == ("cifar10 spectrum list_of_norms[4]",)
    assert load_json(out, "sweep.json")["strengths"]["cifar10"] == {"clean": [0.0], "spectrum": [0.0]}
    assert load_json(out, "meta.json")["epsilons"] == {}
    configurations = yaml.safe_load((out / "README.md").read_text().split("---\n")[1])["configs"]
    assert [configuration["config_name"] for configuration in configurations] == ["cifar10", "cifar10-spectrum"]


def test_json_export_requires_choice_of_weights(tmp_path):
    plan = make_plan_with_weights()
    with pytest.raises(ConfigError, match=r"random-s0, random-s1\. Choose .*--parquet") as error_info:
        export(tmp_path / "out", plan)
    assert "\n" not in str(error_info.value)
    assert not (tmp_path / "out").exists()
    report = export(tmp_path / "out", plan, weights="random-s1", formats=("json", "parquet"))
    assert report.n_units == 4
    unit = next(unit for unit in plan.units if (unit.key, unit.weights) == ("pgd", "random-s1"))
    content = load_json(tmp_path / "out", "cifar10/pgd_accuracy.json")["cifar10"]["pgd"]["accuracy"]["narrow"]
    assert content == [float(make_values(unit, strength)["accuracy"]) for strength in unit.strengths]
    assert [*load_json(tmp_path / "out", "sweep.json")["weights"]] == ["random-s1"]
    assert load_json(tmp_path / "out", "weights.json")["cifar10"]["wide"] == {"random-s1": "c" * 64}


def test_parquet_export_contains_all_weights(tmp_path):
    plan = make_plan_with_weights()
    incomplete_store = FabricatedStore(missing={("wide", "pgd", 8.0)})
    report = export(tmp_path, plan, incomplete_store, formats=("parquet",), partial=True)
    # `wide` lacks a strength with both weights, so two units are left out (2 x 2 evaluations).
    assert report.missing == {("cifar10", "pgd"): 4}
    table = pq.read_table(tmp_path / "parquet/dataset=cifar10/key=pgd/part-0.parquet").select(
        ["architecture", "weights", "weights_recipe", "weights_epochs", "weights_seed", "strength"]
    )
    assert [(*row.values(),) for row in table.to_pylist()] == [
        ("narrow", name, None, None, weights.seed, strength)
        for name, weights in RANDOM_WEIGHTS.items()
        for strength in (1.0, 8.0)
    ]
    assert load_json(tmp_path, "missing.json") == {"cifar10": {"pgd": {"wide": [8.0]}}}
    assert load_json(tmp_path, "weights.json")["cifar10"]["wide"] == dict.fromkeys(RANDOM_WEIGHTS, "c" * 64)
    content = load_json(tmp_path, "sweep.json")["weights"]["random-s1"]
    assert content == {"recipe": "", "epochs": None, "seed": 1, "is_random": True}


def test_published_keys_contain_norm_of_attack(tmp_path):
    units = [make_unit(0, "cifar10", key, (0.25, 0.5)) for key in ("pgd", "pgd_l2")]
    units.append(make_unit(0, "cifar10", "mine", (1.0,), columns=()))
    plan = FabricatedPlan(tuple(units), tasks=TASKS | {"mine": make_task("mine", "attack", constraint=L2)})
    export(tmp_path, plan, key_style="published", formats=("json", "parquet"))
    names = ["pgd@Linf", "pgd_l2@L2", "mine"]  # the key of a custom task is the same in both key styles
    assert [*load_json(tmp_path, "meta.json")["epsilons"]] == names
    assert all((tmp_path / f"cifar10/{name}_accuracy.json").exists() for name in names)
    content = (
        pq.read_schema(tmp_path / "parquet/dataset=cifar10/key=pgd_l2@L2/part-0.parquet").field("strength").metadata
    )
    assert b"L2" in content[b"description"]
    assert "`mine`: Epsilon: radius of the L2 ball" in (tmp_path / "README.md").read_text()


def test_export_rejects_two_files_with_same_name(tmp_path):
    tasks = {"a": make_task("a", "measure", columns=("b_c",)), "a_b": make_task("a_b", "measure", columns=("c",))}
    units = [make_unit(0, "cifar10", key, (CLEAN_STRENGTH,), columns=task.columns) for key, task in tasks.items()]
    with pytest.raises(ConfigError, match=r"two keys would both be named cifar10/a_b_c\.json"):
        export(tmp_path / "out", FabricatedPlan(tuple(units), tasks=tasks))
    assert not (tmp_path / "out").exists()
