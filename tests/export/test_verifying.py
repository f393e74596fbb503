"""Verification names what is wrong, and what is requeued is computed again, it and nothing else."""

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


def test_flipped_bits_are_found_wherever_they_are(tmp_path):
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
        first = max(0, len(content) - 2048) if number % 2 else 0  # every second one in or near the footer
        flip(path, int(draws.integers(8 * first, 8 * len(content))))
        assert [(found.kind, found.shard) for found in store.verify() if found.shard == shard] == [("damaged", shard)]
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
    """Count an image of one class as one of another, and leave its prediction and the accuracy as they are."""
    cm = values["cm"]
    source, target = next((i, j) for i in range(3) for j in range(3) if i != j and cm[i, j])
    other = 3 - source - target
    cm[source, target] -= 1
    cm[other, target] += 1


WRONG = {"invalid": wrong_accuracy, "unlike others": wrong_classes}


def test_a_deleted_protocol_is_found_and_rewritten(finished, robust201, write_sweep):
    path = sorted((finished / "protocols").iterdir())[0]
    path.unlink()
    assert f"for {path}: expected the protocol of results" in robust201("verify", finished).refusal(4)
    assert robust201("run", write_sweep()).code == 0
    assert robust201("verify", finished).code == 0


@pytest.mark.parametrize("compacted", [False, True])
@pytest.mark.parametrize("kind", WRONG)
def test_only_what_is_wrong_counts_as_missing_after_requeueing(tmp_path, monkeypatch, kind, compacted):
    store = ShardStore.create(tmp_path)
    units = [make_unit(architecture) for architecture in (0, 2, 10, 21)]
    for unit in (units[0], *units[2:]):
        store.commit(make_results(unit, measurements=COUNTS))
    commit_wrong(store, monkeypatch, units[1], WRONG[kind])
    if compacted:
        store.compact(grace_seconds=0)
    inventory = store.inventory(verify="all")
    findings = store.verify(inventory)
    assert [(found.kind, found.unit) for found in findings] == [(kind, "#2 digits pgd at 1 images 0:30")]
    for moved in requeue_shards(store.folder, inventory, findings):
        assert (tmp_path / "damaged" / moved).exists()
    left = store.inventory(verify="all")
    assert store.verify(left) == []
    complete = {
        (unit.architecture, strength)
        for unit in units
        for strength in unit.strengths
        if left.is_complete(unit, strength, ("accuracy",))
    }
    lost = {(2, 1.0)} if compacted else {(2, 1.0), (2, 4.0)}  # a shard of one unit goes whole
    assert complete == {(unit.architecture, s) for unit in units for s in unit.strengths} - lost
    # What the old shard replaced does not come back by another compaction.
    store.compact(grace_seconds=0)
    store.compact(grace_seconds=0)
    assert not store.inventory().is_complete(units[1], 1.0, ("accuracy",))


def test_unequal_duplicates_are_both_requeued(tmp_path):
    store = ShardStore.create(tmp_path)
    unit, other = make_unit(), make_unit(2)
    for results in (make_results(unit), make_results(unit, seed=1), make_results(other)):
        store.commit(results)
    inventory = store.inventory()
    findings = store.verify(inventory)
    assert {found.kind for found in findings} == {"unequal duplicates"}
    assert len(requeue_shards(store.folder, inventory, findings)) == 2
    left = store.inventory()
    assert not left.is_complete(unit, 1.0, ("accuracy",))
    assert left.is_complete(other, 1.0, ("accuracy",))


