"""The examples of the documentation run as they stand, on a dataset of the demo's form."""

import ast
import itertools
import json
import os
import pickle
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import typer
import yaml

from robust201.cli.app import app
from robust201.planning.loading import parse_config
from robust201.planning.plan import assumed_facts, make_plan
from robust201.reader.frames import FRAME_COLUMNS
from robust201.spaces.nasbench201 import cell_string, evaluated_indices
from tests.cli.test_cli import VERBS
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


def by_page(*default: str) -> pytest.MarkDecorator:
    """A case a page that has examples; those of other pages than the named ones are slow."""
    return pytest.mark.parametrize(
        "page", [pytest.param(page, marks=() if page in default else pytest.mark.slow) for page in PAGES]
    )


def examples(page: str, language: str) -> list[str]:
    """The fenced blocks of a page in one language."""
    text = (REPOSITORY / page).read_text()
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.M | re.S)


@pytest.fixture
def demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder in which runs/demo/dataset lies where the demo puts it, with Parquet."""
    monkeypatch.chdir(tmp_path)
    export(
        tmp_path / DEMO / "dataset",
        fabricate_plan((*evaluated_indices()[:11], 13714), datasets=("digits",)),
        formats=("json", "parquet"),
    )
    return tmp_path


@by_page("README.md")
def test_page_python_examples_run(demo: Path, page: str) -> None:
    blocks = examples(page, "python")
    assert blocks or page not in {"README.md", "docs/dataset.md", "docs/reader.md"}
    source = "\n".join(
        f"exec(compile({block!r}, {f'{page}, example {i}'!r}, 'exec'), {{}})" for i, block in enumerate(blocks)
    )
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(demo / "cache")}
    path = os.pathsep.join((str(REPOSITORY / "pipeline"), str(REPOSITORY)))
    environment = os.environ | offline | {"PYTHONPATH": path}
    ended = subprocess.run([sys.executable, "-c", source], env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert page != "docs/reader.md" or "<RobustnessDataset runs/demo/dataset: digits; " in ended.stdout


_EFFECTS = {
    "print",
    "show",
    "mkdir",
    "copy",
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
"""Functions that examples call for their effect."""


@pytest.mark.parametrize(
    "page", ["README.md", *sorted(str(path.relative_to(REPOSITORY)) for path in DOCS.rglob("*.md"))]
)
def test_page_python_examples_print_their_values(page: str) -> None:
    trees = [ast.parse(block) for language in ("python", "py") for block in examples(page, language)]
    values = [node.value for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Expr)]
    unused = [
        ast.unparse(value)
        for value in values
        if not isinstance(value, ast.Constant)
        and not (isinstance(value, ast.Call) and re.split(r"\W", ast.unparse(value.func))[-1] in _EFFECTS)
    ]
    assert unused == []


def test_reader_page_lists_frame_columns() -> None:
    text = (REPOSITORY / "docs/reader.md").read_text().partition("| column | type | meaning | in Parquet |")[2]
    rows = re.findall(r"^\| (`[^|]*) \|", text.partition("\n\n")[0], re.M)
    assert sorted(name for row in rows for name in re.findall(r"`(\w+)`", row)) == sorted(FRAME_COLUMNS)


def test_duckdb_examples_run_in_order(demo: Path) -> None:
    block = next(block for block in examples("docs/dataset.md", "python") if block.startswith("import duckdb"))
    command = [sys.executable, "-c", block]
    first, again = (subprocess.run(command, capture_output=True, text=True, check=True).stdout for _ in range(2))
    assert first == again
    keys = re.findall(r"^│ (\w+) +│ +[\d.]+ │", first, re.M)
    assert keys == sorted(keys)
    assert {"clean", "pgd"} <= {*keys}


def commands_on_the_demo(page: str) -> list[list[str]]:
    """The command lines of a page's examples that work on what the demo leaves, as words."""
    lines = [line for block in examples(page, "sh") for line in block.splitlines()]
    words = [shlex.split(line, comments=True) for line in lines if line.startswith("robust201 ")]
    return [line[1:] for line in words if any(word.startswith(str(DEMO)) for word in line)]


@by_page("docs/dataset.md")
def test_page_shell_examples_run(
    robust201: RunCommand, finished: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, page: str
) -> None:
    monkeypatch.chdir(tmp_path)
    DEMO.mkdir(parents=True)
    finished.rename(DEMO / "results")
    assert robust201("export", DEMO / "results", "--out", DEMO / "dataset").code == 0  # as the demo does
    for line in commands_on_the_demo(page):
        ended = robust201(*line)
        assert ended.code == 0, (line, ended.err)


