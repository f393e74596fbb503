"""The GPU benchmark. All its steps run on a CPU here, so that programming errors do not appear only on a GPU."""

import pytest

from benchmarks import gpu


@pytest.mark.slow
@pytest.mark.parametrize("name", gpu.STEPS)
def test_gpu_step_is_measured(name):
    result = gpu.measure_in_process(name, "cpu")
    assert "error" not in result
    assert result["rows"]
    assert all(row.get("exit_code", 0) in (0, 5) for row in result["rows"])  # 5: no tests of a GPU without one
    assert all(row["bits_of_compiled"] for row in result["rows"] if row.get("variant") == "compiled")


def test_gpu_step_that_takes_too_long_is_stopped(monkeypatch):
    monkeypatch.setitem(gpu.STEPS, "precision", gpu.Step(gpu.measure_precision, 0))
    assert "more than" in gpu.measure_in_process("precision", "cpu")["error"]
