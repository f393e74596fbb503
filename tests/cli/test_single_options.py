"""Options that take one value are rejected if they are repeated on the command line."""

import pytest

from tests.conftest import RunCommand


@pytest.mark.parametrize(
    "arguments",
    [
        ("plan", "jobs/demo.yaml", "--keys", "clean", "--keys", "pgd"),
        ("submit", "slurm", "jobs/demo.yaml", "--partition", "a", "--partition", "b"),
    ],
)
def test_repeated_option_is_rejected(robust201: RunCommand, arguments: tuple[str, ...]) -> None:
    assert f"{arguments[-2]} is given 2 times. Give it once" in robust201(*arguments).error_line(2)


@pytest.mark.parametrize(
    "arguments",
    [
        ("rank", "absent", "--json", "--json"),  # a flag
    ],
)
def test_repeated_list_or_flag_is_accepted(robust201: RunCommand, arguments: tuple[str, ...]) -> None:
    assert "Opening a dataset failed for absent" in robust201(*arguments).error_line(2)
