"""One word for one thing on the command line; spellings that were replaced work for one release, with a note."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer

from robust201.cli.app import app
from robust201.cli.old_spellings import OPTIONS, OUT_ARGUMENTS, VALUES, update_spelling
from robust201.cli.sweeps import make_filters
from tests.conftest import RunCommand, WriteSweep
from tests.support.kept_plans import edit_plan


def commands() -> dict[str, Any]:
    """Every verb's command, those of a group by both words."""
    found: dict[str, Any] = {}
    root: Any = typer.main.get_command(app)
    for name, command in root.commands.items():
        inner = getattr(command, "commands", None)
        found |= {f"{name} {word}": one for word, one in inner.items()} if inner else {name: command}
    return found


def options_of(command: Any) -> set[str]:
    return {name for parameter in command.params for name in parameter.opts if name.startswith("--")}


def updated(*words: str) -> tuple[list[str], list[str]]:
    said: list[str] = []
    return update_spelling(app, words, said.append), said


@pytest.mark.parametrize(("verb", "old"), [(verb, old) for verb, renamed in OPTIONS.items() for old in renamed])
def test_an_old_option_becomes_one_that_there_is(verb: str, old: str) -> None:
    known, new = options_of(commands()[verb]), OPTIONS[verb][old]
    assert old not in known
    assert not new or new in known
    for given, expected in (([old, "x"], [new, "x"]), ([f"{old}=x"], [f"{new}=x"])):
        words, said = updated(*verb.split(), *given)
        assert words == [*verb.split(), *(expected if new else given[1:])]
        assert len(said) == 1
        assert said[0].startswith("note: ")
        assert old in said[0]


@pytest.mark.parametrize("verb", VALUES)
def test_old_values_become_new_ones(verb: str) -> None:
    for given in (["--key-style", "published"], ["--key-style=published"]):
        words, said = updated(verb, *given)
        assert "=".join(words[1:]) == "--key-style=with-norm"
        assert len(said) == 1


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("export runs/a out --round 3", "export runs/a --out out --round 3"),
        ("export --round 3 runs/a out", "export --round 3 runs/a --out out"),
        ("export runs/a --compress=gz --parquet out", "export runs/a --compress=gz --parquet --out out"),
        ("import-json a b", "import-json a --out b"),
        ("corrupt --keys fog out", "corrupt --keys fog --out out"),
    ],
)
def test_an_output_that_was_an_argument_is_an_option(old: str, new: str) -> None:
    words, said = updated(*old.split())
    assert (words, len(said)) == (new.split(), 1)


@pytest.mark.parametrize(
    "line",
    [
        "export runs/a --out b --round 3",
        "import-json a --out b",
        "corrupt --out b --keys fog",
        "run sweep.yaml --out b --share 1/2",
        "verify runs/a --requeue",
        "submit slurm sweep.yaml --dry-run --out b",
        "logs 21/cifar10/pgd -- --to",
        "",
    ],
)
def test_todays_spelling_stays_as_it_is(line: str) -> None:
    assert updated(*line.split()) == (line.split(), [])


def test_outputs_have_one_name_and_formats_another() -> None:
    options = {verb: options_of(command) for verb, command in commands().items()}
    assert not {"--to", "--into", "--results", "--form", "--json/--no-json"} & set().union(*options.values())
    writing = {"demo", "export", "merge", "fetch", "import-weights", "train", "corrupt", "import-json", "meta", "run"}
    assert {verb for verb in writing if "--out" not in options[verb]} == set()
    assert [verb for verb in options if "--requeue" in options[verb]] == ["verify"]
    for verb in ("plan", "run", "submit slurm", "submit ray"):
        assert {"--architectures", "--datasets", "--keys", "--limit"} <= options[verb], verb


@pytest.mark.parametrize("verb", [None, "run", "export", "submit", "submit slurm"])
def test_a_short_option_asks_for_help(robust201: RunCommand, verb: str | None) -> None:
    ended = robust201(*(verb or "").split(), "-h")
    assert (ended.code, ended.err) == (0, "")
    assert "Usage: robust201" in ended.out


def test_completion_can_be_shown(robust201: RunCommand) -> None:
    assert "--show-completion" in robust201("--help").out
    complete = {"_ROBUST201_COMPLETE": "complete_bash", "COMP_WORDS": "robust201 pl", "COMP_CWORD": "1"}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in complete.items():
            patch.setenv(name, value)
        assert robust201().out.split() == ["plan", "plot"]


