"""Examples in the documentation run on a dataset like the demo's; commands and links in the pages are valid."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import typer
import yaml
from pydantic import TypeAdapter

from robust201.cli.app import app
from robust201.networks.nb201.cells import evaluated_indices
from robust201.sweep.config import SweepConfig
from robust201.sweep.facts import assumed_facts
from robust201.sweep.loading import parse_config
from robust201.sweep.plan import choose_slices, make_plan
from robust201.sweep.training_config import TrainingConfig
from tests.cli.test_cli import COMMAND_GROUPS, COMMANDS
from tests.conftest import REPOSITORY
from tests.support.fabricated import export
from tests.support.fabricated import make_plan as fabricate_plan
from tests.support.planted import write_planted

DEMO = Path("runs/demo")
DOCS = REPOSITORY / "docs"


def documents() -> list[str]:
    """Return the paths of all pages."""
    paths = (*REPOSITORY.glob("*.md"), *DOCS.rglob("*.md"), *(REPOSITORY / "jobs").rglob("*.md"))
    return sorted(str(path.relative_to(REPOSITORY)) for path in paths)


def examples(page: str, language: str) -> list[str]:
    """Return a page's code blocks in one language."""
    text = (REPOSITORY / page).read_text()
    return [dedent(block) for block in re.findall(rf"^ *```{language}\n(.*?)^ *```$", text, re.M | re.S)]


TUTORIALS = {
    "docs/api.md": "tests/api/test_public_names.py",
    "docs/compare.md": "tests/api/test_public_names.py",
    "docs/tutorial.md": "tests/project/test_tutorial.py",
    "docs/your-own.md": "tests/run/test_user_code.py",
}
"""Pages whose blocks depend on each other, and the tests that run them in order."""


def mark_slow(pages: Iterable[str], default: str) -> list[Any]:
    """Return pages as parameters; all but `default` are slow."""
    return [pytest.param(page, marks=() if page == default else pytest.mark.slow) for page in pages]


@pytest.fixture
def demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a working folder whose runs/demo/dataset is like the demo's, but also has Parquet files."""
    monkeypatch.chdir(tmp_path)
    export(
        tmp_path / DEMO / "dataset",
        fabricate_plan((*evaluated_indices()[:11], 13714), datasets=("digits",)),
        formats=("json", "parquet"),
    )
    return tmp_path


@pytest.mark.parametrize("page", [page for page in documents() if examples(page, "py")])
def test_unexecuted_examples_import_existing_names(page):
    for block in examples(page, "py"):
        for module, names in re.findall(r"^from ((?:robust201|jobs)\S*) import (.+)$", block, re.M):
            for name in names.split(", "):
                assert hasattr(import_module(module), name), f"{module}.{name}"


