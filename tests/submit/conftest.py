"""Fixture for tests of submitting to Ray."""

from pathlib import Path

import pytest


@pytest.fixture
def _without_ray_token(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Remove the user's token for Ray and the variables that name an address."""
    for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_AUTH_MODE", "RAY_ADDRESS", "RAY_API_SERVER_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
