"""Checks of the dataset paper's claims, on synthetic results in which each claim or its opposite holds."""

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


def robustness_effect(spec, sign):
    """Return a cell's effect on robustness: the one that the paper describes (sign 1), or its opposite (-1)."""
    edges = nasbench201.parse(spec)
    has_convolution = ["conv" in operation for operation in edges]
    has_pooling = edges[2] == "avg_pool_3x3"
    return sign * (
        0.15 * has_convolution[0] - 0.03 * has_convolution[1] - 0.03 * has_convolution[3] + 0.03 * has_pooling
    )


def write_results_of_all_cells(folder, sign=1):
    """Write results of all evaluated cells.

    Clean accuracy increases with the number of parameters. Accuracies under attack depend on `robustness_effect`.
    """
    specs = nasbench201.specs()
    relative_size = {index: kernel_parameters(specs[index]) / 54 for index in EVALUATED}  # 54 for six 3x3 convolutions
    robust_accuracy = {index: 0.3 + robustness_effect(specs[index], sign) for index in EVALUATED}
    accuracies_by_key = {
        "clean": {index: 0.5 + 0.4 * relative_size[index] for index in EVALUATED},
        "fgsm": {index: [0.9 * robust_accuracy[index], 0.0] for index in EVALUATED},
        "pgd": {index: [0.8 * robust_accuracy[index], 0.0] for index in EVALUATED},
        "fog": {index: [0.4 + sign * 0.1 * relative_size[index]] * 5 for index in EVALUATED},
    }
    return results_of(
        write_results(
            folder,
            {
                key: {str(index): accuracies for index, accuracies in by_index.items()}
                for key, by_index in accuracies_by_key.items()
            },
        )
    )


def write_attack_results(folder, values):
    """Write results of PGD and APGD-CE at 1 and 8/255 in the published layout."""
    write_results(folder, values)
    (folder / "meta.json").write_text(nasbench201.meta_text({"pgd": (1.0, 8.0), "aa_apgd-ce": (1.0, 8.0)}))
    return folder


def check_verdicts(results, correlations=NO_CORRELATIONS):
    return {claim.claim: claim.verdict for claim in check_claims(results, correlations)}


def find_verdict(verdict_by_claim, claim_part):
    (verdict,) = [verdict for claim, verdict in verdict_by_claim.items() if claim_part in claim]
    return verdict


PLANTED_CLAIMS = (
    "non-isomorphic",
    "almost none has a convolution",
    "factor of two",
    "pooling on edge 3",
    "Every change",
)
"""Parts of the texts of claims that `write_results_of_all_cells` decides."""


@pytest.mark.parametrize(("sign", "expected"), [(1, HOLDS), (-1, FAILS)])
def test_check_claims_finds_whether_planted_claims_hold(tmp_path, sign, expected):
    verdict_by_claim = check_verdicts(write_results_of_all_cells(tmp_path, sign))
    for claim_part in PLANTED_CLAIMS[1:]:
        # With the opposite sign, cells also differ by a factor of two.
        expected_verdict = HOLDS if claim_part == "factor of two" else expected
        assert find_verdict(verdict_by_claim, claim_part) == expected_verdict, claim_part
    assert find_verdict(verdict_by_claim, PLANTED_CLAIMS[0]) == HOLDS


def test_claims_about_the_space_are_untested_on_few_cells(tmp_path):
    clean_accuracies = {str(index): 0.5 for index in EVALUATED[:10]}
    verdict_by_claim = check_verdicts(
        results_of(
            write_results(
                tmp_path, {"clean": clean_accuracies, "pgd": {index: [0.3, 0.1] for index in clean_accuracies}}
            )
        )
    )
    assert {find_verdict(verdict_by_claim, claim_part) for claim_part in PLANTED_CLAIMS[1:]} == {UNTESTED}
    assert find_verdict(verdict_by_claim, "Jacobian") == UNTESTED


