"""Invalid sweep files, names and options give one-line errors that name the field, and nothing is written."""

from typing import Any

import pytest
import torch

from robust201.core.errors import ArchitectureError, ConfigError
from robust201.sweep.loading import parse_config
from robust201.weights.store import CheckpointStore
from tests.conftest import read_tree

INVALID_CELL = "|nor_conv_3x3~0|+|nor_conv_3x3~0|skip_conect~1|+|none~0|none~1|none~2|"


def weights_fields(**weights: Any) -> dict[str, Any]:
    return {"checkpoints": None, "weights": weights}


def digits_fields(**fields: Any) -> dict[str, Any]:
    return {"datasets": {"digits": fields}}


def custom_dataset(**fields: Any) -> dict[str, Any]:
    return {"keys": {"clean": {}}, "datasets": {"mine": {"path": ".", "classes": 10, "image_size": 16} | fields}}


@pytest.mark.parametrize(
    ("changes", "subject"),
    [
        # names
        ({"kyes": {}}, "'kyes'"),
        ({"keys": {"pdg": {}}}, "'pdg'"),
        ({"keys": {"pgd": {"step": 3}}}, "'keys.pgd.step'"),
        ({"keys": {"pgd": {"target": "least-likely"}}}, "'least-likely'"),
        ({"keys": {"fog@Linf": {}}}, "'fog@Linf'"),
        ({"keys": {"pgd": {}, "pgd@Linf": {"steps": 20}}}, "'pgd' and 'pgd@Linf'"),
        ({"datasets": {"digit": {}}}, "'digit'"),
        ({"measurements": ["acuracy"]}, "'acuracy'"),
        ({"architectures": [INVALID_CELL]}, "'skip_conect'"),
        ({"architectures": "evaluted"}, "'evaluted'"),
        ({"architectures": "0-10"}, "a list such as [0, 21, 100-199]"),
        # types
        ({"architectures": ["conv"]}, "'conv'"),
        ({"architectures": [True]}, "got True"),
        ({"keys": {"pgd": {"norm": "L2"}}}, "norm: "),
        ({"keys": {"aa_apgd-ce": {"larger_epsilons": True}}}, "larger_epsilons: "),
        # ranges
        ({"architectures": [15_625]}, "15624"),
        ({"architectures": []}, "an empty list"),
        ({"keys": {}}, "at least one key"),
        ({"keys": {"pgd": {"epsilons": ["1/255", "-2/255"]}}}, "keys.pgd.epsilons"),
        ({"keys": {"fgsm": {"epsilons": ["256/255"]}}}, "up to 1"),
        ({"keys": {"pgd": {"epsilons": ["1/255", "1/255"]}}}, "distinct epsilons"),
        ({"keys": {"pgd": {"epsilons": [float("nan")]}}}, "nan"),
        ({"keys": {"pgd": {"epsilons": [8]}}}, "8/255"),
        ({"keys": {"pgd": {"epsilons": ["1/0"]}}}, "'1/0'"),
        ({"keys": {"fog": {"severities": [6]}}}, "integers from 1 to 5"),
        ({"keys": {"pgd_l2": {"epsilons": [0.5, 1e30]}}}, "keys.pgd_l2 on digits"),
        (digits_fields(normalisation={"mean": [float("nan"), 0, 0], "std": [1, 1, 1]}), "normalisation.mean.0"),
        (digits_fields(normalisation={"mean": [125, 123, 114], "std": [0.2] * 3}), "normalisation: mean: "),
        (digits_fields() | {"keys": {"clean": {}, "fog": {}}}, "keys.fog: "),
        (custom_dataset(classes=5000) | {"measurements": ["cm"]}, "cm of the 5,000 classes of mine is too large"),
        (custom_dataset(resize={"shorter_side": 8}), "a shorter side of 16"),
        (custom_dataset(normalisation={"mean": [0.5], "std": [0.2]}), "expected 3 numbers, one per channel"),
        (weights_fields(random={"seeds": [0, 0]}), "distinct"),
        ({"take_imported": True}, "take_imported: "),
        # paths
        ({"results": ""}, "results: "),
        ({"results": "a\0b"}, "expected a path"),
        ({"results": "${NOWHERE_AT_ALL}/x"}, "NOWHERE_AT_ALL"),
        ({"results": "~nobody-of-that-name/x"}, "no such user"),
    ],
)
def test_parse_config_rejects_invalid_field(sweep_fields, changes, subject):
    with pytest.raises((ConfigError, ArchitectureError)) as error:
        parse_config(sweep_fields(**changes), "test.yaml")
    message = str(error.value)
    assert subject in message
    assert "test.yaml" in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("changes", "options", "subject"),
    [
        ({"keys": {"pgd": {"step": 3}}}, (), "'keys.pgd.step'"),
        ({"network": {"channels": 8, "cells": 1}}, (), "channels 8"),
        ({"images": {"count": 451}}, (), "from 1 to 450"),
        ({"results": "bundled:../.."}, (), "bundled:"),
        (digits_fields(form="digit", corruptions={"source": "generated"}), (), "'digit'"),
        (digits_fields(corruptions={"source": "published", "path": "x"}), (), "published"),
        ({}, ("--keys", "fog"), "'fog'"),
        ({}, ("--keys", ""), "one or more names"),
        ({}, ("--datasets", "cifar10"), "'cifar10'"),
        ({}, ("--architectures", "0-15625"), "15625"),
        ({}, ("--architectures", "309"), "#309"),
        ({}, ("--executor", "inlin"), "--executor: execution.executor"),
        ({}, ("--workers", "0"), "--workers: execution.workers"),
        ({}, ("--out", ""), "--out: results"),
    ],
)
def test_run_rejects_invalid_sweep_or_option_without_writing(
    robust201, write_sweep, tmp_path, changes, options, subject
):
    sweep = write_sweep(**changes)
    files_before = read_tree(tmp_path)
    result = robust201("run", sweep, *options)
    assert subject in result.error_line(exit_code=2)
    assert len(result.err.splitlines()) == 1
    assert read_tree(tmp_path) == files_before


