"""`robust201 audit`: compare both engines on a sample of a sweep."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from robust201.cli import console
from robust201.cli.monitoring import AsJson, print_json
from robust201.cli.options import AllowCode, Executor, Keys, Sweep, Workers, load_sweep, split_names

if TYPE_CHECKING:
    from robust201.runtime.audit import AuditedEvaluation


def audit(
    sweep: Sweep,
    networks: Annotated[int, typer.Option(min=1, help="Number of networks to sample from the sweep.")] = 3,
    images: Annotated[int, typer.Option("--count", min=1, help="Number of test images to sample per dataset.")] = 100,
    seed: Annotated[int, typer.Option(min=0, help="Seed for sampling networks and images.")] = 0,
    keys: Keys = None,
    executor: Executor = None,
    workers: Workers = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Folder for the audit's results. Default: the results folder's path plus -audit."),
    ] = None,
    as_json: AsJson = False,
    allow_code: AllowCode = False,
) -> None:
    """Attack a random sample of a sweep with both engines; exits with 3 if the engines differ.

    The fused engine and the reference engine (Foolbox and AutoAttack) attack the same networks on the same images, with
    different random numbers. McNemar's exact test with Holm's correction compares them (docs/trust.md). The sweep's
    results do not change.
    """
    from robust201.runtime.audit import audit_sweep, sample_sweep
    from robust201.runtime.executors import check_device, make_executor
    from robust201.runtime.sweep import run_sweep
    from robust201.runtime.user_code import announce_code

    config = load_sweep(sweep, execution={"executor": executor, "workers": workers})
    check_device(config)
    announce_code(config, allowed=allow_code, say=console.say)
    folder = out or config.results.with_name(f"{config.results.name}-audit")
    sweeps = sample_sweep(config, networks=networks, images=images, seed=seed, keys=split_names(keys), out=folder)
    evaluations = audit_sweep(sweeps, lambda sampled_sweep: run_sweep(sampled_sweep, make_executor, say=console.say))
    if as_json:
        print_json([evaluation.to_payload() for evaluation in evaluations])
    else:
        _show(evaluations)
    raise typer.Exit(3 if any(evaluation.differs for evaluation in evaluations) else 0)


def _show(evaluations: "tuple[AuditedEvaluation, ...]") -> None:
    table = Table(title="Correctly classified images by engine", title_justify="left", box=None, pad_edge=False)
    for name in ("evaluation", "images", "fused", "reference", "only fused", "only reference", "p", "p after Holm"):
        table.add_column(name, justify="left" if name == "evaluation" else "right")
    for evaluation in evaluations:
        reference, fused = evaluation.correct
        only_reference, only_fused = evaluation.only_one
        counts = (evaluation.n_images, fused, reference, only_fused, only_reference)
        verdict = " differs" if evaluation.differs else ""
        table.add_row(
            evaluation.label,
            *(f"{count:,}" for count in counts),
            f"{evaluation.p_value:.3g}",
            f"{evaluation.adjusted_p_value:.3g}{verdict}",
        )
    console.out.print(table)
    n_differing = sum(evaluation.differs for evaluation in evaluations)
    console.out.print(
        f"Compared {console.format_count(len(evaluations), 'evaluation')}: the engines differ in "
        f"{n_differing or 'none'}.",
        markup=False,
        highlight=False,
    )