def test_a_requeued_unit_is_computed_again_and_nothing_else(finished, tmp_path, write_sweep, robust201):
    robust201("export", finished, "--out", tmp_path / "before", "--processes", 1)
    store = ShardStore.open(finished)
    shard = next(entry.name for entry in store.folder.backend.entries() if "-fgsm-" in entry.name)
    victim = store.folder.shards / shard
    content = bytearray(victim.read_bytes())
    content[-30] ^= 4
    victim.write_bytes(content)
    assert robust201("verify", finished).code == 4
    ended = robust201("verify", finished, "--requeue", "--json")
    assert ended.code == 3
    assert json.loads(ended.out)["requeued"] == [shard]
    before = read_tree(finished / "shards")
    ended = robust201("run", write_sweep())
    assert ended.code == 0
    assert "8 done, 2 missing" in ended.err  # the two strengths of one unit
    after = read_tree(finished / "shards")
    assert len(after) == len(before) + 1
    assert before.items() <= after.items()
    assert robust201("verify", finished).code == 0
    robust201("export", finished, "--out", tmp_path / "after", "--processes", 1)
    assert read_tree(tmp_path / "before") == read_tree(tmp_path / "after")


@pytest.mark.parametrize("compression", [None, "gz", "zst"])
def test_an_export_is_compared_with_its_shards(finished, tmp_path, robust201, compression):
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
    ended = robust201("verify", finished, "--export", out)
    assert ended.code == 4
    assert f"{victim}: expected the SHA-256" in ended.err
    if compression != "zst":
        assert "from #21 digits fgsm on" in ended.err


def test_an_export_of_other_results_is_told_apart_though_its_listing_agrees(finished, tmp_path, write_sweep, robust201):
    robust201("export", finished, "--out", tmp_path / "out", "--parquet", "--processes", 1)
    other = write_sweep(results=str(tmp_path / "other"), keys={"clean": {}, "fgsm": {"epsilons_255": [2, 8]}})
    assert robust201("run", other).code == 0
    ended = robust201("verify", tmp_path / "other", "--export", tmp_path / "out")
    assert ended.code == 4
    assert "digits/fgsm_cm.json: expected the values of the results, got others from #0 digits fgsm on" in ended.err
    assert "key=fgsm/part-0.parquet: expected the values of the results, got others" in ended.err
    assert "brightness_cm.json: expected it as in the results, got one that the results do not have" in ended.err
    assert "expected a whole export" in robust201("verify", finished, "--export", tmp_path).refusal(2)


DIGITS = {"digits": {"corruptions": None}}


def test_the_export_of_another_sweep_is_one_line(finished, tmp_path, write_sweep, robust201):
    robust201("export", finished, "--out", tmp_path / "out", "--processes", 1)
    other = write_sweep(
        results=str(tmp_path / "other"), name="mine", keys={"clean": {}}, images={"count": 20}, datasets=DIGITS
    )
    assert robust201("run", other).code == 0
    ended = robust201("verify", tmp_path / "other", "--export", tmp_path / "out")
    assert ended.code == 4
    assert len(ended.err.splitlines()) == 1
    assert "expected the export of mine, got one of 'tiny', with other protocols under every key" in ended.err


def test_units_with_gaps_are_named_and_are_no_damage(finished, robust201):
    store = ShardStore.open(finished)
    shard = next(name for name in [entry.name for entry in store.folder.backend.entries()] if "000000-fgsm" in name)
    path = store.folder.shards / shard
    inventory = store.inventory()
    unit = next(unit for unit in load_plan(finished).units if (unit.architecture, unit.key) == (0, "fgsm"))
    values = store.values(unit, 8.0, inventory, ("accuracy", "confidence", "cm"))
    path.unlink()
    ShardStore.open(finished).commit([EvaluationResult(Part(unit, (8.0,), 0, unit.n_images), 8.0, values, 1.0)])
    ended = robust201("verify", finished)
    sound = "6 result files, 9 evaluations valid; 1 of 10 missing, 1 network-key pair with gaps.\n"
    assert (ended.code, ended.out) == (3, sound)
    assert "unfinished: #0 digits fgsm at 1" in ended.err


