"""Write the sections of the reference pages that are generated from the code: `python -m docs._site.generated`.

A generated section stands between the comments ``<!-- generated: KIND ARGUMENTS -->`` and ``<!-- end -->``.
"""

import re
from collections.abc import Callable
from pathlib import Path

from docs._site.api import describe_api
from docs._site.commands import describe_commands
from docs._site.fields import describe_keys, describe_models

REFERENCE = Path(__file__).resolve().parents[1] / "reference"
"""Folder of the pages with generated sections."""

_GENERATED_SECTION = re.compile(r"^(<!-- generated: (\w+) ?(.*?) -->)$.*?^<!-- end -->$", re.M | re.S)
_GENERATORS: dict[str, Callable[..., str]] = {
    "api": describe_api,
    "commands": describe_commands,
    "keys": describe_keys,
    "models": describe_models,
}


def fill(text: str) -> str:
    """Return a page with its generated sections updated."""

    def generate(match: re.Match[str]) -> str:
        comment, kind, arguments = match.groups()
        generated = _GENERATORS[kind](*arguments.split())
        generated = re.sub(r"[ \t]+$", "", generated, flags=re.M).strip()
        generated = re.sub(r"(?<![\w/.\[-])docs/([\w/-]+)\.md", r"[docs/\1.md](../\1.md)", generated)
        return f"{comment}\n\n{generated}\n\n<!-- end -->"

    return _GENERATED_SECTION.sub(generate, text)


def main() -> None:
    """Fill all pages of the reference."""
    for page in REFERENCE.glob("*.md"):
        page.write_text(fill(page.read_text()))


if __name__ == "__main__":
    main()
