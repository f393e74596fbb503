"""Verification of results folders and their exports."""

import errno
import json
import os
import tempfile
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from robust201.core.errors import ResultsError
from robust201.core.files import sha256_of
from robust201.core.records import EvaluationResult, Part
from robust201.dataset.export import export_dataset
from robust201.dataset.listing import CHECKSUM_FILE, check_listing, read_listing
from robust201.dataset.shard_rows import read_shard
from robust201.dataset.verify_results import verify_results
from robust201.store.folder import ResultsFolder
from robust201.store.names import content_hash, shard_name
from robust201.store.shards import encode
from robust201.sweep.plan import open_results
from tests.conftest import read_tree
from tests.support.fabricated import export, make_plan


def flip(path: Path, position: int = -30) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 4
    path.write_bytes(content)


def list_shards(results: Path) -> list[Path]:
    return sorted((results / "shards").rglob("*.parquet"))


def test_exactly_the_part_of_a_damaged_shard_is_computed_again(finished_results, tmp_path, write_sweep, robust201):
    robust201("export", finished_results, "--out", tmp_path / "before")
    damaged, *others = list_shards(finished_results)
    flip(damaged)
    result = robust201("verify", finished_results, "--json")
    payload = json.loads(result.out)
    n_missing = payload["planned"] - payload["evaluations"]
    assert (result.code, payload["sound"], payload["missing"]) == (3, False, n_missing)
    assert [finding["kind"] for finding in payload["findings"]] == ["damaged", "missing"]
    assert list_shards(finished_results) == others
    assert robust201("run", write_sweep()).code == 0
    assert len(list_shards(finished_results)) == len(others) + 1
    assert robust201("verify", finished_results).code == 0
    robust201("export", finished_results, "--out", tmp_path / "after")
    assert read_tree(tmp_path / "before") == read_tree(tmp_path / "after")


def test_damaged_record_is_reported_and_written_again(finished_results, robust201, write_sweep):
    shards = list_shards(finished_results)
    for path in sorted((finished_results / "protocols").iterdir()):
        path.write_text("{}")
    result = robust201("verify", finished_results)
    assert (result.code, f"protocols/{path.name}" in result.err) == (3, True)
    assert list_shards(finished_results) == shards
    assert robust201("run", write_sweep()).code == 0
    assert robust201("verify", finished_results).code == 0
    assert list_shards(finished_results) == shards


def test_merged_folders_with_other_results_contradict_each_other(finished_results, tmp_path, write_sweep, robust201):
    assert robust201("merge", finished_results, "--out", tmp_path / "all").code == 0
    assert robust201("verify", tmp_path / "all").code == 0
    folder = ResultsFolder.open(finished_results)
    name = shard_name("digits", folder.list()["digits"][0])
    shard = read_shard(folder, name)
    part = Part(shard.unit, shard.unit.strengths, shard.start, shard.stop)
    other = [
        EvaluationResult(part, strength, {**values, "predictions": values["predictions"][::-1]}, 1.0, {})
        for strength, values in shard.rows.items()
    ]
    content = encode(other, pixels=[*shard.pixels.values()])
    folder.write(name._replace(hash=content_hash(content)), content)
    result = robust201("merge", finished_results, "--out", tmp_path / "all")
    assert (result.code, "duplicate" in result.err, name.unit in result.err) == (4, True, True)
    assert robust201("verify", tmp_path / "all").code == 4
    assert robust201("merge", finished_results, "--out", tmp_path / "all", "--compact").error_line(2)


def test_packed_results_verify_and_export_alike(finished_results, tmp_path, write_sweep, robust201):
    robust201("export", finished_results, "--out", tmp_path / "before")
    assert robust201("merge", "--compact", finished_results).code == 0
    for path in list_shards(finished_results):
        path.unlink()
    assert robust201("verify", finished_results).code == 0
    robust201("export", finished_results, "--out", tmp_path / "after")
    assert read_tree(tmp_path / "before") == read_tree(tmp_path / "after")


