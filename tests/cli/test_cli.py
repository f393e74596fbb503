"""The command line in scripts and terminals: help, options, JSON, plain text, exit codes, output streams, signals."""

import errno
import io
import json
import os
import signal
import subprocess
import sys
from typing import Any

import pytest
import typer
import yaml

from robust201.cli.app import app
from robust201.cli.help_texts import EXAMPLES, HELP_OPTIONS
from tests.conftest import REPOSITORY, read_tree

COMMANDS = [str(command.name) for command in app.registered_commands]
COMMAND_GROUPS = {"submit", "analyse"}
MAX_HELP_LINES = 44
ESCAPE_CHARACTER = "\x1b"


@pytest.mark.parametrize("command", [None, *COMMANDS])
def test_help_fits_on_one_screen(robust201, monkeypatch, command):
    monkeypatch.setenv("COLUMNS", "80")
    result = robust201(*([command] if command else []), "--help")
    assert (result.code, result.err) == (0, "")
    assert f"Usage: robust201 {command or '[OPTIONS]'}" in result.out
    assert ESCAPE_CHARACTER not in result.out
    assert len(result.out.splitlines()) <= MAX_HELP_LINES


@pytest.mark.parametrize("command_line", EXAMPLES.values())
def test_help_examples_are_valid_command_lines(command_line):
    program, *arguments = command_line.split()
    assert program == "robust201"
    command: Any = typer.main.get_command(app)
    parent = typer.Context(command, **HELP_OPTIONS)  # a command caches the help options of its first context
    while hasattr(command, "commands"):
        name, *arguments = arguments
        command = command.commands[name]
    command.make_context(name, arguments, parent=parent)  # raises an error for invalid options and missing arguments


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["rnu"], "'run'"),
        (["run"], "Missing argument"),
        (["run", "a.yaml", "b.yaml"], "b.yaml"),
        (["run", "a.yaml", "--key", "pgd"], "--key"),
        (["run", "a.yaml", "--workers", "two"], "--workers"),
        (["plan", "jobs/demo.yaml", "--keys", "clean", "--keys", "pgd"], "--keys"),
    ],
)
def test_invalid_command_line_gives_one_error_line(robust201, arguments, hint):
    result = robust201(*arguments)
    assert (result.code, result.out) == (2, "")
    (line,) = result.err.splitlines()
    assert line.startswith("error: Reading the command line failed for robust201")
    assert hint in line
    assert "--help" in line


def test_commands_print_valid_json_and_matching_tables(robust201, write_sweep, finished_results):
    sweep = write_sweep()
    plan = json.loads(robust201("plan", "--json", sweep).out)
    assert (plan["units"], plan["evaluations"]) == (6, 10)
    assert sum(cost["hours"] for cost in plan["hours_by_key"]) == pytest.approx(plan["worker_hours"])
    assert json.loads(robust201("plan", "--check", "--json", sweep).out) == plan
    table = robust201("plan", sweep).out
    assert table.count(" MB") == 2  # result files and JSON
    assert "GB" not in table
    status = json.loads(robust201("status", "--json", finished_results).out)
    assert (status["n_done"], status["n_planned"]) == (10, 10)
    assert status["complete"]
    assert not status["running"]
    assert status["seconds_left"] is None
    assert status["costs"] == status["failures"] == status["in_progress"] == status["silent"] == []
    assert json.loads(robust201("status", "--json", sweep).out)["keys"] == status["keys"]
    table = robust201("status", sweep).out
    assert table.count("100%") == 5  # the first line, three keys and all keys together
    assert "evaluations/s" not in table
    assert json.loads(robust201("verify", "--json", finished_results).out)["valid"]
    doctor_output = robust201("doctor", sweep).out
    assert all(f" {check}: " in doctor_output for check in ("torch", "checkpoints", "digits", "disk"))


