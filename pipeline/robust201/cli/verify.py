"""`robust201 verify`: check results, compare them with other results, or attack networks again with the libraries."""

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from robust201.cli import console
from robust201.cli.monitoring import AsJson, print_json
from robust201.cli.options import AllowCode, explicit_options, load_sweep, results_of
from robust201.core.errors import ConfigError

if TYPE_CHECKING:
    from robust201.analysis.audit import AuditedEvaluation


def verify(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="RESULTS", help="A results folder or its sweep YAML, an exported dataset, or the published dataset."
        ),
    ],
    context: typer.Context,
    exported: Annotated[
        Path | None, typer.Option("--export", help="Also compare this export of the results, file by file.")
    ] = None,
    attack_flags: Annotated[
        bool, typer.Option("--attack-flags", help="Also look for signs of weak attacks (docs/trust.md).")
    ] = False,
    against: Annotated[
        Path | None,
        typer.Option(
            metavar="OTHER",
            help="Instead compare accuracies with those of OTHER, of any of these kinds; exits with 3 if they differ.",
        ),
    ] = None,
    tolerance: Annotated[float, typer.Option(help="With --against: largest accepted difference in accuracy.")] = 0.0,
    with_libraries: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Instead attack N random networks of a sweep with both engines: robust201's and the libraries "
            "(Foolbox and AutoAttack); exits with 3 if they differ. Writes to RESULTS-audit.",
        ),
    ] = None,
    images: Annotated[
        int, typer.Option("--images", min=1, help="With --with-libraries: number of test images per dataset.")
    ] = 100,
    allow_code: AllowCode = False,
    as_json: AsJson = False,
) -> None:
    """Check every file and value of a results folder or dataset; exits with 3 if evaluations are missing.

    Damaged result files are moved to RESULTS/damaged, so that the next run computes exactly what they held.
    """
    if against is not None:
        _reject_other_options(context, "--against", {"tolerance"})
        raise typer.Exit(_compare_results(path, against, tolerance, as_json=as_json))
    if with_libraries is not None:
        _reject_other_options(context, "--with-libraries", {"images", "allow_code"})
        raise typer.Exit(_compare_engines(path, with_libraries, images, allow_code, as_json=as_json))
    for name, needed_option in (
        ("tolerance", "--against"),
        ("images", "--with-libraries"),
        ("allow_code", "--with-libraries"),
    ):
        if option := explicit_options(context).get(name):
            raise ConfigError(
                f"Reading the command line failed for {option}: it needs {needed_option}. Add {needed_option}, or "
                f"remove {option}."
            )
    from robust201.dataset.layout import is_dataset
    from robust201.dataset.verify_dataset import verify_dataset
    from robust201.dataset.verify_results import verify_results

    results = results_of(path)
    unfinished = results.with_name(f".{results.name}.new")
    if unfinished.is_dir():
        console.say(f"warning: an export to {results} was interrupted; the next export replaces {unfinished}.")
    if is_dataset(results):
        if exported is not None:
            raise ConfigError(
                f"Verifying failed for {results}: --export applies only to a results folder, not to a dataset. Remove "
                "--export, or verify the results folder."
            )
        with console.showing_progress("Verifying keys") as progress:
            verdict = verify_dataset(results, attack_flags=attack_flags, on_progress=progress)
        raise typer.Exit(console.show_dataset_verdict(verdict, as_json=as_json))
    with console.showing_progress("Verifying result files") as progress:
        results_verdict = verify_results(results, export=exported, attack_flags=attack_flags, on_progress=progress)
    console.show_verdict(results_verdict, as_json=as_json)
    raise typer.Exit(results_verdict.code)


def _reject_other_options(context: typer.Context, mode: str, parameters: Collection[str]) -> None:
    """Reject explicit options that do not apply to a mode, which is named by its option."""
    for name, option in explicit_options(context).items():
        if option.startswith("-") and option not in {mode, "--json"} and name not in parameters:
            raise ConfigError(
                f"Reading the command line failed for {option}: it cannot be combined with {mode}. Remove one of the "
                "two options."
            )


def _compare_results(first: Path, second: Path, tolerance: float, *, as_json: bool) -> int:
    """Compare the accuracies of two result sets; return the exit code."""
    from robust201.dataset.diff import compare_results

    report = compare_results(results_of(first), results_of(second), tolerance=tolerance)
    if as_json:
        print_json(report.to_payload())
    else:
        console.show_comparison(report)
    return 0 if report.is_within_tolerance else 3


def _compare_engines(sweep: Path, networks: int, images: int, allow_code: AllowCode, *, as_json: bool) -> int:
    """Attack a random sample of a sweep with both engines (see `analysis.audit`); return the exit code."""
    from robust201.analysis.audit import audit_sweep, sample_sweep
    from robust201.run.user_code import announce_code

    config = load_sweep(sweep)
    announce_code(config, allowed=allow_code, say=console.say)
    folder = config.results.with_name(f"{config.results.name}-audit")
    sweeps = sample_sweep(config, networks=networks, images=images, out=folder)
    evaluations = audit_sweep(sweeps, console.say)
    if as_json:
        print_json([evaluation.to_payload() for evaluation in evaluations])
    else:
        _show_engines(evaluations)
    return 3 if any(evaluation.differs for evaluation in evaluations) else 0


def _show_engines(evaluations: "tuple[AuditedEvaluation, ...]") -> None:
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
