"""Common parts of all studies' pages: Markdown and CSV tables, figures, and the assembly of a page's text."""

import math
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from robust201.core.csv_files import write_csv
from robust201.core.files import atomic_write, write_text
from robust201.studies import drawings
from robust201.studies.comparisons import GROUPS
from robust201.studies.config import Study

PAGE = "study.md"

MAX_ROWS = 20
"""Rows of a table on a page; longer tables are files only."""


class PageWriter:
    """Assemble a page while writing its tables and figures next to it."""

    def __init__(self, study: Study, out: Path, title: str) -> None:
        self._out = out
        self.files: list[Path] = []
        self._parts = [f"# {title}\n"]
        if study.note:
            self.say(study.note)

    def lead(self, finding: str) -> None:
        """Put the finding of the study below the title, before everything else."""
        self._parts.insert(1, finding.rstrip("\n") + "\n")

    def say(self, text: str) -> None:
        self._parts.append(text.rstrip("\n") + "\n")

    def table(self, name: str, frame: pd.DataFrame) -> None:
        """Write a table as CSV; the page links to it at its end."""
        self.files.append(write_table(self._out / "tables", name, frame))

    def figure(self, name: str, figure: Figure | None, caption: str) -> None:
        """Write a figure and insert it here, unless it is None."""
        if figure is not None:
            drawings.save_figure(figure, self._out / "figures" / f"{name}.svg")
            self._show(name, caption)

    def picture(self, name: str, svg: bytes, caption: str) -> None:
        """Write an SVG and insert it here."""
        with atomic_write(self._out / "figures" / f"{name}.svg") as stream:
            stream.write(svg)
        self._show(name, caption)

    def _show(self, name: str, caption: str) -> None:
        self.files.append(self._out / "figures" / f"{name}.svg")
        self._parts.append(f"![{caption}](figures/{name}.svg)\n\n*{caption}*\n")

    def finish(self) -> list[Path]:
        """Write the page; return its path, followed by those of all other files."""
        names = ", ".join(f"[{path.stem}](tables/{path.name})" for path in self.files if path.suffix == ".csv")
        self.say(f"All numbers at full precision: {names}.")
        page = self._out / PAGE
        write_text(page, "\n".join(self._parts))
        return [page, *self.files]


def table_lines(columns: Sequence[str], rows: Sequence[Sequence[str]], *, n_texts: int = 1) -> str:
    """Return a Markdown table with `n_texts` columns of text, then columns of numbers; it ends with a newline."""
    rules = ["---"] * n_texts + ["--:"] * (len(columns) - n_texts)
    lines = (columns, rules, *rows)
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


def short_table(lines: str, name: str) -> str:
    """Return a Markdown table, or a link to the CSV file `name` if the table has more than `MAX_ROWS` rows."""
    n_rows = lines.count("\n") - 2
    return lines if n_rows <= MAX_ROWS else f"The {n_rows} rows are in [tables/{name}.csv](tables/{name}.csv).\n"


def show_number(value: float | None, digits: int = 4, *, signed: bool = False) -> str:
    """Return a number with `digits` decimals and without a negative zero; a dash for None or NaN."""
    if value is None or math.isnan(value):
        return "–"
    return f"{value:{'+' if signed else ''}z.{digits}f}"


def show_p(value: float) -> str:
    """Return a p-value with two digits; a dash for NaN."""
    return "–" if math.isnan(value) else "< 1e-12" if value < 1e-12 else f"{value:.2g}"


def write_table(folder: Path, name: str, frame: pd.DataFrame) -> Path:
    """Write a table as CSV at full precision."""
    path = folder / f"{name}.csv"
    write_csv(path, frame)
    return path


def comparison_lines(frame: pd.DataFrame) -> str:
    """Return comparisons as a Markdown table (see `studies.comparisons.compare_groups`)."""
    columns = [
        "comparison",
        "network",
        "epoch",
        "first",
        "second",
        "p",
        "p (Holm)",
        "Hedges' g",
        "higher",
        "after Holm",
    ]
    paired = "p_paired" in frame
    if paired:
        columns[7:7] = ["p, pairs", "p, pairs (Holm)"]
    rows = []
    for row in frame.to_dict("records"):
        higher = [GROUPS[row[row[name]]] if row[name] else "–" for name in ("higher", "higher_holm")]
        pairs = [show_p(row["p_paired"]), show_p(row["p_paired_holm"])] if paired else []
        effect = f"{show_number(row['g'], 2)} [{show_number(row['g_low'], 2)}, {show_number(row['g_high'], 2)}]"
        names = [f"{row['experiment']} {row['claim']}", row["network"], str(row["epoch"])]
        tests = [show_p(row["p"]), show_p(row["p_holm"]), *pairs, effect]
        rows.append([*names, show_number(row["mean_first"]), show_number(row["mean_second"]), *tests, *higher])
    return table_lines(columns, rows)