def test_status_and_plan_do_not_import_heavy_libraries(write_sweep, finished_results, tmp_path):
    for arguments, absent_modules in (
        (["status", str(finished_results)], {"torch", "ray", "pandas", "scipy"}),
        # The results folder does not exist; otherwise, `plan` would read measured times from it, with pyarrow.
        (
            ["plan", str(write_sweep(results=str(tmp_path / "none")))],
            {"torch", "ray", "pandas", "scipy", "pyarrow"},
        ),
    ):
        program = f"""
import sys
from robust201.cli.app import main
sys.argv = {["robust201", *arguments]}
try:
    main()
finally:
    print(sorted(set({sorted(absent_modules)}).intersection(sys.modules)))
"""
        result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        assert result.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("signal_number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("is_in_command", [False, True], ids=["before the command", "in the command"])
@pytest.mark.slow_combinations
def test_signal_during_imports_leaves_no_traceback(signal_number, is_in_command):
    # The finder converts an interrupt into another error, as partially imported modules do.
    program = f"""
import signal, sys
from robust201.__main__ import main

class InterruptingFinder:
    def find_spec(self, name, path=None, target=None):
        if name == "{"robust201.sweep.costs" if is_in_command else "typer"}":
            try:
                signal.raise_signal({int(signal_number)})
            except BaseException:
                raise ValueError("not interrupted, damaged")

sys.meta_path.insert(0, InterruptingFinder())
sys.argv = ["robust201", "plan", "{REPOSITORY / "jobs/paper.yaml"}"]
main()
"""
    environment = os.environ | {"ROBUST201_DATA": "data"}
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, env=environment
    )
    assert result.stdout == ""
    if is_in_command:
        assert (result.returncode, result.stderr.splitlines()[-1]) == (3, "Interrupted.")
    else:
        assert (result.returncode, result.stderr) == (-signal_number, "")
    assert "Traceback" not in result.stderr


def test_run_with_failed_units_exits_with_3_and_groups_equal_failures(robust201, write_sweep, monkeypatch, tmp_path):
    from robust201.run import worker

    def fail(*arguments: object, **options: object) -> None:
        raise RuntimeError("no such luck")

    monkeypatch.setattr(worker, "evaluate_part", fail)
    result = robust201("run", write_sweep())
    assert result.code == 3
    assert "failed 6 times: RuntimeError: no such luck" in result.err
    assert result.err.count("no such luck") == 2  # once during the run, and once in the summary
    assert "no such luck" in robust201("status", tmp_path / "results").out


def test_merge_of_partial_runs_equals_complete_sweep(robust201, write_sweep, tmp_path):
    for name, architecture in (("a", 0), ("b", 21)):
        options = ("--architectures", architecture, "--out", tmp_path / name)
        assert robust201("run", write_sweep(), *options).code == 0
    assert robust201("merge", tmp_path / "a", tmp_path / "b", "--out", tmp_path / "both").code == 0
    assert robust201("run", write_sweep()).code == 0
    for name in ("both", "results"):
        assert robust201("export", tmp_path / name, "--out", tmp_path / f"{name}-json").code == 0
    assert read_tree(tmp_path / "both-json") == read_tree(tmp_path / "results-json")
    for name, architecture in (("a", 0), ("b", 21)):  # each folder lacks the hash of the other's network
        plan = json.loads((tmp_path / name / "plan.json").read_text())
        for network in plan["facts"]["datasets"]["digits"]["networks"]:
            network["weights"]["sha256"] *= network["architecture"] == architecture
        (tmp_path / name / "plan.json").write_text(json.dumps(plan))
    assert robust201("merge", tmp_path / "a", tmp_path / "b", "--out", tmp_path / "again").code == 0
    assert robust201("export", tmp_path / "again", "--out", tmp_path / "again-json").code == 0
    assert read_tree(tmp_path / "again-json") == read_tree(tmp_path / "results-json")
    repeated_merge = robust201("merge", tmp_path / "both", "--out", tmp_path / "both")
    assert (repeated_merge.code, repeated_merge.out) == (0, "Joined 0 result files.\n")


