"""Verification of results folders and their exports, and requeueing of damaged shards."""

import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from robust201.core.errors import ResultsError, StorageError
from robust201.core.files import sha256_of
from robust201.core.records import EvaluationResult, Part
from robust201.export import export_dataset
from robust201.export.listing import check_listing, read_listing
from robust201.export.verify import check_export, verify_results
from robust201.planning.plan_file import load_plan
from robust201.reader.listings import CHECKSUM_FILE
from robust201.shards import ShardStore, requeue_shards
from robust201.shards.folder import ResultsFolder
from tests.conftest import read_tree
from tests.support.fabricated import export, make_plan
from tests.support.shard_support import flip, make_results, make_unit


def test_verify_finds_flipped_bits_anywhere(tmp_path):
    store = ShardStore.create(tmp_path)
    for architecture in (0, 2, 10):
        store.commit(make_results(make_unit(architecture)))
    for _ in range(2):
        store.compact(grace_seconds=0)
    for architecture in (21, 309):
        store.commit(make_results(make_unit(architecture, key="fgsm")))
    draws = np.random.default_rng(0)
    shards = [entry.name for entry in store.folder.backend.entries()]
    for number in range(120):
        shard = shards[draws.integers(len(shards))]
        path = store.folder.shards / shard
        content = path.read_bytes()
        first = max(0, len(content) - 2048) if number % 2 else 0  # every second flip is in or near the footer
        flip(path, int(draws.integers(8 * first, 8 * len(content))))
        assert [(finding.kind, finding.shard) for finding in store.verify() if finding.shard == shard] == [
            ("damaged", shard)
        ]
        path.write_bytes(content)


COUNTS = ("accuracy", "cm")


def commit_wrong(store: ShardStore, monkeypatch, unit, change) -> str:
    """Commit a result that breaks an invariant, as a defect in a worker would."""
    monkeypatch.setattr("robust201.shards.store.check_values", lambda *_arguments, **_names: None)
    results = make_results(unit, measurements=COUNTS)
    change(results[0].values)
    return store.commit(results).shard


def wrong_accuracy(values):
    values["accuracy"] = values["accuracy"] + 0.001


def wrong_classes(values):
    """Move an image to another class in the confusion matrix without changing its prediction and the accuracy."""
    cm = values["cm"]
    source, target = next((i, j) for i in range(3) for j in range(3) if i != j and cm[i, j])
    other = 3 - source - target
    cm[source, target] -= 1
    cm[other, target] += 1


WRONG = {"invalid": wrong_accuracy, "unlike others": wrong_classes}


def test_verify_reports_deleted_protocol_and_run_rewrites_it(finished, robust201, write_sweep):
    path = sorted((finished / "protocols").iterdir())[0]
    path.unlink()
    assert f"for {path}: the file is missing, although there are results" in robust201("verify", finished).refusal(4)
    assert robust201("run", write_sweep()).code == 0
    assert robust201("verify", finished).code == 0


@pytest.mark.parametrize("compacted", [False, True])
@pytest.mark.parametrize("kind", WRONG)
def test_requeue_removes_only_wrong_results(tmp_path, monkeypatch, kind, compacted):
    store = ShardStore.create(tmp_path)
    units = [make_unit(architecture) for architecture in (0, 2, 10, 21)]
    for unit in (units[0], *units[2:]):
        store.commit(make_results(unit, measurements=COUNTS))
    commit_wrong(store, monkeypatch, units[1], WRONG[kind])
    if compacted:
        store.compact(grace_seconds=0)
    inventory = store.inventory(verify="all")
    findings = store.verify(inventory)
    assert [(finding.kind, finding.unit) for finding in findings] == [(kind, "#2 digits pgd at 1 images 0:30")]
    for shard_name in requeue_shards(store.folder, inventory, findings):
        assert (tmp_path / "damaged" / shard_name).exists()
    remaining = store.inventory(verify="all")
    assert store.verify(remaining) == []
    complete = {
        (unit.architecture, strength)
        for unit in units
        for strength in unit.strengths
        if remaining.is_complete(unit, strength, ("accuracy",))
    }
    lost = {(2, 1.0)} if compacted else {(2, 1.0), (2, 4.0)}  # a shard with a single unit is removed as a whole
    assert complete == {(unit.architecture, s) for unit in units for s in unit.strengths} - lost
    # Compaction must not restore results that the removed shard had replaced.
    store.compact(grace_seconds=0)
    store.compact(grace_seconds=0)
    assert not store.inventory().is_complete(units[1], 1.0, ("accuracy",))


