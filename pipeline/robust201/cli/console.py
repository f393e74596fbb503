"""Output of the command line: progress on terminals and in log files, tables, and one line per error."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
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
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.table import Table

from robust201.core.errors import shorten
from robust201.core.files import show_bytes
from robust201.core.records import show_architecture

if TYPE_CHECKING:  # commands import only what they run, so that others start quickly
    from robust201.export import ExportReport
    from robust201.export.diff import ComparisonReport
    from robust201.export.verify import Verdict
    from robust201.export.verify_dataset import DatasetVerdict
    from robust201.figures.report import SummaryRow
    from robust201.monitoring.doctor_machines import HealthCheck
    from robust201.reader.derived import DerivedMetrics
    from robust201.runtime.executors.base import Event
    from robust201.runtime.heartbeat import LastBeat, TrainingSteps
    from robust201.runtime.preview import RunPreview
    from robust201.runtime.progress import RunProgress
    from robust201.runtime.scheduler import RunTally
    from robust201.weights.importing import ImportReport

_LOG_SECONDS = 10.0
_QUIET_SECONDS = 60.0
_MAX_KEY_LENGTH = 40
"""Characters of a list of keys; a longer list is shown as its number of keys."""

_MIN_RATE_PER_SECOND = 0.01
"""Lower rates are shown per hour."""

_SHOWN_TRAININGS = 8

_UNKNOWN_RATE = "rate and remaining time not known yet"

# NO_COLOR also turns off bold and italics. Emoji codes would change paths such as a:b:c.
_STYLE: dict[str, Any] = {
    "soft_wrap": True,
    "emoji": False,
    "color_system": None if os.environ.get("NO_COLOR") else "auto",
}
out = Console(**_STYLE)
err = Console(stderr=True, **_STYLE)


def say(line: str) -> None:
    """Print a line on stderr, so that stdout stays clean for scripts."""
    err.print(line, markup=False, highlight=False)


MOST_LINES = 20
"""Maximum number of lines listed of one kind."""


def first_lines(lines: Sequence[str], *, rest: str = "") -> Iterator[str]:
    """Yield up to `MOST_LINES` lines, then a line that counts the others; `rest` tells where to find them."""
    yield from map(shorten, lines[:MOST_LINES])
    if len(lines) > MOST_LINES:
        yield f"and {len(lines) - MOST_LINES:,} more{f'; {rest}' if rest else ''}"


def say_each(lines: Sequence[str], *, rest: str = "") -> None:
    """Print lines on stderr (see `first_lines`)."""
    for line in first_lines(lines, rest=rest):
        say(line)


def show_duration(seconds: float) -> str:
    """Render seconds as ``1:02:03``."""
    return str(timedelta(seconds=round(seconds)))


def show_count(count: float, noun: str) -> str:
    """Render a count with its noun: ``1 shard``, ``1,728 evaluations`` or ``0.5 evaluations``."""
    number = f"{count:,.1f}".removesuffix(".0")
    return f"{number} {noun}" if number == "1" else f"{number} {noun}s"


def show_rate(per_second: float | None, seconds_left: float | None, counted: str = "evaluations") -> str:
    """Render the rate and the remaining time, each if it is known."""
    phrases = []
    if per_second:
        is_slow = per_second < _MIN_RATE_PER_SECOND
        phrases = [f"{3600 * per_second:.2f} {counted}/h" if is_slow else f"{per_second:.2f} {counted}/s"]
    phrases += [] if seconds_left is None else [f"about {show_duration(seconds_left)} left"]
    return ", ".join(phrases)


def _describe_steps(training: TrainingSteps) -> str:
    phrases = [f"epoch {training.epoch:,} of {training.epochs:,}"]
    if training.loss is not None and training.accuracy is not None:
        phrases += [f"loss {training.loss:.4f}", f"training accuracy {training.accuracy:.4f}"]
    phrases.append(show_rate(training.steps_per_second, training.seconds_left, "steps"))
    return ", ".join(filter(None, phrases))


def describe_trainings_in_progress(beats: Sequence[LastBeat]) -> Iterator[str]:
    """Yield a line for each of the first trainings, then a line that counts the others."""
    for beat in beats[:_SHOWN_TRAININGS]:
        if (training := beat.training) is not None:
            yield f"{beat.label}: step {training.step:,} of {training.last:,}, {_describe_steps(training)}"
    if len(beats) > _SHOWN_TRAININGS:
        yield f"and {show_count(len(beats) - _SHOWN_TRAININGS, 'more training')} in progress"


def show_preview(preview: RunPreview) -> None:
    """Print done and missing evaluations and unusable results, before a run begins."""
    total = preview.plan.n_evaluations
    say(
        f"Planned {show_count(total, 'evaluation')} of {show_count(preview.plan.n_network_keys, 'network-key pair')}: "
        f"{preview.done:,} done, {total - preview.done:,} missing."
    )
    say_each([f"Damaged result file set aside, its evaluations are recomputed: {shard}" for shard in preview.damaged])
    say_each(preview.stale)


class RunDisplay:
    """Progress of a run: a live display on a terminal, elsewhere a line from time to time."""

    def __init__(self, activity: str = "Evaluating", counted: str = "evaluations") -> None:
        self._activity, self._counted = activity, counted
        self._live = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}", markup=False),
            console=err,
            disable=not err.is_terminal,
        )
        self._tasks: dict[str, TaskID] = {}
        self._last_log = time.monotonic()
        self._logged_done: int | None = None
        self._shown_failures: set[str] = set()

    def showing(self) -> AbstractContextManager[object]:
        return self._live

    def update(self, progress: RunProgress, event: Event | None) -> None:
        """Show progress; print a separate line for a new failure and for a lost worker."""
        from robust201.core.records import UnitFailure
        from robust201.runtime.executors.base import BundleLost, WorkerLost

        if isinstance(event, UnitFailure) and event.message not in self._shown_failures:
            self._shown_failures.add(event.message)
            say(f"failed: {event.part.label}: {event.message}")
        elif isinstance(event, WorkerLost) or (isinstance(event, BundleLost) and event.started):
            say(f"worker {'preempted' if event.preempted else 'lost'}: {event.reason}; retrying")
        is_rate_known = progress.is_settled
        rate, left = progress.evaluations_per_second, progress.seconds_left
        done, total = progress.done_evaluations, progress.total_evaluations
        is_complete = done == total
        if is_complete:
            speed = ", ".join(filter(None, (show_rate(rate, None, self._counted), "all done")))
        else:
            speed = show_rate(rate, left, self._counted) if is_rate_known else _UNKNOWN_RATE
            if progress.quiet_seconds >= _QUIET_SECONDS:
                speed += f"; nothing finished for {show_duration(progress.quiet_seconds)}"
        if not self._live.disable:
            rows = {self._activity: (done, total, f"{self._counted}; {speed}")}
            for beat in progress.trainings[:_SHOWN_TRAININGS]:
                if beat.training is not None and not is_complete:
                    text = f"steps; {_describe_steps(beat.training)}"
                    rows[escape(beat.label)] = (beat.training.step, beat.training.last, text)
            self._show_rows(rows)
        elif self._is_due(progress, event):
            self._last_log, self._logged_done = time.monotonic(), done
            say(f"{done:,}/{total:,} {self._counted}; {speed}")
            if not is_complete:
                say_each([f"  {line}" for line in describe_trainings_in_progress(progress.trainings)])

    def _is_due(self, progress: RunProgress, event: Event | None) -> bool:
        """Return whether to print a line: some time after the last line, and at the end of a long run."""
        if progress.done_evaluations == progress.total_evaluations:
            return self._logged_done not in {None, progress.done_evaluations}
        return time.monotonic() - self._last_log >= (_LOG_SECONDS if event else _QUIET_SECONDS)

    def _show_rows(self, rows: Mapping[str, tuple[int, int, str]]) -> None:
        for name in self._tasks.keys() - rows.keys():
            self._live.remove_task(self._tasks.pop(name))
        for name, (done, total, text) in rows.items():
            if name not in self._tasks:
                self._tasks[name] = self._live.add_task(name, total=total, note=text)
            self._live.update(self._tasks[name], completed=done, total=total, note=text)


def show_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table; the first column is text, the others are numbers."""
    table = Table(title=title, title_justify="left")
    for position, column in enumerate(columns):
        table.add_column(column, justify="left" if position == 0 else "right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    # Rich assumes 80 columns for a file and would cut a wider table.
    console = out if out.is_terminal else Console(file=out.file, width=200, **_STYLE)
    console.print(table)


def show_plan(summary: Mapping[str, Any]) -> None:
    """Print a plan's counts and estimates (see `planning.plan.Plan.summary`)."""
    show_table(
        f"Sweep {summary['name']}",
        ("", "value"),
        [
            ("architectures", f"{summary['architectures']:,}"),
            ("network-key pairs", f"{summary['units']:,}"),
            ("evaluations", f"{summary['evaluations']:,}"),
            ("results, estimated", show_bytes(summary["estimated_shard_bytes"])),
            ("JSON, estimated", show_bytes(summary["estimated_json_bytes"])),
            *_describe_hours(summary),
        ],
    )


def show_training_plan(summary: Mapping[str, Any]) -> None:
    """Print counts and estimates of trainings (see `planning.training_plan.estimate_trainings`)."""
    by_recipe = summary["trainings_by_recipe"]
    show_table(
        f"Trainings {summary['name']}",
        ("", "value"),
        [
            ("architectures", f"{summary['architectures']:,}"),
            ("trainings", f"{summary['trainings']:,}"),
            *((f"of these, {name}", f"{count:,}") for name, count in by_recipe.items() if len(by_recipe) > 1),
            ("snapshots", f"{summary['snapshots']:,}"),
            ("steps", f"{summary['steps']:,}"),
            *_describe_hours(summary),
        ],
    )
    say_each([f"warning: {line}" for line in summary["warnings"]])


def show_hours(hours: float) -> str:
    """Render hours with one decimal, or with two significant digits below 1."""
    return f"{hours:,.1f}" if hours >= 1 else f"{hours:.2g}"


def _describe_hours(summary: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield worker-hours at the assumed speed; if the run chooses the device, for GPUs and for CPUs."""
    speed, cpu_speed = summary["assumed_gmacs_per_second"], summary["assumed_cpu_gmacs_per_second"]
    hours = summary["estimated_worker_hours"]
    device = {"cuda": " on GPUs", "cpu": " on CPUs"}.get(summary["device"], " on GPUs" if cpu_speed is not None else "")
    yield f"worker-hours{device} at {speed:,g} GMAC/s", show_hours(hours)
    if cpu_speed is not None:
        yield f"worker-hours on CPUs at {cpu_speed:,g} GMAC/s", show_hours(hours * speed / cpu_speed)


def show_tally(tally: RunTally, noun: str, complete: str, failures: str = "") -> int:
    """Print how a run ended, and return the exit code: 0 complete, 3 incomplete.

    `complete` is printed after a complete run; `failures` tells where to find all failures.
    """
    _show_work(tally, noun)
    if tally.failures and failures:
        say(failures)
    if tally.complete:
        say(complete)
        return 0
    if tally.abandoned:
        say("Work in progress did not finish in time and was abandoned.")
    say("Stopped on request." if tally.drained else "Incomplete.")
    say("Finished work is kept; run the same command again to resume.")
    return 3


def _show_work(tally: RunTally, noun: str) -> None:
    say(
        f"Computed {show_count(tally.computed, noun)} in {show_duration(tally.seconds)} of worker time; "
        f"{show_count(len(tally.failures), 'failure')}, {show_count(tally.deaths, 'worker')} died, "
        f"{tally.preemptions:,} {'was' if tally.preemptions == 1 else 'were'} preempted."
    )
    # A damaged checkpoint fails every part of its network with the same message.
    counts = Counter(failure.message for failure in tally.failures)
    for message, count in counts.most_common(10):
        say(f"failed {show_count(count, 'time')}: {message}")


def show_import(report: ImportReport, store: Path) -> int:
    """Print what was imported and what was rejected, and return the exit code."""
    out.print(f"Imported {show_count(len(report.imported), 'network')} into {store}.", markup=False, highlight=False)
    say_each([f"rejected: {reason}" for reason in report.refused])
    return 0 if not report.refused else 3


@contextmanager
def counting(label: str, *columns: ProgressColumn) -> Iterator[Callable[[int, int | None], None]]:
    """Show progress while a block runs; yields a function to call with (done, total)."""
    columns = columns or (MofNCompleteColumn(),)
    with Progress(
        TextColumn("{task.description}"), BarColumn(), *columns, console=err, disable=not err.is_terminal
    ) as live:
        task = live.add_task(label, total=None)
        yield lambda done, total: live.update(task, completed=done, total=total)


def counting_bytes(label: str) -> AbstractContextManager[Callable[[int, int | None], None]]:
    """Show bytes, rate and remaining time while a block runs (see `counting`)."""
    return counting(label, DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())


def show_health_check(check: HealthCheck) -> None:
    """Print a check of `doctor`, with its fix if it failed."""
    mark = "[red]fix [/red]" if not check.ok else "[yellow]warn[/yellow]" if check.warns else "[green]ok  [/green]"
    out.print(mark, f"{check.what}: {escape(check.detail)}", highlight=False)
    if not check.ok or check.warns:
        out.print(f"     {check.fix}", markup=False, highlight=False)


def show_export(report: ExportReport) -> int:
    """Print what an export wrote and what is missing, and return the exit code."""
    counts = show_count(len(report.files), "file"), show_count(report.n_evaluations, "evaluation")
    size = f"{counts[0]}, {report.n_bytes / 1e6:,.1f} MB, {counts[1]}"
    out.print(f"Wrote {report.out}: {size}.", markup=False, highlight=False)
    if report.removed:
        files = show_count(len(report.removed), "file")
        say(f"Removed {files} of an earlier export that this one does not contain, such as {report.removed[0]}.")
    for (dataset, key), count in report.missing.items():
        say(f"missing: {show_count(count, 'evaluation')} of {dataset} {key}")
    return 0 if report.complete else 3


def show_verdict(verdict: Verdict, results: Path, *, as_json: bool = False) -> int:
    """Print the result of verification, and return the exit code: 4 damaged, 3 evaluations missing or requeued."""
    if as_json:
        out.print_json(data=verdict.to_payload())
    problems = [*(f"{found.kind}: {found.message}" for found in verdict.findings), *verdict.export]
    rest = "" if as_json else "--json lists all"
    say_each(problems, rest=rest)
    say_each([f"unfinished: {line}" for line in verdict.gaps], rest=rest)
    if verdict.weights is not None:
        say_each([f"warning: {network.message}" for network in verdict.weights.unexpected], rest=rest)
    say_each([f"warning: {flag.message}" for flag in verdict.flags or ()], rest=rest)
    say_each([f"Moved to damaged/: {shard}" for shard in verdict.requeued], rest=rest)
    if not as_json:
        result = f"{show_count(len(problems), 'problem')} found" if problems else _describe_checked(verdict)
        out.print(result, markup=False, highlight=False)
    if verdict.requeued:
        say(f"Their evaluations now count as missing; recompute them with: robust201 run SWEEP.yaml ({results})")
    if verdict.sound:
        return 3 if verdict.n_missing else 0
    return 3 if verdict.requeued and not verdict.export else 4


def _describe_checked(verdict: Verdict) -> str:
    counts = [f"{show_count(verdict.n_shards, 'result file')}, {show_count(verdict.n_evaluations, 'evaluation')} valid"]
    if verdict.n_planned is None:
        counts.append("no plan, so it is not known whether evaluations are missing")
    else:
        gaps = f", {show_count(len(verdict.gaps), 'network-key pair')} with gaps" if verdict.gaps else ""
        counts.append(f"{verdict.n_missing:,} of {verdict.n_planned:,} missing{gaps}")
    if verdict.n_exported is not None:
        agree = "agrees" if verdict.n_exported == 1 else "agree"
        counts.append(f"the export's {show_count(verdict.n_exported, 'file')} {agree}")
    return f"{'; '.join([*counts, *_describe_networks(verdict)])}."


def _describe_networks(verdict: Verdict | DatasetVerdict) -> Iterator[str]:
    if verdict.weights is not None and verdict.weights.n_checked:
        n_checked, n_unexpected = verdict.weights.n_checked, len(verdict.weights.unexpected)
        yield (
            f"clean accuracy as recorded with the weights for {n_checked - n_unexpected:,} of "
            f"{show_count(n_checked, 'network')}"
        )
    if verdict.flags is not None:
        yield f"{show_count(len(verdict.flags), 'sign')} of weak attacks"


def show_dataset_verdict(verdict: DatasetVerdict, *, as_json: bool = False) -> int:
    """Print the result of verifying a dataset, and return the exit code: 4 if it is damaged."""
    if as_json:
        out.print_json(data=verdict.to_payload())
    rest = "" if as_json else "--json lists all"
    say_each(verdict.problems, rest=rest)
    warnings = [*verdict.remarks, *(flag.message for flag in verdict.flags or ())]
    if verdict.weights is not None:
        warnings += [network.message for network in verdict.weights.unexpected]
    say_each([f"warning: {line}" for line in warnings], rest=rest)
    if not as_json:
        listed = "no SHA256SUMS" if verdict.n_listed is None else show_count(verdict.n_listed, "listed file")
        checked = [f"{show_count(verdict.n_evaluations, 'evaluation')} valid", listed, *_describe_networks(verdict)]
        result = f"{'; '.join(checked)}."
        if verdict.problems:
            result = f"{show_count(len(verdict.problems), 'problem')} found"
        out.print(result, markup=False, highlight=False)
    return 0 if verdict.sound else 4


def show_comparison(report: ComparisonReport, *, all_rows: bool = False) -> None:
    """Print a comparison of two result sets: the verdict, then each dataset, key and strength that differs."""
    verdict = "within" if report.within else "beyond"
    n_all, n_different = len(report.comparisons), len(report.different)
    out.print(
        f"largest difference {report.max_difference:g}, {verdict} the tolerance of {report.tolerance:g}; "
        f"{n_different:,} of {show_count(n_all, 'row')} {'differs' if n_different == 1 else 'differ'}, "
        f"{n_all - n_different:,} {'is' if n_all - n_different == 1 else 'are'} equal"
    )
    first_source, second_source = report.sources
    out.print(
        f"read from the first set: {first_source}; from the second: {second_source}", markup=False, highlight=False
    )
    for line in report.remarks:
        say(f"warning: {line}.")
    if not report.within and report.rounding > report.tolerance:
        counts = ["all decimals" if count is None else show_count(count, "decimal") for count in report.decimals]
        say(
            f"Accuracies have {counts[0]} in the first set and {counts[1]} in the second. Rounding alone "
            f"causes differences of up to {report.rounding:g}; accept them with: --tolerance {report.rounding:g}"
        )
    first, both, second = report.architectures
    out.print(f"architectures: {both} in both, {first} only in the first, {second} only in the second")
    for ordinal, names in (("first", report.names_only_first), ("second", report.names_only_second)):
        if names:
            out.print(f"only in the {ordinal}: {', '.join(names)}", markup=False, highlight=False)
    rows = [
        (
            f"{row.dataset} {row.key} {row.strength:g}",
            str(row.n_architectures),
            f"{row.max_difference:.4f}",
            f"{row.mean_absolute_difference:.5f}",
            f"{row.mean_difference:+z.5f}",
            "-" if row.kendall_tau is None else f"{row.kendall_tau:.4f}",
            "  ".join(f"{show_architecture(i)} {before:.4f}→{after:.4f}" for i, before, after in row.moved_most[:2]),
        )
        for row in (report.comparisons if all_rows else report.different)
    ]
    columns = ("", "networks", "max |difference|", "mean |difference|", "mean difference", "Kendall tau", "moved most")
    if rows:
        show_table("Accuracy of the second set against the first", columns, rows)


def show_metrics(metrics: DerivedMetrics) -> None:
    """Print rankings with intervals, metrics over the architectures, and the results that missing metrics need."""
    rankings = [
        (
            f"{row.dataset} {row.key} {row.strength:g}",
            show_architecture(row.best),
            f"{row.accuracies.iloc[0]:.4f}",
            f"[{row.low[0]:.4f}, {row.high[0]:.4f}]",
            f"{len(row.tied):,} of {len(row.accuracies):,}",
            "same images" if row.paired else "accuracies",
            *(f"{estimate.value:.4f} [{estimate.low:.4f}, {estimate.high:.4f}]" for estimate in row.bootstrap.values()),
        )
        for row in metrics.rankings
    ]
    if rankings:
        names = {name: name.replace("_", " ") for row in metrics.rankings for name in row.bootstrap}
        columns = ("", "best", "accuracy", "95% interval", "tied with the best", "compared by", *names.values())
        show_table("Rankings", columns, [(*row, *[""] * (len(columns) - len(row))) for row in rankings])
    rows = []
    for metric in metrics.metrics:
        keys = metric.key if len(metric.key) <= _MAX_KEY_LENGTH else f"{metric.key.count('+') + 1} keys"
        values = metric.values.dropna()
        numbers = (
            [f"{value:.4f}" for value in (values.min(), values.median(), values.max())] if len(values) else ["-"] * 3
        )
        label = f"{metric.dataset} {keys}" + ("" if metric.strength is None else f" {metric.strength:g}")
        rows.append((label, metric.metric, *numbers, f"{len(values):,}", metric.note))
    if rows:
        columns = ("", "metric", "lowest", "median", "highest", "networks", "")
        show_table("Metrics", columns, rows)
    if metrics.agreements:
        agreement_rows = [
            (
                f"{agreement.dataset} {agreement.key}",
                f"{agreement.kendall:.3f} [{agreement.low:.3f}, {agreement.high:.3f}]",
                f"{agreement.overlap} of {agreement.top}",
                f"{agreement.n:,}",
            )
            for agreement in metrics.agreements
        ]
        columns = ("", "Kendall's tau, 95% interval", "best by both", "networks")
        show_table("Ranks by robustness R against ranks by mean accuracy under the attack", columns, agreement_rows)
    for name, needed in metrics.needs.items():
        say(f"{name}: needs {needed}.")


def show_summary(rows: Sequence[SummaryRow]) -> None:
    """Print the median accuracy over the architectures: one line per dataset and key, one column per strength."""
    from robust201.reader.result_files import kind_of

    titles = {"attack": "epsilon in 1/255, 0 is clean", "corruption": "severity", "other": "strength"}
    for kind, title in titles.items():
        kinds = ("clean", "attack") if kind == "attack" else (kind,)
        chosen = [row for row in rows if kind_of(row.key) in kinds]
        strengths = sorted({row.strength for row in chosen})
        medians: dict[str, dict[float, str]] = {}
        for row in chosen:
            medians.setdefault(f"{row.dataset} {row.key}", {})[row.strength] = f"{row.median:.2f}"
        if medians:
            show_table(
                f"Median accuracy of {show_count(max(row.n_architectures for row in chosen), 'network')} by {title}",
                ("", *(f"{strength:g}" for strength in strengths)),
                [(name, *(values.get(strength, "") for strength in strengths)) for name, values in medians.items()],
            )
