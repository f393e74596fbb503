"""Which imported results a sweep takes, which it leaves, and why."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from robust201.core.errors import InputError, ResultsError
from robust201.core.records import IMPORTED_FILE
from robust201.dataset.json_import import import_json
from robust201.dataset.verify import verify_results
from robust201.planning.config import SweepConfig
from robust201.planning.imported_plan import load_imported_plan
from robust201.planning.inputs import check_taking
from robust201.planning.plan_file import load_plan
from robust201.runtime.sweep import Filters, prepare_sweep
from robust201.tasks import PERTURBATIONS
from tests.conftest import RunCommand, WriteSweep, read_tree
from tests.dataset.test_json_import import SoundStore
from tests.support.completing import (
    ARCHITECTURES,
    CLEAN,
    KEYS,
    N_LEFT,
    N_PLANNED,
    PLAIN,
    MakeNamed,
    change_json,
    export,
    open_results,
    run,
    status_of,
)
from tests.support.fabricated import export as export_fabricated
from tests.support.fabricated import make_plan


def test_computed_results_win_over_imported_ones(part: Path, sweep: MakeNamed) -> None:
    config = sweep("results")
    run(config, filters=Filters(keys=("pgd",)))
    import_json(part, config.results)
    preview = run(config)
    assert (preview.done, preview.imported) == (N_LEFT + 2, N_LEFT - 4)
    (line,) = preview.stale
    assert line.startswith("4 imported evaluations of digits pgd are kept but not used: computed here as well")
    assert status_of(config).stale == 4


@pytest.mark.parametrize(
    ("changes", "spoil", "why"),
    [
        ({"measurements": ["accuracy", "predictions"]}, None, "they lack predictions"),
        ({"images": {"count": 20, "seed": 0}} | PLAIN, None, "they are of 10 images, this sweep's of 20"),
        ({"images": {"count": 10, "seed": 1}} | PLAIN, None, "they are of other images than this sweep's"),
        ({}, "sweep.json", "which 10 of the 450 test images they are of is not known"),
        ({"keys": {"clean": {}, "brightness": {}}}, None, "a dataset or key outside this sweep"),
    ],
)
def test_what_cannot_be_taken_is_computed_and_told(
    part: Path, sweep: MakeNamed, changes: dict[str, Any], spoil: str | None, why: str
) -> None:
    if spoil is not None:
        (part / spoil).unlink()
        # Without sweep.json the strengths are those of meta.json, and the images those that cm counts.
    config = sweep("results", **changes)
    import_json(part, config.results)
    seen = [prepare_sweep(config)]
    told = "12 imported evaluations of digits clean, digits fgsm, digits pgd"
    if "keys" in changes:
        told = "10 imported evaluations of digits fgsm, digits pgd"
    assert seen[0].stale == (f"{told} are kept but not used: {why}",)
    if "keys" not in changes:
        assert (seen[0].imported, seen[0].done) == (0, 0)


def test_other_corrupted_images_are_not_taken(
    whole: tuple[SweepConfig, Path], sweep: MakeNamed, tmp_path: Path
) -> None:
    corrupted = {"source": "generated", "path": str(tmp_path / "corruptions"), "seed": 1}
    config = sweep("results", datasets={"digits": {"corruptions": corrupted}})
    import_json(whole[1], config.results)
    preview = prepare_sweep(config)
    (line,) = preview.stale
    assert line.startswith("6 imported evaluations of digits brightness are kept but not used: they are of other corr")
    assert preview.imported == N_PLANNED - 6


def test_generated_corruptions_are_not_mixed_with_those_that_a_dataset_does_not_tell_of(
    whole: tuple[SweepConfig, Path], sweep: MakeNamed, tmp_path: Path
) -> None:
    def forget(content: dict[str, Any]) -> None:
        del content["evaluations"]
        for protocol in content["sweep"]["protocols"]:
            protocol.pop("corruption", None)

    shutil.copytree(whole[1], tmp_path / "told less")
    change_json(tmp_path / "told less/sweep.json", forget)
    config = sweep("results")
    import_json(tmp_path / "told less", config.results)
    preview = prepare_sweep(config)
    (line,) = preview.stale
    assert "6 imported evaluations of digits brightness are kept but not used: which corrupted images they are" in line
    assert preview.imported == N_PLANNED - 6


def test_images_that_are_the_whole_test_split_need_not_be_named(part: Path, sweep: MakeNamed) -> None:
    """The published dataset does not tell its images; if a key's count is that of the split, they are the split."""
    for path in part.glob("digits/*"):
        if not path.name.endswith("clean_accuracy.json"):
            path.unlink()
    for name in ("sweep.json", "SHA256SUMS"):
        (part / name).unlink()
    config = sweep("results", images={}, keys={"clean": {}}, **PLAIN, measurements=["accuracy"])
    import_json(part, config.results)
    preview = prepare_sweep(config)
    assert (preview.imported, len(preview.missing)) == (2, 1)