def test_closed_stdout_ends_command_without_error_output():
    process = subprocess.Popen(
        [sys.executable, "-m", "robust201", "--help"], cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    with process.stderr as errors:
        assert errors.read() == b""
    assert process.wait() == 1


def test_full_disk_gives_one_error_line(robust201, monkeypatch):
    class FullStream(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(sys, "stdout", FullStream())
    result = robust201("--version")
    assert "No space left on device" in result.error_line(exit_code=4)


def test_sweep_yaml_supports_merge_keys_and_rejects_duplicate_fields(robust201, sweep_fields, tmp_path):
    fields = sweep_fields(keys={"clean": {}})
    yaml_text = yaml.safe_dump(fields).replace("checkpoints:", "checkpoints: &weights") + "name: merged\n"
    (tmp_path / "twice.yaml").write_text(yaml_text)
    assert "field 'name' appears twice" in robust201("plan", tmp_path / "twice.yaml").error_line(exit_code=2)
    keys = "keys: {pgd: &short {steps: 2}, aa_apgd-ce: {<<: *short, restarts: 2}}\n"
    del fields["keys"]
    (tmp_path / "merge.yaml").write_text(yaml.safe_dump(fields) + keys)
    assert json.loads(robust201("plan", "--json", tmp_path / "merge.yaml").out)["units"] == 4


def list_commands() -> dict[str, Any]:
    """Return all commands by name; subcommands are named like `submit ray`."""
    commands_by_name: dict[str, Any] = {}
    root: Any = typer.main.get_command(app)
    for name, command in root.commands.items():
        subcommands_by_name = getattr(command, "commands", None)
        full_names = {
            f"{name} {subcommand_name}": subcommand
            for subcommand_name, subcommand in (subcommands_by_name or {}).items()
        }
        commands_by_name |= full_names or {name: command}
    return commands_by_name


def test_commands_and_parameters_stay_few():
    commands = list_commands()
    assert len({name.split()[0] for name in commands}) <= 20
    assert sum(parameter.name != "help" for command in commands.values() for parameter in command.params) <= 160
    assert commands.keys() == EXAMPLES.keys()


def test_commands_accept_sweep_yaml_or_results(robust201, write_sweep, finished_results, tmp_path):
    sweep = write_sweep()
    for path in (sweep, finished_results):
        assert json.loads(robust201("plan", "--json", path).out)["evaluations"] == 10
        run = robust201("run", path)
        assert run.code == 0, run.err
        assert "10 done, 0 missing" in run.err
        for arguments in (("status", path), ("verify", path), ("merge", path, "--compact"), ("doctor", path)):
            assert robust201(*arguments).code == 0, arguments
        assert "5/digits/clean" in robust201("status", path, "--log", "5/digits/clean").error_line(exit_code=2)
        assert robust201("export", path, "--out", tmp_path / "json").code == 0
        assert robust201("verify", path, "--against", tmp_path / "json").code == 0
        assert robust201("merge", path, "--out", tmp_path / "merged").code == 0
        assert "#SBATCH" in robust201("submit", "slurm", path, "--print").out


def test_plan_and_run_options_select_a_subset_of_the_sweep(robust201, write_sweep, tmp_path):
    sweep = write_sweep(architectures=[0, 21])
    clean_plan = json.loads(robust201("plan", "--json", sweep, "--keys", "clean").out)
    assert (clean_plan["architectures"], clean_plan["evaluations"]) == (2, 2)
    selection = ("--architectures", "21", "--keys", "clean")
    assert "Planned 1 evaluation:" in robust201("run", sweep, *selection).err
    status = json.loads(robust201("status", "--json", tmp_path / "results").out)
    assert (status["n_done"], status["n_planned"]) == (1, 10)
    assert "expected one of its keys, got 'fogg'" in robust201("plan", sweep, "--keys", "fogg").error_line(exit_code=2)
