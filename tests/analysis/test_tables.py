"""Numbers with intervals, and their tables: asterisks or bold for the best, escaped special characters."""

import math

import numpy as np
import pandas as pd
import pytest

from robust201.analysis.comparison import Comparison
from robust201.analysis.evaluation import Evaluation, KeyResults
from robust201.analysis.tables import Cell, format_estimate, format_percent, latex_table, text_table


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (format_percent(0.12344, 0.1, 0.15), "12.3 [10.0, 15.0]"),
        (format_percent(0.5, unit="%"), "50.0%"),
        (format_percent(-0.0001, -0.01, 0.02, sign="+"), "+0.0 [-1.0, +2.0]"),
        (format_estimate(0.523, 0.4, 0.6), "0.52 [0.40, 0.60]"),
        (format_estimate(math.nan, 0.4, 0.6), "-"),
    ],
)
def test_formatted_numbers_include_their_interval(text, expected):
    assert text == expected


def test_tables_mark_the_best_and_escape_text():
    rows = [["a_1", Cell("80.0 [70.0, 90.0]", is_best=True)], ["b", Cell("7.0 [1.0, 9.0]")]]
    assert text_table(["network", "Clean, %"], rows, n_left=1).splitlines() == [
        "network            Clean, %",
        "a_1      *80.0 [70.0, 90.0]",
        "b            7.0 [1.0, 9.0]",
    ]
    latex = latex_table(["network", "Clean, %"], rows, n_left=1, caption="50% are bold")
    assert latex.splitlines()[2:9] == [
        r"\caption{50\% are bold}",
        r"\begin{tabular}{lr}",
        r"\hline",
        r"network & Clean, \% \\",
        r"\hline",
        r"a\_1 & \textbf{80.0} {\scriptsize [70.0, 90.0]} \\",
        r"b & 7.0 {\scriptsize [1.0, 9.0]} \\",
    ]


def test_latex_of_an_evaluation_has_a_row_per_key_and_strength():
    rows = [("clean", 0.0, 0.9), ("pgd", 8.0, 0.1234), ("pgd_l2", 0.5, 0.5), ("jacobian", 0.0, math.nan)]
    results = {
        key: KeyResults(
            ({"key": key, "strength": strength, "accuracy": accuracy, "low": accuracy, "high": accuracy},), {}, {}
        )
        for key, strength, accuracy in rows
    }
    latex = Evaluation("Net", "", "", (), np.arange(1000), results).latex()
    assert "on 1,000 images" in latex
    for line in (
        r"Clean &  & 90.0 {\scriptsize [90.0, 90.0]} \\",
        r"PGD & $\varepsilon$ = 8/255 & 12.3 {\scriptsize",
        r"PGD-L2 & $\varepsilon$ = 0.5 (L2) & 50.0 {\scriptsize",
    ):
        assert line in latex
    assert "Jacobian" not in latex


def test_latex_of_a_comparison_has_best_and_tied_networks_in_bold():
    pairs = [("a_1", "b", 0.8, 0.7, 0.001), ("a_1", "c%", 0.8, 0.79, 0.5), ("b", "c%", 0.7, 0.79, 0.001)]
    fields = ("first", "second", "first_accuracy", "second_accuracy", "adjusted_p_value")
    table = pd.DataFrame(pairs, columns=fields).assign(key="fgsm", strength=1.0, unit="/255", n_images=100)
    latex = Comparison(table).latex()
    assert r"Key & Strength & a\_1 & b & c\% \\" in latex
    assert r"FGSM & $\varepsilon$ = 1/255 & \textbf{80.0} & 70.0 & \textbf{79.0} \\" in latex
    assert "on 100 images. Bold: best, or not significantly different from the best (McNemar" in latex
    assert "on 60 to 100 images." in Comparison(table.assign(n_images=[100, 60, 100])).latex()
    latex_of_doubtful_network = Comparison(table, {"a_1": ["outputs are bounded"]}).latex()
    assert r"a\_1 (doubtful) & b" in latex_of_doubtful_network
    assert r"& 80.0 & 70.0 & \textbf{79.0}" in latex_of_doubtful_network