def test_claims_about_best_cells_depend_on_their_ranks(tmp_path):
    names = ["13714", "3456", "21"]
    clean = dict(zip(names, (0.9, 0.5, 0.6), strict=True))
    verdict_by_claim = check_verdicts(results_of(write_results(tmp_path, {"clean": clean})))
    assert find_verdict(verdict_by_claim, "#13714") == HOLDS
    assert find_verdict(verdict_by_claim, "#3456") == FAILS
    assert (
        find_verdict(check_verdicts(results_of(write_results(tmp_path / "b", {"clean": {"21": 0.5}}))), "#3456")
        == UNTESTED
    )


@pytest.mark.parametrize(("gap", "expected"), [(0.1, HOLDS), (-0.1, FAILS)])
def test_claim_that_apgd_is_stronger_than_pgd_is_checked(tmp_path, gap, expected):
    names = [str(index) for index in EVALUATED[:12]]
    spread = np.linspace(0, 0.02, len(names))
    values = {
        "pgd": {name: [0.4, 0.0] for name in names},
        "aa_apgd-ce@Linf": {name: [0.4 - gap - offset, 0.0] for name, offset in zip(names, spread, strict=True)},
    }
    verdict_by_claim = check_verdicts(
        results_of(write_attack_results(tmp_path, {"clean": dict.fromkeys(names, 0.9)} | values))
    )
    assert find_verdict(verdict_by_claim, "accuracy under APGD-CE is lower") == expected
    assert find_verdict(verdict_by_claim, "have the published order") == expected


@pytest.mark.parametrize(
    ("taus", "expected"), [((-0.6, -0.2), HOLDS), ((-0.1, 0.5), FAILS), ((-0.6, float("nan")), UNTESTED)]
)
def test_claim_about_jacobian_norms_compares_epsilons(tmp_path, taus, expected):
    correlations = pd.DataFrame({"measure": "Jacobian norm", "key": "pgd", "strength": (1.0, 8.0), "kendall": taus})
    results = results_of(write_results(tmp_path, {"clean": {"21": 0.5}}))
    assert find_verdict(check_verdicts(results, correlations), "Jacobian") == expected


def test_compare_medians_and_curves_use_published_numbers(tmp_path):
    pgd = {"0": [0.3, 0.0], "1": [0.5, 0.0], "2": [0.2, 0.1]}
    results = results_of(write_results(tmp_path, {"clean": {"0": 0.85}, "pgd": pgd}))
    medians = compare_medians(results).set_index(["key", "strength"])
    assert medians.loc[("pgd", 1.0), ["n", "ours", "printed"]].tolist() == [3, 0.3, 0.349]
    curve = compare_curves(results).set_index(["key", "strength"])
    assert curve.loc[("pgd", 1.0), "difference"] == pytest.approx(0.3 - 0.295)
    assert curve.loc[("clean", 0.0), "printed"] == 0.856


def make_study(dataset="cifar10"):
    fields = {"study": "dataset", "name": "planted", "sweeps": ["sweep.yaml"], "dataset": dataset}
    return DatasetStudy.model_validate(fields)


def test_page_begins_with_claims_that_do_not_hold(tmp_path):
    names = [str(index) for index in EVALUATED[:12]]
    values = {
        "clean": {name: 0.5 + 0.01 * index for index, name in enumerate(names)},
        "pgd": {name: [0.3 + 0.01 * index, 0.0] for index, name in enumerate(names)},
        "aa_apgd-ce@Linf": {name: [0.5, 0.0] for name in names},
    }
    folder = write_attack_results(tmp_path / "data", values)
    page, *files = write_pages(make_study(), Exports([folder]), tmp_path / "out")
    page_text = page.read_text()
    assert page_text.splitlines()[2].startswith("For the 12 cells of this study, evaluated on 10,000 images, ")
    assert "These claims do not hold: “At each epsilon, the median accuracies" in page_text.splitlines()[2]
    assert {path.name for path in files} >= {"claims.csv", "medians.csv", "attacks.svg", "rank-correlation-attacks.svg"}
    assert all(path.is_file() for path in files)


def test_study_rejects_exports_without_its_dataset(tmp_path):
    folder = write_results(tmp_path / "data", {"clean": {"21": 0.5}})
    with pytest.raises(ResultsError, match="no export has accuracies on cifar100"):
        write_pages(make_study("cifar100"), Exports([folder]), tmp_path / "out")
