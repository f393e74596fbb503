"""Benchmarks as commands: they can be imported, have help, and documents call them with valid options."""

import argparse
import re
import shlex
import sys
from importlib import import_module

import pytest

from tests.conftest import REPOSITORY
from tests.project.test_documents import documents

MODULES = sorted(f"benchmarks.{path.stem}" for path in (REPOSITORY / "benchmarks").glob("*.py"))
COMMAND = re.compile(r"(?:[A-Z0-9_]+=\S+ +)*(?:\S*/)?python -m (benchmarks\b[.\w]*)(.*)")


class OptionsRead(Exception):
    """Raised after a command has parsed its options."""


def read_options(monkeypatch: pytest.MonkeyPatch, module: str, argv: list[str]) -> None:
    """Run a command until it has parsed its options.

    Raises:
        OptionsRead: they are good.
        SystemExit: they are not, or ask for help.
    """
    parse_args = argparse.ArgumentParser.parse_args

    def parse_and_stop(parser: argparse.ArgumentParser) -> None:
        parse_args(parser)
        raise OptionsRead

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse_and_stop)
    monkeypatch.setattr(sys, "argv", [module, *argv])
    import_module(module).main()


@pytest.mark.parametrize("name", MODULES)
def test_every_benchmark_has_help(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = import_module(name)
    if not hasattr(module, "main"):
        return  # not a command
    with pytest.raises(SystemExit) as result:
        read_options(monkeypatch, name, ["--help"])
    assert result.value.code == 0
    assert "show this help message" in capsys.readouterr().out


def commands(text: str) -> list[tuple[str, list[str]]]:
    """Return the benchmark commands in a text: module and options."""
    lines = [line.strip() for line in text.splitlines()]
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)
    in_passing = [" ".join(code.split()) for code in re.findall(r"`([^`]+)`", prose)]
    found = [match.groups() for line in (*lines, *in_passing) if (match := COMMAND.fullmatch(line))]
    # Docstrings explain a command after spaces, and put optional parts into brackets.
    called = [(module, re.sub(r"[\[\]]", "", re.split(r"\s{3,}", rest)[0])) for module, rest in found]
    return [(module, shlex.split(options, comments=True)) for module, options in called]


def described() -> list[str]:
    """Return the documents and docstrings that mention benchmarks."""
    return [*documents(), *(f"{name.replace('.', '/')}.py" for name in MODULES)]


@pytest.mark.parametrize(
    "document", [document for document in described() if commands((REPOSITORY / document).read_text())]
)
def test_documented_benchmark_commands_have_valid_options(document: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module, argv in commands((REPOSITORY / document).read_text()):
        with monkeypatch.context() as patch, pytest.raises(OptionsRead):
            read_options(patch, module, argv)
