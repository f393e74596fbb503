"""A JSON dataset becomes shards and is exported again, byte for byte."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from robust201.core.errors import ConfigError, InputError, LeaseHeldError, ResultsError
from robust201.core.files import visible_entries
from robust201.core.records import IMPORTED_FILE, is_imported
from robust201.dataset import export_dataset
from robust201.dataset.compare import compare_results
from robust201.dataset.imported_plan import load_any_plan, load_imported_plan
from robust201.dataset.json_import import count_decimals, import_json
from robust201.dataset.verify import verify_results
from robust201.reader.dataset import RobustnessDataset
from robust201.runtime.lease import Lease
from robust201.shards import ShardStore, parquet
from robust201.tasks.measurements import Accumulator
from tests.conftest import read_tree
from tests.support import fabricated
from tests.support.fabricated import ChangedStore, FabricatedStore, export, export_copy, make_plan
from tests.support.kept_plans import edit_plan
from tests.support.shard_support import make_unit as make_sound_unit
from tests.support.shard_support import make_values
from tests.support.small_results import write_results

ARCHITECTURES = (0, 2, 10, 309)
SEVERITIES = (1.0, 2.0, 3.0, 4.0, 5.0)  # what the published dataset, which has no sweep.json, is known to hold


ALL = ("accuracy", "confidence", "cm", "predictions")


def sound(unit, strength, _values):
    """Columns that hold together."""
    made = make_sound_unit(unit.architecture, unit.dataset, unit.key, unit.strengths, unit.n_images)
    return make_values(made, strength, 0, unit.n_images, measurements=ALL)


def write(out: Path, plan=None, values=sound, **options) -> Path:
    plan = plan or make_plan(ARCHITECTURES, datasets=("cifar10", "cifar100"), severities=SEVERITIES)
    (export_copy if values is sound else export)(out, plan, ChangedStore(change=values), **options)
    return out


def without_last_class(unit, _strength, _values):
    """Columns of a network that never predicts the last class."""
    logits = torch.from_numpy(np.random.default_rng(unit.architecture).normal(size=(unit.n_images, 3)))
    logits[:, 2] -= 100
    accumulator = Accumulator(ALL, 3, "cpu", unit.n_images)
    accumulator.update(torch.arange(unit.n_images), logits.float(), torch.arange(unit.n_images) % 3)
    return accumulator.finalise()


def read_json(path: Path) -> Any:
    return json.loads(path.read_text())


def export_again(results: Path, out: Path, **options) -> Path:
    store = ShardStore.open(results)
    export_dataset(load_any_plan(results), store, store.inventory(verify="all"), out, **options)
    return out


def published(folder: Path) -> dict[str, bytes]:
    return {name: data for name, data in read_tree(folder).items() if "/" in name or name == "meta.json"}


@pytest.mark.parametrize(("key_style", "round_to"), [("paper", None), ("published", 3)])
def test_a_round_trip_gives_the_same_bytes(tmp_path, key_style, round_to):
    source = write(tmp_path / "source", key_style=key_style, round_to=round_to)
    before = published(source)
    for own in ("sweep.json", "SHA256SUMS"):  # the published dataset has neither
        (source / own).unlink()
    report = import_json(source, tmp_path / "results")
    assert (report.n_groups, report.n_evaluations, report.lacking) == (8, 2 * 4 * 12, ())
    assert published(export_again(tmp_path / "results", tmp_path / "out", key_style=key_style)) == before
    verdict = verify_results(tmp_path / "results", export=tmp_path / "out")
    assert (verdict.findings, verdict.export, verdict.gaps) == ((), (), ())
    assert (verdict.n_missing, verdict.n_planned) == (0, 2 * 4 * 12)
    assert compare_results(source, tmp_path / "results").max_difference == 0
    plan = load_any_plan(tmp_path / "results")
    assert all(is_imported(unit.protocol) for unit in plan.units)
    decimals = plan.describe()["protocols"][0]["decimals"]
    assert decimals["confidence"] == round_to


@pytest.mark.parametrize(("bound", "groups"), [(1000, [200]), (7, [7] * 28 + [4])])
def test_each_row_of_an_import_is_measured_once(monkeypatch, bound, groups):
    class MeasuredTable:
        measured = 0

        @property
        def nbytes(self):
            MeasuredTable.measured += 1
            return 1

    monkeypatch.setattr(parquet, "table_of", lambda _results: MeasuredTable())
    monkeypatch.setattr(parquet, "concat", len)
    monkeypatch.setattr(parquet, "ROW_GROUP_BYTES", bound)
    assert list(parquet._row_groups([[]] * 200)) == groups
    assert MeasuredTable.measured == 200


@pytest.mark.filterwarnings("ignore::robust201.reader.expected_files.MissingFilesWarning")
def test_a_dataset_with_accuracies_only(tmp_path):
    source = write(tmp_path / "source", round_to=3)
    before = {name: data for name, data in published(source).items() if name.endswith(("accuracy.json", "meta.json"))}
    for path in source.glob("*/*"):
        if not path.name.endswith("accuracy.json"):
            path.unlink()
    (source / "sweep.json").unlink()
    import_json(source, tmp_path / "results")
    plan = load_any_plan(tmp_path / "results")
    assert plan.measurements == ("accuracy",)
    assert plan.units[0].n_images == 10_000  # the whole test split, as nothing says otherwise
    assert published(export_again(tmp_path / "results", tmp_path / "out")) == before
    assert verify_results(tmp_path / "results").sound
    store = ShardStore.open(tmp_path / "results")
    assert not store.inventory().is_complete(plan.units[0], 0.0, ("cm",))


@pytest.mark.filterwarnings("ignore::robust201.reader.expected_files.MissingFilesWarning")
def test_what_is_imported_later_is_added(tmp_path):
    source = write(tmp_path / "source")
    before = published(source)
    shutil.copytree(source, tmp_path / "some")
    for path in (tmp_path / "some").glob("cifar100/*"):
        path.unlink()
    for path in (tmp_path / "some").glob("cifar10/*_c*.json"):
        path.unlink()
    import_json(tmp_path / "some", tmp_path / "results")
    import_json(source, tmp_path / "results")
    assert published(export_again(tmp_path / "results", tmp_path / "out")) == before


def test_a_key_imported_again_with_other_values_takes_the_place_of_the_old_ones(tmp_path):
    source = write(tmp_path / "source", make_plan(ARCHITECTURES, ["clean", "fog"], severities=SEVERITIES))
    import_json(source, tmp_path / "results")
    cm = json.loads((source / "cifar10/clean_cm.json").read_text())
    cm["cifar10"]["clean"]["cm"]["2"] = [[14, 0, 0], [0, 13, 0], [0, 0, 13]]
    (source / "cifar10/clean_cm.json").write_text(json.dumps(cm))
    change(source / "cifar10/clean_accuracy.json", lambda rows: rows.update({"2": 1.0}))
    import_json(source, tmp_path / "results")
    assert published(export_again(tmp_path / "results", tmp_path / "out")) == published(source)
    verdict = verify_results(tmp_path / "results", export=tmp_path / "out")
    assert (verdict.findings, verdict.export, verdict.gaps) == ((), (), ())
    assert len(list((tmp_path / "results/shards").rglob("*.parquet"))) == 2  # none of the first import's is left over


def part_of(source: Path, folder: Path, *measures: str) -> Path:
    shutil.copytree(source, folder)
    for path in folder.glob("cifar10/*"):
        if not path.stem.endswith(measures):
            path.unlink()
    return folder


@pytest.mark.filterwarnings("ignore::robust201.reader.expected_files.MissingFilesWarning")
def test_measurements_are_imported_together(tmp_path):
    source = write(tmp_path / "source", make_plan(ARCHITECTURES, ["clean", "pgd"]))
    import_json(source, tmp_path / "results")
    before = read_tree(tmp_path / "results")
    with pytest.raises(InputError, match=r"cifar10 clean: .* got none of accuracy, confidence\."):
        import_json(part_of(source, tmp_path / "part", "cm"), tmp_path / "results")
    assert read_tree(tmp_path / "results") == before


@pytest.mark.filterwarnings("ignore::robust201.reader.expected_files.MissingFilesWarning")
def test_the_number_of_images_of_an_export_is_taken_from_its_sweep_json(tmp_path):
    source = part_of(write(tmp_path / "source", make_plan(ARCHITECTURES)), tmp_path / "part", "accuracy")
    import_json(source, tmp_path / "results")
    assert {unit.n_images for unit in load_any_plan(tmp_path / "results").units} == {40}
    again = export_again(tmp_path / "results", tmp_path / "out")
    import_json(again, tmp_path / "again")
    assert {unit.n_images for unit in load_any_plan(tmp_path / "again").units} == {40}


@pytest.mark.parametrize("compression", ["gz", "zst"])
def test_compressed_files_are_imported_as_plain_ones_are(tmp_path, compression):
    source = write(tmp_path / "source", make_plan(ARCHITECTURES), compression=compression)
    plain = published(write(tmp_path / "plain", make_plan(ARCHITECTURES)))
    import_json(source, tmp_path / "results")
    assert published(export_again(tmp_path / "results", tmp_path / "out")) == plain
    victim = source / f"cifar10/pgd_cm.json.{compression}"
    content = bytearray(victim.read_bytes())
    content[len(content) // 2] ^= 255
    victim.write_bytes(content)
    with pytest.raises(ResultsError, match=f"pgd_cm.json.{compression}: expected"):
        import_json(source, tmp_path / "again")


@pytest.mark.parametrize("as_published", [False, True])
@pytest.mark.parametrize("compression", ["", ".gz"])
@pytest.mark.each_value
def test_keys_of_ones_own_are_named_where_they_are_left_out(tmp_path, robust201, as_published, compression):
    source = write(tmp_path / "source")
    if as_published:
        for own in ("sweep.json", "SHA256SUMS"):
            (source / own).unlink()
    for name in ("my_attack_accuracy", "my_attack_cm", "hessian_trace"):
        (source / f"cifar10/{name}.json{compression}").write_bytes(b"{}")
    (source / "notes").mkdir()
    (source / "notes/anything.json").write_text("{}")
    ended = robust201("import-json", source, "--out", tmp_path / "results")
    assert ended.code == 0
    (line,) = [line for line in ended.err.splitlines() if "warning" in line]
    assert line == (
        f"warning: cifar10 hessian_trace, cifar10 my_attack of {source}: of no task of this version, not imported."
    )


def test_a_dataset_of_keys_of_ones_own_alone_is_refused_by_their_names(tmp_path):
    source = write(tmp_path / "source", make_plan(ARCHITECTURES, ["clean"]))
    for own in ("sweep.json", "SHA256SUMS"):
        (source / own).unlink()
    for file in (source / "cifar10").iterdir():
        file.rename(file.with_name(file.name.replace("clean", "mine")))
    with pytest.raises(ResultsError, match="got only cifar10 mine, of no task of this version"):
        import_json(source, tmp_path / "results")


def test_one_import_at_a_time(tmp_path):
    source = write(tmp_path / "source", make_plan(ARCHITECTURES, ["clean"]))
    import_json(source, tmp_path / "results")
    with Lease.acquire(tmp_path / "results"), pytest.raises(LeaseHeldError):
        import_json(source, tmp_path / "results")


def test_the_card_of_imported_results_claims_nothing_that_is_not_known(tmp_path):
    source = write(tmp_path / "source", make_plan(ARCHITECTURES, ["clean"]), licence="gpl-3.0")
    import_json(source, tmp_path / "results")
    out = export_again(tmp_path / "results", tmp_path / "out")
    card = (out / "README.md").read_text()
    assert "license: gpl-3.0\n" in card
    assert json.loads((out / "croissant.json").read_text())["license"] == "gpl-3.0"
    assert "they were read from the files of `source`" in card
    assert "the sweep to run again" not in card
    assert not (out / "sweep.yaml").exists()
    (source / "README.md").unlink()  # as the published dataset, which has no card
    import_json(source, tmp_path / "unnamed")
    with pytest.raises(ConfigError, match="--licence"):
        export_again(tmp_path / "unnamed", tmp_path / "none")
    assert not (tmp_path / "none").exists()
    assert (
        "license: gpl-3.0\n"
        in (export_again(tmp_path / "unnamed", tmp_path / "named", licence="gpl-3.0") / "README.md").read_text()
    )


def change(path: Path, edit) -> None:
    content = json.loads(path.read_text())
    rows = content["cifar10"][path.name.rpartition("_")[0]][path.stem.rpartition("_")[2]]
    edit(rows)
    path.write_text(json.dumps(content))


WRONG = {
    "an accuracy that its cm denies": ("pgd_accuracy.json", lambda rows: rows["2"].__setitem__(1, 0.999)),
    "an accuracy above 1": ("pgd_accuracy.json", lambda rows: rows["2"].__setitem__(1, 1.5)),
    "a row that does not sum to 1": (
        "fog_confidence.json",
        lambda rows: rows["0"][0]["label"].__setitem__(0, [0.9, 0.9, 0.9]),
    ),
    "counts that are none": ("fog_cm.json", lambda rows: rows["0"][0][0].__setitem__(0, 0.5)),
    "too few strengths": ("fog_cm.json", lambda rows: rows["0"].pop()),
    "another number of images": ("fog_cm.json", lambda rows: rows["10"][0][0].__setitem__(0, 39)),
    "an architecture less": ("fog_cm.json", lambda rows: rows.pop("309")),
}


@pytest.mark.parametrize("what", WRONG)
def test_files_that_contradict_themselves_are_refused(tmp_path, what):
    source = write(tmp_path / "source", make_plan(ARCHITECTURES), round_to=3)
    name, edit = WRONG[what]
    change(source / "cifar10" / name, edit)
    with pytest.raises(ResultsError, match=r"failed for .*cifar10.*: expected"):
        import_json(source, tmp_path / "results")


def as_shares(path: Path, decimals: int) -> None:
    def share(matrix):
        return [[round(count / sum(row), decimals) for count in row] for row in matrix]

    is_single = path.name.startswith("clean")
    change(
        path,
        lambda rows: rows.update(
            {name: share(row) if is_single else [share(one) for one in row] for name, row in rows.items()}
        ),
    )


@pytest.fixture
def equal_classes(monkeypatch):
    """As many images of each of the three classes."""
    monkeypatch.setattr(fabricated, "N_IMAGES", 42)


@pytest.mark.usefixtures("equal_classes")
@pytest.mark.parametrize("decimals", [3, 17])
def test_rows_of_cm_may_hold_shares(tmp_path, decimals):
    """Neither the paper nor the published helper says whether they are counts."""
    plan = make_plan(ARCHITECTURES)
    source = write(tmp_path / "source", plan)
    before = published(source)
    for path in source.glob("*/*_cm.json"):
        as_shares(path, decimals)
    report = import_json(source, tmp_path / "results")
    keys = {unit.key for unit in plan.units}
    assert {line for line in report.remarks if "shares" in line} == {
        f"cifar10 {key}: rows of cm hold shares, which were read as counts of 42 images" for key in keys
    }
    assert published(export_again(tmp_path / "results", tmp_path / "out")) == before


@pytest.mark.parametrize("rows", [[[0.1001] * 10] * 10, [[0.3, 0.7], [0.5, 0.5]]])
def test_rows_that_are_neither_counts_nor_shares_are_refused_in_one_line(tmp_path, robust201, rows):
    """The second are shares, but none of the ten images of each class or of one image."""
    source = write_results(tmp_path / "source", {"clean": {"0": rows}}, measure="cm")
    if len(rows) == 2:
        strengths = {"cifar10": {"clean": [0]}}
        told = {"format": 1, "strengths": strengths, "measurements": ["cm"], "sweep": {"images": {"count": 2}}}
        (source / "sweep.json").write_text(json.dumps(told))
    refusal = robust201("import-json", source, "--out", tmp_path / "results").refusal(2)
    assert ("an array C x C of counts" if len(rows) == 10 else "shares that are none of 1 images per class") in refusal
    assert visible_entries(tmp_path / "results") == []  # as it was: a sweep may still take it
    assert robust201("convert", source).refusal(2)


def test_shares_of_unequal_classes_are_refused(tmp_path):
    source = write(tmp_path / "source", make_plan(ARCHITECTURES, ["clean"]))
    as_shares(source / "cifar10/clean_cm.json", 3)
    with pytest.raises(ResultsError, match="equally many images per class"):
        import_json(source, tmp_path / "results")


@pytest.mark.parametrize("without_cm", [False, True])
def test_zeros_may_stand_for_means_over_no_image(tmp_path, without_cm):
    plan = make_plan(ARCHITECTURES)
    measurements = ("accuracy", "confidence") if without_cm else ("accuracy", "confidence", "cm")
    source = write(tmp_path / "source", replace(plan, measurements=measurements), without_last_class)
    (source / "SHA256SUMS").unlink()
    before = published(source)
    texts = {path: path.read_text() for path in source.glob("*/*_confidence.json")}
    assert any("null" in text for text in texts.values())
    for path, text in texts.items():
        path.write_text(text.replace("null", "0.0"))
    report = import_json(source, tmp_path / "results")
    changed = {path.name.removesuffix("_confidence.json") for path, text in texts.items() if "null" in text}
    assert {line for line in report.remarks if "zeros in" in line} == {
        f"cifar10 {key}: zeros in confidences over no image were read as null" for key in changed
    }
    assert published(export_again(tmp_path / "results", tmp_path / "out")) == before


@pytest.mark.parametrize(
    ("empty", "text"), [("null", "null"), ("nan", "NaN"), pytest.param("zero", "0.0", marks=pytest.mark.slow)]
)
def test_means_over_no_image_are_written_as_asked(tmp_path, empty, text):
    plan = make_plan(ARCHITECTURES)
    import_json(write(tmp_path / "source", plan, without_last_class), tmp_path / "results")
    out = export_again(tmp_path / "results", tmp_path / "out", empty=empty)
    (row,) = json.loads((out / "cifar10/clean_confidence.json").read_text())["cifar10"]["clean"].values()
    never_predicted = next(iter(row.values()))["argmax"][2]
    assert repr(never_predicted).replace("None", "null").replace("nan", "NaN") == f"[{text}, {text}, {text}]"
    assert verify_results(tmp_path / "results", export=out).export == ()
    read = RobustnessDataset(out).value(0, "cifar10", "clean", "confidence")["argmax"][2]
    assert [None if value is None or value != value else value for value in read] == 3 * [
        0.0 if empty == "zero" else None
    ]
    import_json(out, tmp_path / "again")
    assert compare_results(tmp_path / "again", tmp_path / "results").max_difference == 0


def test_an_accuracy_may_be_off_by_half_a_unit_of_its_last_digit_and_no_more(tmp_path):
    source = write(tmp_path / "source", make_plan(ARCHITECTURES, ["clean"]), round_to=2)

    def off(by):
        return lambda rows: rows.update({"0": round(rows["0"] + by, 2)})

    import_json(source, tmp_path / "sound")
    change(source / "cifar10/clean_accuracy.json", off(0.01))
    with pytest.raises(ResultsError, match="which is that of cm"):
        import_json(source, tmp_path / "off")


def test_verbs_for_sweeps_say_that_results_were_imported(tmp_path, robust201):
    imported = tmp_path / "imported"
    import_json(write(tmp_path / "source", make_plan(ARCHITECTURES, ["clean"])), imported)
    for verb in (("status", imported), ("logs", "0/cifar10/clean", imported), ("merge", imported, "--out", tmp_path)):
        refusal = robust201(*verb).refusal(2)
        assert "expected the results of a sweep, got imported ones" in refusal
        assert refusal.endswith("Use verify, compare or export.")


def test_results_of_a_sweep_are_left_alone(tmp_path, write_sweep, robust201):
    assert robust201("run", write_sweep()).code == 0
    source = write(tmp_path / "source", make_plan(ARCHITECTURES, ["clean"]))
    with pytest.raises(InputError, match=r"the results of a sweep.*with: robust201 compare$"):
        import_json(source, tmp_path / "results")
    ended = robust201("import-json", source, "--out", tmp_path / "imported")
    assert ended.code == 0, ended.err
    assert ended.out == f"Imported 4 evaluations of 1 key into {tmp_path / 'imported'}.\n"
    assert robust201("verify", tmp_path / "imported").code == 0
    assert robust201("export", tmp_path / "imported", "--out", tmp_path / "out", "--processes", 1).code == 0
    assert published(tmp_path / "out") == published(source)


def test_a_sweep_is_not_run_into_imported_results(tmp_path, write_sweep, robust201):
    sweep, results = write_sweep(), tmp_path / "results"
    import_json(write(tmp_path / "source", make_plan(ARCHITECTURES, ["clean"])), results)
    before = read_tree(results)
    for arguments in (
        ("run", sweep),
        ("run", sweep, "--share", "1/2"),
        ("plan", sweep, "--check"),
        ("plan", sweep, "--save"),
    ):
        refusal = robust201(*arguments).refusal(2)
        assert f"failed for {results}: expected no imported results in the folder, got imported.json" in refusal
        assert refusal.endswith("read both datasets together: RobustnessDataset(published, ours).")
    assert f"imported results: {results} has imported results, so no sweep can use it" in robust201("doctor", sweep).out
    assert robust201("run", sweep, "--out", tmp_path / "own").code == 0
    assert "expected no imported results" in robust201("merge", tmp_path / "own", "--out", results).refusal(2)
    assert read_tree(results) == before


def test_a_sweep_that_an_earlier_version_completed_goes_on_with_what_it_computed(tmp_path, write_sweep, robust201):
    """Its folder holds imported shards beside computed ones, and its plan says that these count."""
    assert robust201("run", write_sweep(), "--keys", "clean").code == 0
    results, imported = tmp_path / "results", tmp_path / "imported"
    import_json(write(tmp_path / "source", make_plan(ARCHITECTURES, ["fgsm"], ["digits"])), imported)
    shutil.copytree(imported, results, ignore=shutil.ignore_patterns("format.json"), dirs_exist_ok=True)
    edit_plan(results, lambda plan: plan["config"].update(take_imported=True))
    state = json.loads(robust201("status", results, "--json").out)
    assert (state["done"], state["total"], state["stale_evaluations"]) == (2, 10, 12)
    verdict = json.loads(robust201("verify", results, "--json").out)
    assert (verdict["sound"], verdict["missing"]) == (True, 8)
    assert robust201("export", results, "--out", tmp_path / "out", "--partial", "--processes", 1).code == 3
    assert json.loads((tmp_path / "out/digits/clean_accuracy.json").read_text())["digits"]["clean"]["accuracy"]
    assert "take_imported: false\n" in (tmp_path / "out/sweep.yaml").read_text()
    assert "expected no imported results in the folder" in robust201("run", write_sweep()).refusal(2)
    (results / IMPORTED_FILE).unlink()
    ended = robust201("run", write_sweep())
    assert (ended.code, "12 evaluations of fgsm are kept but not used: they were imported" in ended.err) == (0, True)


def tell_protocols(source: Path, *protocols: dict[str, Any]) -> None:
    told = read_json(source / "sweep.json")
    told["sweep"]["protocols"] = protocols
    (source / "sweep.json").write_text(json.dumps(told))


def test_how_imported_results_were_computed_is_told_as_long_as_one_protocol_did(tmp_path):
    source = write(tmp_path / "source", make_plan(ARCHITECTURES, ["clean", "fog"]))
    clean = {"dataset": "cifar10", "key": "clean", "engine": "fused"}
    tell_protocols(source, clean)
    import_json(source, tmp_path / "results")
    again = export_again(tmp_path / "results", tmp_path / "out")
    import_json(again, tmp_path / "again")
    for folder in (tmp_path / "results", tmp_path / "again"):
        assert load_imported_plan(folder).groups[0].payload["computed_under"] == clean


def test_exact_rows_among_rounded_ones_are_imported_as_the_dataset_tells(tmp_path):
    """Earlier versions exported imported rows and computed ones together."""
    source = write(tmp_path / "source", make_plan(ARCHITECTURES, ["clean"]))
    change(source / "cifar10/clean_accuracy.json", lambda rows: rows.update({"309": rows["309"] + 0.004}))
    with pytest.raises(ResultsError, match="which is that of cm"):
        import_json(source, tmp_path / "refused")
    clean = {"dataset": "cifar10", "key": "clean"}
    tell_protocols(source, clean, clean | {"protocol": "imported", "n_images": 40, "decimals": {"accuracy": 2}})
    import_json(source, tmp_path / "results")
    payload = load_imported_plan(tmp_path / "results").groups[0].payload
    assert (payload["decimals"]["accuracy"], "computed_under" in payload) == (2, False)
    assert verify_results(tmp_path / "results").sound


@pytest.mark.parametrize(
    "told",
    [
        {"protocols": [1]},
        {"protocols": None},
        {"images": 5},
        {"protocols": [{"dataset": "cifar10", "key": "clean", "decimals": 1}]},
    ],
)
def test_a_sweep_json_of_another_form_is_refused(tmp_path, told):
    source = write(tmp_path / "source", make_plan(ARCHITECTURES, ["clean"]))
    (source / "sweep.json").write_text(json.dumps(read_json(source / "sweep.json") | {"sweep": told}))
    with pytest.raises(ResultsError, match=r"sweep\.json: expected strengths .* and images and protocols"):
        import_json(source, tmp_path / "results")


def test_a_file_with_an_architecture_twice_is_refused(tmp_path):
    path = write(tmp_path / "source", make_plan(ARCHITECTURES, ["fgsm"])) / "cifar10/fgsm_accuracy.json"
    path.write_text(path.read_text().replace('"0":', '"0": [0.5, 0.5, 0.5], "0":', 1))
    with pytest.raises(ResultsError, match=r"fgsm_accuracy\.json: expected .*twice"):
        import_json(tmp_path / "source", tmp_path / "results")


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
def test_what_was_imported_is_not_changed_by_hand(tmp_path, field, value):
    import_json(write(tmp_path / "source", make_plan(ARCHITECTURES, ["clean"])), tmp_path / "results")
    path = tmp_path / "results" / IMPORTED_FILE
    content = read_json(path)
    content["groups"][0][field] = value
    for damaged in (json.dumps(content), "{"):
        path.write_text(damaged)
        for use in (verify_results, load_any_plan):
            with pytest.raises(InputError, match=r"imported.json: .* import every dataset of the folder again"):
                use(tmp_path / "results")


def test_names_of_what_was_imported_are_known_ones(tmp_path):
    import_json(write(tmp_path / "source", make_plan(ARCHITECTURES, ["clean"])), tmp_path / "results")
    plan = load_imported_plan(tmp_path / "results")
    replace(plan, groups=(replace(plan.groups[0], dataset="../elsewhere"),)).save(tmp_path / "results")
    with pytest.raises(InputError, match=r"unknown '../elsewhere'"):
        load_imported_plan(tmp_path / "results")


def test_a_compaction_leaves_imported_shards_as_they_are(tmp_path):
    import_json(write(tmp_path / "source", make_plan(ARCHITECTURES, ["clean", "fog"])), tmp_path / "results")
    before = read_tree(tmp_path / "results/shards")
    assert ShardStore.open(tmp_path / "results").compact(grace_seconds=0).rows == 0
    assert read_tree(tmp_path / "results/shards") == before


def warnings_of(robust201, source: Path, results: Path) -> list[str]:
    ended = robust201("import-json", source, "--out", results)
    assert ended.code == 0, ended.err
    return [line for line in ended.err.splitlines() if line.startswith("warning: ")]


def test_an_import_warns_of_files_that_are_not_those_of_the_export(tmp_path, robust201):
    source = write(tmp_path / "source", make_plan(ARCHITECTURES), formats=("json", "parquet"))
    assert import_json(source, tmp_path / "whole").remarks == ()
    accuracies = part_of(source, tmp_path / "accuracies", "accuracy")
    change(accuracies / "cifar10/pgd_accuracy.json", lambda rows: rows["2"].__setitem__(1, 0.123))
    (accuracies / "cifar10/fog_accuracy.json").unlink()
    changed, gone, absent = warnings_of(robust201, accuracies, tmp_path / "results")
    assert f"1 of 5 files read from {accuracies} are not those of its SHA256SUMS" in changed  # with meta and sweep.json
    assert "such as cifar10/pgd_accuracy.json: they were changed after the export" in changed
    assert f"9 JSON files that {accuracies / 'SHA256SUMS'} lists are not there, such as cifar10/" in gone
    assert absent.endswith("sweep.json lists cifar10 fog, of which there is no JSON file.")
    (accuracies / "SHA256SUMS").write_text("\n")
    assert "5 of 5 files" in warnings_of(robust201, accuracies, tmp_path / "empty")[0]
    (accuracies / "SHA256SUMS").write_bytes(b"\xff")
    assert "SHA256SUMS is not a checksum listing" in warnings_of(robust201, accuracies, tmp_path / "binary")[0]
    (accuracies / "SHA256SUMS").unlink()
    assert "has no SHA256SUMS" in warnings_of(robust201, accuracies, tmp_path / "none")[0]
    (accuracies / "sweep.json").unlink()  # as the published dataset, of which nothing more is known
    assert warnings_of(robust201, accuracies, tmp_path / "published") == []


@pytest.mark.filterwarnings("ignore::robust201.reader.expected_files.MissingFilesWarning")
def test_keys_that_a_partial_export_lacks_are_no_gaps(tmp_path):
    plan, lacking = make_plan(ARCHITECTURES, ["clean", "fog"]), {(index, "fog", 1.0) for index in ARCHITECTURES}
    export(tmp_path / "source", plan, FabricatedStore(lacking=lacking), partial=True)
    assert import_json(part_of(tmp_path / "source", tmp_path / "part", "accuracy"), tmp_path / "results").remarks == (
        f"2 JSON files that {tmp_path / 'part/SHA256SUMS'} lists are not there, such as cifar10/clean_cm.json",
    )


def test_decimals():
    assert count_decimals({"0": [0.5, 0.125]}, ["0"]) == 3
    assert count_decimals({"0": [1 / 3]}, ["0"]) is None
    assert count_decimals({"0": 1.5e-05}, ["0"]) == 6
