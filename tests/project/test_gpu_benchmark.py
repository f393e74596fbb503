"""Every step of the GPU benchmark, rehearsed on the CPU: the first run on a GPU must not fail by a typo."""

import json
import sys
from pathlib import Path

import pytest

from benchmarks import gpu
from benchmarks.gpu_steps import Plan, group_of, losses, rehearsal, steps_of

PROCESSES = ("tests", "whole", "two-workers", "kill")
"""Steps that start processes, which takes seconds."""

PLAN = rehearsal(Path("nowhere"))
NAMES = [step.name for step in steps_of(PLAN)]


def rehearse(folder: Path, name: str) -> list[str]:
    gpu.run_step("cpu", folder, name)
    return list(gpu.table_of(rehearsal(folder), name))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gpu")


@pytest.mark.parametrize("name", [name for name in NAMES if not name.startswith(PROCESSES)])
def test_a_step_is_measured_and_shown(folder: Path, name: str) -> None:
    lines = rehearse(folder, name)
    assert len(lines) >= 2
    assert "nan" not in " ".join(lines)


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith(PROCESSES)])
def test_a_step_of_processes_is_measured_and_shown(folder: Path, name: str) -> None:
    assert len(rehearse(folder, name)) >= 2


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


def test_a_step_that_fails_in_its_process_says_so(tmp_path: Path) -> None:
    failure = gpu.run_in_process("cpu", tmp_path, "no such step", minutes=1)
    assert "StopIteration" in failure


def test_a_step_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    assert "took more than" in gpu.run_in_process("cpu", tmp_path, "machine", minutes=1e-6)


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
