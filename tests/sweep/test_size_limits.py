"""Error messages have a size limit."""

from pathlib import Path

import pytest

from robust201.core.errors import MAX_MESSAGE_LENGTH, RobustError
from tests.conftest import FinishedCommand, RunCommand

MAX_STDERR = 2 * MAX_MESSAGE_LENGTH


def expect_short_error(command_result: FinishedCommand) -> str:
    error_line = command_result.error_line(2)
    assert len(command_result.err) < MAX_STDERR
    return error_line


@pytest.mark.parametrize(
    "yaml_text",
    [
        "name: " + "x" * 1_000_000,
        "x" * 1_000_000 + ": 1",
        "? [" + "1, " * 10_000 + "]\n: 1",
    ],
    ids=["long name", "long field", "list as field name"],
)
def test_huge_yaml_values_give_one_line_error(robust201: RunCommand, tmp_path: Path, yaml_text: str) -> None:
    (tmp_path / "sweep.yaml").write_text(yaml_text)
    expect_short_error(robust201("plan", tmp_path / "sweep.yaml"))


def test_long_error_messages_keep_beginning_and_end() -> None:
    output = str(RobustError(f"Reading failed for x: expected y, got {'z' * 1_000_000}. Do this."))
    assert len(output) < MAX_MESSAGE_LENGTH + 100
    assert output.startswith("Reading failed for x")
    assert output.endswith("Do this.")
    assert "characters left out" in output
