"""Every step of the GPU benchmark on a CPU, so that its first run on a GPU does not fail because of a typo."""

import json
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import gpu
from benchmarks.gpu_steps import Plan, rehearsal, steps_of

NAMES = [step.name for step in steps_of(rehearsal(Path("nowhere")))]


def rehearse(folder: Path, name: str) -> list[str]:
    gpu.run_step("cpu", folder, name)
    return list(gpu.table_of(rehearsal(folder), name))


@pytest.mark.parametrize("name", NAMES)
def test_gpu_step_is_measured_and_shown(tmp_path: Path, name: str) -> None:
    lines = rehearse(tmp_path, name)
    assert "PyTorch" in lines[0]
    assert len(lines) >= 5
    assert "nan" not in " ".join(lines)


def test_gpu_plan_has_the_steps_of_the_rehearsal() -> None:
    def kinds(plan: Plan) -> list[str]:
        return list(dict.fromkeys(step.name.partition("-")[0] for step in steps_of(plan)))

    on_gpu = Plan("cuda", Path("nowhere"))
    assert kinds(on_gpu) == kinds(rehearsal(Path("nowhere")))
    assert len(on_gpu.networks) >= 6


def run_main(monkeypatch: pytest.MonkeyPatch, *argv: object) -> int:
    monkeypatch.setattr(sys, "argv", ["gpu", *map(str, argv)])
    return gpu.main()


def test_gpu_benchmark_skips_finished_steps_and_continues_after_failures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    begun = []

    def pretend(device: str, folder: Path, name: str, minutes: float) -> str:
        begun.append(name)
        assert minutes <= 8
        if name == "memory":
            return "no such luck"
        (folder / f"{name}.json").write_text(json.dumps({"machine": "an invented GPU", "rows": []}))
        return ""

    monkeypatch.setattr(gpu, "run_in_process", pretend)
    argv = ("--device", "cpu", "--out", tmp_path, "--only", "parity", "memory")
    assert run_main(monkeypatch, *argv) == 1
    assert begun == ["parity", "memory"]
    printed = capsys.readouterr().out
    assert "an invented GPU" in printed
    assert "- memory: no such luck" in printed
    assert run_main(monkeypatch, *argv) == 1
    assert begun == ["parity", "memory", "memory"]
    assert run_main(monkeypatch, *argv, "--tables") == 0
    assert begun == ["parity", "memory", "memory"]


def test_gpu_benchmark_does_not_start_without_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit, match="finds no GPU"):
        run_main(monkeypatch, "--out", tmp_path)
    assert run_main(monkeypatch, "--out", tmp_path, "--tables") == 0


def test_gpu_benchmark_stops_slow_step(tmp_path: Path) -> None:
    assert "took more than" in gpu.run_in_process("cpu", tmp_path, "parity", minutes=1e-6)
