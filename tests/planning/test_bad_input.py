"""Invalid names, options and sweep files give one-line errors on the command line and have no side effects."""

from pathlib import Path
from typing import Any

import pytest
import torch

from robust201.weights.store import CheckpointStore
from tests.conftest import RunCommand, WriteSweep, read_tree

INVALID_CELL = "|nor_conv_3x3~0|+|nor_conv_3x3~0|skip_conect~1|+|none~0|none~1|none~2|"


@pytest.mark.parametrize(
    ("changes", "hint"),
    [
        ({"kyes": {}}, "'kyes'. Did you mean 'keys'?"),
        ({"execution": {"windw": 2}}, "'execution.windw'. Did you mean 'window'?"),
        ({"keys": {"pdg": {}}}, "'pdg'. Did you mean 'pgd'?"),
        ({"keys": {"pgd": {"step": 3}}}, "'keys.pgd.step'. Did you mean 'steps'?"),
        ({"keys": {"pgd": {"target": "least-likely"}}}, "Did you mean 'least_likely'?"),
        ({"datasets": {"digit": {}}}, "'digit'. Did you mean 'digits'?"),
        (
            {"datasets": {"digits": {"normalisation": {"mean": [float("nan"), 0, 0], "std": [1, 1, 1]}}}},
            "normalisation.mean.0: expected a finite number",
        ),
        (
            {"datasets": {"digits": {"normalisation": {"mean": [0, 0, 0], "std": [-1, 1, 1]}}}},
            "normalisation.std.0: expected",
        ),
        ({"datasets": {"mine": {"path": ".", "classes": 40_000}}}, "classes: expected at most 32,767, got 40000."),
        ({"datasets": {"digits": {"form": "digit", "corruptions": {"source": "generated"}}}}, "Did you mean 'digits'?"),
        ({"measurements": ["acuracy"]}, "Did you mean 'accuracy'?"),
        ({"execution": {"executor": "rai"}}, "Did you mean 'ray'?"),
        ({"architectures": [15_625]}, "it must be from 0 to 15624. The closest index is 15624."),
        ({"architectures": [-1]}, "The closest index is 0."),
        ({"architectures": ["15625"]}, "The closest index is 15624."),
        ({"architectures": [INVALID_CELL]}, "got 'skip_conect'. Did you mean 'skip_connect'?"),
        ({"architectures": ["conv"]}, "expected an index, or six edges"),
        ({"architectures": "evaluted"}, "Did you mean 'evaluated'?"),
        ({"architectures": [True]}, "got True in the list"),
        (
            {"execution": {"micro_batch": True}},
            "execution.micro_batch: expected a value other than true or false, got True.",
        ),
        ({"seed": False}, "seed: expected a value other than true or false, got False."),
        (
            {"keys": {"pgd": {"steps": True}}},
            "keys.pgd.steps: expected a value other than true or false, got True.",
        ),
        (
            {"keys": {"fog": {"severities": [1, True]}}},
            "expected a value other than true or false, got True in the list.",
        ),
        ({"architectures": []}, "an empty list"),
        (
            {"keys": {"pgd": {"epsilons": ["1/255", "-2/255"]}}},
            "keys.pgd.epsilons: expected numbers above 0",
        ),
        ({"keys": {"fgsm": {"epsilons": ["0/255"]}}}, "got '0/255'."),
        (
            {"keys": {"fgsm": {"epsilons": ["256/255"]}}},
            "keys.fgsm: epsilons: expected numbers up to 1",
        ),
        ({"keys": {"fgsm": {"epsilons": [".nan"]}}}, "got '.nan'."),
        (
            {"keys": {"jacobian": {"projections": "exakt"}}},
            "keys.jacobian.projections: expected an integer or 'exact', got 'exakt'. Did you mean 'exact'?",
        ),
        (
            {"keys": {"hessian_weights": {"images": 300}}},
            "expected images to be at most batch (256) or a multiple of it, got 300. Set images: 256",
        ),
        (
            {"keys": {"hessian_input": {"tolerance": 0}}},
            "keys.hessian_input.tolerance: expected at least 1e-06, got 0.",
        ),
        ({"keys": {"jacobian": {"images": 0}}}, "keys.jacobian.images: expected at least 1, got 0."),
        ({"keys": {"jacobian": {"projections": 0}}}, "expected at least 1 or 'exact', got 0."),
        ({"keys": {"fog": {"severities": [0]}}}, "keys.fog.severities.0: expected at least 1, got 0."),
        (
            {"keys": {"pgd_l2": {"epsilons": [0.5, 1e30]}}},
            "keys.pgd_l2 on digits: expected strengths up to 55.4256, the largest L2 distance of images of 32 x 32",
        ),
        ({"keys": {"aa_fab-t_l1": {"epsilons": [3073]}}}, "expected strengths up to 3072, the largest L1 distance"),
        ({"keys": {}}, "at least one key"),
        ({"keys": ["pgd"]}, "expected a mapping from names to fields"),
        ({"images": {"count": 0}}, "images.count: expected at least 1, got 0."),
        ({"images": {"count": 451}}, "expected a count from 1 to 450, got 451."),
        ({"results": ""}, "results: expected a path, got ''."),
        ({"results": "a\0b"}, "expected a path"),
        ({"results": "bundled:../.."}, "the path after 'bundled:' must be relative"),
        ({"results": "bundled:/etc"}, "the path after 'bundled:' must be relative"),
        ({"name": "n" * 5000}, "name: expected at most 100 characters, got 'nnnn"),
        (
            {"datasets": {"n" * 5000: {"path": ".", "classes": 10, "image_size": 8}}},
            "expected a name of up to 100 letters, digits, dots, dashes and underscores, got 'nnnn",
        ),
        (
            {"checkpoints": None, "weights": {"path": "store", "steps": [5, -1]}},
            "weights.steps.1: expected at least 0, got -1.",
        ),
        ({"execution": {"threads": 100_000}}, "execution.threads: expected at most 1,024, got 100000."),
        (
            {"keys": {"pgd": {"steps": 10**23}}},
            "keys.pgd.steps: expected at most 1,000,000, got 100000000000000000000000.",
        ),
        (
            {"keys": {"pgd_l2": {"epsilons": [number / 1000 for number in range(1, 1002)]}}},
            "keys.pgd_l2.epsilons: expected at most 1,000 entries",
        ),
        (
            {"keys": {"aa_apgd-ce": {"epsilons": ["1/255", "8/255"], "steps": 100_000, "restarts": 20}}},
            "per image over all strengths, got 12,000,132. Lower the parameters or the number of strengths.",
        ),
        (
            {"keys": {"mine": {"file": "mine.py", "passes": 1e12}}},
            "over all strengths, got 1,000,000,000,000. Lower the parameters or the number of strengths.",
        ),
        (
            {"keys": {"grid775": {"rotations": 100_000}}},
            "got 2,500,000: rotations (100,000) times the square of translations (5). Lower one of them.",
        ),
        ({"network": {"channels": 10**9}}, "network.channels: expected at most 1,024, got 1000000000."),
        ({"execution": {"drain_seconds": float("inf")}}, "execution.drain_seconds: expected a finite number, got inf."),
        (
            {"checkpoints": None, "weights": {"random": {"seeds": [*range(10_001)]}}},
            "weights.random.seeds: expected up to 10,000 numbers, got 10,001.",
        ),
        (
            {"checkpoints": None, "weights": {"path": ".", "seeds": [*range(200)], "steps": [*range(200)]}},
            "weights: expected up to 10,000 sets of weights per network, got 40,000.",
        ),
        ({"keys": {"autoatack": {}}}, "'autoatack'. Did you mean 'autoattack'?"),
        ({"keys": {"PGD-7": {}}}, "'PGD-7'. Did you mean 'pgd_linf7'?"),
        (
            {"checkpoints": None, "weights": {"random": {"seeds": [2**64]}}},
            "weights.random.seeds.0: expected at most 1",
        ),
        ({"checkpoints": None, "weights": {"random": {"seeds": [0, 0]}}}, "distinct"),
        ({"checkpoints": None, "weights": {"path": "store", "recipe": ["a", "a"]}}, "distinct"),
        ({"measurements": 3}, "measurements: expected a list, got 3."),
        ({"results": "${NOWHERE_AT_ALL}/x"}, "export NOWHERE_AT_ALL=FOLDER"),
        ({"results": "~nobody-of-that-name/x"}, "no such user"),
        ({"format": 2}, "format: expected 1, got 2."),
        ({"network": {"channels": 8, "cells": 1}}, "expected a network with channels 8, got 4."),
        (
            {"datasets": {"digits": {"corruptions": {"source": "published", "path": "x"}}}},
            "this dataset has no published",
        ),
    ],
)
def test_run_rejects_sweep_with_invalid_field_without_writing(
    robust201: RunCommand, write_sweep: WriteSweep, tmp_path: Path, changes: dict[str, Any], hint: str
) -> None:
    sweep = write_sweep(**changes)
    files_before = read_tree(tmp_path)
    result = robust201("run", sweep)
    assert hint in result.error_line(2)
    assert len(result.err.splitlines()) == 1
    assert read_tree(tmp_path) == files_before


