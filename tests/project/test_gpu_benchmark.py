"""The GPU benchmark. All its steps run on a CPU here, so that programming errors do not appear only on a GPU."""

import json
import sys
from pathlib import Path

import pytest

from benchmarks import gpu
from benchmarks.gpu_steps import Plan, make_rehearsal_plan, steps_of

STEP_NAMES = [step.name for step in steps_of(make_rehearsal_plan(Path("nowhere")))]


def rehearse(folder: Path, name: str) -> list[str]:
    """Run a step on the CPU, and return the lines of its table."""
    gpu.run_step("cpu", folder, name)
    return list(gpu.table_of(make_rehearsal_plan(folder), name))


@pytest.mark.parametrize("name", STEP_NAMES)
def test_gpu_step_is_measured_and_shown(tmp_path: Path, name: str) -> None:
    lines = rehearse(tmp_path, name)
    assert "PyTorch" in lines[0]
    assert len(lines) >= 5
    assert "nan" not in " ".join(lines)


def test_gpu_plan_has_the_steps_of_the_rehearsal() -> None:
    def step_groups(plan: Plan) -> list[str]:
        return list(dict.fromkeys(step.name.partition("-")[0] for step in steps_of(plan)))

    gpu_plan = Plan("cuda", Path("nowhere"))
    assert step_groups(gpu_plan) == step_groups(make_rehearsal_plan(Path("nowhere")))
    assert len(gpu_plan.networks) >= 6


def run_main(monkeypatch: pytest.MonkeyPatch, *argv: object) -> int:
    monkeypatch.setattr(sys, "argv", ["gpu", *map(str, argv)])
    return gpu.main()


def test_gpu_benchmark_skips_finished_steps_and_continues_after_failures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    measured_steps = []

    def fake_step(device: str, folder: Path, name: str, minutes: float) -> str:
        measured_steps.append(name)
        assert minutes <= 8
        if name == "memory":
            return "out of memory"
        (folder / f"{name}.json").write_text(json.dumps({"machine": "an invented GPU", "rows": []}))
        return ""

    monkeypatch.setattr(gpu, "run_in_process", fake_step)
    argv = ("--device", "cpu", "--out", tmp_path, "--only", "parity", "memory")
    assert run_main(monkeypatch, *argv) == 1
    assert measured_steps == ["parity", "memory"]
    output = capsys.readouterr().out
    assert "an invented GPU" in output
    assert "- memory: out of memory" in output
    assert run_main(monkeypatch, *argv) == 1
    assert measured_steps == ["parity", "memory", "memory"]
    assert run_main(monkeypatch, *argv, "--tables") == 0
    assert measured_steps == ["parity", "memory", "memory"]
