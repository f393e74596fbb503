"""Results that were imported are completed by computing: what is taken, what is computed, and what is told of it."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml

from pipeline.adoption import read_inventory
from pipeline.analysis import json_index
from pipeline.comparing import compare_results, read_decimals
from pipeline.config import SweepConfig, parse_config
from pipeline.errors import InputError, LeaseHeldError, ResultsError
from pipeline.executors import make_executor
from pipeline.executors.base import Event
from pipeline.export import export_dataset
from pipeline.inputs import check_taking
from pipeline.json_import import import_json
from pipeline.lease import Lease
from pipeline.plan_file import load_plan
from pipeline.progress import Progress
from pipeline.records import IMPORTED_FILE, is_imported
from pipeline.shards import Inventory, ShardStore
from pipeline.share_run import run_share
from pipeline.shares import Share
from pipeline.status import SweepStatus, read_status
from pipeline.sweep import Filters, Outlook, merge_results, prepare_sweep, run_sweep
from pipeline.verifying import verify_results
from tests.conftest import RunCommand, WriteSweep, read_tree

ARCHITECTURES = (0, 21, 309)
KEYS: dict[str, dict[str, Any]] = {
    "clean": {},
    "fgsm": {"epsilons_255": [1, 4, 8]},
    "pgd": {"epsilons_255": [1, 8], "steps": 2},
    "brightness": {"severities": [1, 5]},
}
N_PLANNED = 3 * 8
CLEAN = {"dataset": "digits", "key": "clean"}
PLAIN: dict[str, Any] = {"datasets": {"digits": {}}}
"""Without corruptions, which are those of other images."""


MakeNamed = Callable[..., SweepConfig]


def make_config(folder: Path, weights: Path, corruptions: Path, **changes: Any) -> SweepConfig:
    """A tiny sweep that takes imported results; arguments replace top-level fields."""
    fields = {
        "name": "tiny",
        "results": str(folder),
        "take_imported": True,
        "architectures": list(ARCHITECTURES),
        "network": {"channels": 4, "cells": 1},
        "checkpoints": {"path": str(weights)},
        "datasets": {"digits": {"corruptions": {"source": "generated", "path": str(corruptions)}}},
        "images": {"count": 10, "seed": 0},
        "keys": KEYS,
        "execution": {"executor": "inline", "threads": 1, "gmacs_per_second": 10},
    }
    return parse_config(fields | changes, "test")


@pytest.fixture(scope="module")
def corruptions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where corrupted images are, once they were needed."""
    return tmp_path_factory.mktemp("shared") / "corruptions"


@pytest.fixture
def sweep(tiny_weights: Path, corruptions: Path, tmp_path: Path) -> MakeNamed:
    """Make sweeps with their results in a folder of the given name (see `make_config`)."""
    return lambda name, **changes: make_config(tmp_path / name, tiny_weights, corruptions, **changes)


def run(config: SweepConfig, **options: Any) -> Outlook:
    seen: list[Outlook] = []
    assert run_sweep(config, make_executor, on_outlook=seen.append, **options).complete
    return seen[0]


def open_results(config: SweepConfig) -> tuple[Any, ShardStore, Inventory]:
    plan, store = load_plan(config.results), ShardStore.open(config.results)
    return plan, store, read_inventory(plan, store, verify="all")


def export(config: SweepConfig, out: Path, **options: Any) -> Path:
    export_dataset(*open_results(config), out, **options)
    return out


def status_of(config: SweepConfig) -> SweepStatus:
    plan, _, inventory = open_results(config)
    return read_status(plan, inventory)


def results_of(folder: Path) -> dict[str, bytes]:
    """Files of values, as published."""
    return {name: data for name, data in read_tree(folder).items() if name.startswith("digits/") or name == "meta.json"}


def change_rows(folder: Path, key: str, edit: Callable[[dict[str, Any]], Any]) -> None:
    """Edit what the files of a key have for each architecture; the edit changes rows, or gives new ones."""
    for path in folder.glob(f"digits/{key}_*.json"):
        content = json.loads(path.read_text())
        rows = content["digits"][key]
        for measure in rows:
            rows[measure] = edit(rows[measure]) or rows[measure]
        path.write_text(json.dumps(content))


