"""`robust201 bench`: measure the speed-up over a plain evaluation loop on this machine."""

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from robust201.cli import console
from robust201.cli.options import split_names
from robust201.core.errors import ConfigError
from robust201.core.files import write_text
from robust201.core.host import MAX_THREADS

if TYPE_CHECKING:
    from robust201.bench.comparison import TimeComparison

PAPER_BUDGET_DIVISOR = 40
"""Attacks run with 1/40 of the paper's steps and queries, so that their relative costs stay the same."""

EPSILONS_255 = (0.5, 2.0)
"""Epsilons of the attacks, in units of 1/255."""


def bench(
    architectures: Annotated[
        str, typer.Option(help="Architectures separated by commas: cell indices, or resnet18.")
    ] = "309,21,13714",
    images: Annotated[int, typer.Option("--count", min=2, help="Images per network.")] = 32,
    rounds: Annotated[int, typer.Option(min=1, help="Timed repetitions; the median is reported.")] = 1,
    threads: Annotated[
        int, typer.Option(min=1, max=MAX_THREADS, help="Number of CPU threads of robust201 and of the plain loop.")
    ] = 1,
    device: Annotated[str, typer.Option(help="Device to compute on: cpu or cuda.")] = "cpu",
    json_file: Annotated[Path | None, typer.Option("--out", help="Also write all timings to this JSON file.")] = None,
) -> None:
    """Compare the speed of robust201 with that of a plain loop over Foolbox and AutoAttack, in a few minutes.

    Both run the paper's attacks on networks with random weights, at two epsilons, with 1/40 of the steps and queries.
    The loop runs in PyTorch's default memory layout and in channels_last; speed-ups are over the faster of the two.
    """
    from robust201.bench.comparison import LAYOUTS, AttackBudget, Contender, Loop, Machine, Sweep, compare
    from robust201.bench.generated import random_subjects

    if device not in ("cpu", "cuda"):
        raise ConfigError(
            f"Reading the command line failed for --device: expected cpu or cuda, got {device!r}. Choose one."
        )
    paper_budget = AttackBudget()
    budget = AttackBudget(
        EPSILONS_255,
        EPSILONS_255,
        pgd_steps=paper_budget.pgd_steps // PAPER_BUDGET_DIVISOR,
        apgd_steps=paper_budget.apgd_steps // PAPER_BUDGET_DIVISOR,
        queries=paper_budget.queries // PAPER_BUDGET_DIVISOR,
    )
    contenders: list[Contender] = [*(Loop(layout, images) for layout in LAYOUTS), Sweep()]
    machine = Machine(threads, device)
    with tempfile.TemporaryDirectory(prefix="robust201-bench-") as folder_name:
        folder = Path(folder_name)
        subjects = random_subjects(split_names(architectures) or (), images, folder)
        console.say(
            f"Timing {console.format_count(len(subjects), 'network')}, each with two plain loops and with robust201. "
            "Every timing prints a line; the first one may take minutes."
        )
        comparisons = [
            compare(subject, contenders, budget, machine, folder / subject.name, rounds=rounds, report=console.say)
            for subject in subjects
        ]
    if json_file is not None:
        write_text(json_file, json.dumps([comparison.to_payload() for comparison in comparisons], indent=1) + "\n")
    _show(comparisons, machine.threads, device)


def _show(comparisons: "list[TimeComparison]", threads: int, device: str) -> None:
    clock = "CPU" if device == "cpu" else "wall"
    rows = []
    for comparison in comparisons:
        seconds_by_contender = [getattr(times.attacks, clock.lower()) for times in comparison.contenders]
        rows.append(
            (
                comparison.subject.label,
                *(f"{attack_seconds:.1f}" for attack_seconds in seconds_by_contender),
                f"{comparison.ratio(clock.lower()):.2f}",
                f"{comparison.ratio('wall'):.2f}",
                f"{comparison.ratio('wall', with_start_up=True):.2f}",
            )
        )
    time_columns = ("network", "loop, default layout, s", "loop, channels_last, s", "robust201, s")
    speed_up_columns = (f"speed-up, {clock} time", "wall time", "with start-up")
    console.show_table(
        f"{clock} time of the attacks, excluding start-up; speed-up over the faster loop; "
        f"{console.format_count(threads, 'thread')}",
        (*time_columns, *speed_up_columns),
        rows,
    )
    typer.echo(
        "Single timings vary by a few percent, and by more if other programs are running: in that case, compare CPU "
        "times, and repeat with --rounds 3.\nA speed-up of nan means that the attacks took less time than the "
        "variation in start-up time: use a larger --count.\nThe weights are random, so nothing is downloaded. The code "
        "of the plain loop is robust201/bench/user_loop.py."
    )
