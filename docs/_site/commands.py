"""Generate the command-line reference from the definitions of the commands."""

import re
from collections.abc import Iterable

import typer
from typer.cli import get_docs_for_click

from robust201.cli.app import app
from robust201.cli.help_texts import GROUPS


def describe_commands() -> str:
    """Return Markdown with usage, arguments, options and examples of all commands, by the groups of the help."""
    return "\n\n".join(f"## {group}\n\n{_describe_group(names)}" for group, names in GROUPS.items())


def _describe_group(names: Iterable[str]) -> str:
    root = typer.main.get_command(app)
    context = typer.Context(root, info_name="robust201")
    commands = root.commands  # type: ignore[attr-defined]
    sections = [
        get_docs_for_click(obj=commands[name], ctx=context, indent=2, name=name, call_prefix="robust201")
        for name in names
    ]
    text = re.sub(r"^Example: (.+)$", r"**Example**:\n\n    \1", "\n".join(sections), flags=re.M)
    text = re.sub(r"^\* `(?:-h, )?--help`: Show this message and exit\.\n", "", text, flags=re.M)
    text = re.sub(r"^(#+) `robust201 (.+)`$", r"\1 \2", text, flags=re.M)
    return re.sub(r"^\$ robust201", "robust201", text, flags=re.M)