def test_requeue_removes_both_of_unequal_duplicates(tmp_path):
    store = ShardStore.create(tmp_path)
    unit, other = make_unit(), make_unit(2)
    for results in (make_results(unit), make_results(unit, seed=1), make_results(other)):
        store.commit(results)
    inventory = store.inventory()
    findings = store.verify(inventory)
    assert {finding.kind for finding in findings} == {"unequal duplicates"}
    assert len(requeue_shards(store.folder, inventory, findings)) == 2
    remaining = store.inventory()
    assert not remaining.is_complete(unit, 1.0, ("accuracy",))
    assert remaining.is_complete(other, 1.0, ("accuracy",))


def test_run_recomputes_only_requeued_unit(finished, tmp_path, write_sweep, robust201):
    robust201("export", finished, "--out", tmp_path / "before", "--processes", 1)
    store = ShardStore.open(finished)
    shard = next(entry.name for entry in store.folder.backend.entries() if "-fgsm-" in entry.name)
    victim = store.folder.shards / shard
    content = bytearray(victim.read_bytes())
    content[-30] ^= 4
    victim.write_bytes(content)
    assert robust201("verify", finished).code == 4
    run = robust201("verify", finished, "--requeue", "--json")
    assert run.code == 3
    assert json.loads(run.out)["requeued"] == [shard]
    before = read_tree(finished / "shards")
    run = robust201("run", write_sweep())
    assert run.code == 0
    assert "8 done, 2 missing" in run.err  # the two strengths of one unit
    after = read_tree(finished / "shards")
    assert len(after) == len(before) + 1
    assert before.items() <= after.items()
    assert robust201("verify", finished).code == 0
    robust201("export", finished, "--out", tmp_path / "after", "--processes", 1)
    assert read_tree(tmp_path / "before") == read_tree(tmp_path / "after")


@pytest.mark.parametrize("compression", [None, "gz", "zst"])
def test_verify_compares_export_with_shards(finished, tmp_path, robust201, compression):
    out = tmp_path / "out"
    options = ["--round", 3, "--key-style", "with-norm", "--parquet", "--processes", 1]
    robust201("export", finished, "--out", out, *options, *(["--compress", compression] if compression else []))
    assert robust201("verify", finished, "--export", out).code == 0
    victim = out / ("digits/fgsm@Linf_accuracy.json" + (f".{compression}" if compression else ""))
    if compression == "zst":
        victim.write_bytes(victim.read_bytes()[:-3])
    else:
        opened = gzip.open if compression else Path.open
        with opened(victim, "rb") as stream:
            text = stream.read()
        with opened(victim, "wb") as stream:
            stream.write(text.replace(b'"21": [0', b'"21": [1'))
    run = robust201("verify", finished, "--export", out)
    assert run.code == 4
    assert f"{victim}: its SHA-256 differs" in run.err
    if compression != "zst":
        assert "from #21 digits fgsm on" in run.err


def test_verify_detects_export_of_other_results_with_valid_listing(finished, tmp_path, write_sweep, robust201):
    robust201("export", finished, "--out", tmp_path / "out", "--parquet", "--processes", 1)
    other = write_sweep(results=str(tmp_path / "other"), keys={"clean": {}, "fgsm": {"epsilons_255": [2, 8]}})
    assert robust201("run", other).code == 0
    run = robust201("verify", tmp_path / "other", "--export", tmp_path / "out")
    assert run.code == 4
    assert "digits/fgsm_cm.json: the values differ from the results from #0 digits fgsm on" in run.err
    assert "key=fgsm/part-0.parquet: the values differ from the results" in run.err
    assert "brightness_cm.json: the results have no such file" in run.err
    assert "expected a complete export" in robust201("verify", finished, "--export", tmp_path).refusal(2)


DIGITS = {"digits": {"corruptions": None}}