def change_json(path: Path, edit: Callable[[dict[str, Any]], Any]) -> None:
    content = json.loads(path.read_text())
    edit(content)
    path.write_text(json.dumps(content))


def take_strengths(folder: Path, key: str, places: tuple[int, ...]) -> None:
    """Leave only some strengths of a key."""
    change_rows(folder, key, lambda rows: {i: [values[place] for place in places] for i, values in rows.items()})
    for name, of_keys in (("sweep.json", ("strengths", "digits")), ("meta.json", ("epsilons",))):

        def edit(content: dict[str, Any], of_keys: tuple[str, ...] = of_keys) -> None:
            for step in of_keys:
                content = content[step]
            content[key] = [content[key][place] for place in places]

        change_json(folder / name, edit)


def thin_out(source: Path, folder: Path) -> Path:
    """Copy an export without brightness, PGD of #0, clean of #21, and FGSM at 4: 13 of 24 evaluations are left."""
    shutil.copytree(source, folder)
    for path in folder.glob("digits/brightness_*"):
        path.unlink()
    change_rows(folder, "pgd", lambda rows: rows.pop("0") and None)
    change_rows(folder, "clean", lambda rows: rows.pop("21") and None)
    take_strengths(folder, "fgsm", (0, 2))
    return folder


N_LEFT = 2 + 3 * 2 + 2 * 2


