"""Claims of the dataset paper: verdicts on constructed results, and the page's verdicts on the shipped results."""

import json
import shutil
import sys

import numpy as np
import pandas as pd
import pytest

from jobs.papers.dataset import analyse, distributions
from jobs.papers.dataset.results import Results, operations
from jobs.papers.verdicts import FAILS, HOLDS, UNDECIDED
from robust201.networks.nb201 import cells as nasbench201
from tests.conftest import REPOSITORY

SPECS = nasbench201.specs()
CELLS = {index: SPECS[index] for index in nasbench201.evaluated_indices()}
CLASSES = dict(zip(SPECS, nasbench201.isomorphs(), strict=True))
SMALL_NETWORK = {"network": {"channels": 8, "cells": 1}}


def make_results(accuracies, *, sweep=None, jacobian=None):
    """Return results from {(key, strength): {cell: accuracy}}; no `sweep` means published files."""
    return Results(None, sweep or {}, pd.DataFrame(accuracies), CLASSES, CELLS, pd.Series(jacobian or {}, dtype=float))


def plant_all_cells(sign):
    """Return results of all cells in which the claims about operations hold (sign 1) or their opposites (-1)."""
    edges = {index: operations(cell) for index, cell in CELLS.items()}
    robust = {
        index: 0.3
        + sign
        * (
            0.15 * ("conv" in operation[0])
            - 0.03 * ("conv" in operation[1])
            - 0.03 * ("conv" in operation[3])
            + 0.06 * (operation[2] == "avg_pool_3x3")
        )
        for index, operation in edges.items()
    }
    is_other = {index: index != analyse.BEST_CLEAN for index in edges}
    return make_results(
        {
            ("clean", 0.0): {index: 0.9 - 0.05 * other for index, other in is_other.items()},
            ("pgd", 1.0): robust,
            ("fog", 3.0): {index: 0.6 - sign * 0.1 * other for index, other in is_other.items()},
        }
    )


@pytest.mark.parametrize(("sign", "expected"), [(1, HOLDS), (-1, FAILS)])
def test_claims_about_all_cells_are_decided_by_planted_effects(sign, expected):
    results = plant_all_cells(sign)
    assert analyse.claim_top_cells(results).verdict == expected
    pooling, every_change = analyse.claims_about_neighbours(results)
    assert (pooling.verdict, every_change.verdict) == (expected, expected)
    assert every_change.ours.startswith(f"{24 if sign > 0 else 0} of 24 changes do so")
    assert analyse.claim_best_cell(results, analyse.BEST_CLEAN, "clean", [analyse.CLEAN]).verdict == HOLDS
    assert analyse.claim_cell_counts(results).verdict == HOLDS


def test_claim_about_a_cell_needs_several_training_runs_for_networks_of_another_size():
    accuracies = {("clean", 0.0): {13714: 0.80, 21: 0.90}}
    claim = analyse.claim_best_cell(make_results(accuracies), 13714, "clean", [analyse.CLEAN])
    assert claim.verdict == FAILS
    small = make_results(accuracies, sweep=SMALL_NETWORK)
    claim = analyse.claim_best_cell(small, 13714, "clean", [analyse.CLEAN])
    assert (claim.verdict, claim.would_decide) == (UNDECIDED, "two or more training runs per cell")
    close = make_results({("clean", 0.0): {13714: 0.899, 21: 0.90}})
    claim = analyse.claim_best_cell(close, 13714, "clean", [analyse.CLEAN])
    assert claim.verdict == UNDECIDED
    assert claim.would_decide.endswith("images")
    best = make_results({("clean", 0.0): {13714: 0.95, 21: 0.90}})
    claim = analyse.claim_best_cell(best, 13714, "clean", [analyse.CLEAN])
    assert (claim.verdict, claim.would_decide) == (UNDECIDED, "results of the other cells")


@pytest.mark.parametrize(("gap", "verdict"), [(0.1, HOLDS), (-0.1, FAILS), (0.001, UNDECIDED)])
def test_gap_between_pgd_and_apgd_is_judged_by_its_interval(gap, verdict):
    cells = [*CELLS][:12]
    noise = np.random.default_rng(1).normal(0, 0.02, len(cells))
    results = make_results(
        {
            ("pgd", 1.0): dict.fromkeys(cells, 0.4),
            ("aa_apgd-ce", 1.0): dict(zip(cells, 0.4 - gap + noise - noise.mean(), strict=True)),
        }
    )
    claim = analyse.claim_pgd_against_apgd(results)
    assert claim.verdict == verdict
    assert claim.would_decide.endswith("cells") == (verdict == UNDECIDED)


def test_square_with_fewer_queries_cannot_refute_the_order_of_attacks():
    cells = [*CELLS][:12]
    accuracies = {("fgsm", 2.0): dict.fromkeys(cells, 0.2), ("aa_square", 2.0): dict.fromkeys(cells, 0.6)}
    protocols = {"protocols": [{"key": "aa_square", "parameters": {"queries": 500}}]}
    assert analyse.claim_order_of_attacks(make_results(accuracies)).verdict == FAILS
    assert analyse.claim_order_of_attacks(make_results(accuracies, sweep=protocols)).verdict == UNDECIDED
    assert "left out" in analyse.claim_order_of_attacks(make_results(accuracies, sweep=protocols)).published