def test_verify_compares_export_with_shards(finished_results, tmp_path, robust201):
    out = tmp_path / "out"
    robust201("export", finished_results, "--out", out, "--round", 3, "--key-style", "published", "--parquet")
    assert robust201("verify", finished_results, "--export", out).code == 0
    changed_path = out / "digits/fgsm@Linf_accuracy.json"
    changed_path.write_bytes(changed_path.read_bytes().replace(b'"21": [0', b'"21": [1'))
    result = robust201("verify", finished_results, "--export", out)
    assert result.code == 4
    assert f"{changed_path}: its SHA-256 differs" in result.err
    rewrite_listing(out)
    assert str(changed_path) in robust201("verify", finished_results, "--export", out).err
    assert [path for path in finished_results.iterdir() if path.name.startswith(".verify")] == []


def test_verify_needs_no_space_beside_the_export_and_reports_a_full_disk(finished_results, tmp_path, monkeypatch):
    out, make_folder = tmp_path / "dataset/out", tempfile.mkdtemp
    export_dataset(*open_results(finished_results), out)

    def make_folder_in_results(suffix=None, prefix=None, dir=None):  # noqa: A002 - the name in `tempfile`
        if dir != finished_results:
            raise OSError(errno.EROFS, "Read-only file system", str(dir))
        return make_folder(suffix, prefix, dir)

    monkeypatch.setattr(tempfile, "mkdtemp", make_folder_in_results)
    assert verify_results(finished_results, export=out).export_problems == ()

    def fail(*_arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tempfile, "mkdtemp", fail)
    (problem,) = verify_results(finished_results, export=out).export_problems
    assert "No space left" in problem


def test_verify_reports_counts_and_unfinished_sweep(finished_results, tmp_path, robust201):
    robust201("export", finished_results, "--out", tmp_path / "out")
    n_files = len((tmp_path / "out/SHA256SUMS").read_text().splitlines())
    result = robust201("verify", finished_results, "--export", tmp_path / "out")
    expected_output = f"6 result files, 10 evaluations valid; 0 of 10 missing; equal files of the export: {n_files}.\n"
    assert (result.code, result.out) == (0, expected_output)
    for path in list_shards(finished_results):
        path.unlink()
    result = robust201("verify", finished_results)
    assert (result.code, result.out) == (3, "0 result files, 0 evaluations valid; 10 of 10 missing.\n")
    (finished_results / "plan.json").unlink()
    assert "plan.json" in robust201("verify", finished_results).error_line(2)


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
def test_verify_reports_damaged_export(finished_results, tmp_path, robust201, case):
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


# The listing


@pytest.fixture
def out(tmp_path):
    """Return the folder of an export that matches its listing."""
    export(tmp_path / "out", make_plan([0, 2], ["clean", "fgsm"], measurements=("accuracy",)))
    assert find_problems(tmp_path / "out") == []
    return tmp_path / "out"


def find_problems(out: Path) -> list[str]:
    return list(check_listing(out, read_listing(out)))


@pytest.mark.parametrize(
    "line", [f"{'0' * 64}  ../x", f"{'0' * 64}  a/../../x", f"{'0' * 64}  /etc/hostname", f"{'0' * 63}  x", "x"]
)
def test_invalid_line_of_listing_is_rejected(out, line):
    listing = out / CHECKSUM_FILE
    listing.write_text(f"{listing.read_text()}{line}\n")
    with pytest.raises(ResultsError, match=f"{CHECKSUM_FILE}, line"):
        find_problems(out)


def test_file_that_is_not_listed_and_name_that_is_listed_twice_are_reported(out):
    (out / "cifar10/new.json").write_text("{}")
    (problem,) = find_problems(out)
    assert "cifar10/new.json" in problem
    listing = out / CHECKSUM_FILE
    listing.write_text(2 * listing.read_text())
    with pytest.raises(ResultsError, match=f"{CHECKSUM_FILE}, line"):
        find_problems(out)
