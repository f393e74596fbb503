"""Benchmark commands have a help text, and documents call them with valid options."""

import argparse
import re
import shlex
import sys
from importlib import import_module

import pytest

from tests.conftest import REPOSITORY
from tests.project.test_documents import documents

# Foolbox, which a benchmark imports, uses an old name of SciPy's.
pytestmark = pytest.mark.filterwarnings("ignore:Please import:DeprecationWarning")

MODULES = sorted(f"benchmarks.{path.stem}" for path in (REPOSITORY / "benchmarks").glob("*.py"))
COMMAND = re.compile(r"(?:[A-Z0-9_]+=\S+ +)*(?:\S*/)?python -m (benchmarks\b[.\w]*)(.*)")


class OptionsParsed(Exception):
    """Raised by a command after it has parsed its options."""


def parse_options(monkeypatch: pytest.MonkeyPatch, module: str, argv: list[str]) -> None:
    """Run a command until it has parsed its options.

    Raises:
        OptionsParsed: the options are valid.
        SystemExit: the options are invalid or include --help.
    """
    parse_args = argparse.ArgumentParser.parse_args

    def parse_and_stop(parser: argparse.ArgumentParser) -> None:
        parse_args(parser)
        raise OptionsParsed

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse_and_stop)
    monkeypatch.setattr(sys, "argv", [module, *argv])
    import_module(module).main()


def find_commands(text: str) -> list[tuple[str, list[str]]]:
    """Return the module and the options of each benchmark command in a text."""
    lines = [line.strip() for line in text.splitlines()]
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)
    inline_code = [" ".join(code.split()) for code in re.findall(r"`([^`]+)`", prose)]
    matches = [match.groups() for line in (*lines, *inline_code) if (match := COMMAND.fullmatch(line))]
    # In docstrings, brackets enclose optional parts, and an explanation may follow after several spaces.
    calls = [(module, re.sub(r"[\[\]]", "", re.split(r"\s{3,}", options)[0])) for module, options in matches]
    return [(module, shlex.split(options, comments=True)) for module, options in calls]


def list_sources() -> list[str]:
    """Return the paths of all documents and of the benchmark modules, whose docstrings contain commands."""
    return [*documents(), *(f"{name.replace('.', '/')}.py" for name in MODULES)]


@pytest.mark.parametrize(
    "document", [document for document in list_sources() if find_commands((REPOSITORY / document).read_text())]
)
def test_documented_benchmark_commands_have_valid_options(document: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module, argv in find_commands((REPOSITORY / document).read_text()):
        with monkeypatch.context() as patch, pytest.raises(OptionsParsed):
            parse_options(patch, module, argv)
