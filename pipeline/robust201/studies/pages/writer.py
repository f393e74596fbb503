"""What the pages of all studies share: text is collected while tables (CSV) and figures (SVG) are written."""

from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from robust201.core.files import atomic_write, write_text
from robust201.studies import drawings
from robust201.studies.config import Study
from robust201.studies.markdown import write_table

PAGE = "study.md"


class PageWriter:
    """Collects a page while its tables and figures are written beside it."""

    def __init__(self, study: Study, out: Path, title: str) -> None:
        self._out = out
        self.files: list[Path] = []
        self._parts = [f"# {title}\n"]
        if study.note:
            self.say(study.note)

    def say(self, text: str) -> None:
        self._parts.append(text.rstrip("\n") + "\n")

    def table(self, name: str, frame: pd.DataFrame) -> None:
        """Write a table as CSV; the end of the page links to it."""
        self.files.append(write_table(self._out / "tables", name, frame))

    def figure(self, name: str, figure: Figure | None, caption: str) -> None:
        """Write a figure and show it here; None is left out."""
        if figure is not None:
            drawings.save_figure(figure, self._out / "figures" / f"{name}.svg")
            self._show(name, caption)

    def picture(self, name: str, svg: bytes, caption: str) -> None:
        """Write an SVG and show it here."""
        with atomic_write(self._out / "figures" / f"{name}.svg") as stream:
            stream.write(svg)
        self._show(name, caption)

    def _show(self, name: str, caption: str) -> None:
        self.files.append(self._out / "figures" / f"{name}.svg")
        self._parts.append(f"![{caption}](figures/{name}.svg)\n\n*{caption}*\n")

    def finish(self) -> list[Path]:
        """Write the page; give it and all other files."""
        names = ", ".join(f"[{path.stem}](tables/{path.name})" for path in self.files if path.suffix == ".csv")
        self.say(f"All numbers at full precision: {names}.")
        page = self._out / PAGE
        write_text(page, "\n".join(self._parts))
        return [page, *self.files]
