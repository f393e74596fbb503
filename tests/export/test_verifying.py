"""Verification of results folders and their exports, and requeueing of damaged shards."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from robust201.core.files import sha256_of
from robust201.export.listing import check_listing, read_listing
from robust201.export.verify import verify_results
from robust201.reader.listings import CHECKSUM_FILE
from robust201.shards import ShardStore, requeue_shards
from tests.conftest import read_tree
from tests.support.fabricated import export, make_plan
from tests.support.shard_support import flip, make_results, make_unit


def test_verify_finds_single_flipped_bits(tmp_path):
    store = ShardStore.create(tmp_path)
    for architecture in (0, 2, 10):
        store.commit(make_results(make_unit(architecture)))
    for _ in range(2):
        store.compact(grace_seconds=0)
    for architecture in (21, 309):
        store.commit(make_results(make_unit(architecture, key="fgsm")))
    rng = np.random.default_rng(0)
    shards = [entry.name for entry in store.folder.backend.entries()]
    for flip_number in range(40):
        shard = shards[rng.integers(len(shards))]
        path = store.folder.shards / shard
        content = path.read_bytes()
        first_byte = max(0, len(content) - 2048) if flip_number % 2 else 0  # every second flip is near the footer
        flip(path, int(rng.integers(8 * first_byte, 8 * len(content))))
        assert [(finding.kind, finding.shard) for finding in store.verify() if finding.shard == shard] == [
            ("damaged", shard)
        ]
        path.write_bytes(content)


ACCURACY_AND_CM = ("accuracy", "cm")


def commit_invalid(store: ShardStore, monkeypatch, unit, change) -> str:
    """Commit a result that breaks an invariant, like a defective worker, and return the shard's name."""
    monkeypatch.setattr("robust201.shards.store.check_values", lambda *_arguments, **_names: None)
    results = make_results(unit, measurements=ACCURACY_AND_CM)
    change(results[0].values)
    return store.commit(results).shard


def change_accuracy(values):
    values["accuracy"] = values["accuracy"] + 0.001


def test_verify_reports_deleted_protocol_and_run_rewrites_it(finished_results, robust201, write_sweep):
    path = sorted((finished_results / "protocols").iterdir())[0]
    path.unlink()
    assert f"for {path}: the file is missing, but there are results" in robust201(
        "verify", finished_results
    ).error_line(4)
    assert robust201("run", write_sweep()).code == 0
    assert robust201("verify", finished_results).code == 0


@pytest.mark.parametrize("is_compacted", [False, True])
def test_requeue_removes_shard_with_invalid_result(tmp_path, monkeypatch, is_compacted):
    store = ShardStore.create(tmp_path)
    units = [make_unit(architecture) for architecture in (0, 2, 10, 21)]
    for unit in (units[0], *units[2:]):
        store.commit(make_results(unit, measurements=ACCURACY_AND_CM))
    commit_invalid(store, monkeypatch, units[1], change_accuracy)
    if is_compacted:
        store.compact(grace_seconds=0)
    findings = store.verify()
    assert [(finding.kind, finding.unit) for finding in findings] == [("invalid", "#2 digits pgd at 1, images 0:30")]
    for shard_name in requeue_shards(store.folder, findings):
        assert (tmp_path / "damaged" / shard_name).exists()
    remaining_inventory = store.inventory(verify="all")
    assert store.verify(remaining_inventory) == []
    complete_evaluations = {
        (unit.architecture, strength)
        for unit in units
        for strength in unit.strengths
        if remaining_inventory.is_complete(unit, strength, ("accuracy",))
    }
    remaining_units = [] if is_compacted else [unit for unit in units if unit != units[1]]  # a shard is moved whole
    assert complete_evaluations == {
        (unit.architecture, strength) for unit in remaining_units for strength in (1.0, 4.0)
    }
    # Compaction must not restore results that the removed shard had replaced.
    store.compact(grace_seconds=0)
    store.compact(grace_seconds=0)
    assert not store.inventory().is_complete(units[1], 1.0, ("accuracy",))


def test_requeue_removes_both_unequal_duplicates(tmp_path):
    store = ShardStore.create(tmp_path)
    unit, other_unit = make_unit(), make_unit(2)
    for results in (make_results(unit), make_results(unit, seed=1), make_results(other_unit)):
        store.commit(results)
    inventory = store.inventory()
    findings = store.verify(inventory)
    assert {finding.kind for finding in findings} == {"unequal duplicates"}
    assert len(requeue_shards(store.folder, findings)) == 2
    remaining_inventory = store.inventory()
    assert not remaining_inventory.is_complete(unit, 1.0, ("accuracy",))
    assert remaining_inventory.is_complete(other_unit, 1.0, ("accuracy",))


