"""The precision of float32 arithmetic does not depend on the caller's settings, which are restored exactly."""

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from robust201.core.precision import PRECISIONS
from robust201.networks import device
from robust201.networks.device import configure_torch, worker_settings
from tests.support.precision_settings import (
    FP32_SETTINGS,
    SETTINGS,
    change_setting,
    effective_settings,
    raw_settings,
    settings_restored,
    tf32_everywhere,
)

CPU = torch.device("cpu")

needs_new_settings = pytest.mark.skipif(not SETTINGS, reason="the settings need PyTorch 2.9")

TF32_SETTINGS = (
    *("tf32" if backend == "cuda" else "ieee" for backend, _ in SETTINGS),
    "high",
    True,
)

CALLER_SETTINGS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(SETTINGS), st.sampled_from(["none", "ieee", "tf32"])),
        st.tuples(st.just("matmul"), st.sampled_from(["highest", "high", "medium"])),
        st.tuples(st.just("cudnn"), st.booleans()),
    ),
    max_size=12,
)
"""Changes of settings, in order."""


@pytest.fixture(autouse=True)
def _restore_settings() -> Iterator[None]:
    with settings_restored():
        yield


def _apply(changes: list) -> None:
    for setting, value in changes:
        if setting == "matmul":
            torch.set_float32_matmul_precision(value)
        elif setting == "cudnn":
            torch.backends.cudnn.allow_tf32 = value
        else:
            change_setting(*setting, value)


@needs_new_settings
@given(CALLER_SETTINGS, st.sampled_from(PRECISIONS))
def test_any_mixture_of_settings_is_replaced_and_restored(changes, precision):
    with settings_restored():
        _apply(changes)
        expected = raw_settings()
    with settings_restored():
        _apply(changes)
        with worker_settings(CPU, precision):
            assert effective_settings() == (TF32_SETTINGS if precision == "tf32" else FP32_SETTINGS)
        assert raw_settings() == expected


@needs_new_settings
@pytest.mark.parametrize("precision", PRECISIONS)
def test_configure_torch_overrides_the_callers_settings(precision):
    state = torch.get_deterministic_debug_mode(), torch.get_num_threads(), torch.backends.cudnn.deterministic
    try:
        with tf32_everywhere():
            configure_torch(1, precision)
            assert effective_settings() == (TF32_SETTINGS if precision == "tf32" else FP32_SETTINGS)
    finally:
        torch.set_deterministic_debug_mode(state[0])
        torch.set_num_threads(state[1])
        torch.backends.cudnn.deterministic = state[2]


def test_older_settings_suffice_without_newer_ones(monkeypatch):
    """PyTorch 2.8 has only the older settings."""
    monkeypatch.setattr(device, "_get_setting", None)
    monkeypatch.setattr(device, "_change_setting", None)
    torch.set_float32_matmul_precision("medium")
    torch.backends.cudnn.allow_tf32 = True
    with worker_settings(CPU):
        assert (torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32) == ("highest", False)
    assert (torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32) == ("medium", True)


def test_settings_are_restored_after_an_error():
    torch.set_float32_matmul_precision("high")
    with pytest.raises(ValueError, match="inside"), worker_settings(CPU):
        raise ValueError("inside")
    assert torch.get_float32_matmul_precision() == "high"


@pytest.mark.parametrize("debug_mode", [0, 1, 2])
def test_algorithms_are_deterministic_inside_and_settings_are_restored(debug_mode):
    def settings() -> tuple[int | bool, ...]:
        cudnn = torch.backends.cudnn
        return torch.get_deterministic_debug_mode(), cudnn.deterministic, cudnn.benchmark, torch.is_grad_enabled()

    torch.set_deterministic_debug_mode(debug_mode)
    try:
        settings_before = settings()
        with torch.no_grad(), worker_settings(CPU, mode="error"):
            assert settings() == (2, True, False, True)
        assert settings() == settings_before
    finally:
        torch.set_deterministic_debug_mode(0)
