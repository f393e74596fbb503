"""The texts of `--help`: groups of commands, and the example at the end of each command's help."""

from collections.abc import Callable
from typing import Any

import typer
from typer.core import TyperGroup

from robust201.cli.single_options import SingleOptionsCommand

HELP_OPTIONS = {"help_option_names": ["-h", "--help"], "max_content_width": 100}

ABOUT = "Evaluate the robustness of image classifiers: of your own network, or of a whole search space on a cluster."
EPILOG = """Start with robust201 demo or robust201 evaluate; robust201 COMMAND --help has an example.

Exit codes: 0 complete; 2 bad input, nothing started; 3 incomplete, interrupted or failed;
4 storage error, or invalid or contradictory results."""
DOWNLOADS_HELP = (
    "cifar10, cifar100, cifar10-python, cifar100-python, ImageNet16-120, CIFAR-10-C, CIFAR-100-C, mnist or "
    "imagecorruptions-frost."
)

GROUPS = {
    "Evaluate your own networks": ("evaluate", "compare", "curves"),
    "Run a sweep": ("plan", "run", "submit", "status", "merge"),
    "Check and export results": ("verify", "export"),
    "Look at a dataset": ("report", "rank", "plot", "analyse", "search"),
    "Set up": ("demo", "doctor", "fetch", "import", "corrupt"),
}
"""Commands by group, in the order in which `--help` lists them."""

RESUMABLE_COMMANDS = ("demo", "import", "corrupt", "run", "submit")
"""Commands that resume where they stopped if they are run again."""

EXAMPLES = {
    "demo": "robust201 demo --out runs/demo",
    "doctor": "robust201 doctor jobs/paper.yaml",
    "fetch": "robust201 fetch cifar10 --out data",
    "import": "robust201 import NATS-tss-v1_0-3ffb9-full.taraa --architectures evaluated --out data/checkpoints",
    "plan": "robust201 plan jobs/paper.yaml --keys clean,pgd",
    "run": "robust201 run jobs/paper.yaml --architectures 0-99 --datasets cifar10 --keys clean,pgd",
    "status": "robust201 status runs/demo/results --log 21/digits/pgd",
    "merge": "robust201 merge runs/a runs/b --out runs/all",
    "submit ray": "robust201 submit ray jobs/paper.yaml",
    "submit slurm": "robust201 submit slurm jobs/paper.yaml --time 24:00:00 --extra=--partition=gpu",
    "verify": "robust201 verify dataset --against published --tolerance 0.0005",
    "export": "robust201 export runs/paper --out dataset --round 3 --key-style published --parquet",
    "report": "robust201 report dataset --out report.html",
    "plot": "robust201 plot attack-curves dataset --architectures 21,13714 --keys pgd,fgsm --out curves.pdf",
    "rank": "robust201 rank dataset --keys clean,pgd:8/255,corruption --out table.tex",
    "analyse measures": "robust201 analyse measures dataset --keys clean,pgd",
    "analyse design": "robust201 analyse design dataset --score pgd:1/255 --out tables",
    "search": "robust201 search dataset --objective pgd:1/255 --methods local,evolution",
    "corrupt": "robust201 corrupt --data digits --out corrupted --keys fog,frost",
    "evaluate": "robust201 evaluate my_model.py:build --data cifar10 --keys clean,pgd:8/255 --save plain",
    "curves": "robust201 curves plain.py:build robust.py:build --data cifar10 --keys fmn_l2 --out curves.pdf",
    "compare": "robust201 compare plain.py:build robust.py:build --data cifar10 --keys clean,pgd:8/255",
}
"""Example command line of each command."""


class GroupedCommands(TyperGroup):
    """A group of commands whose `--help` lists the commands by `GROUPS`."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write a line about each command."""
        del ctx
        for group, names in GROUPS.items():
            with formatter.section(group):
                formatter.write_dl([(name, self.commands[name].get_short_help_str(limit=66)) for name in names])


def add_commands(app: typer.Typer, *functions: Callable[..., Any], prefix: str = "") -> None:
    """Add functions as commands with their names and examples; `prefix` is the parent command, such as ``submit``."""
    for function in functions:
        name = function.__name__.rstrip("_")
        epilog = f"Example: {EXAMPLES[f'{prefix} {name}'.strip()]}"
        app.command(name, cls=SingleOptionsCommand, epilog=epilog)(function)