def test_what_was_checked_is_told_and_an_unfinished_sweep_is_not_called_complete(finished, tmp_path, robust201):
    robust201("export", finished, "--out", tmp_path / "out", "--processes", 1)
    n_files = len((tmp_path / "out/SHA256SUMS").read_text().splitlines())
    ended = robust201("verify", finished, "--export", tmp_path / "out")
    sound = f"6 result files, 10 evaluations valid; 0 of 10 missing; the export's {n_files} files agree.\n"
    assert (ended.code, ended.out) == (0, sound)
    for path in (finished / "shards").rglob("*.parquet"):
        path.unlink()
    ended = robust201("verify", finished)
    assert (ended.code, ended.out) == (3, "0 result files, 0 evaluations valid; 10 of 10 missing.\n")
    assert json.loads(robust201("verify", finished, "--json").out)["missing"] == 10
    (finished / "plan.json").unlink()
    ended = robust201("verify", finished)
    assert (ended.code, ended.out) == (
        0,
        "0 result files, 0 evaluations valid; no plan, so it is not known whether evaluations are missing.\n",
    )


def listed_again(out: Path) -> None:
    """Make SHA256SUMS agree with what lies there, so that only the comparison with the shards can tell."""
    names = [
        path.relative_to(out).as_posix()
        for path in sorted(out.rglob("*"))
        if path.is_file() and ".index" not in path.parts
    ]
    lines = [f"{sha256_of(out / name)}  {name}\n" for name in names if name != "SHA256SUMS"]
    (out / "SHA256SUMS").write_text("".join(lines))


def cut_the_last_row(path: Path) -> None:
    with pq.ParquetFile(path) as file:
        tables = [file.read_row_group(number) for number in range(file.num_row_groups)]
    with pq.ParquetWriter(path, tables[0].schema) as writer:
        for table in (*tables[:-1], tables[-1].slice(0, len(tables[-1]) - 1)):
            writer.write_table(table)


def break_deflate(path: Path) -> None:
    """Give the first block of a gzip file, after ten bytes of header, a kind that does not exist."""
    content = bytearray(path.read_bytes())
    content[10] |= 7
    path.write_bytes(content)


DAMAGE = {
    "no sweep.json": ("sweep.json", Path.unlink, "expected a file with key_style"),
    "no JSON in sweep.json": ("sweep.json", lambda path: path.write_text("{"), "expected JSON"),
    "another sweep.json": ("sweep.json", lambda path: path.write_text('{"key_style": 1}'), "and none"),
    "a listing that is no text": ("SHA256SUMS", lambda path: path.write_bytes(b"\xff\xfe"), "expected a listing"),
    "flipped bits in gzip": ("digits/fgsm_cm.json.gz", break_deflate, "reading it failed"),
    "a row less": ("parquet/dataset=digits/key=fgsm/part-0.parquet", cut_the_last_row, "in a row group of"),
    "a file too many": ("digits/pgd_cm.json.gz", lambda path: path.write_bytes(b""), "that SHA256SUMS does not list"),
}


# A file that is gone, one that cannot be decoded, and one of other rows; the others are told apart by the same code.
@pytest.mark.parametrize(
    "what",
    [
        pytest.param(
            what,
            marks=() if what in ("no sweep.json", "flipped bits in gzip", "a row less") else pytest.mark.slow,
        )
        for what in DAMAGE
    ],
)
def test_a_damaged_export_is_told_of_and_shards_are_requeued_all_the_same(finished, tmp_path, robust201, what):
    out, (name, damage, message) = tmp_path / "out", DAMAGE[what]
    robust201("export", finished, "--out", out, "--parquet", "--compress", "gz", "--processes", 1)
    (out / "digits/.index").mkdir()
    (out / "digits/.index/fgsm_cm.json.1-1.npy").write_bytes(b"")  # a reader's, and no part of the export
    assert robust201("verify", finished, "--export", out).code == 0
    damage(out / name)
    if name.endswith(("gz", "parquet")) and "many" not in what:
        listed_again(out)
        (line,) = verify_results(finished, export=out).export
        assert message in line
        assert name in line
    ended = robust201("verify", finished, "--export", out)
    assert ended.code == 4
    assert message in ended.err
    victim = next(path for path in sorted((finished / "shards").rglob("*.parquet")))
    flip(victim)
    ended = robust201("verify", finished, "--export", out, "--requeue", "--json")
    assert ended.code == 4
    assert [Path(moved).name for moved in json.loads(ended.out)["requeued"]] == [victim.name]
    assert not victim.exists()