def test_old_spellings_work_and_are_noted(robust201: RunCommand, finished: Path, tmp_path: Path) -> None:
    noted = robust201("export", finished, tmp_path / "old", "--key-style", "published")
    assert noted.code == 0
    assert [line.split(":")[0] for line in noted.err.splitlines()] == ["note", "note"]
    new = robust201("export", finished, "--out", tmp_path / "new", "--key-style", "with-norm")
    assert (new.code, new.err) == (0, "")
    names = [sorted(path.name for path in (tmp_path / which).rglob("*.json")) for which in ("old", "new")]
    assert names[0] == names[1]
    assert "fgsm@Linf_accuracy.json" in names[1]
    assert json.loads((tmp_path / "new/sweep.json").read_text())["key_style"] == "published"  # bytes of exports stay


def test_verbs_take_a_sweep_or_its_results(
    robust201: RunCommand, write_sweep: WriteSweep, finished: Path, tmp_path: Path
) -> None:
    sweep = write_sweep()
    for place in (sweep, finished):
        assert json.loads(robust201("plan", "--json", place).out)["evaluations"] == 10
        run = robust201("run", place)
        assert (run.code, "10 done, 0 missing" in run.err) == (0, True), run.err
        for words in (("status", place), ("verify", place), ("compact", place), ("doctor", place)):
            assert robust201(*words).code == 0, words
        assert "expected a network and key of this sweep" in robust201("logs", "5/digits/clean", place).refusal(2)
        assert robust201("export", place, "--out", tmp_path / "json").code == 0
        assert robust201("compare", place, tmp_path / "json").code == 0
        assert robust201("merge", place, "--out", tmp_path / "merged").code == 0
        assert "#SBATCH" in robust201("submit", "slurm", place, "--dry-run").out


def test_a_run_narrowed_by_a_limit_takes_the_first_architectures(
    robust201: RunCommand, write_sweep: WriteSweep, tmp_path: Path
) -> None:
    sweep = write_sweep()
    assert json.loads(robust201("plan", "--json", sweep, "--limit", 1).out)["architectures"] == 1
    narrowed = json.loads(robust201("plan", "--json", sweep, "--keys", "clean", "--limit", 5).out)
    assert (narrowed["architectures"], narrowed["evaluations"]) == (2, 2)
    text = robust201("submit", "slurm", sweep, "--dry-run", "--limit", 1, "--keys", "clean,fgsm").out
    assert " --keys clean,fgsm --limit 1 --share " in text
    assert "Planned 1 evaluation of 1 network-key pair:" in robust201("run", sweep, "--keys", "clean", "--limit", 1).err
    status = json.loads(robust201("status", "--json", tmp_path / "results").out)
    assert (status["done"], status["total"]) == (1, 10)
    assert "expected one of its keys, got 'fogg'" in robust201("plan", sweep, "--keys", "fogg").refusal(2)


def test_the_architectures_of_a_sweep_are_gone_through_once_not_for_each_that_is_named() -> None:
    gone_through = []

    class Counted(tuple[int, ...]):
        def __iter__(self) -> Iterator[int]:
            gone_through.append(1)
            return super().__iter__()

    space = SimpleNamespace(select=lambda _selection: tuple(range(50, 150)))
    config: Any = SimpleNamespace(selected_architectures=Counted(range(100)), make_space=lambda _code: space)
    assert make_filters(config, "50-149", None, None, 2).architectures == (50, 51)
    assert len(gone_through) == 1


def test_meta_needs_a_file_or_a_pipe(robust201: RunCommand, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    piped = robust201("meta").out
    assert robust201("meta", "--out", tmp_path / "meta.json").code == 0
    assert (tmp_path / "meta.json").read_text() == piped
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    assert "expected --out FILE or a pipe, got a terminal" in robust201("meta").refusal(2)


def test_a_results_folder_with_code_asks_for_consent(robust201: RunCommand, finished: Path, tmp_path: Path) -> None:
    mark = tmp_path / "executed"
    code = tmp_path / "attack.py"
    code.write_text(f"from pathlib import Path\nPath({str(mark)!r}).touch()\n")
    received = tmp_path / "received"
    shutil.copytree(finished, received)
    mine = {"file": str(code), "strengths": [1.0], "norm": "Linf"}
    edit_plan(received, lambda plan: plan["config"]["keys"].update(mine=mine))
    assert "then run the sweep with --allow-code" in robust201("run", received).refusal(2)
    assert not mark.exists()


def test_every_verb_with_an_output_argument_has_the_option() -> None:
    assert all("--out" in options_of(commands()[verb]) for verb in OUT_ARGUMENTS)