@pytest.mark.parametrize(
    ("signs", "n_cells", "verdict"),
    [((-1, -1, -1), 20, HOLDS), ((1, -1, -1), 400, FAILS), ((-1, 0, -1), 400, FAILS), ((-1, 0, -1), 20, UNDECIDED)],
)
def test_jacobian_claim_needs_equal_signs_and_no_weak_correlation(signs, n_cells, verdict):
    cells = [*CELLS][:n_cells]
    norms = np.random.default_rng(0).permutation(len(cells)) / len(cells)
    unrelated = np.random.default_rng(1).permutation(len(cells)) / len(cells)
    accuracies = {
        ("pgd", strength): dict(zip(cells, unrelated if sign == 0 else 0.5 + 0.2 * sign * norms, strict=True))
        for strength, sign in zip(analyse.SMALL_EPSILONS, signs, strict=True)
    }
    claim = analyse.claim_jacobian(make_results(accuracies, jacobian=dict(zip(cells, norms, strict=True))))
    assert claim.verdict == verdict


def test_jacobian_claim_needs_ten_distinct_accuracies():
    accuracies = {("pgd", epsilon): dict(zip(CELLS, [0.0, 0.002] * 11, strict=False)) for epsilon in (0.1, 0.5, 1.0)}
    results = make_results(accuracies, jacobian=dict(zip(CELLS, range(22), strict=False)))
    assert analyse.claim_jacobian(results).ours == "too few results"


def test_claim_about_cells_of_equal_size_needs_the_published_factor():
    same_size = [index for index, cell in CELLS.items() if analyse.kernel_parameters(cell) == 18]
    assert len(same_size) == 408
    wide = make_results({("pgd", 1.0): dict(zip(same_size, np.linspace(0.2, 0.45, 408), strict=True))})
    assert analyse.claim_range_at_same_size(wide).verdict == HOLDS
    narrow = make_results({("pgd", 1.0): dict.fromkeys(same_size, 0.3)})
    assert analyse.claim_range_at_same_size(narrow).verdict == FAILS
    few = make_results({("pgd", 1.0): dict.fromkeys(same_size[:10], 0.3)})
    claim = analyse.claim_range_at_same_size(few)
    assert (claim.verdict, claim.would_decide) == (UNDECIDED, "results of the other 398 cells")


@pytest.mark.parametrize(
    ("accurate", "robust", "verdict"),
    [((0.95, 0.1, 0.1), (0.8, 0.5, 0.4), HOLDS), ((0.9, 0.4, 0.4), (0.8, 0.401, 0.5), UNDECIDED)],
)
def test_search_claim_is_judged_by_intervals_over_images(accurate, robust, verdict):
    columns = [("clean", 0.0), ("fgsm", 1.0), ("pgd", 1.0)]
    accuracies = {
        column: dict(enumerate(pair)) for column, pair in zip(columns, zip(accurate, robust, strict=True), strict=True)
    }
    assert analyse.claim_search(make_results(accuracies)).verdict == verdict


FORTY_CELLS = [index for index in [*CELLS][::100] if analyse.kernel_parameters(CELLS[index])][:40]
NOISE = np.random.default_rng(0).random((6, len(FORTY_CELLS)))
SIZES = np.array([analyse.kernel_parameters(CELLS[index]) for index in FORTY_CELLS])


def make_forty_cells(columns):
    return make_results({column: dict(zip(FORTY_CELLS, values, strict=True)) for column, values in columns.items()})


@pytest.mark.parametrize(("factor", "verdict"), [(3, HOLDS), (1, UNDECIDED), (0.3, FAILS)])
def test_claims_about_gaps_follow_planted_spreads(factor, verdict):
    weak = {("clean", 0.0): 0.5 + 0.1 * NOISE[0], ("fog", 1.0): 0.4 + 0.1 * NOISE[1]}
    strong = {("pgd", 1.0): 0.1 * factor * NOISE[0], ("fog", 5.0): 0.1 * factor * NOISE[1]}
    claims = distributions.claims_about_gaps(make_forty_cells(weak | strong))
    assert [claim.verdict for claim in claims] == [verdict, verdict]


@pytest.mark.parametrize(("agree", "verdict"), [(True, HOLDS), (False, FAILS)])
def test_agreement_within_attacks_is_compared_with_agreement_between_attacks(agree, verdict):
    rows = {("pgd", 1.0): 0, ("fgsm", 2.0): int(agree), ("fgsm", 1.0): 1, ("pgd", 2.0): int(not agree)}
    results = make_forty_cells({column: NOISE[row] for column, row in rows.items()})
    assert distributions.claim_within_and_between_attacks(results).verdict == verdict