@pytest.mark.parametrize(("name", "steps"), [("meta.json", ("epsilons",)), ("sweep.json", ("strengths", "digits"))])
def test_strengths_that_are_not_the_plans_are_told_of(finished, tmp_path, robust201, name, steps):
    """The values are right then, and would be read under other strengths."""
    out = tmp_path / "out"
    robust201("export", finished, "--out", out, "--processes", 1)
    assert verify_results(finished, export=out).export == ()
    content = json.loads((out / name).read_text())
    by_key = content
    for step in steps:
        by_key = by_key[step]
    by_key["fgsm"] = [strength + 1 for strength in by_key["fgsm"]]
    (out / name).write_text(json.dumps(content))
    listed_again(out)
    (line,) = verify_results(finished, export=out).export
    assert f"{name}: expected {steps[0]} as the plan has them" in line


def test_a_value_that_no_export_can_hold_is_told_of(finished, tmp_path, monkeypatch):
    def refuse(*_arguments):
        raise StorageError("expected an accuracy, got NaN")
        yield

    store = ShardStore.open(finished)
    inventory = store.inventory(verify="all")
    plan = load_plan(finished)
    export_dataset(plan, store, inventory, tmp_path / "out")
    monkeypatch.setattr("robust201.export.json_files.row_texts", refuse)
    lines = list(check_export(plan, store, inventory, tmp_path / "out"))
    assert len(lines) == len({(unit.dataset, unit.key) for unit in plan.units})
    assert all("expected an accuracy, got NaN" in line for line in lines)


def test_an_export_is_not_compared_with_shards_that_are_damaged(finished, tmp_path, robust201):
    robust201("export", finished, "--out", tmp_path / "out", "--processes", 1)
    flip(next(path for path in sorted((finished / "shards").rglob("*fgsm*.parquet"))))
    (line,) = verify_results(finished, export=tmp_path / "out").export
    assert "digits fgsm" in line
    assert "expected results of all its networks to compare it with, got none of 1, such as #0" in line


def test_each_shard_is_hashed_once(finished, monkeypatch):
    hashed = []
    check = ResultsFolder.check_hash
    monkeypatch.setattr(
        ResultsFolder, "check_hash", lambda folder, shard, sha: (hashed.append(shard), check(folder, shard, sha))[1]
    )
    assert verify_results(finished).sound
    shards = [entry.name for entry in ShardStore.open(finished).folder.backend.entries()]
    assert sorted(hashed) == sorted(shards)


# What lies in an export beside its files, and lines of its listing that no export wrote


@pytest.fixture
def out(tmp_path):
    """An export that its listing agrees with."""
    export(tmp_path / "out", make_plan([0, 2], ["clean", "fgsm"], measurements=("accuracy",)))
    assert wrong_in(tmp_path / "out") == []
    return tmp_path / "out"


def wrong_in(out: Path) -> list[str]:
    return list(check_listing(out, read_listing(out)))


def link_a_listed_file(out: Path) -> None:
    file = out / "cifar10/fgsm_accuracy.json"
    file.rename(out.parent / "elsewhere.json")
    file.symlink_to(out.parent / "elsewhere.json")


def link_a_listed_folder(out: Path) -> None:
    (out / "cifar10").rename(out.parent / "elsewhere")
    (out / "cifar10").symlink_to(out.parent / "elsewhere")


