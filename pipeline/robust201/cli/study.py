"""`robust201 study`: trainings and sweeps with their tables, figures and page, and checks of printed studies."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from robust201.cli import console
from robust201.cli.monitoring import AsJson, print_json
from robust201.cli.options import AllowCode
from robust201.cli.user_file import StepConsent
from robust201.core.errors import ConfigError, closest
from robust201.core.files import make_folder

if TYPE_CHECKING:
    import pandas as pd

    from robust201.planning.config import SweepConfig
    from robust201.studies.comparisons import PrintedCheck

PRINTED = ("image-distribution",)
"""Studies whose printed numbers can be checked without any data."""


def study(
    context: typer.Context,
    file: Annotated[Path | None, typer.Argument(metavar="STUDY", help="The YAML of a study (docs/studies.md).")] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder for datasets, tables, figures and the page; created if absent.")
    ] = None,
    tables_only: Annotated[
        list[Path] | None,
        typer.Option(
            "--tables-only",
            metavar="DATASET",
            help="Only write tables, figures and the page, from this export. Repeatable.",
        ),
    ] = None,
    published: Annotated[
        str | None,
        typer.Option(
            "--published",
            metavar="NAME",
            help="Instead, check the published tables of a study, without any data: image-distribution.",
        ),
    ] = None,
    allow_code: AllowCode = None,
    as_json: AsJson = False,
) -> None:
    """Run a study: make images and weights, run and export sweeps, and compare the results with published numbers.

    After an interruption, run it again: each step resumes where it stopped.
    """
    if (file is None) == (published is None) or (file is None) != (out is None):
        raise ConfigError(
            "Reading the command line failed for robust201 study: expected STUDY.yaml with --out FOLDER, or "
            "--published NAME alone, got another combination. See: robust201 study --help"
        )
    if file is not None and out is not None:
        consent = StepConsent(file, tuple(allow_code or ()))
        raise typer.Exit(_run_study(context.find_root(), file, out, tables_only or (), consent))
    _check_printed(str(published), as_json)


def _run_study(root: Any, file: Path, out: Path, exports: Sequence[Path], consent: StepConsent) -> int:
    """Run the steps and sweeps of a study, unless there are exports, and write its page; return the exit code.

    `root` is the context of the whole command line.
    """
    from robust201.planning.code_consent import check_consent, consent_words, files_to_consent
    from robust201.planning.loading import load_config
    from robust201.studies.config import DynamicsStudy, load_study

    config = load_study(file)
    sweeps: dict[Path, SweepConfig] = {}
    if not exports:
        sweeps = {path: load_config(path) for path in config.sweeps}
        for path, sweep in sweeps.items():  # `run` checks again; a study should not find out after its trainings
            check_consent(files_to_consent(sweep), path, consent.allowed)
        steps = config.step_words()
        for words in steps:
            _check_step_consent(root, words, consent)
        make_folder(out)
        allowed = consent_words(consent.allowed)
        for words in steps:
            if code := _run_words(root.command, [*words, *allowed] if words[0] == "train" else words, consent):
                return code
        exports = [out / "datasets" / sweep.name for sweep in sweeps.values()]
        for (path, sweep), dataset in zip(sweeps.items(), exports, strict=True):
            outcomes = ["--outcomes", "bits"] if "predictions" in sweep.measurements else []
            exporting = ["export", str(sweep.results), "--out", str(dataset), "--no-json", "--parquet", *outcomes]
            for words in (["run", str(path), *allowed], exporting):
                if code := _run_words(root.command, words, consent):
                    return code
    from robust201.studies.networks import Exports
    from robust201.studies.pages import write_pages

    per_epoch = config.iterations_per_epoch if isinstance(config, DynamicsStudy) else None
    page, *files = write_pages(config, Exports(exports, iterations_per_epoch=per_epoch), out, tuple(sweeps.values()))
    typer.echo(page)
    console.say(f"Tables and figures: {console.show_count(len(files), 'file')} in the same folder.")
    return 0


def _check_step_consent(root: Any, words: list[str], consent: StepConsent) -> None:
    """Check consent to the Python files that a step names, by reading its words as the step itself will."""
    from robust201.planning.code_consent import check_consent, files_to_consent
    from robust201.planning.loading import load_training

    parameters = root.command.get_command(root, words[0]).make_context(words[0], words[1:], parent=root).params
    if words[0] == "train":
        path = parameters["trainings"]
        check_consent(files_to_consent(load_training(path)), path, consent.allowed)
    elif words[0] == "robustify" and ":" in (network := parameters["network"]):
        check_consent([Path(network.rpartition(":")[0])], consent.study, consent.allowed)


def _run_words(command: Any, words: list[str], consent: StepConsent) -> int:
    console.say(f"$ robust201 {shlex.join(words)}")
    with consent.applied():
        return int(command.main(words, prog_name="robust201", standalone_mode=False) or 0)


def _check_printed(name: str, as_json: bool) -> None:
    from robust201.studies.comparisons import check_printed_marks

    if name not in PRINTED:
        raise ConfigError(
            f"Checking a printed study failed for {name!r}: expected {', '.join(PRINTED)}, got another."
            f"{closest(name, PRINTED)}"
        )
    found = check_printed_marks()
    if as_json:
        print_json(found.to_payload())
    else:
        _show_check(found)


def _show_check(found: "PrintedCheck") -> None:
    certain = found.certain
    typer.echo(
        f"{int(certain['agrees'].sum())} of {len(certain)} printed decisions follow from the printed means and "
        f"standard deviations (Welch's test, two-sided, level 0.05, not corrected).\n"
        f"{len(found.left)} of {len(found.marks)} printed marks remain after Holm's correction for "
        f"{len(found.comparisons)} tests."
    )
    console.show_table("Decisions that do not follow", _COLUMNS, _rows(found.exceptions))
    console.show_table("Borderline cases, by p", _COLUMNS, _rows(found.borderline))
    console.show_table(
        "How much of each claim remains, in epochs",
        ("claim", "network", "marked", "with numbers", "recomputed", "after Holm", "lost at epoch"),
        [
            (
                f"{row['experiment']} {row['claim']}",
                row["network"],
                *(str(row[name]) for name in ("printed", "tested", "recomputed", "after_holm")),
                row["lost"] or "-",
            )
            for row in found.claims.to_dict("records")
        ],
    )
    uncertain = found.comparisons[~found.comparisons["certain"]]
    console.say(
        f"{len(uncertain)} comparisons are not counted: one printed table has five rows without epochs, so the epochs "
        "of three numbers are uncertain, and one number is missing. --json lists every comparison."
    )


_COLUMNS = ("claim", "network", "epoch", "means", "p", "p (Holm)", "g", "higher in print", "recomputed")


def _rows(frame: "pd.DataFrame") -> list[tuple[str, ...]]:
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
