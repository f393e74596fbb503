"""`robust201 study`: trainings and sweeps with their tables, figures and page, and checks of printed studies."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from robust201.cli import console
from robust201.cli.look import AsJson, print_json
from robust201.core.errors import ConfigError, closest

if TYPE_CHECKING:
    import pandas as pd

    from robust201.studies.comparisons import PrintedCheck

PRINTED = ("image-distribution",)
"""Studies whose printed numbers can be checked without any data."""


def study(
    published: Annotated[
        str | None,
        typer.Option(
            "--published",
            metavar="NAME",
            help="Check the printed tables of a study instead, without any data: image-distribution.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Recompute which differences of a printed study are significant, from its means and standard deviations."""
    from robust201.studies.comparisons import check_printed_marks

    if published not in PRINTED:
        raise ConfigError(
            f"Checking a printed study failed for {published!r}: expected {', '.join(PRINTED)}, got another."
            f"{closest(str(published), PRINTED)}"
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
        f"{len(found.left)} of {len(found.marks)} printed marks are left when corrected by Holm for "
        f"{len(found.comparisons)} tests."
    )
    console.show_table("Decisions that do not follow", _COLUMNS, _rows(found.exceptions))
    console.show_table("Near the limit, by p", _COLUMNS, _rows(found.borderline))
    console.show_table(
        "What is left of each claim, in epochs",
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
        f"{len(uncertain)} comparisons are not counted: one table has five rows and no epochs in print, so that the "
        "epoch of three numbers is not certain, and one number is missing. --json lists every comparison."
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
