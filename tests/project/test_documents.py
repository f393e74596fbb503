"""Examples in the documentation run unchanged on a dataset like the demo's; commands and links in it are valid."""

import ast
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import typer
import yaml

from robust201.cli.app import app
from robust201.networks.nb201.cells import evaluated_indices
from robust201.sweep.facts import assumed_facts
from robust201.sweep.loading import parse_config
from robust201.sweep.plan import choose_slices, make_plan
from tests.cli.test_cli import COMMAND_GROUPS, COMMANDS
from tests.conftest import REPOSITORY, RunCommand
from tests.support.fabricated import export
from tests.support.fabricated import make_plan as fabricate_plan
from tests.support.planted import write_planted

DEMO = Path("runs/demo")
DOCS = REPOSITORY / "docs"
PAGES = (
    *("README.md", "docs/sweeps.md", "docs/dataset.md", "docs/reader.md", "docs/report.md", "docs/statistics.md"),
    *("docs/use-cases.md", "docs/architecture-search.md", "docs/training.md"),
)


def for_pages(*default: str) -> pytest.MarkDecorator:
    """Parametrise a test by the pages with examples; all pages except those in `default` are marked as slow."""
    return pytest.mark.parametrize(
        "page", [pytest.param(page, marks=() if page in default else pytest.mark.slow) for page in PAGES]
    )


def examples(page: str, language: str) -> list[str]:
    """Return a page's code blocks in one language."""
    text = (REPOSITORY / page).read_text()
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.M | re.S)


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


@for_pages("README.md")
def test_page_python_examples_run(demo: Path, page: str) -> None:
    blocks = examples(page, "python")
    assert blocks or page not in {"README.md", "docs/dataset.md", "docs/reader.md"}
    source = "\n".join(
        f"exec(compile({block!r}, {f'{page}, example {i}'!r}, 'exec'), {{}})" for i, block in enumerate(blocks)
    )
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(demo / "cache")}
    path = os.pathsep.join((str(REPOSITORY / "pipeline"), str(REPOSITORY)))
    environment = os.environ | offline | {"PYTHONPATH": path}
    result = subprocess.run(
        [sys.executable, "-c", source], env=environment, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    assert page != "docs/reader.md" or "<Dataset runs/demo/dataset: digits; " in result.stdout


_FUNCTIONS_WITH_SIDE_EFFECTS = {
    "print",
    "show",
    "mkdir",
    "copy",
    "write_feature_images",
    "write_fusion",
    "write_text",
    "to_parquet",
    "save",
    "savefig",
    "zero_grad",
    "backward",
    "step",
    "save_file",
    "manual_seed",
    "__init__",
}
"""Functions that examples call for their side effects."""


@pytest.mark.parametrize(
    "page", ["README.md", *sorted(str(path.relative_to(REPOSITORY)) for path in DOCS.rglob("*.md"))]
)
def test_page_python_examples_print_their_values(page: str) -> None:
    trees = [ast.parse(block) for language in ("python", "py") for block in examples(page, language)]
    expressions = [node.value for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Expr)]
    unprinted = [
        ast.unparse(expression)
        for expression in expressions
        if not isinstance(expression, ast.Constant)
        and not (
            isinstance(expression, ast.Call)
            and re.split(r"\W", ast.unparse(expression.func))[-1] in _FUNCTIONS_WITH_SIDE_EFFECTS
        )
    ]
    assert unprinted == []


def commands_on_demo(page: str) -> list[list[str]]:
    """Return the arguments of a page's commands that use the demo's output."""
    lines = [line for block in examples(page, "sh") for line in block.replace("\\\n", "").splitlines()]
    commands = [shlex.split(line, comments=True) for line in lines if line.startswith("robust201 ")]
    return [command[1:] for command in commands if any(word.startswith(str(DEMO)) for word in command)]


@for_pages("docs/dataset.md")
def test_page_shell_examples_run(
    robust201: RunCommand, finished_results: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, page: str
) -> None:
    monkeypatch.chdir(tmp_path)
    DEMO.mkdir(parents=True)
    finished_results.rename(DEMO / "results")
    assert robust201("export", DEMO / "results", "--out", DEMO / "dataset").code == 0  # like the demo
    for command in commands_on_demo(page):
        result = robust201(*command)
        assert result.code == 0, (command, result.err)


