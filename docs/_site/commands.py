"""The reference of the command line, from the commands themselves."""

import re

import typer
from typer.cli import get_docs_for_click

from robust201.cli.app import app
from robust201.cli.help_texts import EXAMPLES, PANELS


def _format_examples(text: str) -> str:
    """Return the text of a command whose examples, which its help ends with, are a code block."""
    lines = {line for examples in EXAMPLES.values() for line in examples}
    kept: list[str] = []
    for line in text.splitlines():
        if line in {"Example:", "Examples:"}:
            kept += ["**Examples**:", ""]
        elif line in lines:
            kept.append(f"    {line}")
        else:
            kept.append(line)
    return "\n".join(kept)


def describe_commands(group: str) -> str:
    """Return the Markdown of all commands in one group of the help: usage, arguments, options, examples."""
    root = typer.main.get_command(app)
    context = typer.Context(root, info_name="robust201")
    commands = root.commands  # type: ignore[attr-defined]
    sections = [
        get_docs_for_click(obj=commands[name], ctx=context, indent=1, name=name, call_prefix="robust201")
        for name in PANELS[group]
    ]
    text = _format_examples("\n".join(sections))
    text = re.sub(r"^(#+) `robust201 (.+)`$", r"\1 \2", text, flags=re.M)
    return re.sub(r"^\$ robust201", "robust201", text, flags=re.M)