def test_run_recomputes_only_requeued_unit(finished_results, tmp_path, write_sweep, robust201):
    robust201("export", finished_results, "--out", tmp_path / "before")
    store = ShardStore.open(finished_results)
    shard = next(entry.name for entry in store.folder.backend.entries() if "-fgsm-" in entry.name)
    damaged_path = store.folder.shards / shard
    content = bytearray(damaged_path.read_bytes())
    content[-30] ^= 4
    damaged_path.write_bytes(content)
    assert robust201("verify", finished_results).code == 4
    result = robust201("verify", finished_results, "--requeue", "--json")
    assert result.code == 3
    assert json.loads(result.out)["requeued"] == [shard]
    shards_before = read_tree(finished_results / "shards")
    result = robust201("run", write_sweep())
    assert result.code == 0
    assert "8 done, 2 missing" in result.err  # the two strengths of one unit
    shards_after = read_tree(finished_results / "shards")
    assert len(shards_after) == len(shards_before) + 1
    assert shards_before.items() <= shards_after.items()
    assert robust201("verify", finished_results).code == 0
    robust201("export", finished_results, "--out", tmp_path / "after")
    assert read_tree(tmp_path / "before") == read_tree(tmp_path / "after")


def test_verify_compares_export_with_shards(finished_results, tmp_path, robust201):
    out = tmp_path / "out"
    robust201("export", finished_results, "--out", out, "--round", 3, "--key-style", "with-norm", "--parquet")
    assert robust201("verify", finished_results, "--export", out).code == 0
    changed_path = out / "digits/fgsm@Linf_accuracy.json"
    changed_path.write_bytes(changed_path.read_bytes().replace(b'"21": [0', b'"21": [1'))
    result = robust201("verify", finished_results, "--export", out)
    assert result.code == 4
    assert f"{changed_path}: its SHA-256 differs" in result.err
    rewrite_listing(out)
    assert str(changed_path) in robust201("verify", finished_results, "--export", out).err
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("robust201-verify")] == []


def test_verify_reports_counts_and_unfinished_sweep(finished_results, tmp_path, robust201):
    robust201("export", finished_results, "--out", tmp_path / "out")
    n_files = len((tmp_path / "out/SHA256SUMS").read_text().splitlines())
    result = robust201("verify", finished_results, "--export", tmp_path / "out")
    expected_output = f"6 result files, 10 evaluations valid; 0 of 10 missing; the export's {n_files} files agree.\n"
    assert (result.code, result.out) == (0, expected_output)
    for path in (finished_results / "shards").rglob("*.parquet"):
        path.unlink()
    result = robust201("verify", finished_results)
    assert (result.code, result.out) == (3, "0 result files, 0 evaluations valid; 10 of 10 missing.\n")
    assert json.loads(robust201("verify", finished_results, "--json").out)["missing"] == 10
    (finished_results / "plan.json").unlink()
    result = robust201("verify", finished_results)
    assert (result.code, result.out) == (
        0,
        "0 result files, 0 evaluations valid; the folder has no plan, so missing evaluations cannot be detected.\n",
    )


def rewrite_listing(out: Path) -> None:
    """Update SHA256SUMS for changed files, so that only the comparison with the shards finds the changes."""
    names = [
        path.relative_to(out).as_posix()
        for path in sorted(out.rglob("*"))
        if path.is_file() and ".index" not in path.parts
    ]
    lines = [f"{sha256_of(out / name)}  {name}\n" for name in names if name != "SHA256SUMS"]
    (out / "SHA256SUMS").write_text("".join(lines))


def remove_last_row(path: Path) -> None:
    with pq.ParquetFile(path) as file:
        tables = [file.read_row_group(number) for number in range(file.num_row_groups)]
    with pq.ParquetWriter(path, tables[0].schema) as writer:
        for table in (*tables[:-1], tables[-1].slice(0, len(tables[-1]) - 1)):
            writer.write_table(table)


DAMAGED_EXPORTS = {
    "no sweep.json": ("sweep.json", Path.unlink),
    "a missing row": ("parquet/dataset=digits/key=fgsm/part-0.parquet", remove_last_row),
    "a truncated file": ("parquet/dataset=digits/key=fgsm/part-0.parquet", lambda path: os.truncate(path, 1000)),
}


