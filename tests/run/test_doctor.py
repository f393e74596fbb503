"""`robust201 doctor` reports each problem with advice on how to fix it."""

import subprocess
import sys

import pytest
import torch

from robust201.run.doctor import _examine_device, _examine_gpus, examine
from tests.conftest import REPOSITORY


def test_doctor_reports_no_problems_for_a_valid_sweep(make_sweep):
    checks = {check.what: check for check in examine(make_sweep())}
    assert {"torch", "gpus", "device", "disk", "checkpoints", "digits"} <= set(checks)
    assert [check.what for check in checks.values() if not check.ok] == []


@pytest.mark.parametrize(
    ("changes", "check_name", "fix"),
    [
        ({"checkpoints": {"path": "nowhere"}}, "checkpoints", "nowhere"),
        ({"architectures": [0, 9]}, "checkpoints", "#9 digits"),
        ({"images": {"count": 451}}, "digits", "count of images"),  # one more than digits has
        (
            {"datasets": {"digits": {"corruptions": {"source": "published", "path": "x"}}}},
            "digits",
            "generated",
        ),
    ],
)
def test_doctor_reports_missing_inputs_of_a_sweep(make_sweep, changes, check_name, fix):
    failures = [check for check in examine(make_sweep(**changes)) if not check.ok]
    assert [check.what for check in failures] == [check_name]
    assert fix in failures[0].fix


def test_doctor_and_run_reject_bf16_on_a_cpu_without_avx512(monkeypatch, make_sweep, robust201, write_sweep):
    monkeypatch.setattr("robust201.networks.device.has_avx512", lambda: False)
    check = _examine_device(make_sweep(precision="bf16", execution={"executor": "inline", "device": "cpu"}))
    assert not check.ok
    assert "wrong gradients" in check.fix
    sweep = write_sweep(precision="bf16", execution={"executor": "inline", "device": "cpu"})
    assert "wrong gradients in bfloat16. Set `precision` to fp32" in robust201("run", sweep).error_line(exit_code=2)


@pytest.mark.parametrize("content", [None, "name: a\nresults: ${UNSET_IN_THIS_TEST}/runs\n"])
def test_doctor_reports_an_unreadable_sweep_after_all_other_checks(robust201, tmp_path, content):
    sweep = tmp_path / "sweep.yaml"
    if content is not None:
        sweep.write_text(content)
    result = robust201("doctor", sweep)
    assert (result.code, result.err) == (2, "")
    *others, check, fix = result.out.splitlines()
    assert all(any(f" {what}: " in line for line in others) for what in ("torch", "gpus"))
    assert check.startswith("fix  sweep: ")
    assert ("UNSET_IN_THIS_TEST" if content else str(sweep)) in fix


def test_doctor_reports_a_gpu_that_torch_cannot_use(monkeypatch, tmp_path):
    monkeypatch.setattr("robust201.run.doctor._DRIVER_GPUS", tmp_path)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert _examine_gpus().ok  # a login node has the driver's folder, but no GPU
    (tmp_path / "0000:01:00.0").mkdir()
    assert not _examine_gpus().ok


def run_without(modules: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a process that cannot import these modules, which are separated by commas."""
    blocked_modules = dict.fromkeys(modules.split(","))
    program = f"import sys; sys.modules.update({blocked_modules}); from robust201.cli.app import main; main()"
    command = [sys.executable, "-W", "ignore", "-c", program, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=REPOSITORY)


def test_command_without_its_packages_gives_a_one_line_error():
    result = run_without("numpy", "plan", "jobs/demo.yaml")
    assert (result.returncode, len(result.stderr.splitlines())) == (2, 1)
    assert "robust201 doctor shows what is missing" in result.stderr
