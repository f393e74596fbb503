"""LaTeX tables of evaluations and comparisons; they need no LaTeX packages."""

import math
import re
from collections.abc import Mapping, Sequence

import pandas as pd

from robust201.analysis.labels import key_label, strength_label

_ESCAPES = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "ε": r"$\varepsilon$",
    **{character: f"\\{character}" for character in "&%$#_{}"},
}


def evaluation_latex(table: pd.DataFrame) -> str:
    """Return a tabular of accuracies in percent with their 95% intervals, one row per key and strength.

    Args:
        table: columns `key`, `strength`, `accuracy`, `low` and `high`; rows without an accuracy are left out.
    """
    rows = [
        [
            *_evaluation_cells(row["key"], row["strength"]),
            _format_percent(row["accuracy"]),
            _format_interval(row["low"], row["high"]),
        ]
        for row in table.dropna(subset="accuracy").to_dict("records")
    ]
    return _format_tabular("llrr", ["Key", "Strength", "Accuracy", r"95\% interval"], rows)


def comparison_latex(table: pd.DataFrame, level: float, doubtful: Sequence[str] = ()) -> str:
    """Return a tabular of accuracies in percent with one column per network; the best and its ties are bold.

    Args:
        table: result of `compare_evaluations`.
        level: significance level; a network is tied with the best if the adjusted p-value of their difference is at
            least `level`.
        doubtful: networks with doubtful accuracies, which are marked and never bold.
    """
    networks = list(dict.fromkeys([*table["first"], *table["second"]]))
    rows = []
    for (key, strength), pairs in table.groupby(["key", "strength"], sort=False):
        accuracies = dict(zip(pairs["first"], pairs["first_accuracy"], strict=True))
        accuracies |= dict(zip(pairs["second"], pairs["second_accuracy"], strict=True))
        best_network = max(accuracies, key=lambda name: accuracies[name])
        best_pairs = pairs[(pairs["first"] == best_network) | (pairs["second"] == best_network)]
        tied_pairs = best_pairs[best_pairs["adjusted_p_value"] >= level]
        bold_networks = {best_network, *tied_pairs["first"], *tied_pairs["second"]} - {*doubtful}
        percentages = [_format_percent(accuracies[name]) if name in accuracies else "--" for name in networks]
        cells = [
            rf"\textbf{{{percentage}}}" if name in bold_networks else percentage
            for name, percentage in zip(networks, percentages, strict=True)
        ]
        rows.append([*_evaluation_cells(str(key), float(str(strength))), *cells])
    headings = [_escape(name) + (" (doubtful)" if name in doubtful else "") for name in networks]
    return _format_tabular("ll" + "r" * len(networks), ["Key", "Strength", *headings], rows)


def leaderboard_latex(table: pd.DataFrame, labels: Mapping[str, str]) -> str:
    """Return a tabular of accuracies in percent with 95% intervals, one row per network and one column per evaluation.

    Args:
        table: columns `network`, `evaluation`, `accuracy`, `low`, `high` and `tied`; tied accuracies are bold.
        labels: labels of the evaluations, in the order of the columns.
    """
    cells = {
        (row["network"], row["evaluation"]): _leaderboard_cell(row["accuracy"], row["low"], row["high"], row["tied"])
        for row in table.to_dict("records")
    }
    rows = [
        [_escape(str(network)), *(cells.get((network, evaluation), "--") for evaluation in labels)]
        for network in dict.fromkeys(table["network"])
    ]
    return _format_tabular("l" + "r" * len(labels), ["Network", *map(_escape, labels.values())], rows)


def _leaderboard_cell(accuracy: float, low: float, high: float, is_tied: bool) -> str:
    percentage = _format_percent(accuracy)
    cell = rf"\textbf{{{percentage}}}" if is_tied else percentage
    return cell if math.isnan(low) else rf"{cell} {{\scriptsize {_format_interval(low, high)}}}"


def _evaluation_cells(key: str, strength: float) -> list[str]:
    return [_escape(key_label(key)), _escape(strength_label(key, strength))]


def _format_percent(fraction: float) -> str:
    return f"{100 * fraction:.1f}"


def _format_interval(low: float, high: float) -> str:
    return f"[{_format_percent(low)}, {_format_percent(high)}]"


def _escape(text: str) -> str:
    return re.sub("[" + re.escape("".join(_ESCAPES)) + "]", lambda match: _ESCAPES[match[0]], text)


def _format_tabular(alignments: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    table_lines = [rf"\begin{{tabular}}{{{alignments}}}", r"\hline", " & ".join(header) + r" \\", r"\hline"]
    table_lines += [" & ".join(row) + r" \\" for row in rows]
    return "\n".join([*table_lines, r"\hline", r"\end{tabular}", ""])
