"""Generate the command-line reference from the definitions of the commands."""

import re
from collections import Counter
from collections.abc import Sequence

import typer
from typer.cli import get_docs_for_click

from robust201.cli.app import app
from robust201.cli.help_texts import GROUPS

_PARAMETER = re.compile(r"^\* `(?:\S+, )?(\S+?)(?: [^`]*)?`: .*\n", re.M)
"""A line about an argument or option, such as ``* `--out <path>`: Folder to write.``; the regex group is its name."""


def describe_commands() -> str:
    """Return Markdown with usage, example, arguments and options of all commands, by the groups of the help.

    Arguments and options that several commands of a group share are described once, before these commands.
    """
    return "\n\n".join(f"## {group}\n\n{_describe_group(names)}" for group, names in GROUPS.items())


def _describe_group(names: Sequence[str]) -> str:
    texts = [_describe_command(name) for name in names]
    counts = Counter(match[0] for text in texts for match in _PARAMETER.finditer(text))
    # If two shared parameters have the same name, only the more frequent one is moved.
    shared = {_PARAMETER.match(line)[1]: line for line, count in reversed(counts.most_common()) if count > 1}  # type: ignore[index]
    text = "\n\n".join(_refer_to_shared(text, shared) for text in texts)
    return f"Several of these commands have:\n\n{''.join(sorted(shared.values()))}\n{text}" if shared else text


def _describe_command(name: str) -> str:
    """Return the sections of a command and its subcommands."""
    root = typer.main.get_command(app)
    context = typer.Context(root, info_name="robust201")
    command = root.commands[name]  # type: ignore[attr-defined]
    text = get_docs_for_click(obj=command, ctx=context, indent=2, name=name, call_prefix="robust201")
    text = re.sub(r"^\* `(?:-h, )?--help`: Show this message and exit\.\n", "", text, flags=re.M)
    text = re.sub(r"\*\*(?:Arguments|Options)\*\*:\n\n|\*\*Commands\*\*:\n\n(?:\* .*\n)*", "", text)
    return "\n\n".join(map(_format_section, re.split(r"^(?=#)", text, flags=re.M)[1:]))


def _format_section(text: str) -> str:
    """Return a command's section with its example below its usage."""
    text, _, example = text.partition("\nExample: ")
    text = re.sub(r"^(#+) `robust201 (.+)`$", r"\1 \2", text, flags=re.M)
    calls = f"```text\n\\1\n{example.strip()}".strip()
    text = re.sub(r"\*\*Usage\*\*:\n\n```console\n\$ (.*)(?=\n```)", calls, text)
    text = re.sub(r"(^\* .*\n)\n+(?=\* `)", r"\1", text, flags=re.M)
    return text.strip() + "\n"


def _refer_to_shared(text: str, shared: dict[str, str]) -> str:
    """Replace the descriptions of shared arguments and options with their names."""

    def shorten(match: re.Match[str]) -> str:
        parameters = list(_PARAMETER.finditer(match[0]))
        unshared = [parameter[0] for parameter in parameters if shared.get(parameter[1]) != parameter[0]]
        names = [f"`{parameter[1]}`" for parameter in parameters if shared.get(parameter[1]) == parameter[0]]
        return "".join(unshared) + (f"* as above: {', '.join(names)}\n" if names else "")

    return re.sub(r"(?:^\* `.*\n)+", shorten, text, flags=re.M)