@pytest.mark.parametrize("case", DAMAGED_EXPORTS)
def test_verify_reports_damaged_export_and_still_requeues_shards(finished_results, tmp_path, robust201, case):
    out, (file_name, damage) = tmp_path / "out", DAMAGED_EXPORTS[case]
    robust201("export", finished_results, "--out", out, "--parquet")
    (out / "digits/.index").mkdir()
    (out / "digits/.index/fgsm_cm.json.1-1.npy").write_bytes(b"")  # a reader's index, which is not part of the export
    assert robust201("verify", finished_results, "--export", out).code == 0
    damage(out / file_name)
    if case != "no sweep.json":
        rewrite_listing(out)
        (error_message,) = verify_results(finished_results, export=out).export_problems
        assert file_name in error_message
    result = robust201("verify", finished_results, "--export", out)
    assert result.code == 4
    assert file_name in result.err
    damaged_shard = next(path for path in sorted((finished_results / "shards").rglob("*.parquet")))
    flip(damaged_shard)
    result = robust201("verify", finished_results, "--export", out, "--requeue", "--json")
    assert result.code == 4
    assert [Path(shard_name).name for shard_name in json.loads(result.out)["requeued"]] == [damaged_shard.name]
    assert not damaged_shard.exists()


@pytest.mark.parametrize(
    ("file_name", "json_path"), [("meta.json", ("epsilons",)), ("sweep.json", ("strengths", "digits"))]
)
def test_verify_reports_strengths_that_differ_from_plan(finished_results, tmp_path, robust201, file_name, json_path):
    # The values are correct, but readers would assign them to the wrong strengths.
    out = tmp_path / "out"
    robust201("export", finished_results, "--out", out)
    assert verify_results(finished_results, export=out).export_problems == ()
    content = json.loads((out / file_name).read_text())
    strengths_by_key = content
    for key in json_path:
        strengths_by_key = strengths_by_key[key]
    strengths_by_key["fgsm"] = [strength + 1 for strength in strengths_by_key["fgsm"]]
    (out / file_name).write_text(json.dumps(content))
    rewrite_listing(out)
    (error_message,) = verify_results(finished_results, export=out).export_problems
    assert file_name in error_message


# Unexpected entries of an export's folder and invalid lines of its listing


@pytest.fixture
def out(tmp_path):
    """Return the folder of an export that matches its listing."""
    export(tmp_path / "out", make_plan([0, 2], ["clean", "fgsm"], measurements=("accuracy",)))
    assert find_problems(tmp_path / "out") == []
    return tmp_path / "out"


def find_problems(out: Path) -> list[str]:
    return list(check_listing(out, read_listing(out)))


def replace_file_by_link(out: Path) -> None:
    file = out / "cifar10/fgsm_accuracy.json"
    file.rename(out.parent / "elsewhere.json")
    file.symlink_to(out.parent / "elsewhere.json")


UNEXPECTED_ENTRIES: dict[str, tuple[Callable[[Path], object], str]] = {
    "a pipe": (lambda out: os.mkfifo(out / "pipe"), "this is a named pipe"),
    "a link to a file": (lambda out: (out / "link").symlink_to(out / "meta.json"), "this is a symbolic link to"),
    "a link deep inside": (lambda out: (out / "cifar10/link").symlink_to(".."), "this is a symbolic link to '..'"),
    "a link in place of a listed file": (replace_file_by_link, "this is a symbolic link to"),
}


@pytest.mark.parametrize("case", UNEXPECTED_ENTRIES)
def test_check_listing_reports_entries_that_exports_never_write(out, case):
    add_entry, expected_message = UNEXPECTED_ENTRIES[case]
    add_entry(out)
    (error_message,) = find_problems(out)
    assert expected_message in error_message


DIGEST = "0" * 64
INVALID_LINES = {
    "a path in the parent folder": (f"{DIGEST}  ../x", "'../x', which is not a path below the folder"),
    "an absolute path": (f"{DIGEST}  /etc/hostname", "'/etc/hostname', which is not a path below the folder"),
    "a short digest": (f"{DIGEST[1:]}  x", f"got '{DIGEST[1:]}  x'"),
    "one word": ("x", "got 'x'"),
}


@pytest.mark.parametrize("case", INVALID_LINES)
def test_check_listing_reports_invalid_lines_with_number(out, case):
    line, expected_message = INVALID_LINES[case]
    listing = out / CHECKSUM_FILE
    original_text = listing.read_text()
    listing.write_text(f"{original_text}{line}\n")
    (error_message,) = find_problems(out)
    assert (
        f"{CHECKSUM_FILE}, line {len(original_text.splitlines()) + 1}: expected 64 hexadecimal digits" in error_message
    )
    assert expected_message in error_message


def test_check_listing_reports_duplicate_name(out):
    listing = out / CHECKSUM_FILE
    first_line = listing.read_text().splitlines()[0]
    listing.write_text(f"{listing.read_text()}{DIGEST}{first_line[64:]}\n")
    (error_message,) = find_problems(out)
    assert f"got {first_line[66:]!r} a second time" in error_message