def write_tables_of_others() -> None:
    """Write the tables of others that the pages name, in the forms of their files, of all evaluated cells."""
    cells = evaluated_indices()
    accuracies = {
        str(cell): {"val_pgd_8.0_acc": {"0": 0.3 + cell / 1e5, "threeseed": 0.3 + cell / 1e5}} for cell in cells
    }
    Path("NAS-RobBench-201_all.json").write_text(json.dumps({"cifar10": accuracies}))
    proxies = {
        str(codes): {"synflow": {"score": float(sum(codes)), "time": 0.1}}
        for codes in itertools.product(range(5), repeat=6)
    }
    Path("zc_nasbench201.json").write_text(json.dumps({"cifar10": proxies}))
    latencies = {
        "config": [{"arch_str": cell_string(cell)} for cell in cells],
        "edgegpu_latency": [1 + cell % 7 for cell in cells],
    }
    Path("HW-NAS-Bench-v1_0.pickle").write_bytes(pickle.dumps({"nasbench201": {"cifar10": latencies}}))


@pytest.mark.slow
@pytest.mark.parametrize(("page", "fewest"), [("docs/use-cases.md", 8), ("docs/architecture-search.md", 6)])
def test_use_case_commands_run(
    robust201: RunCommand, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, page: str, fewest: int
) -> None:
    """As printed, on an invented dataset of the paper's size; searches with few queries, and little is predicted."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("robust201.analysis.design.TRAINING_SIZES", (50,))
    monkeypatch.setattr("robust201.analysis.design.REPEATS", 1)
    write_planted(Path("dataset"), datasets=("cifar10", "cifar100"))
    Path("DATASET").symlink_to("dataset")
    export(Path("ours"), fabricate_plan(range(8), ("clean", "jacobian")))
    write_tables_of_others()
    lines = [line for block in examples(page, "sh") for line in block.splitlines()]
    commands = [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("robust201 ")]
    assert len(commands) >= fewest
    for command in commands:
        few = ("--queries", 30, "--runs", 2, "--processes", 1) if command[0] == "search" else ()
        ended = robust201(*command, *few)
        assert ended.code == 0, (command, ended.err)


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
    assert make_plan(config, assumed_facts(config)).n_evaluations > 0


def documents() -> list[str]:
    """The pages of the project."""
    return sorted(str(path.relative_to(REPOSITORY)) for path in (*REPOSITORY.glob("*.md"), *DOCS.rglob("*.md")))


def commands_of(page: str) -> str:
    """What a page runs, in its examples and in passing: a command a line."""
    in_passing = re.findall(r"`(robust201 [^`]*)`", (REPOSITORY / page).read_text())
    return "\n".join([*examples(page, "sh"), *(" ".join(command.split()) for command in in_passing)])


def options_of(words: list[str]) -> set[str]:
    """The options of the verb, or of the verb's own verb, that some words begin with."""
    command, words = typer.main.get_command(app), list(words)
    while words and words[0] in getattr(command, "commands", ()):
        command = command.commands[words.pop(0)]
    return {"--help", *(name for option in command.params for name in (*option.opts, *option.secondary_opts))}


@pytest.mark.parametrize("page", documents())
def test_page_options_exist(page: str) -> None:
    lines = commands_of(page).replace("\\\n", " ")
    for command in re.findall(r"(?:^|&& |bin/|; )robust201 ([a-z][^;&\n]*)", lines, re.M):
        words = shlex.split(command, comments=True)
        given = {word.partition("=")[0] for word in words if word.startswith("--")}
        assert given <= options_of(words), command


@pytest.mark.parametrize("page", documents())
def test_page_commands_and_links_exist(page: str) -> None:
    text, commands = (REPOSITORY / page).read_text(), commands_of(page)
    assert set(re.findall(r"(?:^|&& |bin/)robust201 ([a-z]\S*)", commands, re.M)) <= {*VERBS, "submit"}
    for link in re.findall(r"\]\(([^)\s:]+)\)", text):
        file, _, anchor = link.partition("#")
        target = (REPOSITORY / page).parent / file if file else REPOSITORY / page
        assert target.exists(), f"{page} links to {link}"
        if anchor:
            headings = re.findall(r"^#+ (.*)$", target.read_text(), re.M)
            anchors = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
            assert anchor in anchors, f"{page} links to {link}"