def test_run_rejects_results_folder_with_other_files(
    robust201: RunCommand, write_sweep: WriteSweep, tmp_path: Path
) -> None:
    (tmp_path / "results").mkdir()
    for name in ("notes.txt", "thesis.tex"):
        (tmp_path / "results" / name).write_text("mine")
    sweep = write_sweep()
    files_before = read_tree(tmp_path)
    error = robust201("run", sweep).error_line(2)
    assert "the folder contains notes.txt and 1 more but no format.json" in error
    assert read_tree(tmp_path) == files_before


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        (("--keys", "pdg"), "Did you mean 'pgd'?"),
        (("--keys", "fog"), "Known: clean, fgsm, brightness."),
        (("--keys", ""), "the list of names is empty"),
        (("--datasets", "digitz"), "Did you mean 'digits'?"),
        (("--datasets", "cifar10"), "Known: digits."),
        (("--architectures", "15625"), "The closest index is 15624."),
        (("--architectures", "0-15625"), "The closest index is 15624."),
        (("--architectures", "309"), "tiny has none of these architectures"),
        (("--architectures", INVALID_CELL), "Did you mean 'skip_connect'?"),
        (("--architectures", ""), "this selects no evaluated architecture"),
        (("--executor", "inlin"), "Did you mean 'inline'?"),
        (("--workers", "0"), "expected at least 1, got 0."),
        (("--out", ""), "results: expected a path, got ''."),
    ],
)
def test_run_rejects_invalid_option_without_writing(
    robust201: RunCommand, write_sweep: WriteSweep, tmp_path: Path, options: tuple[str, str], hint: str
) -> None:
    sweep = write_sweep()
    files_before = read_tree(tmp_path)
    result = robust201("run", sweep, *options)
    assert hint in result.error_line(2)
    assert len(result.err.splitlines()) == 1
    assert read_tree(tmp_path) == files_before


