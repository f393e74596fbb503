"""Write CSV files in which spreadsheets do not evaluate text as formulas."""

import re
from pathlib import Path
from typing import TYPE_CHECKING

from robust201.core.files import write_text

if TYPE_CHECKING:
    import pandas as pd

_FORMULA_START = re.compile(r"(^|[;\t\r\n])(?=\s*[=+\-@＝＋－＠].)", re.DOTALL)
"""Start of a formula: at the start of a cell, or after a character that separates cells in some locale."""


def write_csv(path: Path, frame: "pd.DataFrame", *, index: bool = False) -> None:
    """Write a CSV file, with an apostrophe before text that spreadsheets would evaluate as a formula.

    Names of keys, recipes and architectures may come from untrusted files. Numbers are written with all digits, and
    negative numbers get no apostrophe.
    """
    quoted_frame = frame.rename(columns=_quote_formula, index=_quote_formula).rename_axis(index=_quote_formula)
    for position, dtype in enumerate(frame.dtypes):
        if dtype.kind == "O":
            quoted_frame.isetitem(position, [_quote_formula(cell) for cell in quoted_frame.iloc[:, position]])
    write_text(path, quoted_frame.to_csv(index=index))


def _quote_formula(cell: object) -> object:
    return _FORMULA_START.sub(r"\1'", cell) if isinstance(cell, str) and not _is_number(cell) else cell


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