@pytest.mark.timeout(900)  # AutoAttack on a busy machine
@pytest.mark.parametrize(
    "page", mark_slow((page for page in documents() if examples(page, "python") and page not in TUTORIALS), "README.md")
)
def test_page_python_examples_run(demo, page):
    source = "\n".join(
        f"exec(compile({block!r}, {f'{page}, example {i}'!r}, 'exec'), {{}})"
        for i, block in enumerate(examples(page, "python"))
    )
    source = source.replace("keys=keys)", "keys=keys, count=100)")  # to save time; the output has as many digits
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(demo / "cache")}
    path = os.pathsep.join((str(REPOSITORY / "pipeline"), str(REPOSITORY)))
    environment = os.environ | offline | {"PYTHONPATH": path}
    result = subprocess.run(
        [sys.executable, "-c", source], env=environment, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    if page == "README.md":  # digits may depend on the processor
        (output,) = examples(page, "text")
        assert re.sub(r"\d", "0", output) in re.sub(r"\d", "0", result.stdout)


def find_commands(page: str) -> list[str]:
    """Return the arguments of a page's commands `robust201 …`, from code blocks, indented lines and running text."""
    text = (REPOSITORY / page).read_text()
    prose = re.sub(r"^ *```.*?^ *```$", "", text, flags=re.M | re.S)
    lines = [
        *(line for block in examples(page, "sh") for line in block.replace("\\\n", " ").splitlines()),
        *re.findall(r"^    (robust201 .*)$", prose, re.M),
        *(" ".join(code.split()) for code in re.findall(r"`(robust201 [^`]*)`", prose)),
    ]
    code = [re.sub(r"(^|\s)#.*", "", line) for line in lines]
    return [command for line in code for command in re.findall(r"(?:^|&& |bin/|; )robust201 ([^;&|\n]*)", line)]


def commands_on_demo(page: str) -> list[list[str]]:
    """Return the arguments of a page's commands that use the demo's output."""
    commands = [shlex.split(command) for command in find_commands(page)]
    return [command for command in commands if any(word.startswith(str(DEMO)) for word in command)]


@pytest.mark.parametrize(
    "page",
    mark_slow((page for page in documents() if "reference/" not in page and commands_on_demo(page)), "docs/dataset.md"),
)
def test_page_shell_examples_run(robust201, finished_results, monkeypatch, tmp_path, page):
    monkeypatch.chdir(tmp_path)
    DEMO.mkdir(parents=True)
    finished_results.rename(DEMO / "results")
    assert robust201("export", DEMO / "results", "--out", DEMO / "dataset").code == 0  # like the demo
    for command in commands_on_demo(page):
        result = robust201(*command)
        assert result.code == 0, (command, result.err)


@pytest.mark.slow
@pytest.mark.parametrize(("page", "min_commands"), [("docs/use-cases.md", 4), ("docs/architecture-search.md", 2)])
def test_use_case_commands_run(robust201, monkeypatch, tmp_path, page, min_commands):
    # The dataset is synthetic and has the paper's size; searches are shortened.
    monkeypatch.chdir(tmp_path)
    write_planted(Path("dataset"), datasets=("cifar10", "cifar100"))
    Path("DATASET").symlink_to("dataset")
    export(Path("ours"), fabricate_plan(range(8), ("clean", "jacobian")))
    commands = [
        shlex.split(command)
        for block in examples(page, "sh")
        for command in re.findall(r"^robust201 ([^#\n]*)", block, re.M)
    ]
    assert len(commands) >= min_commands
    for command in commands:
        short_search = ("--queries", 30, "--runs", 2) if command[0] == "search" else ()
        result = robust201(*command, *short_search)
        assert result.code == 0, (command, result.err)


@pytest.mark.slow
def test_configuration_example_sweep_runs(robust201, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (example,) = examples("docs/configuration.md", "yaml")
    Path("sweep.yaml").write_text(example)
    assert robust201("run", "sweep.yaml").code == 0
    assert robust201("verify", "runs/two-networks").code == 0


def test_configuration_example_sweep_is_valid():
    (example,) = examples("docs/configuration.md", "yaml")
    config = parse_config(yaml.safe_load(example), "docs/configuration.md")
    assert make_plan(config, assumed_facts(config), choose_slices(config)).n_evaluations > 0


@pytest.mark.parametrize("page", documents())
def test_page_yaml_examples_have_valid_fields(page):
    for block in examples(page, "yaml"):
        fields = yaml.safe_load(block)
        model = TrainingConfig if "recipes" in fields else SweepConfig
        for name, value in fields.items():
            TypeAdapter(model.model_fields[name].annotation).validate_python(value)


def options_of(argv: list[str]) -> set[str]:
    """Return the options of the command or subcommand that the first words of `argv` name."""
    command, argv = typer.main.get_command(app), list(argv)
    while argv and argv[0] in getattr(command, "commands", ()):
        command = command.commands[argv.pop(0)]
    return {"--help", *(name for option in command.params for name in (*option.opts, *option.secondary_opts))}


@pytest.mark.parametrize("page", documents())
def test_page_commands_and_options_exist(page):
    for command in find_commands(page):
        argv = shlex.split(command)
        assert not argv or argv[0] in {*COMMANDS, *COMMAND_GROUPS, "COMMAND", "--help"}, command
        assert {word.partition("=")[0] for word in argv if word.startswith("--")} <= options_of(argv), command


@pytest.mark.parametrize("page", documents())
def test_page_modules_exist(page):
    for name in re.findall(r"python -m ((?:benchmarks|docs|jobs|tests)\b[\w.]*)", (REPOSITORY / page).read_text()):
        path = REPOSITORY / name.replace(".", "/")
        assert path.with_suffix(".py").exists() or path.is_dir(), name


@pytest.mark.parametrize("page", documents())
def test_page_links_exist(page):
    text = (REPOSITORY / page).read_text()
    for link in re.findall(r"\]\(([^)\s:]+)\)", text):
        file, _, anchor = link.partition("#")
        target = (REPOSITORY / page).parent / file if file else REPOSITORY / page
        assert target.exists(), f"{page} links to {link}"
        if anchor:
            headings = re.findall(r"^#+ (.*)$", target.read_text(), re.M)
            anchors = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
            assert anchor in anchors, f"{page} links to {link}"
