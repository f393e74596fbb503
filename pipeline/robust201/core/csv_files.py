"""CSV files whose text spreadsheets display but never evaluate."""

import re
from pathlib import Path
from typing import TYPE_CHECKING

from robust201.core.files import write_text

if TYPE_CHECKING:
    import pandas as pd

_FORMULA = re.compile(r"(^|[;\t\r\n])(?=\s*[=+\-@＝＋－＠].)", re.DOTALL)
"""Start of a formula: at the start of a cell, and after the separators of other locales."""


def write_csv(path: Path, frame: "pd.DataFrame", *, index: bool = False) -> None:
    """Write a table with an apostrophe before text that spreadsheets would evaluate as a formula.

    Names of keys, recipes and architectures may come from other people's files. Numbers, including negative ones, are
    written with all digits.
    """
    safe = frame.rename(columns=_as_text, index=_as_text).rename_axis(index=_as_text)
    for position, dtype in enumerate(frame.dtypes):
        if dtype.kind == "O":
            safe.isetitem(position, [_as_text(value) for value in safe.iloc[:, position]])
    write_text(path, safe.to_csv(index=index))


def _as_text(value: object) -> object:
    return _FORMULA.sub(r"\1'", value) if isinstance(value, str) and not _is_number(value) else value


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