@pytest.mark.parametrize(
    ("content", "hint"),
    [
        (None, "expected a results folder with a format.json"),
        (b"\xff\xfe\x00sweep", "codec can't decode"),
        (b"", "an empty file"),
        (b"- a\n", "got list"),
        (b"a: b: c\n", "mapping values are not allowed"),
        (b"name: !!python/object/apply:os.abort []\n", "could not determine a constructor"),
        (b"? [1, 2]\n: 3\n", "a field name that is a list or mapping"),
    ],
)
def test_commands_reject_file_that_is_not_a_sweep(
    robust201: RunCommand, tmp_path: Path, content: bytes | None, hint: str
) -> None:
    path = tmp_path / "sweep.yaml"
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content)
    for verb in ("run", "plan"):
        assert hint in robust201(verb, path).error_line(2)
    doctor_result = robust201("doctor", path)  # doctor also runs its other checks
    assert doctor_result.code == 2
    assert hint in doctor_result.out


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (("fetch", "cifra10", "--out", "."), "Did you mean 'cifar10'?"),
        (("corrupt", "--data", "digits", "--out", "out", "--keys", "fogg"), "Did you mean 'fog'?"),
        (("corrupt", "--out", "out", "--data", "digitz"), "Did you mean 'digits'?"),
        (("corrupt", "--data", "digits", "--out", "out", "--images", "-5"), "expected a count from 1 to 450, got -5."),
        (("corrupt", "--data", "digits", "--out", "out", "--frost", "nowhere", "--images", "10"), "nowhere"),
        (("corrupt", "--data", "digits", "--out", "out", "--check-published"), "a dataset with published corruptions"),
        (("status", "nowhere"), "expected a results folder"),
        (("verify", "nowhere"), "expected a results folder"),
        (("merge", "nowhere", "--compact"), "expected a results folder"),
        (("merge", "nowhere"), "expected --out or --compact"),
        (("merge", "nowhere", "--compact", "--out", "out"), "applies to one results folder"),
        (("export", "nowhere", "--out", "out"), "expected a results folder"),
        (("merge", "nowhere", "--out", "out"), "expected a results folder"),
        (("report", "nowhere"), "there is no such folder"),
        (("import", "nowhere", "--out", "out"), "no such file or folder"),
    ],
)
def test_other_commands_reject_invalid_names(
    robust201: RunCommand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], hint: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert hint in robust201(*arguments).error_line(2)
    assert read_tree(tmp_path) == {}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("yaml_lines", "line_number", "message"),
    [
        (
            "checkpoints:\n  # where they lie\n  path: ${NOWHERE_AT_ALL}/x\n",
            6,
            "checkpoints.path: expected the environment",
        ),
        ("checkpoints: {path: x}\nkyes: {}\n", 5, "'kyes'"),
        ("checkpoints: {path: x}\nseed:\n  text\n", 5, "seed: expected"),
        ("checkpoints: {path: x}\nmeasurements:\n- accuracy\n- 5\n", 7, "measurements.1: expected"),
        ("checkpoints: {epochs: 5}\n", 4, "'checkpoints.path', got none"),
        ("checkpoints: {path: x}\narchitectures: [0, 15625]\n", 5, "The closest index is 15624."),
        ("checkpoints: {path: x}\nkeys:\n  clean: {}\n  pgd: {steps: 1.5}\n", 7, "keys.pgd.steps: expected"),
        ("checkpoints: {path: x}\nkeys:\n  pgd:\n    steps: 5\n    stepz: 5\n", 8, "'keys.pgd.stepz'"),
        ("checkpoints: {path: x}\nkeys:\n  clean: {}\n  pgdd: {}\n", 7, "'pgdd'. Did you mean 'pgd'"),
        ("checkpoints: {path: x}\nkeys:\n  clean: {}\n  pgd@Linf:\n    steps: x\n", 8, "keys.pgd@Linf.steps: expected"),
        (
            "checkpoints: {path: x}\nkeys:\n  a: {file: a.py}\n  a.b:\n    file: b.py\n    norm: 7\n",
            9,
            "keys.a.b.norm: expected",
        ),
        ("checkpoints: {path: x}\nprecision: tf32\nexecution: {device: cpu}\n", 6, "execution.device: expected"),
    ],
)
def test_error_names_line_of_invalid_field(
    robust201: RunCommand,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    yaml_lines: str,
    line_number: int,
    message: str,
) -> None:
    monkeypatch.delenv("NOWHERE_AT_ALL", raising=False)
    sweep = tmp_path / "sweep.yaml"
    sweep.write_text(f"name: x\nresults: r\ndatasets: {{digits: {{}}}}\n{yaml_lines}")
    error = robust201("plan", sweep).error_line(2)
    assert f"failed for {sweep}, line {line_number}: " in error
    assert message in error


