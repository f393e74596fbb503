"""Record the golden files: numbers of the current code, which `test_numbers.py` compares with those of later code.

    python -m tests.golden.record [SECTION ...]

Record again only if a number changes on purpose, or if a feature is added or removed;
`git diff` then shows one line per number.
"""

import json
import os
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # as in tests/conftest.py; PyTorch reads it when it is imported

from tests.golden.numbers import SECTIONS, Row, processor

FOLDER = Path(__file__).parent / "recorded"


def format_rows(rows: Iterable[Row]) -> str:
    """Return a golden file's text, with one row per line and sorted keys."""
    lines = [json.dumps(row._asdict(), sort_keys=True) for row in rows]
    return f'{{"processor": {json.dumps(processor())}, "rows": [\n' + ",\n".join(lines) + "\n]}\n"


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for section in sys.argv[1:] or SECTIONS:
        with tempfile.TemporaryDirectory() as folder:
            text = format_rows(SECTIONS[section](Path(folder)))
        (FOLDER / f"{section}.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
