"""Assembly of a study's page from text, tables (Markdown and CSV) and figures."""

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
"""Name of the page's file."""

MAX_ROWS = 20
"""Maximum number of rows of a table on a page; longer tables are only written as files."""


class PageWriter:
    """Assembles the text of a page, and writes its tables and figures to folders next to it."""

    def __init__(self, study: Study, folder: Path, title: str) -> None:
        self._folder = folder
        self.files: list[Path] = []
        self._paragraphs = [f"# {title}\n"]
        if study.note:
            self.add_text(study.note)

    def add_lead(self, finding: str) -> None:
        """Insert the main finding below the title, before all other text."""
        self._paragraphs.insert(1, finding.rstrip("\n") + "\n")

    def add_text(self, text: str) -> None:
        self._paragraphs.append(text.rstrip("\n") + "\n")

    def add_table(self, name: str, frame: pd.DataFrame) -> None:
        """Write a table as CSV; the end of the page links to it."""
        self.files.append(write_table(self._folder / "tables", name, frame))

    def add_figure(self, name: str, figure: Figure | None, caption: str) -> None:
        """Write a figure and insert it into the page; do nothing if it is None."""
        if figure is not None:
            drawings.save_figure(figure, self._folder / "figures" / f"{name}.svg")
            self._insert_image(name, caption)

    def add_svg(self, name: str, svg: bytes, caption: str) -> None:
        """Write an SVG and insert it into the page."""
        with atomic_write(self._folder / "figures" / f"{name}.svg") as stream:
            stream.write(svg)
        self._insert_image(name, caption)

    def _insert_image(self, name: str, caption: str) -> None:
        self.files.append(self._folder / "figures" / f"{name}.svg")
        self._paragraphs.append(f"![{caption}](figures/{name}.svg)\n\n*{caption}*\n")

    def finish(self) -> list[Path]:
        """Write the page; return its path, followed by the paths of all tables and figures."""
        links = ", ".join(f"[{path.stem}](tables/{path.name})" for path in self.files if path.suffix == ".csv")
        self.add_text(f"All numbers are available at full precision: {links}.")
        page = self._folder / PAGE
        write_text(page, "\n".join(self._paragraphs))
        return [page, *self.files]


def format_table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, n_text_columns: int = 1) -> str:
    """Return a Markdown table that ends with a newline. Columns after the first `n_text_columns` are right-aligned."""
    alignments = ["---"] * n_text_columns + ["--:"] * (len(columns) - n_text_columns)
    all_rows = (columns, alignments, *rows)
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n" for cells in all_rows)


def table_or_link(table: str, name: str, contents: str) -> str:
    """Return the Markdown table, or a link to the CSV file `name` if it has more than `MAX_ROWS` rows.

    `contents` completes "The table of …" in front of the link.
    """
    n_rows = table.count("\n") - 2
    if n_rows <= MAX_ROWS:
        return table
    return f"The table of {contents} ({n_rows} rows) is in [tables/{name}.csv](tables/{name}.csv).\n"


def format_number(value: float | None, decimals: int = 4, *, signed: bool = False) -> str:
    """Return a number with `decimals` decimals and without a negative zero; a dash for None or NaN."""
    if value is None or math.isnan(value):
        return "–"
    return f"{value:{'+' if signed else ''}z.{decimals}f}"


def format_p_value(value: float) -> str:
    """Return a p-value with two significant digits; a dash for NaN."""
    return "–" if math.isnan(value) else "< 1e-12" if value < 1e-12 else f"{value:.2g}"


def write_table(folder: Path, name: str, frame: pd.DataFrame) -> Path:
    """Write a table as CSV at full precision."""
    path = folder / f"{name}.csv"
    write_csv(path, frame)
    return path


def format_comparisons(frame: pd.DataFrame) -> str:
    """Return comparisons of the robustness R (from `studies.comparisons.compare_groups`) as a Markdown table."""
    columns = [
        "comparison",
        "network",
        "epoch",
        "R, first",
        "R, second",
        "p",
        "p (Holm)",
        "Hedges' g",
        "higher R",
        "higher R (Holm)",
    ]
    has_paired_tests = "p_paired" in frame
    if has_paired_tests:
        columns[7:7] = ["p, paired test", "p, paired test (Holm)"]
    rows = []
    for row in frame.to_dict("records"):
        # `higher` is "first", "second" or ""; the columns "first" and "second" contain the compared groups.
        more_robust = [GROUPS[row[row[name]]] if row[name] else "–" for name in ("higher", "higher_holm")]
        paired_tests = (
            [format_p_value(row["p_paired"]), format_p_value(row["p_paired_holm"])] if has_paired_tests else []
        )
        effect_size = (
            f"{format_number(row['g'], 2)} [{format_number(row['g_low'], 2)}, {format_number(row['g_high'], 2)}]"
        )
        name_cells = [f"{row['experiment']} {row['claim']}", row["network"], str(row["epoch"])]
        tests = [format_p_value(row["p"]), format_p_value(row["p_holm"]), *paired_tests, effect_size]
        rows.append(
            [*name_cells, format_number(row["mean_first"]), format_number(row["mean_second"]), *tests, *more_robust]
        )
    return format_table(columns, rows)
