"""`robust201 verify`: check results, compare them with other results, or attack networks again with the libraries."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from robust201.cli import console
from robust201.cli.options import AllowCode, AsJson, explicit_options, print_json, results_of
from robust201.core.errors import ConfigError

if TYPE_CHECKING:
    import pandas as pd

    from robust201.dataset.diff import ComparisonReport
    from robust201.dataset.verify_dataset import DatasetVerdict
    from robust201.dataset.verify_results import Verdict

_ALLOWED_PARAMETERS = {
    "": {"path", "exported", "attack_flags", "as_json"},
    "--against": {"path", "against", "tolerance", "as_json"},
    "--with-libraries": {"path", "with_libraries", "images", "allow_code", "as_json"},
}
"""Parameters that may be set, by mode; a mode is named after its option."""


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
            help="Instead compare accuracies with those of OTHER (any type of RESULTS); exits with 3 if different.",
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
    """Check every file and value of a results folder or dataset.

    It exits with 3 if evaluations are missing. Damaged result files are moved to RESULTS/damaged, so that the next run
    computes exactly the evaluations that they contained.
    """
    mode = "--against" if against is not None else "--with-libraries" if with_libraries is not None else ""
    for name, option in explicit_options(context).items():
        if name not in _ALLOWED_PARAMETERS[mode]:
            raise ConfigError(
                f"Reading the command line failed for {option}: it does not apply to robust201 verify {mode}"
                f"{'' if mode else 'without --against and --with-libraries'}. Remove the option."
            )
    if against is not None:
        raise typer.Exit(_compare_results(path, against, tolerance, as_json=as_json))
    if with_libraries is not None:
        raise typer.Exit(_compare_engines(path, with_libraries, images, allow_code, as_json=as_json))
    from robust201.dataset.layout import is_dataset

    results = results_of(path)
    unfinished = results.with_name(f".{results.name}.new")
    if unfinished.is_dir():
        console.say(
            f"warning: an export to {results} is running or was interrupted; the next one replaces {unfinished}."
        )
    if not is_dataset(results):
        raise typer.Exit(_verify_results(results, exported, attack_flags, as_json=as_json))
    if exported is not None:
        raise ConfigError(
            f"Verifying failed for {results}: --export applies only to a results folder, not to a dataset. Remove "
            "--export, or verify the results folder."
        )
    raise typer.Exit(_verify_dataset(results, attack_flags, as_json=as_json))


def _verify_results(results: Path, exported: Path | None, attack_flags: bool, *, as_json: bool) -> int:
    from robust201.dataset.verify_results import verify_results

    with console.showing_progress("Verifying result files") as progress:
        verdict = verify_results(results, export=exported, attack_flags=attack_flags, on_progress=progress)
    files = console.format_count(verdict.n_files, "result file")
    checks = [
        f"{files}, {console.format_count(verdict.n_evaluations, 'evaluation')} valid",
        f"{verdict.n_planned - verdict.n_evaluations:,} of {verdict.n_planned:,} missing",
    ]
    if verdict.n_exported is not None:
        checks.append(f"{console.format_count(verdict.n_exported, 'file')} of the export valid")
    remarks = [str(finding) for finding in verdict.findings if finding.kind == "missing"]
    if verdict.weights is not None and verdict.weights.n_checked:
        n_checked, unexpected = verdict.weights.n_checked, verdict.weights.unexpected
        checks.append(
            f"clean accuracy agrees with the accuracy recorded with the weights for {n_checked - len(unexpected):,} of "
            f"{console.format_count(n_checked, 'network')}"
        )
        remarks += [f"warning: {network.message}" for network in unexpected]
    _show_verdict(verdict, [*map(str, verdict.faults), *verdict.export_problems], remarks, checks, as_json=as_json)
    return verdict.code


def _verify_dataset(folder: Path, attack_flags: bool, *, as_json: bool) -> int:
    from robust201.dataset.verify_dataset import verify_dataset

    with console.showing_progress("Verifying keys") as progress:
        verdict = verify_dataset(folder, attack_flags=attack_flags, on_progress=progress)
    n_listed = verdict.n_listed
    listed = "no SHA256SUMS" if n_listed is None else f"{console.format_count(n_listed, 'file')} listed in SHA256SUMS"
    checks = [f"{console.format_count(verdict.n_evaluations, 'evaluation')} valid", listed]
    remarks = [f"warning: {remark}" for remark in verdict.remarks]
    _show_verdict(verdict, verdict.problems, remarks, checks, as_json=as_json)
    return 0 if verdict.is_valid else 4


def _show_verdict(
    verdict: "Verdict | DatasetVerdict",
    problems: Sequence[str],
    remarks: Sequence[str],
    checks: Sequence[str],
    *,
    as_json: bool,
) -> None:
    """Print problems, remarks and warnings, and then one line with the result of the checks."""
    warnings = [f"warning: {flag.message}" for flag in verdict.flags or ()]
    signs = [] if verdict.flags is None else [f"{console.format_count(len(verdict.flags), 'sign')} of weak attacks"]
    for lines in (problems, remarks, warnings):
        console.say_each(lines, hint="" if as_json else "--json lists all")
    if as_json:
        print_json(verdict.to_payload())
    elif problems:
        console.out.print(f"{console.format_count(len(problems), 'problem')} found")
    else:
        console.out.print(f"{'; '.join([*checks, *signs])}.")


def _compare_results(first: Path, second: Path, tolerance: float, *, as_json: bool) -> int:
    """Compare the accuracies of two result sets; return the exit code."""
    from robust201.dataset.diff import compare_results

    report = compare_results(results_of(first), results_of(second), tolerance=tolerance)
    if as_json:
        print_json(report.to_payload())
    else:
        _show_differences(report)
    return 0 if report.is_within_tolerance else 3


def _show_differences(report: "ComparisonReport") -> None:
    """Print a summary, and then every dataset, key and strength with a difference."""
    differing = report.differing_comparisons
    n_only_first, n_both, n_only_second = report.architectures
    console.out.print(
        f"largest difference {report.max_difference:g}, {'within' if report.is_within_tolerance else 'beyond'} the "
        f"tolerance of {report.tolerance:g}; {len(differing):,} of "
        f"{console.format_count(len(report.comparisons), 'row')} with differences\n"
        f"architectures: {n_both} in both, {n_only_first} only in the first, {n_only_second} only in the second"
    )
    for ordinal, names in (("first", report.only_first), ("second", report.only_second)):
        if names:
            console.out.print(f"only in the {ordinal}: {', '.join(names)}")
    for title, frame in (
        ("Evaluations with differences (mean_difference: second set minus first)", differing),
        ("Largest changes", report.largest),
    ):
        if len(differing):
            console.out.print(f"{title}\n{frame.to_string(index=False, float_format='{:.5g}'.format)}")


def _compare_engines(sweep: Path, networks: int, images: int, allow_code: AllowCode, *, as_json: bool) -> int:
    """Attack a random sample of a sweep with both engines (see `analysis.audit`); return the exit code."""
    from robust201.analysis.audit import audit_sweep, sample_sweep
    from robust201.run.user_code import announce_code
    from robust201.sweep.facts import load_sweep

    config = load_sweep(sweep)
    announce_code(config, allowed=allow_code, say=console.say)
    folder = config.results.with_name(f"{config.results.name}-audit")
    sweeps = sample_sweep(config, networks=networks, images=images, out=folder)
    evaluations = audit_sweep(sweeps, console.say)
    if as_json:
        print_json(evaluations.to_dict("records"))
    else:
        _show_engines(evaluations)
    return 3 if evaluations["differs"].any() else 0


def _show_engines(evaluations: "pd.DataFrame") -> None:
    console.out.print(f"Correctly classified images by engine\n{evaluations.to_string(index=False)}")
    n_differing = int(evaluations["differs"].sum())
    console.out.print(
        f"Compared {console.format_count(len(evaluations), 'evaluation')}: the engines differ in "
        f"{n_differing or 'none'}."
    )