@pytest.fixture(scope="module")
def whole(tiny_weights: Path, corruptions: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[SweepConfig, Path]:
    """A computed sweep, and an export of it."""
    folder = tmp_path_factory.mktemp("whole")
    config = make_config(folder / "results", tiny_weights, corruptions, take_imported=False)
    run(config)
    return config, export(config, folder / "A", formats=("json", "parquet"))


@pytest.fixture
def part(whole: tuple[SweepConfig, Path], tmp_path: Path) -> Path:
    """What is left of the export."""
    return thin_out(whole[1], tmp_path / "part")


def test_what_was_imported_is_completed_to_the_same_bytes(
    whole: tuple[SweepConfig, Path], part: Path, sweep: MakeNamed, tmp_path: Path
) -> None:
    config = sweep("results")
    import_json(part, config.results)
    outlook = run(config)
    assert (outlook.done, outlook.imported, outlook.mixing, outlook.stale) == (N_LEFT, N_LEFT, (), ())
    assert sum(part.n_evaluations for part in outlook.missing) == N_PLANNED - N_LEFT
    out = export(config, tmp_path / "B", formats=("json", "parquet"))
    assert results_of(out) == results_of(whole[1])
    verdict = verify_results(config.results, export=out)
    assert (verdict.findings, verdict.export, verdict.gaps, verdict.n_missing) == ((), (), (), 0)
    assert compare_results(whole[0].results, config.results).max_difference == 0
    state = status_of(config)
    assert (state.complete, state.imported, state.stale) == (True, N_LEFT, 0)
    again = run(config)
    assert (again.missing, again.imported) == ((), N_LEFT)


def test_an_export_tells_what_was_imported(
    part: Path, sweep: MakeNamed, tmp_path: Path, whole: tuple[SweepConfig, Path]
) -> None:
    config = sweep("results")
    import_json(part, config.results)
    run(config)
    out = export(config, tmp_path / "B", formats=("json", "parquet"))
    told = json.loads((out / "sweep.json").read_text())
    imported = [one for one in told["sweep"]["protocols"] if one.get("protocol") == "imported"]
    assert [one["key"] for one in imported] == ["clean", "fgsm", "pgd"]
    assert len(told["sweep"]["protocols"]) == len(told["evaluations"]) == 4 + 3
    assert sum(told["evaluations"].values()) == N_PLANNED
    assert sum(n for digest, n in told["evaluations"].items() if is_imported(digest)) == N_LEFT
    rows = json.loads((out / "imported.json").read_text())["digits"]
    assert rows == {
        "clean": {"0": [0.0], "309": [0.0]},
        "fgsm": {str(index): [1.0, 8.0] for index in ARCHITECTURES},
        "pgd": {"21": [1.0, 8.0], "309": [1.0, 8.0]},
    }
    assert json.loads((out / "versions.json").read_text())["imported_from"] == ["part"]
    card = (out / "README.md").read_text()
    assert f"That holds for {N_PLANNED - N_LEFT} of the {N_PLANNED} evaluations. The other {N_LEFT} were not" in card
    assert "| digits | `fgsm` | 6 | 9 | 1 | as the others |" in card
    table = pq.read_table(out / "parquet").to_pylist()
    taken = {(row["key"], row["architecture"], row["strength"]) for row in table if is_imported(row["protocol"])}
    assert taken == {(key, int(i), s) for key, of_key in rows.items() for i, held in of_key.items() for s in held}
    assert {row["checkpoint_sha256"] == "imported" for row in table if is_imported(row["protocol"])} == {True}
    assert {row["protocol"] for row in table} == {digest for digest, n in told["evaluations"].items() if n}
    assert not (whole[1] / "imported.json").exists()
    assert "sweep took" not in (whole[1] / "README.md").read_text()


def test_imported_values_stay_rounded_and_computed_ones_are_exact(
    whole: tuple[SweepConfig, Path], sweep: MakeNamed, tmp_path: Path
) -> None:
    rounded = thin_out(export(whole[0], tmp_path / "R", round_to=2), tmp_path / "part")
    config = sweep("results")
    import_json(rounded, config.results)
    run(config)
    out = export(config, tmp_path / "B")
    got, exact, source = (
        json.loads((folder / "digits/pgd_confidence.json").read_text())["digits"]["pgd"]["confidence"]
        for folder in (out, whole[1], rounded)
    )
    assert got == {"0": exact["0"], "21": source["21"], "309": source["309"]}
    assert got["21"] != exact["21"]
    assert verify_results(config.results, export=out).sound
    assert read_decimals(config.results, {}) == read_decimals(out, {})
    # An export with both is imported and exported again, although its first rows are exact.
    import_json(out, tmp_path / "again")
    assert verify_results(tmp_path / "again").sound
    third = sweep("again")
    assert run(third).missing == ()
    assert results_of(export(third, tmp_path / "C")) == results_of(out)


def test_the_licence_of_what_was_imported_is_asked_for(part: Path, sweep: MakeNamed, tmp_path: Path) -> None:
    (part / "README.md").unlink()
    config = sweep("results")
    import_json(part, config.results)
    run(config)
    with pytest.raises(InputError, match="expected the licence of the imported results"):
        export(config, tmp_path / "B")
    assert "license: cc0-1.0\n" in (export(config, tmp_path / "B", licence="cc0-1.0") / "README.md").read_text()


class Killed(BaseException):
    """What a kill is to a test."""


def test_a_run_that_was_killed_goes_on_where_it_was(
    whole: tuple[SweepConfig, Path], part: Path, sweep: MakeNamed, tmp_path: Path
) -> None:
    config = sweep("results")
    import_json(part, config.results)
    events: list[Event] = []

    def kill(_progress: Progress, event: Event) -> None:
        events.append(event)
        if len(events) == 3:
            raise Killed

    with pytest.raises(Killed):
        run_sweep(config, make_executor, on_progress=kill)
    held = len(list((config.results / "shards").rglob("*.parquet")))
    outlook = run(config)
    assert N_LEFT < outlook.done < N_PLANNED
    assert outlook.imported == N_LEFT
    assert len(list((config.results / "shards").rglob("*.parquet"))) == held + len(outlook.missing)
    assert results_of(export(config, tmp_path / "B")) == results_of(whole[1])


def test_shares_take_imported_results_too(
    whole: tuple[SweepConfig, Path], part: Path, sweep: MakeNamed, tmp_path: Path
) -> None:
    config = sweep("results")
    import_json(part, config.results)
    prepare_sweep(config)
    seen: list[Outlook] = []
    for number in (1, 2):
        assert run_share(config, Share(number, 2), make_executor, on_outlook=seen.append).complete
    assert sum(outlook.imported for outlook in seen) == N_LEFT
    assert results_of(export(config, tmp_path / "B")) == results_of(whole[1])
    with pytest.raises(InputError, match="`take_imported: true`"):
        run_share(sweep("results", take_imported=False), Share(1, 2), make_executor)


def test_computed_results_win_over_imported_ones(part: Path, sweep: MakeNamed) -> None:
    config = sweep("results")
    run(config, filters=Filters(keys=("pgd",)))
    import_json(part, config.results)
    outlook = run(config)
    assert (outlook.done, outlook.imported) == (N_LEFT + 2, N_LEFT - 4)
    (line,) = outlook.stale
    assert line.startswith("4 imported evaluations of digits pgd are kept but not used: other architectures or")
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
    assert f"6 imported evaluations of digits fgsm are kept but not used: {why}" in seen[0].stale
    if "keys" not in changes:
        assert (seen[0].imported, seen[0].done) == (0, 0)


def test_other_corrupted_images_are_not_taken(
    whole: tuple[SweepConfig, Path], sweep: MakeNamed, tmp_path: Path
) -> None:
    corrupted = {"source": "generated", "path": str(tmp_path / "corruptions"), "seed": 1}
    config = sweep("results", datasets={"digits": {"corruptions": corrupted}})
    import_json(whole[1], config.results)
    outlook = prepare_sweep(config)
    (line,) = outlook.stale
    assert line.startswith("6 imported evaluations of digits brightness are kept but not used: they are of other corr")
    assert outlook.imported == N_PLANNED - 6


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
    outlook = prepare_sweep(config)
    (line,) = outlook.stale
    assert "6 imported evaluations of digits brightness are kept but not used: which corrupted images they are" in line
    assert outlook.imported == N_PLANNED - 6


def test_images_that_are_the_whole_test_split_need_not_be_named(part: Path, sweep: MakeNamed) -> None:
    """The published dataset does not tell its images; if a key's count is that of the split, they are the split."""
    for path in part.glob("digits/*"):
        if not path.name.endswith("clean_accuracy.json"):
            path.unlink()
    for name in ("sweep.json", "SHA256SUMS"):
        (part / name).unlink()
    config = sweep("results", images={}, keys={"clean": {}}, **PLAIN, measurements=["accuracy"])
    import_json(part, config.results)
    outlook = prepare_sweep(config)
    assert (outlook.imported, len(outlook.missing)) == (2, 1)


def test_a_known_difference_of_protocols_is_told(part: Path, sweep: MakeNamed, tmp_path: Path) -> None:
    config = sweep("results", keys=KEYS | {"pgd": {"epsilons_255": [1, 8], "steps": 3}})
    import_json(part, config.results)
    outlook = run(config)
    assert outlook.mixing == (
        "imported results of digits pgd are used, which were computed otherwise: parameters.steps: 2 → 3",
    )
    assert "| otherwise: parameters.steps: 3 → 2 |" in (export(config, tmp_path / "B") / "README.md").read_text()


def test_a_damaged_imported_shard_is_computed_or_imported_again(
    part: Path, sweep: MakeNamed, robust201: RunCommand, tmp_path: Path
) -> None:
    config = sweep("results")
    import_json(part, config.results)
    run(config)
    _, _, inventory = open_results(config)
    numbers = {inventory.units[unit].key: shard for unit, shard in _places(inventory) if inventory.units[unit].protocol}
    shard = config.results / "shards" / inventory.shards[numbers["pgd"]]
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    told = robust201("verify", config.results, "--requeue")
    assert told.code == 3
    assert "compute it again with: robust201 run SWEEP.yaml" in told.err
    assert "import it again with: robust201 import-json" in told.err
    assert (status_of(config).done, status_of(config).imported) == (N_PLANNED - 4, N_LEFT - 4)
    shutil.copytree(config.results, tmp_path / "other")
    import_json(part, config.results)
    assert status_of(config).complete
    outlook = run(sweep("other"))
    assert (outlook.imported, len(outlook.missing)) == (N_LEFT - 4, 2)
    assert verify_results(tmp_path / "other").sound


def _places(inventory: Inventory) -> set[tuple[int, int]]:
    """Units that were imported, with the number of their shard."""
    rows = zip(inventory.row_column("unit").tolist(), inventory.row_column("shard").tolist(), strict=True)
    return {(unit, shard) for unit, shard in rows if is_imported(inventory.units[unit].protocol)}


def test_an_import_deletes_nothing_that_was_computed(
    whole: tuple[SweepConfig, Path], part: Path, sweep: MakeNamed, tmp_path: Path
) -> None:
    """Not after a compaction either, which leaves imported shards as they are."""
    config = sweep("results")
    import_json(part, config.results)
    run(config)
    store = ShardStore.open(config.results)
    computed = N_PLANNED - N_LEFT
    assert store.compact(grace_seconds=0).rows == computed
    store.compact(grace_seconds=0)
    names = {path.name for path in (config.results / "shards").rglob("*.parquet")}
    change_rows(part, "clean", lambda rows: rows.pop("0") and None)
    import_json(part, config.results)
    left = {path.name for path in (config.results / "shards").rglob("*.parquet")}
    assert (len(names - left), len(left - names)) == (1, 1)  # the import of clean that was replaced
    outlook = run(config)
    assert (outlook.done, outlook.imported, len(outlook.missing)) == (N_PLANNED - 1, N_LEFT - 1, 1)
    assert results_of(export(config, tmp_path / "B")) == results_of(whole[1])
    assert verify_results(config.results).sound


def test_imports_are_merged_with_the_shards(
    whole: tuple[SweepConfig, Path], part: Path, sweep: MakeNamed, tmp_path: Path
) -> None:
    one, other = sweep("one"), sweep("other")
    import_json(part, one.results)
    run(one, filters=Filters(architectures=(0,)))
    run(other, filters=Filters(architectures=(21,)))
    change_rows(part, "clean", lambda rows: rows.pop("0") and None)
    import_json(part, other.results)
    lines: list[str] = []
    report, others = merge_results([one.results, other.results], tmp_path / "both", say=lines.append)
    assert (report.conflicts, others) == ((), ())
    assert len(lines) == 1
    assert lines[0].startswith("digits clean was imported into ")
    both = sweep("both")
    assert run(both).imported == N_LEFT - 4  # FGSM and PGD of #21 were computed in the other folder
    assert results_of(export(both, tmp_path / "B")) == results_of(whole[1])


def test_one_works_at_a_time(part: Path, sweep: MakeNamed) -> None:
    config = sweep("results")
    import_json(part, config.results)
    with Lease.acquire(config.results), pytest.raises(LeaseHeldError):
        import_json(part, config.results)


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
    assert "4 imported evaluations of digits pgd are kept but not used: a dataset or key outside this sweep" in told.err


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


def test_the_field_is_no_part_of_identity(sweep: MakeNamed) -> None:
    config = sweep("results", take_imported=False)
    run(config)
    ids = [unit.id for unit in load_plan(config.results).units]
    assert run(sweep("results")).missing == ()
    assert [unit.id for unit in load_plan(config.results).units] == ids
    check_taking(config)
    assert yaml.safe_load(yaml.safe_dump(load_plan(config.results).sweep_payload()))["take_imported"] is True


@pytest.mark.parametrize("indexed", [False, True])
def test_a_file_with_an_architecture_twice_is_refused(
    part: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, indexed: bool
) -> None:
    if indexed:
        monkeypatch.setattr(json_index, "MIN_INDEXED_BYTES", 1)
    path = part / "digits/fgsm_accuracy.json"
    path.write_text(path.read_text().replace('"0":', '"0": [0.5, 0.5], "0":', 1))
    with pytest.raises(ResultsError, match=r"fgsm_accuracy\.json: expected .*twice"):
        import_json(part, tmp_path / "results")


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
