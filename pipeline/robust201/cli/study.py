"""`robust201 study`: run a study end to end, or check the numbers of a published study."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from robust201.cli import console
from robust201.cli.monitoring import AsJson, print_json
from robust201.cli.options import AllowCode
from robust201.core.errors import ConfigError, did_you_mean
from robust201.core.files import make_folder

if TYPE_CHECKING:
    import pandas as pd

    from robust201.planning.config import SweepConfig
    from robust201.studies.comparisons import PublishedCheck

PUBLISHED_STUDIES = ("image-distribution",)
"""Studies whose published numbers can be checked without data."""


def study(
    context: typer.Context,
    file: Annotated[Path | None, typer.Argument(metavar="STUDY", help="A study YAML (docs/studies.md).")] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Folder for datasets, tables, figures and the study's page; created if absent."),
    ] = None,
    tables_only: Annotated[
        list[Path] | None,
        typer.Option(
            "--tables-only",
            metavar="DATASET",
            help="Only write tables, figures and the study's page, from this exported dataset. Repeatable.",
        ),
    ] = None,
    published: Annotated[
        str | None,
        typer.Option(
            "--published",
            metavar="NAME",
            help="Only check the published tables of a study, which needs no data. NAME is image-distribution.",
        ),
    ] = None,
    allow_code: AllowCode = False,
    as_json: AsJson = False,
) -> None:
    """Run a study: create images and weights, run and export sweeps, and compare the results with published numbers.

    After an interruption, run the same command again; each step resumes where it stopped.
    """
    if (file is None) == (published is None) or (file is None) != (out is None):
        raise ConfigError(
            "Reading the command line failed for robust201 study: expected STUDY.yaml with --out FOLDER, or "
            "--published NAME alone. See: robust201 study --help"
        )
    if file is not None and out is not None:
        raise typer.Exit(_run_study(context.find_root(), file, out, tables_only or (), allow_code=allow_code))
    _check_published(str(published), as_json)


def _run_study(root: Any, file: Path, out: Path, exports: Sequence[Path], *, allow_code: bool) -> int:
    """Run a study, write its page and return the exit code.

    If `exports` are given, only the page is written, from these exported datasets. `root` is the context of the whole
    command line.
    """
    from robust201.planning.loading import load_config
    from robust201.runtime.user_code import announce_code
    from robust201.studies.config import DynamicsStudy, load_study

    config = load_study(file)
    sweeps: dict[Path, SweepConfig] = {}
    if not exports:
        sweeps = {path: load_config(path) for path in config.sweeps}
        for sweep in sweeps.values():  # `run` also checks, but only after hours of training
            announce_code(sweep, allowed=allow_code, say=console.say)
        steps = config.step_arguments()
        for argv in steps:
            _check_step_code(root, argv, allowed=allow_code)
        make_folder(out)
        consent_options = ["--allow-code"] if allow_code else []
        for argv in steps:
            if code := _run_command(root.command, [*argv, *consent_options] if argv[0] == "run" else argv):
                return code
        exports = [out / "datasets" / sweep.name for sweep in sweeps.values()]
        for (path, sweep), dataset in zip(sweeps.items(), exports, strict=True):
            outcomes = ["--outcomes", "bits"] if "predictions" in sweep.measurements else []
            export_argv = ["export", str(sweep.results), "--out", str(dataset), "--no-json", "--parquet", *outcomes]
            for argv in (["run", str(path), *consent_options], export_argv):
                if code := _run_command(root.command, argv):
                    return code
    from robust201.studies.networks import Exports
    from robust201.studies.pages import write_pages

    per_epoch = config.iterations_per_epoch if isinstance(config, DynamicsStudy) else None
    page, *files = write_pages(config, Exports(exports, iterations_per_epoch=per_epoch), out, tuple(sweeps.values()))
    typer.echo(page)
    console.say(f"Tables and figures: {console.format_count(len(files), 'file')} in the same folder.")
    return 0


def _check_step_code(root: Any, argv: list[str], *, allowed: bool) -> None:
    """Check consent to execute the Python files that the arguments of a step (a command of the study) name."""
    from robust201.planning.loading import load_training
    from robust201.runtime.user_code import announce_code

    parameters = root.command.get_command(root, argv[0]).make_context(argv[0], argv[1:], parent=root).params
    if argv[0] == "run":
        announce_code(load_training(parameters["sweep"]), allowed=allowed, say=console.say)
    elif argv[0] == "robustify" and ":" in (network := parameters["network"]) and not allowed:
        raise ConfigError(
            f"Executing Python files failed for {network}: code that a study names runs only with your consent. Read "
            "the code, then add --allow-code."
        )


def _run_command(command: Any, argv: list[str]) -> int:
    console.say(f"$ robust201 {shlex.join(argv)}")
    return int(command.main(argv, prog_name="robust201", standalone_mode=False) or 0)


def _check_published(name: str, as_json: bool) -> None:
    from robust201.studies.comparisons import check_published_marks

    if name not in PUBLISHED_STUDIES:
        raise ConfigError(
            f"Checking a published study failed for {name!r}: only {', '.join(PUBLISHED_STUDIES)} can be checked."
            f"{did_you_mean(name, PUBLISHED_STUDIES)}"
        )
    check = check_published_marks()
    if as_json:
        print_json(check.to_payload())
    else:
        _show_check(check)


def _show_check(check: "PublishedCheck") -> None:
    certain_comparisons = check.certain_comparisons
    typer.echo(
        f"{int(certain_comparisons['agrees'].sum())} of {len(certain_comparisons)} published decisions on "
        f"significance follow from the published means and standard deviations (Welch's test, two-sided, "
        f"level 0.05, not corrected).\n"
        f"{len(check.significant_after_holm)} of {len(check.marked_comparisons)} published significance marks remain "
        f"after Holm's correction for {len(check.comparisons)} tests."
    )
    console.show_table("Decisions that do not follow", _COLUMNS, _format_comparisons(check.exceptions))
    console.show_table("Borderline cases, by p", _COLUMNS, _format_comparisons(check.borderline))
    console.show_table(
        "Epochs at which each claim is significant",
        ("claim", "network", "published", "testable", "recomputed", "after Holm", "epochs lost"),
        [
            (
                f"{row['experiment']} {row['claim']}",
                row["network"],
                *(str(row[name]) for name in ("printed", "tested", "recomputed", "after_holm")),
                row["lost"] or "-",
            )
            for row in check.claims.to_dict("records")
        ],
    )
    uncertain_comparisons = check.comparisons[~check.comparisons["certain"]]
    console.say(
        f"{len(uncertain_comparisons)} comparisons are not included: one published table has five rows without epochs, "
        "so the epochs of three numbers are uncertain, and one number is missing. --json lists all comparisons."
    )


_COLUMNS = ("claim", "network", "epoch", "means", "p", "p (Holm)", "g", "higher as published", "higher as recomputed")


def _format_comparisons(frame: "pd.DataFrame") -> list[tuple[str, ...]]:
    from robust201.studies.comparisons import GROUPS

    rows: list[dict[Any, Any]] = frame.to_dict("records")
    return [
        (
            f"{row['experiment']} {row['claim']}",
            row["network"],
            str(row["epoch"]),
            f"{row['mean_first']:.4f}, {row['mean_second']:.4f}",
            f"{row['p']:.2g}",
            f"{row['p_holm']:.2g}",
            f"{row['g']:.2f} [{row['g_low']:.2f}, {row['g_high']:.2f}]",
            GROUPS[row[row["printed"]]] if row["printed"] else "none",
            GROUPS[row[row["marked"]]] if row["marked"] else "none",
        )
        for row in rows
    ]