def test_a_known_difference_of_protocols_is_told(part: Path, sweep: MakeNamed, tmp_path: Path) -> None:
    config = sweep("results", keys=KEYS | {"pgd": {"epsilons_255": [1, 8], "steps": 3}})
    import_json(part, config.results)
    preview = run(config)
    assert preview.mixing == (
        (
            "digits pgd mixes two protocols: 4 of its 6 evaluations are imported and were computed otherwise "
            "(imported → this sweep: parameters.steps: 2 → 3)"
        ),
    )
    assert (
        "| otherwise (imported → this sweep: parameters.steps: 2 → 3) |"
        in (export(config, tmp_path / "B") / "README.md").read_text()
    )


def test_imported_results_are_taken_only_if_the_sweep_says_so(
    part: Path, write_sweep: WriteSweep, robust201: RunCommand, tmp_path: Path
) -> None:
    fields = {"architectures": list(ARCHITECTURES), "keys": KEYS}
    results = tmp_path / "results"
    import_json(part, results)
    before = read_tree(results)
    for verb in (("run",), ("plan",), ("plan", "--save")):
        refusal = robust201(verb[0], write_sweep(**fields), *verb[1:]).refusal(2)
        assert "expected `take_imported: true` in the sweep" in refusal
    assert read_tree(results) == before
    taking = write_sweep(take_imported=True, **fields)
    told = robust201("run", taking)
    assert told.code == 0
    assert f"{N_LEFT} done ({N_LEFT} of them imported), {N_PLANNED - N_LEFT} missing" in told.err
    assert f"{N_LEFT} of the evaluations done were imported" in robust201("status", results).out
    assert json.loads(robust201("status", results, "--json").out)["imported"] == N_LEFT
    told = robust201("doctor", taking)
    assert "imported results: the sweep takes them" in told.out
    assert "`take_imported: true`" in robust201("run", write_sweep(**fields)).refusal(2)
    told = robust201("run", write_sweep(**fields | {"take_imported": True, "results": str(tmp_path / "empty")}))
    assert (told.code, f"0 done (0 of them imported), {N_PLANNED} missing" in told.err) == (0, True)


def test_exports_tell_what_they_leave_out(
    part: Path, write_sweep: WriteSweep, robust201: RunCommand, tmp_path: Path
) -> None:
    import_json(part, tmp_path / "results")
    sweep = write_sweep(architectures=[0, 21], keys={"clean": {}}, take_imported=True)
    assert "1 imported evaluations of digits clean are kept but not used" in robust201("run", sweep).err
    told = robust201("export", tmp_path / "results", tmp_path / "B", "--processes", 1)
    assert told.code == 0
    assert "of digits fgsm, digits pgd are kept but not used: a dataset or key outside this sweep" in told.err


def test_imported_results_that_a_sweep_leaves_are_told_by_reason(
    whole: tuple[SweepConfig, Path], sweep: MakeNamed
) -> None:
    config = sweep("results", architectures=[0, 21], keys={"clean": {}, "fgsm": {"epsilons_255": [1, 8]}}, **PLAIN)
    run(config, filters=Filters(architectures=(21,)))
    import_json(whole[1], config.results)
    preview = prepare_sweep(config)
    assert set(preview.stale) == {
        (
            "12 imported evaluations of digits pgd, digits brightness are kept but not used: "
            "a dataset or key outside this sweep"
        ),
        "4 imported evaluations of digits clean, digits fgsm are kept but not used: architectures outside this sweep",
        "2 imported evaluations of digits fgsm are kept but not used: strengths outside this sweep",
        "3 imported evaluations of digits clean, digits fgsm are kept but not used: computed here as well",
    }
    assert preview.mixing == ()


