"""Objectives are parsed, and their values match the planted dataset."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from robust201 import RobustnessDataset
from robust201.core.errors import ConfigError, RobustError
from robust201.reader.derived import DerivedMetrics, MetricRow
from robust201.search.benchmark import Benchmark, make_bisection_order
from robust201.search.cells import SearchCells
from robust201.search.objectives import (
    TableValues,
    datasets_with_accuracies,
    find_cells_meeting_constraints,
    parse_objectives,
)
from robust201.search.optimiser import Query
from robust201.spaces import SPACES
from tests.support.planted import planted_accuracy, write_planted

CELLS = (0, 1462, 9930)


@pytest.fixture(scope="module")
def values(planted_optimum_folder: Path) -> TableValues:
    return TableValues(RobustnessDataset(planted_optimum_folder), "cifar10")


def objective_values(values: TableValues, text: str) -> np.ndarray:
    ((name, terms),) = parse_objectives(text)
    return values.objective(name, terms).values


def test_parse_objectives_reads_sums_and_weights() -> None:
    assert parse_objectives("clean, 0.5*pgd:1 + -2e-1 * fog, -jacobian.squared_norm") == [
        ("clean", ((1.0, "clean"),)),
        ("0.5*pgd:1 + -2e-1 * fog", ((0.5, "pgd:1"), (-0.2, "fog"))),
        ("-jacobian.squared_norm", ((-1.0, "jacobian.squared_norm"),)),
    ]
    assert parse_objectives("1e+2*clean + worst_case_accuracy(pgd+fgsm:1)") == [
        ("1e+2*clean + worst_case_accuracy(pgd+fgsm:1)", ((100.0, "clean"), (1.0, "worst_case_accuracy(pgd+fgsm:1)")))
    ]


@pytest.mark.parametrize("text", ["", "clean,", "2*", "clean + ", "a*b*c", "clean,clean"])
def test_parse_objectives_rejects_invalid_text(text: str) -> None:
    with pytest.raises(ConfigError, match="Reading the objective failed"):
        parse_objectives(text)


def test_objective_values_match_the_planted_accuracies(values: TableValues) -> None:
    expected = {
        "clean": planted_accuracy("clean", 0),
        "pgd:1": planted_accuracy("pgd", 1.0),
        "pgd": np.mean([planted_accuracy("pgd", strength) for strength in (0.5, 1, 4)], axis=0),
        "adversarial": np.mean(
            [planted_accuracy("fgsm", strength) for strength in (0.5, 1, 8)]
            + [planted_accuracy("pgd", strength) for strength in (0.5, 1, 4)],
            axis=0,
        ),
        "0.5*clean + -2*fgsm:8": 0.5 * planted_accuracy("clean", 0) - 2 * planted_accuracy("fgsm", 8),
        "pgd@Linf:1": planted_accuracy("pgd", 1.0),
    }
    for text, expected_values in expected.items():
        np.testing.assert_allclose(
            objective_values(values, text)[list(CELLS)], expected_values[list(CELLS)], atol=1e-5, err_msg=text
        )
    n_evaluated = len(values.reader.non_isomorph_ids)
    assert np.isfinite(objective_values(values, "clean")).sum() == n_evaluated


def test_objective_may_be_a_derived_metric(values: TableValues) -> None:
    strengths = np.array([0, 0.5, 1, 4])
    curve = np.stack([planted_accuracy("clean" if strength == 0 else "pgd", strength)[0] for strength in strengths])
    area = np.sum((curve[1:] + curve[:-1]) / 2 * np.diff(strengths)) / (4 * curve[0])
    # The tolerance is large, because tests/statistics checks the metric precisely.
    assert objective_values(values, "robustness_r(pgd)")[0] == pytest.approx(area, abs=0.05)
    with pytest.raises(ConfigError, match="Did you mean 'robustness_r\\(pgd"):
        objective_values(values, "robustness_q(pgd)")


def test_derived_metric_rejects_invalid_strengths(values: TableValues, monkeypatch: pytest.MonkeyPatch) -> None:
    metric = MetricRow("cifar10", "attack_success_rate", "pgd@Linf", 1.0, pd.Series({"0": 0.25}))
    monkeypatch.setattr(RobustnessDataset, "metrics", lambda *_, **__: DerivedMetrics((), [metric], {}))
    assert objective_values(values, "attack_success_rate(pgd:1)")[0] == 0.25
    with pytest.raises(ConfigError, match="no results under pgd at strength x\\. Choose one of 0\\.5, 1, 4"):
        objective_values(values, "attack_success_rate(pgd:x)")
    with pytest.raises(ConfigError, match="Did you mean 'attack_success_rate\\(pgd@Linf:1"):
        objective_values(values, "attack_success_rate(pgd:4)")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        *dict.fromkeys(("clean", "-pgd:0.5", "0.5*clean + adversarial"), True).items(),
        *dict.fromkeys(("robustness_r(pgd)", "flops", "clean + -1*parameters"), False).items(),
    ],
)
def test_objective_is_accuracy_if_all_terms_are_accuracies(values: TableValues, text: str, expected: bool) -> None:
    ((name, terms),) = parse_objectives(text)
    assert values.objective(name, terms).is_accuracy == expected


def test_costs_match_the_space(values: TableValues) -> None:
    space = SPACES["nasbench201"]
    for cell in CELLS:
        assert objective_values(values, "parameters")[cell] == space.parameter_count(cell, n_classes=10)
        assert objective_values(values, "flops")[cell] == space.macs(cell, n_classes=10, image_size=32)
    is_met = find_cells_meeting_constraints(values, ["parameters <= 2e5", "flops >= 20000000"])
    parameters = objective_values(values, "parameters")
    assert 0 < is_met.sum() < (parameters <= 200_000).sum()
    assert (parameters[is_met] <= 200_000).all()


def test_constraint_error_shows_the_range_if_no_cell_meets_it(values: TableValues) -> None:
    minimum = int(np.nanmin(objective_values(values, "parameters")))
    with pytest.raises(ConfigError, match=f"`parameters` lies between {minimum} and "):
        find_cells_meeting_constraints(values, ["parameters <= 800"])  # as if the unit were thousands of parameters


def test_joined_columns_are_costs_in_their_own_units(tmp_path: Path) -> None:
    values = TableValues(RobustnessDataset(write_planted(tmp_path / "few", cells=CELLS)), "cifar10")
    table = pd.DataFrame({"index": CELLS[:2], "edgegpu_latency": [4.0, 6.0], "pgd": [1.0, 2.0], "a<=b 8.0": [1.0, 3.0]})
    values.join([values.reader.read_table(table)])
    costs = ["parameters", "flops", "edgegpu_latency", "pgd (joined)", "a<=b 8.0"]
    assert values.terms.names_known_in_advance == costs
    np.testing.assert_array_equal(objective_values(values, "-edgegpu_latency")[list(CELLS)], [-4.0, -6.0, np.nan])
    assert objective_values(values, "pgd (joined)")[CELLS[1]] == 2
    for text, expected in (("edgegpu_latency <= 5", [CELLS[0]]), ("a<=b 8.0 >= 2", [CELLS[1]])):
        assert np.flatnonzero(find_cells_meeting_constraints(values, [text])).tolist() == expected


@pytest.mark.parametrize("text", ["clean >= 0.9", "parameters < 3", "parameters <= many", "latency <= 5"])
def test_constraints_reject_anything_except_costs(values: TableValues, text: str) -> None:
    with pytest.raises(ConfigError, match="belong in the objective"):
        find_cells_meeting_constraints(values, [text])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("pdg", "Did you mean 'pgd"),
        ("pgd:3", "no results under pgd at strength 3. Choose one of 0.5, 1, 4"),
        ("pgd:x", "no results under pgd at strength x"),
        ("fog", "Looking up 'fog' failed for cifar10"),
        ("corruption", "failed for cifar10: it has no results under a corruption"),
        ("robustness_r(pdg)", "Did you mean 'pgd'"),
    ],
)
def test_objective_rejects_missing_results(values: TableValues, text: str, message: str) -> None:
    with pytest.raises(RobustError) as error:
        objective_values(values, text)
    assert message in str(error.value)
    assert error.value.exit_code == 2


def test_datasets_with_accuracies_lists_both_datasets(planted_optimum_folder: Path) -> None:
    assert datasets_with_accuracies(RobustnessDataset(planted_optimum_folder)) == ["cifar10", "cifar100"]


def test_architectures_without_values_are_nan(tmp_path: Path) -> None:
    reader = RobustnessDataset(write_planted(tmp_path / "few", cells=CELLS))
    assert np.flatnonzero(np.isfinite(objective_values(TableValues(reader, "cifar10"), "pgd"))).tolist() == sorted(
        CELLS
    )


def test_partial_queries_average_the_first_evaluations(cells: SearchCells, values: TableValues) -> None:
    ((name, terms),) = parse_objectives("0.5*clean + pgd")
    benchmark = Benchmark(cells, [values.objective(name, terms)])
    assert benchmark.n_evaluations == 4
    (complete_value,) = benchmark.evaluate(Query(0))
    assert benchmark.evaluate(Query(0, 4)) == (complete_value,)
    (partial_value,) = benchmark.evaluate(Query(0, 2))
    evaluations = {
        "clean": planted_accuracy("clean", 0)[0],
        **{f"{strength:g}": planted_accuracy("pgd", strength)[0] for strength in (0.5, 1, 4)},
    }
    expected_evaluations = [list(evaluations.values())[index] for index in make_bisection_order(4)[:2]]
    weights = [(0.5, *[1 / 3] * 3)[index] for index in make_bisection_order(4)[:2]]
    assert partial_value == pytest.approx(np.dot(expected_evaluations, weights) / (sum(weights) / 1.5), abs=1e-5)


def test_bisection_order_starts_with_middles() -> None:
    assert make_bisection_order(7).tolist() == [3, 1, 5, 0, 2, 4, 6]
    assert sorted(make_bisection_order(75).tolist()) == list(range(75))
