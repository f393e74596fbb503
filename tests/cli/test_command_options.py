"""Commands have consistent options and arguments."""

import json
from typing import Any

import typer

from robust201.cli.app import app
from robust201.cli.help_texts import EXAMPLES


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
        assert "5/digits/clean" in robust201("status", path, "--log", "5/digits/clean").error_line(2)
        assert robust201("export", path, "--out", tmp_path / "json").code == 0
        assert robust201("verify", path, "--against", tmp_path / "json").code == 0
        assert robust201("merge", path, "--out", tmp_path / "merged").code == 0
        assert "#SBATCH" in robust201("submit", "slurm", path, "--print").out


def test_options_select_a_subset_of_the_sweep(robust201, write_sweep, tmp_path):
    sweep = write_sweep(architectures=[0, 21])
    clean_plan = json.loads(robust201("plan", "--json", sweep, "--keys", "clean").out)
    assert (clean_plan["architectures"], clean_plan["evaluations"]) == (2, 2)
    selection = ("--architectures", "21", "--keys", "clean")
    assert "Planned 1 evaluation:" in robust201("run", sweep, *selection).err
    status = json.loads(robust201("status", "--json", tmp_path / "results").out)
    assert (status["n_done"], status["n_planned"]) == (1, 10)
    assert "expected one of its keys, got 'fogg'" in robust201("plan", sweep, "--keys", "fogg").error_line(2)