def test_many_keys_outside_a_sweep_take_one_line(sweep: MakeNamed, tmp_path: Path) -> None:
    export_fabricated(tmp_path / "many", make_plan(ARCHITECTURES, PERTURBATIONS, ["digits"]), SoundStore())
    config = sweep("results", keys={"clean": {}}, measurements=["accuracy"])
    import_json(tmp_path / "many", config.results)
    *_, outside = prepare_sweep(config).stale
    n_outside = len(ARCHITECTURES) * 3 * (len(PERTURBATIONS) - 1)
    assert outside == (
        f"{n_outside} imported evaluations of digits aa_apgd-ce, digits aa_square and 17 other keys are kept but not "
        "used: a dataset or key outside this sweep"
    )


def test_a_key_that_is_wholly_imported_mixes_nothing(whole: tuple[SweepConfig, Path], sweep: MakeNamed) -> None:
    config = sweep("results", keys={"pgd": {"epsilons_255": [1, 8], "steps": 3}})
    import_json(whole[1], config.results)
    (line,) = prepare_sweep(config).mixing
    assert line.startswith("digits pgd follows another protocol than this sweep's: 6 of its 6 evaluations are imported")


@pytest.mark.parametrize("content", [None, "{"])
def test_what_was_imported_must_be_known(part: Path, sweep: MakeNamed, content: str | None, tmp_path: Path) -> None:
    config = sweep("results")
    import_json(part, config.results)
    run(config)
    known = config.results / IMPORTED_FILE
    known.unlink()
    if content is not None:
        known.write_text(content)
    for use in (run, status_of):
        with pytest.raises(InputError, match=r"import every dataset of the folder again|Import every dataset"):
            use(config)
    known.unlink(missing_ok=True)
    import_json(part, config.results)
    assert run(config).missing == ()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n_images", 11),
        ("strengths", [-1.0]),
        ("architectures", [0, 309, 15_625]),
        ("architectures", [0, [309]]),
        ("dataset", "../elsewhere"),
        ("payload", ["clean"]),
    ],
)
def test_what_was_imported_is_not_changed_by_hand(part: Path, sweep: MakeNamed, field: str, value: Any) -> None:
    config = sweep("results")
    import_json(part, config.results)
    run(config)
    change_json(config.results / IMPORTED_FILE, lambda content: content["groups"][0].update({field: value}))
    for use in (run, status_of, lambda config: verify_results(config.results)):
        with pytest.raises(InputError, match=r"imported.json: .* import every dataset of the folder again"):
            use(config)


def test_names_of_what_was_imported_are_known_ones(part: Path, tmp_path: Path) -> None:
    import_json(part, tmp_path / "results")
    plan = load_imported_plan(tmp_path / "results")
    replace(plan, groups=(replace(plan.groups[0], dataset="../elsewhere"),)).save(tmp_path / "results")
    with pytest.raises(InputError, match=r"unknown '../elsewhere'"):
        load_imported_plan(tmp_path / "results")


def test_the_field_is_no_part_of_identity(sweep: MakeNamed) -> None:
    config = sweep("results", take_imported=False)
    run(config)
    ids = [unit.id for unit in load_plan(config.results).units]
    assert run(sweep("results")).missing == ()
    assert [unit.id for unit in load_plan(config.results).units] == ids
    check_taking(config)
    assert yaml.safe_load(yaml.safe_dump(load_plan(config.results).sweep_payload()))["take_imported"] is True


@pytest.mark.parametrize(
    "told", [{"protocols": [1]}, {"protocols": None}, {"images": 5}, {"protocols": [CLEAN | {"decimals": 1}]}]
)
def test_a_sweep_json_of_another_form_is_refused(part: Path, tmp_path: Path, told: dict[str, Any]) -> None:
    change_json(part / "sweep.json", lambda content: content.update({"sweep": told, "evaluations": None}))
    with pytest.raises(ResultsError, match=r"sweep\.json: expected protocols as an export writes them"):
        import_json(part, tmp_path / "results")


def test_values_are_read_through_the_inventory_that_adopts(part: Path, sweep: MakeNamed) -> None:
    config = sweep("results")
    import_json(part, config.results)
    prepare_sweep(config)
    plan, store, inventory = open_results(config)
    unit = next(unit for unit in plan.units if (unit.architecture, unit.key) == (21, "pgd"))
    values = store.values(unit, 8.0, inventory, plan.measurements)
    assert np.trace(values["cm"]) / values["cm"].sum() == values["accuracy"]
    assert inventory.source(unit, 8.0, plan.measurements).protocol in inventory.adopted_protocols
    assert not store.inventory().is_complete(unit, 8.0, plan.measurements)