def test_verify_rejects_export_of_another_sweep_in_one_line(finished, tmp_path, write_sweep, robust201):
    robust201("export", finished, "--out", tmp_path / "out", "--processes", 1)
    other = write_sweep(
        results=str(tmp_path / "other"), name="mine", keys={"clean": {}}, images={"count": 20}, datasets=DIGITS
    )
    assert robust201("run", other).code == 0
    run = robust201("verify", tmp_path / "other", "--export", tmp_path / "out")
    assert run.code == 4
    assert len(run.err.splitlines()) == 1
    assert "expected the export of mine, got one of 'tiny', with other protocols under every key" in run.err


def test_verify_lists_units_with_gaps_without_reporting_damage(finished, robust201):
    store = ShardStore.open(finished)
    shard = next(name for name in [entry.name for entry in store.folder.backend.entries()] if "000000-fgsm" in name)
    path = store.folder.shards / shard
    inventory = store.inventory()
    unit = next(unit for unit in load_plan(finished).units if (unit.architecture, unit.key) == (0, "fgsm"))
    values = store.values(unit, 8.0, inventory, ("accuracy", "confidence", "cm"))
    path.unlink()
    ShardStore.open(finished).commit([EvaluationResult(Part(unit, (8.0,), 0, unit.n_images), 8.0, values, 1.0)])
    run = robust201("verify", finished)
    expected_output = "6 result files, 9 evaluations valid; 1 of 10 missing, 1 network-key pair with gaps.\n"
    assert (run.code, run.out) == (3, expected_output)
    assert "unfinished: #0 digits fgsm at 1" in run.err


def test_verify_reports_checks_and_unfinished_sweep(finished, tmp_path, robust201):
    robust201("export", finished, "--out", tmp_path / "out", "--processes", 1)
    n_files = len((tmp_path / "out/SHA256SUMS").read_text().splitlines())
    run = robust201("verify", finished, "--export", tmp_path / "out")
    expected_output = f"6 result files, 10 evaluations valid; 0 of 10 missing; the export's {n_files} files agree.\n"
    assert (run.code, run.out) == (0, expected_output)
    for path in (finished / "shards").rglob("*.parquet"):
        path.unlink()
    run = robust201("verify", finished)
    assert (run.code, run.out) == (3, "0 result files, 0 evaluations valid; 10 of 10 missing.\n")
    assert json.loads(robust201("verify", finished, "--json").out)["missing"] == 10
    (finished / "plan.json").unlink()
    run = robust201("verify", finished)
    assert (run.code, run.out) == (
        0,
        "0 result files, 0 evaluations valid; the folder has no plan, so missing evaluations cannot be detected.\n",
    )


def rewrite_listing(out: Path) -> None:
    """Rewrite SHA256SUMS for the changed files, so that only the comparison with the shards finds the change."""
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


def break_deflate(path: Path) -> None:
    """Give the first block of a gzip file, after ten bytes of header, an invalid type."""
    content = bytearray(path.read_bytes())
    content[10] |= 7
    path.write_bytes(content)


DAMAGE = {
    "no sweep.json": ("sweep.json", Path.unlink, "expected a file with key_style"),
    "no JSON in sweep.json": ("sweep.json", lambda path: path.write_text("{"), "expected JSON"),
    "another sweep.json": ("sweep.json", lambda path: path.write_text('{"key_style": 1}'), "and none"),
    "a listing that is no text": ("SHA256SUMS", lambda path: path.write_bytes(b"\xff\xfe"), "expected a listing"),
    "flipped bits in gzip": ("digits/fgsm_cm.json.gz", break_deflate, "reading it failed"),
    "a row less": ("parquet/dataset=digits/key=fgsm/part-0.parquet", remove_last_row, "in a row group of"),
    "a file too many": (
        "digits/pgd_cm.json.gz",
        lambda path: path.write_bytes(b""),
        "does not list this file",
    ),
}


