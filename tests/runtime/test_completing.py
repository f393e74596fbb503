"""Results that were imported are completed by computing, to the same bytes, and what is told of that."""

import json
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from robust201.core.errors import InputError, LeaseHeldError, ResultsError
from robust201.core.records import is_imported
from robust201.dataset.compare import compare_results, read_decimals
from robust201.dataset.json_import import import_json
from robust201.dataset.verify import verify_results
from robust201.planning.config import SweepConfig
from robust201.planning.shares import Share
from robust201.runtime.executors import make_executor
from robust201.runtime.executors.base import Event
from robust201.runtime.lease import Lease
from robust201.runtime.progress import Progress
from robust201.runtime.share_run import run_share
from robust201.runtime.sweep import Filters, Outlook, merge_results, prepare_sweep, run_sweep
from robust201.shards import Inventory, ShardStore
from tests.conftest import RunCommand
from tests.support.completing import (
    ARCHITECTURES,
    N_LEFT,
    N_PLANNED,
    MakeNamed,
    change_rows,
    export,
    open_results,
    results_of,
    run,
    status_of,
    thin_out,
)


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


def test_a_file_with_an_architecture_twice_is_refused(part: Path, tmp_path: Path) -> None:
    path = part / "digits/fgsm_accuracy.json"
    path.write_text(path.read_text().replace('"0":', '"0": [0.5, 0.5], "0":', 1))
    with pytest.raises(ResultsError, match=r"fgsm_accuracy\.json: expected .*twice"):
        import_json(part, tmp_path / "results")
