"""`robust201 rank`, and the options of `plot` and `report` that select networks."""

import json

import pandas as pd
from typer.testing import CliRunner

from robust201.cli.app import app

FOLDER = "bundled:benchmark_data/cells-cifar10"
SELECTION = ["--architectures", "21,13714,3456"]


def run_command(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_rank_prints_and_writes_table(tmp_path):
    output = run_command("rank", FOLDER, *SELECTION, "--keys", "clean,pgd:1/255", "--out", str(tmp_path / "table.tex"))
    assert "the most robust network is #3456 (PGD" in output
    assert (tmp_path / "table.tex").read_text().count("\\begin{tabular}{lrr}") == 1
    rows = json.loads(run_command("rank", FOLDER, *SELECTION, "--out", str(tmp_path / "table.csv"), "--json"))["rows"]
    csv_table = pd.read_csv(tmp_path / "table.csv")
    assert csv_table["network"].tolist() == [row["network"] for row in rows]
    assert set(csv_table["network"]) == {21, 13714, 3456}
    assert set(csv_table["evaluation"]) >= {"clean", "pgd:1/255", "corruption"}


def test_plot_and_report_show_selected_networks_and_keys(tmp_path):
    keys = ["--keys", "pgd"]
    run_command("plot", "attack-curves", FOLDER, *SELECTION, *keys, "--out", str(tmp_path / "curves.csv"))
    curves = pd.read_csv(tmp_path / "curves.csv")
    assert set(curves["network"]) == {"#21", "#3456", "#13714"}
    assert set(curves["key"]) == {"pgd"}
    assert (curves["low"] < curves["accuracy"]).any()
    run_command("report", FOLDER, *SELECTION, *keys, "--out", str(tmp_path / "page.html"))
    report = (tmp_path / "page.html").read_text()
    assert 'data-figure="attack-curves"' in report
    assert 'data-figure="corruption-curves"' not in report
    assert report.index("the most robust network is #3456 (PGD") < report.index("Terms")