# By default, test a missing file, one that cannot be decoded and one with other rows; the rest uses the same code.
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(
            case,
            marks=() if case in ("no sweep.json", "flipped bits in gzip", "a row less") else pytest.mark.slow,
        )
        for case in DAMAGE
    ],
)
def test_verify_reports_damaged_export_and_still_requeues_shards(finished, tmp_path, robust201, case):
    out, (name, damage, message) = tmp_path / "out", DAMAGE[case]
    robust201("export", finished, "--out", out, "--parquet", "--compress", "gz", "--processes", 1)
    (out / "digits/.index").mkdir()
    (out / "digits/.index/fgsm_cm.json.1-1.npy").write_bytes(b"")  # a reader's index, which is not part of the export
    assert robust201("verify", finished, "--export", out).code == 0
    damage(out / name)
    if name.endswith(("gz", "parquet")) and "many" not in case:
        rewrite_listing(out)
        (line,) = verify_results(finished, export=out).export
        assert message in line
        assert name in line
    run = robust201("verify", finished, "--export", out)
    assert run.code == 4
    assert message in run.err
    victim = next(path for path in sorted((finished / "shards").rglob("*.parquet")))
    flip(victim)
    run = robust201("verify", finished, "--export", out, "--requeue", "--json")
    assert run.code == 4
    assert [Path(shard_name).name for shard_name in json.loads(run.out)["requeued"]] == [victim.name]
    assert not victim.exists()


@pytest.mark.parametrize(("name", "steps"), [("meta.json", ("epsilons",)), ("sweep.json", ("strengths", "digits"))])
def test_verify_reports_strengths_that_differ_from_plan(finished, tmp_path, robust201, name, steps):
    """The values are correct, but readers would assign them to other strengths."""
    out = tmp_path / "out"
    robust201("export", finished, "--out", out, "--processes", 1)
    assert verify_results(finished, export=out).export == ()
    content = json.loads((out / name).read_text())
    by_key = content
    for step in steps:
        by_key = by_key[step]
    by_key["fgsm"] = [strength + 1 for strength in by_key["fgsm"]]
    (out / name).write_text(json.dumps(content))
    rewrite_listing(out)
    (line,) = verify_results(finished, export=out).export
    assert f"{name}: the {steps[0]} differ from the plan's" in line


def test_verify_reports_value_that_cannot_be_exported(finished, tmp_path, monkeypatch):
    def raise_storage_error(*_arguments):
        raise StorageError("expected an accuracy, got NaN")
        yield

    store = ShardStore.open(finished)
    inventory = store.inventory(verify="all")
    plan = load_plan(finished)
    export_dataset(plan, store, inventory, tmp_path / "out")
    monkeypatch.setattr("robust201.export.json_files.row_texts", raise_storage_error)
    lines = list(check_export(plan, store, inventory, tmp_path / "out"))
    assert len(lines) == len({(unit.dataset, unit.key) for unit in plan.units})
    assert all("expected an accuracy, got NaN" in line for line in lines)


def test_verify_does_not_compare_export_with_damaged_shards(finished, tmp_path, robust201):
    robust201("export", finished, "--out", tmp_path / "out", "--processes", 1)
    flip(next(path for path in sorted((finished / "shards").rglob("*fgsm*.parquet"))))
    (line,) = verify_results(finished, export=tmp_path / "out").export
    assert "digits fgsm" in line
    assert "1 of its networks lack results to compare with, such as #0" in line


def test_verify_hashes_each_shard_once(finished, monkeypatch):
    hashed = []
    check = ResultsFolder.check_hash
    monkeypatch.setattr(
        ResultsFolder, "check_hash", lambda folder, shard, sha: (hashed.append(shard), check(folder, shard, sha))[1]
    )
    assert verify_results(finished).sound
    shards = [entry.name for entry in ShardStore.open(finished).folder.backend.entries()]
    assert sorted(hashed) == sorted(shards)


# Unexpected entries of an export's folder and invalid lines of its listing


@pytest.fixture
def out(tmp_path):
    """An export that matches its listing."""
    export(tmp_path / "out", make_plan([0, 2], ["clean", "fgsm"], measurements=("accuracy",)))
    assert find_problems(tmp_path / "out") == []
    return tmp_path / "out"


def find_problems(out: Path) -> list[str]:
    return list(check_listing(out, read_listing(out)))


def link_a_listed_file(out: Path) -> None:
    file = out / "cifar10/fgsm_accuracy.json"
    file.rename(out.parent / "elsewhere.json")
    file.symlink_to(out.parent / "elsewhere.json")


def link_a_listed_folder(out: Path) -> None:
    (out / "cifar10").rename(out.parent / "elsewhere")
    (out / "cifar10").symlink_to(out.parent / "elsewhere")