@pytest.mark.parametrize(
    ("yaml_text", "location"), [("name: [", "line 2, column 1"), ("a: 1\na: 2\n", "line 2, column 1")]
)
def test_error_names_line_of_invalid_yaml(robust201: RunCommand, tmp_path: Path, yaml_text: str, location: str) -> None:
    sweep = tmp_path / "sweep.yaml"
    sweep.write_text(yaml_text)
    error = robust201("plan", sweep).error_line(2)
    assert location in error
    assert "unicode string" not in error


def test_plan_check_names_missing_image_folder(
    robust201: RunCommand, write_sweep: WriteSweep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planning alone needs no images; `--check` reads them."""
    monkeypatch.delenv("NOWHERE_AT_ALL", raising=False)
    sweep_with_unset_variable = write_sweep(datasets={"cifar10": {"path": "${NOWHERE_AT_ALL}/cifar10"}})
    for options in ((), ("--check",)):
        result = robust201("plan", sweep_with_unset_variable, *options)
        assert "expected the environment variable NOWHERE_AT_ALL to be set" in result.error_line(2)
        assert len(result.err.splitlines()) == 1
    sweep_with_absent_images = write_sweep(
        datasets={"cifar10": {"path": str(tmp_path / "absent")}},
        keys={"clean": {}},
        checkpoints=None,
        weights={"random": {}},
    )
    assert robust201("plan", sweep_with_absent_images).code == 0
    result = robust201("plan", sweep_with_absent_images, "--check")
    assert str(tmp_path / "absent") in result.error_line(2)
    assert len(result.err.splitlines()) == 1


def test_error_names_option_that_set_the_field(robust201: RunCommand, write_sweep: WriteSweep) -> None:
    sweep = write_sweep()
    assert "failed for --out: results: expected a path" in robust201("run", sweep, "--out", "").error_line(2)
    error = robust201("run", sweep, "--executor", "dask").error_line(2)
    assert "failed for --executor: execution.executor: expected 'inline' or 'ray', got 'dask'." in error
    assert "failed for --workers: execution.workers: " in robust201("run", sweep, "--workers", "0").error_line(2)


@pytest.mark.parametrize(
    ("changes", "hint"),
    [
        ({"space": "zoo"}, "got only weights of the space zoo. Use a store with weights of this space"),
        ({"n_classes": 7}, "n_classes 10, got 7. Choose weights of networks with the dataset's number"),
        ({"channels": 8}, "channels 4, got 8. Set `network`"),
    ],
)
def test_run_rejects_weights_of_other_networks_and_names_field(
    robust201: RunCommand, write_sweep: WriteSweep, tmp_path: Path, changes: dict[str, Any], hint: str
) -> None:
    fields = {"space": "nasbench201", "channels": 4, "cells": 1, "n_classes": 10, "dataset": "digits", "spec": ""}
    checkpoint_fields = fields | {"epochs": 1, "seed": 0, "source": "a test", "source_sha256": "0" * 64} | changes
    with CheckpointStore(tmp_path / "store") as store:
        store.add(index=0, state_dict={"weight": torch.zeros(1)}, **checkpoint_fields)
    sweep = write_sweep(architectures=[0], checkpoints={"path": str(tmp_path / "store")})
    assert hint in robust201("run", sweep).error_line(2)
