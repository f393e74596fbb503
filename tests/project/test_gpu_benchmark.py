"""Every step of the GPU benchmark, rehearsed on the CPU: the first run on a GPU must not fail by a typo."""

import json
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import torch

from benchmarks import gpu, gpu_steps
from benchmarks.gpu_steps import Plan, group_of, losses, rehearsal, steps_of
from robust201.bench import comparison
from robust201.bench.comparison import RunTime
from robust201.planning.loading import load_config
from tests.faults.processes import wait_until

PROCESSES = ("tests", "whole", "two-workers", "kill")
"""Steps that start processes: here stubs take their place. `python -m benchmarks.gpu --device cpu` starts them all."""

PLAN = rehearsal(Path("nowhere"))
NAMES = [step.name for step in steps_of(PLAN)]


def rehearse(folder: Path, name: str) -> list[str]:
    gpu.run_step("cpu", folder, name)
    return list(gpu.table_of(rehearsal(folder), name))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gpu")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name == "speed-309-fp32" else pytest.mark.slow)
        for name in NAMES
        if not name.startswith(PROCESSES)
    ],
)
def test_a_step_is_measured_and_shown(folder: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def pretend(module: torch.nn.Module, *, backend: str, dynamic: bool) -> torch.nn.Module:
        assert (backend, dynamic) == ("eager", False)
        return module

    monkeypatch.setattr(torch, "compile", pretend)  # tracing takes seconds
    lines = rehearse(folder, name)
    assert len(lines) >= 2
    assert "nan" not in " ".join(lines)


def test_tests_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tests = tmp_path / "test_stub.py"
    mark = "@pytest.mark.gpu\ndef test_"
    tests.write_text(f"import pytest\n\n{mark}one():\n    pass\n\n{mark}two():\n    assert 1 == 2\n")
    monkeypatch.setattr(gpu_steps, "GPU_TESTS", str(tests))
    lines = rehearse(tmp_path, "tests")
    assert "1 passed, 1 failure" in lines[1]
    assert "assert 1 == 2" in lines[2]


def test_whole_processes_are_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def pretend(words: list[str], environment: dict[str, str], log: Path) -> tuple[RunTime, str]:
        del environment, log
        return RunTime(8.0 if "user_loop" in " ".join(words) and "fgsm" in words else 2.0, 1.0), '{"clean": {"0": 1}}'

    monkeypatch.setattr(comparison, "run_timed", pretend)
    monkeypatch.setattr(comparison.Sweep, "read", lambda *_: {"clean": {0.0: 1.0}})
    lines = rehearse(tmp_path, "whole-309")
    assert any(line.startswith("| loop, channels_last layout, batch 2 | 6.0 | 8.0 |") for line in lines)


def stub(source: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def test_two_workers_share_a_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started = []

    def start(plan: Plan, verb: str, sweep: str, *words: str) -> subprocess.Popen[bytes]:
        config = load_config(Path(sweep))
        started.append((verb, *words, config.execution.gpus_per_worker))
        assert config.execution.device == plan.device
        return stub("")

    monkeypatch.setattr(gpu_steps, "_start", start)
    assert "times as fast" in rehearse(tmp_path, "two-workers")[1]
    assert started == [
        *(("plan", "--save", 1.0), ("run", "--share", "1/1", 1.0), ("plan", "--save", 0.5)),
        *(("run", "--share", "1/2", 0.5), ("run", "--share", "2/2", 0.5)),
    ]


def test_a_kill_waits_for_a_result_and_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started = []

    def start(plan: Plan, verb: str, sweep: str) -> subprocess.Popen[bytes]:
        shards = Path(sweep).parent / "results" / "shards"
        started.append(verb)
        assert plan.device == "cpu"
        sources = (f"{shards}/a.parquet", "import time; time.sleep(60)"), (f"{shards}/b.parquet", "")
        file, rest = sources[len(started) - 1]
        touch = f"p = pathlib.Path({file!r}); p.parent.mkdir(parents=True, exist_ok=True); p.touch()"
        return stub(f"import pathlib; {touch}; {rest}")

    monkeypatch.setattr(gpu_steps, "_start", start)
    lines = rehearse(tmp_path, "kill")
    assert "from 1 to 2 result files" in lines[1]
    assert started == ["run", "run"]


def test_steps_of_a_gpu_are_those_of_the_rehearsal_on_more_networks() -> None:
    def kinds(plan: Plan) -> list[str]:
        return list(dict.fromkeys(step.name.partition("-")[0] for step in steps_of(plan)))

    on_gpu = Plan("cuda", Path("nowhere"))
    assert kinds(on_gpu) == kinds(PLAN)
    assert len(on_gpu.sample) >= 8


def run_main(monkeypatch: pytest.MonkeyPatch, *words: object) -> int:
    monkeypatch.setattr(sys, "argv", ["gpu", *map(str, words)])
    return gpu.main()


def test_what_has_run_is_not_repeated_and_failures_do_not_stop_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    begun = []

    def pretend(device: str, folder: Path, name: str, minutes: float) -> str:
        begun.append(name)
        assert minutes <= 8
        if name == "memory":
            return "no such luck"
        (folder / f"{name}.json").write_text(json.dumps({"exit_code": 0, "outcome": {"a": "passed"}, "failures": {}}))
        return ""

    monkeypatch.setattr(gpu, "run_in_process", pretend)
    words = ("--device", "cpu", "--out", tmp_path, "--only", "tests", "memory")
    assert run_main(monkeypatch, *words) == 1
    assert begun == ["tests", "memory"]
    printed = capsys.readouterr().out
    assert "1 passed" in printed
    assert "- memory: no such luck" in printed
    assert run_main(monkeypatch, *words) == 1
    assert begun == ["tests", "memory", "memory"]
    assert run_main(monkeypatch, *words, "--tables") == 0
    assert begun == ["tests", "memory", "memory"]


def test_without_a_gpu_nothing_is_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit, match="expected a GPU"):
        run_main(monkeypatch, "--out", tmp_path)
    assert run_main(monkeypatch, "--out", tmp_path, "--list") == 0


@pytest.mark.slow
def test_a_step_that_fails_in_its_process_says_so(tmp_path: Path) -> None:
    failure = gpu.run_in_process("cpu", tmp_path, "no such step", minutes=1)
    assert "StopIteration" in failure


def test_a_step_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    assert "took more than" in gpu.run_in_process("cpu", tmp_path, "machine", minutes=1e-6)


def test_what_a_step_has_started_ends_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step = tmp_path / "python"
    step.write_text('#!/bin/sh\nsleep 300 &\necho $! > "$(dirname $0)/child"\nwait\n')
    step.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(step))
    assert "took more than" in gpu.run_in_process("cpu", tmp_path, "machine", minutes=0.02)
    child = int((tmp_path / "child").read_text())

    def has_ended() -> bool:
        return not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE

    wait_until(has_ended, 20, "a step's child has ended")


def test_losses_add_up_to_what_is_above_the_ideal() -> None:
    row = {"groups": {"convolutions": 3.0, "pooling": 1.0}, "ideal": 2.0, "wall_graphs": 5.0}
    found = losses(row)
    assert sum(found.values()) == pytest.approx(row["wall_graphs"] - row["ideal"])
    assert set(found) == {"convolutions below their peak", "pooling", "device idle, launches"}


@pytest.mark.parametrize(
    ("kernel", "group"),
    [
        ("sm80_xmma_fprop_implicit_gemm_f32f32", "convolutions"),
        ("void at::native::(anonymous namespace)::avg_pool2d_out_cuda_frame_nhwc", "pooling"),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor>", "elementwise"),
        ("Memcpy DtoD (Device -> Device)", "copies"),
        ("void at::native::reduce_kernel<512, 1, MeanOps>", "reductions"),
    ],
)
def test_kernels_are_grouped_by_their_names(kernel: str, group: str) -> None:
    assert group_of(kernel) == group
