"""`robust201 bench`: how much faster than a user's own loop, on this machine, in a few minutes."""

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
    from robust201.bench.comparison import Compared

SHARE_OF_THE_PAPER = 40
"""The attacks make a fortieth of the paper's steps and queries, which keeps the proportions of its suite."""

EPSILONS_255 = (0.5, 2.0)


def bench(
    architectures: Annotated[
        str, typer.Option(help="Architectures separated by commas: indices, or resnet18.")
    ] = "309,21,13714",
    images: Annotated[int, typer.Option("--count", min=2, help="Images per network.")] = 32,
    rounds: Annotated[int, typer.Option(min=1, help="Number of timings of each; medians are shown.")] = 1,
    threads: Annotated[int, typer.Option(min=1, max=MAX_THREADS, help="CPU threads of robust201 and of the loop.")] = 1,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    json_file: Annotated[Path | None, typer.Option("--out", help="Also write all times to this JSON file.")] = None,
) -> None:
    """Compare the speed of robust201 with that of a plain loop of Foolbox and AutoAttack, on random networks.

    Both run as whole processes. The attacks are the paper's, with a fortieth of its steps and queries, at two epsilons.
    The loop runs in PyTorch's default layout and in channels_last; the ratio is to the faster one. This takes a few
    minutes.
    """
    from robust201.bench.comparison import LAYOUTS, Lengths, Loop, Machine, Sweep, Way, compare
    from robust201.bench.generated import random_subjects

    if device not in ("cpu", "cuda"):
        raise ConfigError(
            f"Reading the command line failed for --device: expected cpu or cuda, got {device!r}. Name one."
        )
    paper = Lengths()
    lengths = Lengths(
        EPSILONS_255,
        EPSILONS_255,
        pgd_steps=paper.pgd_steps // SHARE_OF_THE_PAPER,
        apgd_steps=paper.apgd_steps // SHARE_OF_THE_PAPER,
        queries=paper.queries // SHARE_OF_THE_PAPER,
    )
    ways: list[Way] = [*(Loop(layout, images) for layout in LAYOUTS), Sweep()]
    machine = Machine(threads, device)
    with tempfile.TemporaryDirectory(prefix="robust201-bench-") as name:
        folder = Path(name)
        subjects = random_subjects(split_names(architectures) or (), images, folder)
        console.say(
            f"Timing {console.show_count(len(subjects), 'network')}: two loops and robust201, each as a whole process. "
            "A line follows each; the first may take minutes."
        )
        compared = [
            compare(subject, ways, lengths, machine, folder / subject.name, rounds=rounds, tell=console.say)
            for subject in subjects
        ]
    if json_file is not None:
        write_text(json_file, json.dumps([comparison.to_payload() for comparison in compared], indent=1) + "\n")
    _show(compared, machine.threads, device)


def _show(compared: "list[Compared]", threads: int, device: str) -> None:
    clock = "CPU" if device == "cpu" else "wall"
    rows = []
    for comparison in compared:
        seconds = [getattr(timed.attacks, clock.lower()) for timed in comparison.ways]
        rows.append(
            (
                comparison.subject.label,
                *(f"{value:.1f}" for value in seconds),
                f"{comparison.ratio(clock.lower()):.2f}",
                f"{comparison.ratio('wall'):.2f}",
                f"{comparison.ratio('wall', start_up=True):.2f}",
            )
        )
    names = ("network", "loop, default layout, s", "loop, channels_last, s", "robust201, s")
    ratios = (f"times as fast, {clock} time", "wall time", "with start-up")
    console.show_table(
        f"{clock} time of the attacks, start-up apart; times as fast as the faster loop, "
        f"{console.show_count(threads, 'thread')}",
        (*names, *ratios),
        rows,
    )
    typer.echo(
        "Single runs differ by a few percent, and by more if other programs are running: use CPU time then, and repeat "
        "with --rounds 3.\nA ratio of nan means that the attacks took less than the noise of the start-up: use more "
        "--count.\nWeights are random, so nothing is downloaded. The loop is robust201/bench/user_loop.py."
    )
