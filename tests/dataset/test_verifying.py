"""Verification of results folders and their exports."""

import errno
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from robust201.core.errors import ResultsError
from robust201.core.files import sha256_of
from robust201.dataset.export import export_dataset
from robust201.dataset.listing import CHECKSUM_FILE, check_listing, read_listing
from robust201.dataset.verify_results import verify_results
from robust201.store.folder import ResultsFolder
from robust201.store.names import shard_name
from robust201.sweep.plan import open_results
from tests.conftest import read_tree
from tests.support.fabricated import export, make_plan
from tests.support.runs import store_variant


def flip_bit(path: Path, position: int = -30) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 4
    path.write_bytes(content)


def list_shards(results: Path) -> list[Path]:
    return sorted((results / "shards").rglob("*.parquet"))


def test_only_the_part_of_a_damaged_shard_is_computed_again(finished_results, tmp_path, write_sweep, robust201):
    robust201("export", finished_results, "--out", tmp_path / "before")
    damaged_path, *other_paths = list_shards(finished_results)
    flip_bit(damaged_path)
    result = robust201("verify", finished_results, "--json")
    payload = json.loads(result.out)
    n_missing = payload["planned"] - payload["evaluations"]
    assert (result.code, payload["valid"], payload["missing"]) == (3, False, n_missing)
    assert [finding["kind"] for finding in payload["findings"]] == ["damaged", "missing"]
    assert list_shards(finished_results) == other_paths
    assert robust201("run", write_sweep()).code == 0
    assert len(list_shards(finished_results)) == len(other_paths) + 1
    assert robust201("verify", finished_results).code == 0
    robust201("export", finished_results, "--out", tmp_path / "after")
    assert read_tree(tmp_path / "before") == read_tree(tmp_path / "after")


def test_merge_and_verify_reject_contradictory_results(finished_results, tmp_path, write_sweep, robust201):
    assert robust201("merge", finished_results, "--out", tmp_path / "all").code == 0
    assert robust201("verify", tmp_path / "all").code == 0
    folder = ResultsFolder.open(finished_results)
    name = shard_name("digits", folder.list()["digits"][0])
    store_variant(folder, name, lambda values: values | {"predictions": values["predictions"][::-1]})
    result = robust201("merge", finished_results, "--out", tmp_path / "all")
    assert (result.code, "duplicate" in result.err, name.unit in result.err) == (4, True, True)
    assert robust201("verify", tmp_path / "all").code == 4
    assert robust201("merge", finished_results, "--out", tmp_path / "all", "--compact").error_line(exit_code=2)


def test_verify_makes_temporary_folders_only_in_results_and_reports_full_disk(finished_results, tmp_path, monkeypatch):
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
    assert str(tmp_path) not in (tmp_path / "out/sweep.yaml").read_text()
    n_files = len((tmp_path / "out/SHA256SUMS").read_text().splitlines())
    result = robust201("verify", finished_results, "--export", tmp_path / "out")
    expected_output = f"6 result files, 10 evaluations valid; 0 of 10 missing; {n_files} files of the export valid.\n"
    assert (result.code, result.out) == (0, expected_output)
    for path in list_shards(finished_results):
        path.unlink()
    result = robust201("verify", finished_results)
    assert (result.code, result.out) == (3, "0 result files, 0 evaluations valid; 10 of 10 missing.\n")
    (finished_results / "plan.json").unlink()
    assert "plan.json" in robust201("verify", finished_results).error_line(exit_code=2)


def rewrite_listing(out: Path) -> None:
    """Update SHA256SUMS for changed files, so that only the comparison with the shards finds the changes."""
    names = [path.relative_to(out).as_posix() for path in sorted(out.rglob("*")) if path.is_file()]
    lines = [f"{sha256_of(out / name)}  {name}\n" for name in names if name != CHECKSUM_FILE]
    (out / CHECKSUM_FILE).write_text("".join(lines))


def replace_text(old: str, new: str) -> Callable[[Path], object]:
    return lambda path: path.write_text(path.read_text().replace(old, new))


DAMAGED_EXPORTS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "another accuracy": ("digits/fgsm@Linf_accuracy.json", replace_text('"21": [0', '"21": [1')),
    "a truncated file": ("parquet/dataset=digits/key=fgsm@Linf/part-0.parquet", lambda path: os.truncate(path, 1000)),
    "no sweep.json": ("sweep.json", Path.unlink),
    # With other strengths, readers would assign the correct values to the wrong strengths.
    "other epsilons": ("meta.json", replace_text('"fgsm@Linf": [', '"fgsm@Linf": [0.25, ')),
    "other strengths": ("sweep.json", replace_text('"fgsm@Linf": [', '"fgsm@Linf": [0.25, ')),
}


def test_verify_reports_damaged_exports(finished_results, tmp_path, robust201):
    valid_export, options = tmp_path / "valid", ("--round", 3, "--key-style", "published", "--parquet")
    robust201("export", finished_results, "--out", valid_export, *options)
    assert robust201("verify", finished_results, "--export", valid_export).code == 0
    bits_export = tmp_path / "bits"  # the sweep's measurements lack predictions
    assert robust201("export", finished_results, "--out", bits_export, "--parquet", "--outcomes", "bits").code == 0
    assert robust201("verify", finished_results, "--export", bits_export).code == 0
    for case, (name, damage) in DAMAGED_EXPORTS.items():
        out = Path(shutil.copytree(valid_export, tmp_path / case))
        damage(out / name)
        result = robust201("verify", finished_results, "--export", out)
        assert result.code == 4, case
        assert f"{out / name}: {'expected a file' if 'unlink' in str(damage) else 'its SHA-256 differs'}" in result.err
        rewrite_listing(out)
        (problem,) = verify_results(finished_results, export=out).export_problems
        assert name in problem, case
    assert [path for path in finished_results.iterdir() if path.name.startswith(".verify")] == []


@pytest.mark.parametrize("change", [lambda text: f"{text}{'0' * 63}  x\n", lambda text: 2 * text])
def test_invalid_listings_are_rejected(tmp_path, change):
    export(tmp_path, make_plan([0, 2], ["clean"], measurements=("accuracy",)))
    assert list(check_listing(tmp_path, read_listing(tmp_path))) == []
    listing = tmp_path / CHECKSUM_FILE
    listing.write_text(change(listing.read_text()))
    with pytest.raises(ResultsError, match=f"{CHECKSUM_FILE}, line"):
        read_listing(tmp_path)