@pytest.mark.slow
@pytest.mark.parametrize(("page", "min_commands"), [("docs/use-cases.md", 4), ("docs/architecture-search.md", 2)])
def test_use_case_commands_run(
    robust201: RunCommand, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, page: str, min_commands: int
) -> None:
    # The dataset is synthetic and has the paper's size; searches are shortened.
    monkeypatch.chdir(tmp_path)
    write_planted(Path("dataset"), datasets=("cifar10", "cifar100"))
    Path("DATASET").symlink_to("dataset")
    export(Path("ours"), fabricate_plan(range(8), ("clean", "jacobian")))
    lines = [line for block in examples(page, "sh") for line in block.replace("\\\n", "").splitlines()]
    commands = [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("robust201 ")]
    assert len(commands) >= min_commands
    for command in commands:
        short_search = ("--queries", 30, "--runs", 2) if command[0] == "search" else ()
        result = robust201(*command, *short_search)
        assert result.code == 0, (command, result.err)


@pytest.mark.slow
def test_configuration_example_sweep_runs(
    robust201: RunCommand, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    (example,) = examples("docs/configuration.md", "yaml")
    Path("sweep.yaml").write_text(example)
    assert robust201("run", "sweep.yaml").code == 0
    assert robust201("verify", "runs/two-networks").code == 0


def test_configuration_example_sweep_is_valid() -> None:
    (example,) = examples("docs/configuration.md", "yaml")
    config = parse_config(yaml.safe_load(example), "docs/configuration.md")
    assert make_plan(config, assumed_facts(config), choose_slices(config)).n_evaluations > 0


def documents() -> list[str]:
    """Return the paths of all pages."""
    paths = (*REPOSITORY.glob("*.md"), *DOCS.rglob("*.md"), *(REPOSITORY / "jobs").rglob("*.md"))
    return sorted(str(path.relative_to(REPOSITORY)) for path in paths)


def commands_of(page: str) -> str:
    """Return a page's commands, from examples and running text, one per line."""
    inline_commands = re.findall(r"`(robust201 [^`]*)`", (REPOSITORY / page).read_text())
    return "\n".join([*examples(page, "sh"), *(" ".join(command.split()) for command in inline_commands)])


def options_of(argv: list[str]) -> set[str]:
    """Return the options of the command or subcommand that the first words of `argv` name."""
    command, argv = typer.main.get_command(app), list(argv)
    while argv and argv[0] in getattr(command, "commands", ()):
        command = command.commands[argv.pop(0)]
    return {"--help", *(name for option in command.params for name in (*option.opts, *option.secondary_opts))}


@pytest.mark.parametrize("page", documents())
def test_page_options_exist(page: str) -> None:
    lines = commands_of(page).replace("\\\n", " ")
    for command in re.findall(r"(?:^|&& |bin/|; )robust201 ([a-z][^;&\n]*)", lines, re.M):
        argv = shlex.split(command, comments=True)
        used_options = {word.partition("=")[0] for word in argv if word.startswith("--")}
        assert used_options <= options_of(argv), command


@pytest.mark.parametrize("page", documents())
def test_page_commands_and_links_exist(page: str) -> None:
    text, commands = (REPOSITORY / page).read_text(), commands_of(page)
    assert set(re.findall(r"(?:^|&& |bin/)robust201 ([a-z]\S*)", commands, re.M)) <= {*COMMANDS, *COMMAND_GROUPS}
    for link in re.findall(r"\]\(([^)\s:]+)\)", text):
        file, _, anchor = link.partition("#")
        target = (REPOSITORY / page).parent / file if file else REPOSITORY / page
        assert target.exists(), f"{page} links to {link}"
        if anchor:
            headings = re.findall(r"^#+ (.*)$", target.read_text(), re.M)
            anchors = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
            assert anchor in anchors, f"{page} links to {link}"
