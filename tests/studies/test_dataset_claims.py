"""The dataset paper's claims on synthetic results, in which each claim or its opposite is planted."""

import numpy as np
import pandas as pd
import pytest

from robust201.core.errors import ResultsError
from robust201.spaces.nasbench201 import cells as nasbench201
from robust201.spaces.nasbench201.cells import kernel_parameters
from robust201.studies.config import DatasetStudy
from robust201.studies.dataset_claims import FAILS, HOLDS, UNTESTED, check_claims, compare_curves, compare_medians
from robust201.studies.networks import Exports
from robust201.studies.pages import write_pages
from tests.support.small_results import results_of, write_results

EVALUATED = nasbench201.evaluated_indices()
NO_CORRELATIONS = pd.DataFrame()


def effect(spec, sign):
    """Return an effect on robustness as the paper describes it, or its opposite."""
    edges = nasbench201.parse(spec)
    convolved = ["conv" in operation for operation in edges]
    pooled = edges[2] == "avg_pool_3x3"
    return sign * (0.15 * convolved[0] - 0.03 * convolved[1] - 0.03 * convolved[3] + 0.03 * pooled)


def write_space(folder, sign=1):
    """Write results of all cells: clean accuracy grows with the parameters, and the rest follows `effect`."""
    specs = nasbench201.specs()
    size = {index: kernel_parameters(specs[index]) / 54 for index in EVALUATED}
    robust = {index: 0.3 + effect(specs[index], sign) for index in EVALUATED}
    keys = {
        "clean": {index: 0.5 + 0.4 * size[index] for index in EVALUATED},
        "fgsm": {index: [0.9 * robust[index], 0.0] for index in EVALUATED},
        "pgd": {index: [0.8 * robust[index], 0.0] for index in EVALUATED},
        "fog": {index: [0.4 + sign * 0.1 * size[index]] * 5 for index in EVALUATED},
    }
    return results_of(write_results(folder, {k: {str(i): v for i, v in rows.items()} for k, rows in keys.items()}))


def write_attacks(folder, values):
    """Write results of PGD and APGD-CE at 1 and 8/255 in the published layout."""
    write_results(folder, values)
    (folder / "meta.json").write_text(nasbench201.meta_text({"pgd": (1.0, 8.0), "aa_apgd-ce": (1.0, 8.0)}))
    return folder


def verdicts(results, correlations=NO_CORRELATIONS):
    return {claim.claim: claim.verdict for claim in check_claims(results, correlations)}


def verdict_on(verdict_by_claim, words):
    (verdict,) = [verdict for claim, verdict in verdict_by_claim.items() if words in claim]
    return verdict


PLANTED = ("non-isomorphic", "almost none has a convolution", "factor of two", "pooling on edge 3", "Every change")


@pytest.mark.parametrize(("sign", "expected"), [(1, HOLDS), (-1, FAILS)])
def test_check_claims_finds_planted_claims(tmp_path, sign, expected):
    verdict_by_claim = verdicts(write_space(tmp_path, sign))
    for words in PLANTED[1:]:
        # With the opposite sign, cells also differ by a factor of two.
        assert verdict_on(verdict_by_claim, words) == (HOLDS if words == "factor of two" else expected), words
    assert verdict_on(verdict_by_claim, PLANTED[0]) == HOLDS


def test_check_claims_leaves_claims_untested_on_part_of_the_space(tmp_path):
    few = {str(index): 0.5 for index in EVALUATED[:10]}
    verdict_by_claim = verdicts(
        results_of(write_results(tmp_path, {"clean": few, "pgd": {k: [0.3, 0.1] for k in few}}))
    )
    assert {verdict_on(verdict_by_claim, words) for words in PLANTED[1:]} == {UNTESTED}
    assert verdict_on(verdict_by_claim, "Jacobian") == UNTESTED


