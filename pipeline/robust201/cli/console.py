"""Output of the command line: progress on terminals and in log files, tables, and one-line messages."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.table import Table

from robust201.core.errors import shorten
from robust201.core.records import format_architecture

if TYPE_CHECKING:  # a command imports these modules only if it needs them, so that the others start quickly
    from robust201.dataset.derived import DerivedMetrics
    from robust201.dataset.diff import ComparisonReport
    from robust201.dataset.export import ExportReport
    from robust201.dataset.verify_dataset import DatasetVerdict
    from robust201.dataset.verify_results import Verdict
    from robust201.run.doctor import HealthCheck
    from robust201.weights.importing import ImportReport

_MAX_KEY_LIST_LENGTH = 40
"""Maximum length of a list of keys in characters; a longer list is replaced by the number of keys."""

_MIN_RATE_PER_SECOND = 0.01
"""Minimum rate that is shown per second; lower rates are shown per hour."""

# NO_COLOR also turns off bold and italics. Emoji codes would change paths such as a:b:c.
_CONSOLE_OPTIONS: dict[str, Any] = {
    "soft_wrap": True,
    "emoji": False,
    "color_system": None if os.environ.get("NO_COLOR") else "auto",
}
out = Console(**_CONSOLE_OPTIONS)
err = Console(stderr=True, **_CONSOLE_OPTIONS)


def say(line: str) -> None:
    """Print a line on stderr, so that stdout stays clean for scripts."""
    err.print(line, markup=False, highlight=False)


MAX_LINES = 20
"""Maximum number of lines in a list of messages of one kind."""


def first_lines(lines: Sequence[str], *, hint: str = "") -> Iterator[str]:
    """Yield up to `MAX_LINES` lines, and then the number of further lines with a hint on where to find them."""
    yield from map(shorten, lines[:MAX_LINES])
    if len(lines) > MAX_LINES:
        yield f"and {len(lines) - MAX_LINES:,} more{f'; {hint}' if hint else ''}"


def say_each(lines: Sequence[str], *, hint: str = "") -> None:
    """Print up to `MAX_LINES` lines on stderr (see `first_lines`)."""
    for line in first_lines(lines, hint=hint):
        say(line)


def format_duration(seconds: float) -> str:
    """Render seconds as ``1:02:03``."""
    return str(timedelta(seconds=round(seconds)))


def format_count(count: float, noun: str) -> str:
    """Render a count with its noun: ``1 shard``, ``1,728 evaluations`` or ``0.5 evaluations``."""
    number = f"{count:,.1f}".removesuffix(".0")
    return f"{number} {noun}" if number == "1" else f"{number} {noun}s"


def format_rate(per_second: float | None, seconds_left: float | None, plural_noun: str = "evaluations") -> str:
    """Render the rate and the remaining time; either is omitted if it is not known."""
    phrases = []
    if per_second:
        is_slow = per_second < _MIN_RATE_PER_SECOND
        phrases = [f"{3600 * per_second:.2f} {plural_noun}/h" if is_slow else f"{per_second:.2f} {plural_noun}/s"]
    phrases += [] if seconds_left is None else [f"about {format_duration(seconds_left)} left"]
    return ", ".join(phrases)


def show_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table; the first column is aligned left, the others right."""
    table = Table(title=title, title_justify="left")
    for position, column in enumerate(columns):
        table.add_column(column, justify="left" if position == 0 else "right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    # Rich assumes 80 columns for a file and would truncate a wider table.
    console = out if out.is_terminal else Console(file=out.file, width=200, **_CONSOLE_OPTIONS)
    console.print(table)


def show_training_plan(summary: Mapping[str, Any]) -> None:
    """Print the counts and estimates of a training plan (see `sweep.training_plan.estimate_trainings`)."""
    by_recipe = summary["trainings_by_recipe"]
    show_table(
        f"Training plan {summary['name']}",
        ("", "value"),
        [
            ("architectures", f"{summary['architectures']:,}"),
            ("training runs", f"{summary['trainings']:,}"),
            *((f"with recipe {name}", f"{count:,}") for name, count in by_recipe.items() if len(by_recipe) > 1),
            ("snapshots", f"{summary['snapshots']:,}"),
            ("steps", f"{summary['steps']:,}"),
            *describe_hours(summary),
        ],
    )
    say_each([f"warning: {line}" for line in summary["warnings"]])


def format_hours(hours: float) -> str:
    """Render hours with one decimal, or with two significant digits below 1."""
    return f"{hours:,.1f}" if hours >= 1 else f"{hours:.2g}"


def describe_hours(summary: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield a label and the worker-hours at the assumed speed; if the run chooses the device, for GPUs and for CPUs."""
    speed, cpu_speed = summary["assumed_gmacs_per_second"], summary["assumed_cpu_gmacs_per_second"]
    hours = summary["estimated_worker_hours"]
    is_unknown = summary["device"] == "auto" and cpu_speed is None
    device = "" if is_unknown else " on CPUs" if summary["device"] == "cpu" else " on GPUs"
    yield f"worker-hours{device} at {speed:,g} GMAC/s", format_hours(hours)
    if cpu_speed is not None:
        yield f"worker-hours on CPUs at {cpu_speed:,g} GMAC/s", format_hours(hours * speed / cpu_speed)


def show_import(report: ImportReport, store: Path) -> int:
    """Print the number of imported networks and the rejected files; return the exit code."""
    out.print(f"Imported {format_count(len(report.imported), 'network')} into {store}.", markup=False, highlight=False)
    say_each([f"rejected: {reason}" for reason in report.rejected])
    return 0 if not report.rejected else 3


@contextmanager
def showing_progress(label: str, *columns: ProgressColumn) -> Iterator[Callable[[int, int | None], None]]:
    """Show progress while a block runs; yield a function to be called with (done, total)."""
    columns = columns or (MofNCompleteColumn(),)
    with Progress(
        TextColumn("{task.description}"), BarColumn(), *columns, console=err, disable=not err.is_terminal
    ) as live:
        task = live.add_task(label, total=None)
        yield lambda done, total: live.update(task, completed=done, total=total)


class DownloadProgress:
    """Shows bytes, rate and remaining time of a download (see `images.downloads.fetch.ByteProgress`)."""

    def __init__(self, label: str) -> None:
        self.total = 0
        self._live = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
            console=err,
            disable=not err.is_terminal,
        )
        self._task = self._live.add_task(label, total=None)

    def update(self, n_bytes: int) -> None:
        self._live.start()
        self._live.update(self._task, advance=n_bytes, total=self.total or None)

    def reset(self) -> None:
        self._live.reset(self._task)

    def close(self) -> None:
        self._live.stop()


def show_health_check(check: HealthCheck) -> None:
    """Print the result of a check of `doctor`, and the remedy if it failed."""
    label = "[green]ok  [/green]" if check.ok else "[red]fix [/red]"
    out.print(label, f"{check.what}: {escape(check.detail)}", highlight=False)
    if not check.ok:
        out.print(f"     {check.fix}", markup=False, highlight=False)


def show_export(report: ExportReport) -> int:
    """Print what an export wrote and which evaluations are missing; return the exit code."""
    files, evaluations = format_count(len(report.files), "file"), format_count(report.n_evaluations, "evaluation")
    size = f"{files}, {report.n_bytes / 1e6:,.1f} MB, {evaluations}"
    out.print(f"Wrote {report.out}: {size}.", markup=False, highlight=False)
    for (dataset, key), count in report.missing.items():
        say(f"missing: {format_count(count, 'evaluation')} of {dataset} {key}")
    return 0 if report.is_complete else 3


def show_verdict(verdict: Verdict, *, as_json: bool = False) -> None:
    """Print the result of verifying a results folder."""
    if as_json:
        out.print_json(data=verdict.to_payload())
    hint = "" if as_json else "--json lists all"
    problems = [*map(str, verdict.faults), *verdict.export_problems]
    say_each(problems, hint=hint)
    say_each([str(finding) for finding in verdict.findings if finding.kind == "missing"], hint=hint)
    if verdict.weights is not None:
        say_each([f"warning: {network.message}" for network in verdict.weights.unexpected], hint=hint)
    say_each([f"warning: {flag.message}" for flag in verdict.flags or ()], hint=hint)
    if not as_json:
        result = f"{format_count(len(problems), 'problem')} found" if problems else _describe_valid_results(verdict)
        out.print(result, markup=False, highlight=False)


def _describe_valid_results(verdict: Verdict) -> str:
    n_missing = verdict.n_planned - verdict.n_evaluations
    checks = [
        f"{format_count(verdict.n_files, 'result file')}, {format_count(verdict.n_evaluations, 'evaluation')} valid",
        f"{n_missing:,} of {verdict.n_planned:,} missing",
    ]
    if verdict.n_exported is not None:
        agrees = "agrees" if verdict.n_exported == 1 else "agree"
        checks.append(f"the export's {format_count(verdict.n_exported, 'file')} {agrees}")
    return f"{'; '.join([*checks, *_describe_weights_and_attacks(verdict)])}."


def _describe_weights_and_attacks(verdict: Verdict | DatasetVerdict) -> Iterator[str]:
    if verdict.weights is not None and verdict.weights.n_checked:
        n_checked, n_unexpected = verdict.weights.n_checked, len(verdict.weights.unexpected)
        yield (
            f"clean accuracy agrees with the accuracy recorded with the weights for {n_checked - n_unexpected:,} of "
            f"{format_count(n_checked, 'network')}"
        )
    if verdict.flags is not None:
        yield f"{format_count(len(verdict.flags), 'sign')} of weak attacks"


def show_dataset_verdict(verdict: DatasetVerdict, *, as_json: bool = False) -> int:
    """Print the result of verifying a dataset, and return the exit code: 4 if the dataset is damaged, else 0."""
    if as_json:
        out.print_json(data=verdict.to_payload())
    hint = "" if as_json else "--json lists all"
    say_each(verdict.problems, hint=hint)
    warnings = [*verdict.remarks, *(flag.message for flag in verdict.flags or ())]
    if verdict.weights is not None:
        warnings += [network.message for network in verdict.weights.unexpected]
    say_each([f"warning: {line}" for line in warnings], hint=hint)
    if not as_json:
        listed_files = "no SHA256SUMS" if verdict.n_listed is None else format_count(verdict.n_listed, "listed file")
        check_results = [
            f"{format_count(verdict.n_evaluations, 'evaluation')} valid",
            listed_files,
            *_describe_weights_and_attacks(verdict),
        ]
        result = f"{'; '.join(check_results)}."
        if verdict.problems:
            result = f"{format_count(len(verdict.problems), 'problem')} found"
        out.print(result, markup=False, highlight=False)
    return 0 if verdict.is_sound else 4


def show_comparison(report: ComparisonReport) -> None:
    """Print a comparison of two result sets: a summary, then every dataset, key and strength with a difference."""
    relation = "within" if report.is_within_tolerance else "beyond"
    n_all, n_different = len(report.comparisons), len(report.differing_comparisons)
    out.print(
        f"largest difference {report.max_difference:g}, {relation} the tolerance of {report.tolerance:g}; "
        f"{n_different:,} of {format_count(n_all, 'row')} {'differs' if n_different == 1 else 'differ'}, "
        f"{n_all - n_different:,} {'is' if n_all - n_different == 1 else 'are'} equal"
    )
    n_only_first, n_both, n_only_second = report.architectures
    out.print(f"architectures: {n_both} in both, {n_only_first} only in the first, {n_only_second} only in the second")
    for ordinal, names in (("first", report.only_first), ("second", report.only_second)):
        if names:
            out.print(f"only in the {ordinal}: {', '.join(names)}", markup=False, highlight=False)
    if not n_different:
        return
    rows = [
        (
            f"{row['dataset']} {row['key']} {row['strength']:g}",
            str(row["n_architectures"]),
            f"{row['max_difference']:.4f}",
            f"{row['mean_absolute_difference']:.5f}",
            f"{row['mean_difference']:+z.5f}",
            "-" if math.isnan(row["kendall_tau"]) else f"{row['kendall_tau']:.4f}",
        )
        for row in report.differing_comparisons.to_dict("records")
    ]
    columns = ("", "networks", "max |difference|", "mean |difference|", "mean difference", "Kendall tau")
    show_table("Accuracy of the second set minus accuracy of the first", columns, rows)
    changes = [
        (
            f"{row['dataset']} {row['key']} {row['strength']:g}",
            " ".join(filter(None, (format_architecture(row["architecture"]), row["weights"]))),
            f"{row['first']:.4f}",
            f"{row['second']:.4f}",
        )
        for row in report.largest.to_dict("records")
    ]
    show_table("Largest changes", ("", "network", "first", "second"), changes)


def show_metrics(metrics: DerivedMetrics) -> None:
    """Print metrics of the architectures, and what is missing for metrics that were not computed."""
    from robust201.analysis.labels import strength_label

    rows = []
    for metric in metrics.metrics:
        keys = metric.key if len(metric.key) <= _MAX_KEY_LIST_LENGTH else f"{metric.key.count('+') + 1} keys"
        metric_values = metric.values.dropna()
        lowest_median_highest = (
            [f"{value:.4f}" for value in (metric_values.min(), metric_values.median(), metric_values.max())]
            if len(metric_values)
            else ["-"] * 3
        )
        strength = "" if metric.strength is None else strength_label(metric.key.partition("+")[0], metric.strength)
        label = ", ".join(filter(None, (f"{metric.dataset} {keys}", strength)))
        rows.append((label, metric.metric, *lowest_median_highest, f"{len(metric_values):,}", metric.note))
    if rows:
        show_table("Metrics", ("", "metric", "lowest", "median", "highest", "networks", ""), rows)
    for name, required_results in metrics.needs.items():
        say(f"{name}: not computed; requires {required_results}.")