@pytest.mark.parametrize(("is_shared", "verdict"), [(False, HOLDS), (True, FAILS)])
def test_claim_of_uncorrelated_corruptions_follows_planted_rankings(is_shared, verdict):
    independent = np.linalg.qr(NOISE.T - NOISE.mean(axis=1))[0].T
    results = make_forty_cells({(f"corruption {row}", 3.0): independent[0 if is_shared else row] for row in range(5)})
    assert distributions.claim_uncorrelated_corruptions(results).verdict == verdict


@pytest.mark.parametrize(("sign", "verdict"), [(1, HOLDS), (-1, FAILS), (0, UNDECIDED)])
def test_claim_about_larger_cells_follows_planted_accuracies(sign, verdict):
    results = make_forty_cells({("pgd", 1.0): 0.5 + 0.005 * sign * SIZES + 0.05 * NOISE[0]})
    assert distributions.claim_kernel_parameters(results).verdict == verdict


@pytest.mark.parametrize(("linear", "verdict"), [("fog", HOLDS), ("pgd", FAILS)])
def test_claim_about_linearity_follows_planted_accuracies(linear, verdict):
    keys = {"fog": 3.0, "pgd": 1.0}
    columns = {(key, strength): NOISE[0] if key == linear else NOISE[1] for key, strength in keys.items()}
    assert distributions.claim_linearity(make_forty_cells({("clean", 0.0): NOISE[0], **columns})).verdict == verdict


@pytest.mark.parametrize(("sign", "verdict"), [(1, HOLDS), (-1, FAILS)])
def test_claims_about_confidences_follow_planted_confidences(monkeypatch, sign, verdict):
    right_changes, wrong_changes = (0.2, 0.1, 0.0), (0.0, 0.2 * (sign > 0), 0.1 * (sign < 0))
    right, wrong = (
        pd.DataFrame({epsilon: 0.5 + sign * change + 0.01 * NOISE[0] for epsilon, change in changes.items()})
        for changes in (dict(zip((0.0, 1.0, 8.0), row, strict=True)) for row in (right_changes, wrong_changes))
    )
    monkeypatch.setattr(Results, "confidences", lambda _self, _attack: (right, wrong))
    falling, peaked = distributions.claims_about_confidences(make_forty_cells({("clean", 0.0): NOISE[0]}))
    assert falling.verdict == verdict
    assert (peaked.verdict == HOLDS) == (sign > 0)


def test_weighted_rank_correlations_match_repeated_cells():
    values, counts = np.round(NOISE[:3].T, 1), np.arange(len(FORTY_CELLS)) % 3
    repeated = pd.DataFrame(np.repeat(values, counts, axis=0))
    weighted = distributions.rank_correlations(values, counts.astype(float))
    assert weighted == pytest.approx(repeated.corr(method="kendall").to_numpy())


def test_claims_about_distributions_of_few_cells_are_undecided():
    claims = [*distributions.claims_about_distributions(make_results({("pgd", 1.0): {21: 0.4}}))]
    assert {claim.verdict for claim in claims} == {UNDECIDED}


def test_published_files_are_read(tmp_path):
    (tmp_path / "cifar10").mkdir()
    names = [str(index) for index in [*CELLS][:12]]
    (tmp_path / "meta.json").write_text(nasbench201.meta_text({"pgd": (1.0, 8.0)}))
    for key, values in {"clean": 0.9, "pgd@Linf": [0.4, 0.1]}.items():
        content = {"cifar10": {key: {"accuracy": dict.fromkeys(names, values)}}}
        (tmp_path / "cifar10" / f"{key}_accuracy.json").write_text(json.dumps(content))
    results = analyse.read_results(tmp_path)
    assert len(results.cells) == 6466
    assert results.accuracies["pgd", 1.0].tolist() == [0.4] * 12
    assert (results.n_images, results.has_paper_network_size) == (10_000, True)
    medians = analyse.compare_medians(results).set_index(["key", "strength"])
    assert medians.loc[("pgd", 1.0), ["ours", "published"]].tolist() == [0.4, 0.349]


def test_page_has_the_verdicts_on_shipped_results(tmp_path, monkeypatch):
    folder = REPOSITORY / "jobs/papers/dataset"
    shutil.copy(folder / "README.md", tmp_path)
    export = "benchmark_data/cells-cifar10"
    monkeypatch.chdir(REPOSITORY)
    monkeypatch.setattr(sys, "argv", ["analyse", export, "--folder", str(tmp_path)])
    analyse.main()
    assert (tmp_path / "README.md").read_text() == (folder / "README.md").read_text()
    for name in ("claims", "medians"):
        assert (tmp_path / f"tables/{name}.csv").read_text() == (folder / f"tables/{name}.csv").read_text()
    claims = pd.read_csv(tmp_path / "tables/claims.csv")
    assert claims["verdict"].value_counts().to_dict() == {UNDECIDED: 13, HOLDS: 5, FAILS: 2}
    summary = (folder / "README.md").read_text()
    assert "two claims do not hold, five hold, and thirteen stay undecided" in summary.replace("\n", " ")
    cells = json.loads((REPOSITORY / export / "weights.json").read_text())["cifar10"]
    assert analyse.read_results(REPOSITORY / export).accuracies.shape == (len(cells), 108)