def test_check_claims_ranks_the_papers_best_cells(tmp_path):
    names = ["13714", "3456", "21"]
    clean = dict(zip(names, (0.9, 0.5, 0.6), strict=True))
    verdict_by_claim = verdicts(results_of(write_results(tmp_path, {"clean": clean})))
    assert verdict_on(verdict_by_claim, "#13714") == HOLDS
    assert verdict_on(verdict_by_claim, "#3456") == FAILS
    assert verdict_on(verdicts(results_of(write_results(tmp_path / "b", {"clean": {"21": 0.5}}))), "#3456") == UNTESTED


@pytest.mark.parametrize(("gap", "expected"), [(0.1, HOLDS), (-0.1, FAILS)])
def test_check_claims_compares_pgd_with_apgd(tmp_path, gap, expected):
    names = [str(index) for index in EVALUATED[:12]]
    spread = np.linspace(0, 0.02, len(names))
    values = {
        "pgd": {name: [0.4, 0.0] for name in names},
        "aa_apgd-ce@Linf": {name: [0.4 - gap - more, 0.0] for name, more in zip(names, spread, strict=True)},
    }
    verdict_by_claim = verdicts(results_of(write_attacks(tmp_path, {"clean": dict.fromkeys(names, 0.9)} | values)))
    assert verdict_on(verdict_by_claim, "APGD-CE leaves fewer") == expected
    assert verdict_on(verdict_by_claim, "have this order") == expected


@pytest.mark.parametrize(
    ("taus", "expected"), [((-0.6, -0.2), HOLDS), ((-0.1, 0.5), FAILS), ((-0.6, float("nan")), UNTESTED)]
)
def test_check_claims_follows_the_jacobian_over_epsilon(tmp_path, taus, expected):
    rows = pd.DataFrame({"measure": "Jacobian norm", "key": "pgd", "strength": (1.0, 8.0), "kendall": taus})
    results = results_of(write_results(tmp_path, {"clean": {"21": 0.5}}))
    assert verdict_on(verdicts(results, rows), "Jacobian") == expected


def test_medians_and_curves_are_compared_with_published_ones(tmp_path):
    pgd = {"0": [0.3, 0.0], "1": [0.5, 0.0], "2": [0.2, 0.1]}
    results = results_of(write_results(tmp_path, {"clean": {"0": 0.85}, "pgd": pgd}))
    medians = compare_medians(results).set_index(["key", "strength"])
    assert medians.loc[("pgd", 1.0), ["n", "ours", "printed"]].tolist() == [3, 0.3, 0.349]
    curve = compare_curves(results).set_index(["key", "strength"])
    assert curve.loc[("pgd", 1.0), "difference"] == pytest.approx(0.3 - 0.295)
    assert curve.loc[("clean", 0.0), "printed"] == 0.856


def study_of(dataset="cifar10"):
    fields = {"study": "dataset", "name": "planted", "sweeps": ["sweep.yaml"], "dataset": dataset}
    return DatasetStudy.model_validate(fields)


def test_page_begins_with_contradicted_claims(tmp_path):
    names = [str(index) for index in EVALUATED[:12]]
    values = {
        "clean": {name: 0.5 + 0.01 * index for index, name in enumerate(names)},
        "pgd": {name: [0.3 + 0.01 * index, 0.0] for index, name in enumerate(names)},
        "aa_apgd-ce@Linf": {name: [0.5, 0.0] for name in names},
    }
    folder = write_attacks(tmp_path / "data", values)
    page, *files = write_pages(study_of(), Exports([folder]), tmp_path / "out")
    text = page.read_text()
    assert text.splitlines()[2].startswith("These 12 cells on 10,000 images confirm ")
    assert "Contradicted: “By median accuracy" in text.splitlines()[2]
    assert {path.name for path in files} >= {"claims.csv", "medians.csv", "attacks.svg", "rank-correlation-attacks.svg"}
    assert all(path.is_file() for path in files)


def test_study_rejects_exports_without_its_dataset(tmp_path):
    folder = write_results(tmp_path / "data", {"clean": {"21": 0.5}})
    with pytest.raises(ResultsError, match="no export has accuracies on cifar100"):
        write_pages(study_of("cifar100"), Exports([folder]), tmp_path / "out")
