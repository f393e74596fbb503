"""LaTeX tables: percentages, the best network and its ties in bold, and escaped special characters."""

import pandas as pd

from robust201.analysis.comparison import LEVEL
from robust201.analysis.latex_tables import comparison_latex, evaluation_latex


def table_rows(text):
    """Return the rows of a LaTeX table, without its header and rules."""
    return [line.removesuffix(r" \\") for line in text.splitlines()[4:-2]]


def test_evaluation_latex_has_a_row_per_key_and_strength():
    table = pd.DataFrame(
        {
            "key": ["clean", "pgd", "pgd_l2", "jacobian"],
            "strength": [0.0, 8.0, 0.5, 0.0],
            "accuracy": [0.9, 0.1234, 0.5, float("nan")],
            "low": [0.85, 0.1, 0.4, float("nan")],
            "high": [0.95, 0.15, 0.6, float("nan")],
        }
    )
    text = evaluation_latex(table)
    assert text.startswith("\\begin{tabular}{llrr}\n")
    assert text.endswith("\\end{tabular}\n")
    assert table_rows(text) == [
        "Clean &  & 90.0 & [85.0, 95.0]",
        r"PGD & $\varepsilon$ = 8/255 & 12.3 & [10.0, 15.0]",
        r"PGD-L2 & $\varepsilon$ = 0.5 (L2) & 50.0 & [40.0, 60.0]",
    ]


def test_comparison_latex_has_best_and_tied_networks_in_bold():
    pairs = [("a_1", "b", 0.8, 0.7, 0.001), ("a_1", "c%", 0.8, 0.79, 0.5), ("b", "c%", 0.7, 0.79, 0.001)]
    table = pd.DataFrame(
        [
            {"first": first, "second": second, "key": "fgsm", "strength": 1.0}
            | {"first_accuracy": first_accuracy, "second_accuracy": second_accuracy, "adjusted_p_value": p}
            for first, second, first_accuracy, second_accuracy, p in pairs
        ]
    )
    text = comparison_latex(table, LEVEL)
    assert text.splitlines()[2] == r"Key & Strength & a\_1 & b & c\% \\"
    assert table_rows(text) == [r"FGSM & $\varepsilon$ = 1/255 & \textbf{80.0} & 70.0 & \textbf{79.0}"]