BESIDE: dict[str, tuple[Callable[[Path], object], str]] = {
    "a pipe": (lambda out: os.mkfifo(out / "pipe"), "got a named pipe"),
    "a link to a file": (lambda out: (out / "link").symlink_to(out / "meta.json"), "got a symbolic link to"),
    "a link to nothing": (lambda out: (out / "link").symlink_to("nowhere"), "got a symbolic link to 'nowhere'"),
    "a link to a folder": (lambda out: (out / "link").symlink_to("/"), "got a symbolic link to '/'"),
    "a link to itself": (lambda out: (out / "link").symlink_to("link"), "got a symbolic link to 'link'"),
    "a link deep inside": (lambda out: (out / "cifar10/link").symlink_to(".."), "got a symbolic link to '..'"),
    "a link for a listed file": (link_a_listed_file, "got a symbolic link to"),
    "a link for a listed folder": (link_a_listed_folder, "got a symbolic link to"),
}


@pytest.mark.parametrize("what", BESIDE)
def test_what_export_never_writes_is_told(out, what):
    spoil, told = BESIDE[what]
    spoil(out)
    (line,) = wrong_in(out)
    assert told in line


def test_a_listed_name_that_a_pipe_has_is_told_and_not_waited_for(out):
    (out / "cifar10/fgsm_accuracy.json").unlink()
    os.mkfifo(out / "cifar10/fgsm_accuracy.json")
    (line,) = wrong_in(out)
    assert "expected a file, got a named pipe" in line


HEX = "0" * 64
LINES = {
    "below another folder": (f"{HEX}  ../x", "'../x', which is no path below the folder"),
    "in the middle": (f"{HEX}  cifar10/../../x", "which is no path below the folder"),
    "absolute": (f"{HEX}  /etc/hostname", "'/etc/hostname', which is no path below the folder"),
    "the folder": (f"{HEX}  .", "which is no path below the folder"),
    "spelled otherwise": (f"{HEX}  ./meta.json", "'./meta.json', which is no path below the folder"),
    "short": (f"{HEX[1:]}  x", f"got '{HEX[1:]}  x'"),
    "no hexadecimal digits": (f"{HEX[1:]}g  x", "g  x'"),
    "upper case": (f"{'A' * 64}  x", "A  x'"),
    "no name": (f"{HEX}  ", f"got '{HEX}  '"),
    "one word": ("x", "got 'x'"),
    "a binary mark": (f"{HEX} *x", f"got '{HEX} *x'"),
}


@pytest.mark.parametrize("what", LINES)
def test_lines_of_another_form_are_told_with_their_number(out, what):
    line, told = LINES[what]
    listing = out / CHECKSUM_FILE
    text = listing.read_text()
    listing.write_text(f"{text}{line}\n")
    (wrong,) = wrong_in(out)
    assert f"{CHECKSUM_FILE}, line {len(text.splitlines()) + 1}: expected 64 hexadecimal digits" in wrong
    assert told in wrong


def test_a_name_that_is_listed_twice_is_told(out):
    listing = out / CHECKSUM_FILE
    first = listing.read_text().splitlines()[0]
    listing.write_text(f"{listing.read_text()}{HEX}{first[64:]}\n")
    (wrong,) = wrong_in(out)
    assert f"got {first[66:]!r} a second time" in wrong


def test_a_listing_of_rubbish_is_told_in_few_lines(out):
    (out / CHECKSUM_FILE).write_text("rubbish\n" * 1000)
    assert len(read_listing(out).wrong) == 11


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo, lambda path: path.symlink_to("meta.json"), None])
def test_a_listing_that_is_no_file_is_no_export(finished, tmp_path, robust201, make):
    (tmp_path / "out").mkdir()
    if make is not None:
        make(tmp_path / "out" / CHECKSUM_FILE)
    with pytest.raises(ResultsError):
        read_listing(tmp_path / "out")
    assert "expected a whole export" in robust201("verify", finished, "--export", tmp_path / "out").refusal(2)
