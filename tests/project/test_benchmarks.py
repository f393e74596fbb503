"""Benchmarks as commands: all can be imported and asked for help, and documents call them rightly."""

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
    """Raised where a command would begin to work."""


def read_options(monkeypatch: pytest.MonkeyPatch, module: str, words: list[str]) -> None:
    """Let a command read its options, and stop before it does anything.

    Raises:
        OptionsRead: they are good.
        SystemExit: they are not, or ask for help.
    """
    parse_args = argparse.ArgumentParser.parse_args

    def parse_and_stop(parser: argparse.ArgumentParser) -> None:
        parse_args(parser)
        raise OptionsRead

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse_and_stop)
    monkeypatch.setattr(sys, "argv", [module, *words])
    import_module(module).main()


@pytest.mark.parametrize("name", MODULES)
def test_every_benchmark_has_help(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = import_module(name)
    if not hasattr(module, "main"):
        return  # a part of others
    with pytest.raises(SystemExit) as ended:
        read_options(monkeypatch, name, ["--help"])
    assert ended.value.code == 0
    assert "show this help message" in capsys.readouterr().out


def commands(text: str) -> list[tuple[str, list[str]]]:
    """The benchmarks that a text calls, in lines of their own or in passing: module and options."""
    lines = [line.strip() for line in text.splitlines()]
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)
    in_passing = [" ".join(words.split()) for words in re.findall(r"`([^`]+)`", prose)]
    found = [match.groups() for line in (*lines, *in_passing) if (match := COMMAND.fullmatch(line))]
    # Docstrings say beside a command what it does, and put into brackets what may be left out.
    called = [(module, re.sub(r"[\[\]]", "", re.split(r"\s{3,}", rest)[0])) for module, rest in found]
    return [(module, shlex.split(words, comments=True)) for module, words in called]


def described() -> list[str]:
    """Everything that tells readers how to call them."""
    return [*documents(), *(f"{name.replace('.', '/')}.py" for name in MODULES)]


@pytest.mark.parametrize("place", [place for place in described() if commands((REPOSITORY / place).read_text())])
def test_documented_benchmark_commands_have_valid_options(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module, words in commands((REPOSITORY / place).read_text()):
        with monkeypatch.context() as patch, pytest.raises(OptionsRead):
            read_options(patch, module, words)
