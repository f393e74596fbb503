"""One experiment is no law of the package: words of its space and its norm stand where the list below says, only."""

import functools
import io
import re
import tokenize
from pathlib import Path

import robust201

PACKAGE = Path(robust201.__file__).parent

WORDS = re.compile(r"nas-?bench-?201|15[,_]?625|6[,_]?466|@Linf", re.IGNORECASE)

# Folders and files that may say them, and why. Shorten this list where that is simple.
MAY_SAY = {
    "spaces/nasbench201": "the space itself",
    "spaces/__init__.py": "the table of spaces, and the default of sweeps and datasets that name none",
    "weights/published": "readers of the published weights",
    "export/published_layout.py": "writes meta.json and Parquet as published",
    "images/specs.py": "credits the paper that chose the 120 classes, by its title",
}
"""Comments and docstrings may say the words anywhere: they cite where a number or a recipe comes from."""


def code_of(path: Path) -> str:
    """The text of a file; of Python without comments and docstrings, which stand where a statement would."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        return text
    kept, at_start = [], True
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT or (token.type == tokenize.STRING and at_start):
            continue
        if token.type not in (tokenize.NL, tokenize.INDENT, tokenize.DEDENT):
            at_start = token.type == tokenize.NEWLINE
        kept.append(token.string)
    return " ".join(kept)


def sources() -> list[Path]:
    kinds = {".py", ".js", ".html", ".css"}
    found = (path for path in PACKAGE.rglob("*") if path.suffix in kinds and "_bundled" not in path.parts)
    return sorted(found)


def permission(path: Path) -> str | None:
    name = path.relative_to(PACKAGE).as_posix()
    return next((entry for entry in MAY_SAY if name == entry or name.startswith(f"{entry}/")), None)


@functools.cache
def words_in(path: Path) -> list[str]:
    return sorted({match[0] for match in WORDS.finditer(code_of(path))})


def test_words_of_one_experiment_stand_where_they_may() -> None:
    found = {path.relative_to(PACKAGE).as_posix(): words_in(path) for path in sources() if not permission(path)}
    assert len(found) > 300
    assert {name: words for name, words in found.items() if words} == {}