def test_run_rejects_results_folder_with_other_files(robust201, write_sweep, tmp_path):
    (tmp_path / "results").mkdir()
    (tmp_path / "results/thesis.tex").write_text("mine")
    sweep = write_sweep()
    files_before = read_tree(tmp_path)
    assert "thesis.tex" in robust201("run", sweep).error_line(exit_code=2)
    assert read_tree(tmp_path) == files_before


@pytest.mark.parametrize(
    "content",
    [
        None,
        b"\xff\xfe\x00sweep",
        b"",
        b"- a\n",
        b"a: b: c\n",
        b"a: 1\na: 2\n",
        b"a: !!python/object/apply:os.abort []\n",
    ],
)
def test_commands_reject_file_that_is_not_a_sweep(robust201, tmp_path, content):
    path = tmp_path / "sweep.yaml"
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content)
    for verb in ("run", "plan"):
        assert str(path) in robust201(verb, path).error_line(exit_code=2)
    assert robust201("doctor", path).code == 2


@pytest.mark.parametrize(
    ("arguments", "subject"),
    [
        (("corrupt", "--data", "digits", "--out", "out", "--keys", "fogg"), "'fogg'"),
        (("corrupt", "--data", "digits", "--out", "out", "--images", "-5"), "-5"),
        (("corrupt", "--data", "digits", "--out", "out", "--frost", "nowhere", "--images", "10"), "nowhere"),
        (("fetch", "cifra10", "--out", "."), "'cifra10'"),
        *((command, "nowhere") for command in (("status", "nowhere"), ("verify", "nowhere"), ("report", "nowhere"))),
        (("merge", "nowhere"), "--out FOLDER"),
        (("merge", "nowhere", "--compact", "--out", "out"), "one results folder"),
        (("export", "nowhere", "--out", "out"), "nowhere"),
        (("export", "nowhere", "--out", "out", "--no-json"), "--parquet"),
        (("import", "nowhere", "--out", "out"), "nowhere"),
    ],
)
def test_other_commands_reject_invalid_names(robust201, tmp_path, monkeypatch, arguments, subject):
    monkeypatch.chdir(tmp_path)
    assert subject in robust201(*arguments).error_line(exit_code=2)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("yaml_lines", "line_number", "subject"),
    [
        ("checkpoints:\n  # a comment\n  path: ${NOWHERE_AT_ALL}/x\n", 6, "checkpoints.path: "),
        ("checkpoints: {path: x}\nkyes: {}\n", 5, "'kyes'"),
        ("checkpoints: {path: x}\nmeasurements:\n- accuracy\n- 5\n", 7, "measurements.1: "),
        ("checkpoints: {path: x}\nkeys:\n  clean: {}\n  pgd@Linf:\n    steps: x\n", 8, "keys.pgd@Linf.steps: "),
        ("checkpoints: {path: x}\nprecision: tf32\nexecution: {device: cpu}\n", 6, "execution.device: "),
    ],
)
def test_error_names_line_of_invalid_field(robust201, tmp_path, monkeypatch, yaml_lines, line_number, subject):
    monkeypatch.delenv("NOWHERE_AT_ALL", raising=False)
    sweep = tmp_path / "sweep.yaml"
    sweep.write_text(f"name: x\nresults: r\ndatasets: {{digits: {{}}}}\n{yaml_lines}")
    error = robust201("plan", sweep).error_line(exit_code=2)
    assert f"failed for {sweep}, line {line_number}: " in error
    assert subject in error


def test_plan_reads_images_only_with_check(robust201, write_sweep, tmp_path):
    sweep = write_sweep(
        datasets={"cifar10": {"path": str(tmp_path / "absent")}},
        keys={"clean": {}},
        checkpoints=None,
        weights={"random": {}},
    )
    assert robust201("plan", sweep).code == 0
    assert str(tmp_path / "absent") in robust201("plan", sweep, "--check").error_line(exit_code=2)


@pytest.mark.parametrize("changes", [{"space": "zoo"}, {"n_classes": 7}, {"channels": 8}])
def test_run_rejects_weights_of_other_networks(robust201, write_sweep, tmp_path, changes):
    fields = {"space": "nasbench201", "channels": 4, "cells": 1, "n_classes": 10, "dataset": "digits", "spec": ""}
    checkpoint_fields = fields | {"epochs": 1, "seed": 0, "source": "a test", "source_sha256": "0" * 64} | changes
    with CheckpointStore(tmp_path / "store") as store:
        store.add(index=0, state_dict={"weight": torch.zeros(1)}, **checkpoint_fields)
    sweep = write_sweep(architectures=[0], checkpoints={"path": str(tmp_path / "store")})
    assert str(next(iter(changes.values()))) in robust201("run", sweep).error_line(exit_code=2)
