"""Messages about a value say which value was got."""

from collections.abc import Callable

import pytest

from robust201.core.errors import ConfigError, one_line
from robust201.export.written_file import parse_choice
from robust201.figures.plots import parse_width
from robust201.figures.table import figure_row
from robust201.planning.shares import Share


@pytest.mark.parametrize(
    ("call", "got"),
    [
        (lambda: figure_row("attack"), "got 'attack'. Did you mean 'attacks'?"),
        (lambda: parse_width("colum"), "got 'colum'. Did you mean 'column'?"),
        (lambda: parse_choice("compression", "gzz", ("gz", "zst")), "got 'gzz'. Did you mean 'gz'?"),
        (lambda: Share.parse("0/3"), "got '0/3'. Number the runs from 1."),
    ],
)
def test_what_was_got_is_said(call: Callable[[], object], got: str) -> None:
    with pytest.raises(ConfigError) as caught:
        call()
    assert got in str(caught.value)


def test_what_others_said_is_one_short_line() -> None:
    assert one_line("a\n  b.\n") == "a b"
    assert one_line(ValueError()) == "ValueError"
    assert len(one_line("x" * 1000)) == 300