UNEXPECTED_ENTRIES: dict[str, tuple[Callable[[Path], object], str]] = {
    "a pipe": (lambda out: os.mkfifo(out / "pipe"), "got a named pipe"),
    "a link to a file": (lambda out: (out / "link").symlink_to(out / "meta.json"), "got a symbolic link to"),
    "a link to nothing": (lambda out: (out / "link").symlink_to("nowhere"), "got a symbolic link to 'nowhere'"),
    "a link to a folder": (lambda out: (out / "link").symlink_to("/"), "got a symbolic link to '/'"),
    "a link to itself": (lambda out: (out / "link").symlink_to("link"), "got a symbolic link to 'link'"),
    "a link deep inside": (lambda out: (out / "cifar10/link").symlink_to(".."), "got a symbolic link to '..'"),
    "a link for a listed file": (link_a_listed_file, "got a symbolic link to"),
    "a link for a listed folder": (link_a_listed_folder, "got a symbolic link to"),
}


@pytest.mark.parametrize("case", UNEXPECTED_ENTRIES)
def test_check_listing_reports_files_that_exports_never_write(out, case):
    spoil, expected_message = UNEXPECTED_ENTRIES[case]
    spoil(out)
    (line,) = find_problems(out)
    assert expected_message in line


def test_check_listing_reports_pipe_without_blocking(out):
    (out / "cifar10/fgsm_accuracy.json").unlink()
    os.mkfifo(out / "cifar10/fgsm_accuracy.json")
    (line,) = find_problems(out)
    assert "expected a file, got a named pipe" in line


HEX = "0" * 64
LINES = {
    "below another folder": (f"{HEX}  ../x", "'../x', which is not a path below the folder"),
    "in the middle": (f"{HEX}  cifar10/../../x", "which is not a path below the folder"),
    "absolute": (f"{HEX}  /etc/hostname", "'/etc/hostname', which is not a path below the folder"),
    "the folder": (f"{HEX}  .", "which is not a path below the folder"),
    "spelled otherwise": (f"{HEX}  ./meta.json", "'./meta.json', which is not a path below the folder"),
    "short": (f"{HEX[1:]}  x", f"got '{HEX[1:]}  x'"),
    "no hexadecimal digits": (f"{HEX[1:]}g  x", "g  x'"),
    "upper case": (f"{'A' * 64}  x", "A  x'"),
    "no name": (f"{HEX}  ", f"got '{HEX}  '"),
    "one word": ("x", "got 'x'"),
    "a binary mark": (f"{HEX} *x", f"got '{HEX} *x'"),
}


@pytest.mark.parametrize("case", LINES)
def test_check_listing_reports_invalid_lines_with_number(out, case):
    line, expected_message = LINES[case]
    listing = out / CHECKSUM_FILE
    text = listing.read_text()
    listing.write_text(f"{text}{line}\n")
    (wrong,) = find_problems(out)
    assert f"{CHECKSUM_FILE}, line {len(text.splitlines()) + 1}: expected 64 hexadecimal digits" in wrong
    assert expected_message in wrong


def test_check_listing_reports_duplicate_name(out):
    listing = out / CHECKSUM_FILE
    first = listing.read_text().splitlines()[0]
    listing.write_text(f"{listing.read_text()}{HEX}{first[64:]}\n")
    (wrong,) = find_problems(out)
    assert f"got {first[66:]!r} a second time" in wrong


def test_check_listing_limits_messages_for_invalid_listing(out):
    (out / CHECKSUM_FILE).write_text("rubbish\n" * 1000)
    assert len(read_listing(out).wrong) == 11


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo, lambda path: path.symlink_to("meta.json"), None])
def test_verify_rejects_listing_that_is_not_a_file(finished, tmp_path, robust201, make):
    (tmp_path / "out").mkdir()
    if make is not None:
        make(tmp_path / "out" / CHECKSUM_FILE)
    with pytest.raises(ResultsError):
        read_listing(tmp_path / "out")
    assert "expected a complete export" in robust201("verify", finished, "--export", tmp_path / "out").refusal(2)


def test_verify_rejects_pipe_as_plan(finished, robust201):
    (finished / "plan.json").unlink()
    os.mkfifo(finished / "plan.json")
    assert "a named pipe instead of a regular file" in robust201("verify", finished).refusal(2)
