"""The numbers behind the figures, checked against manual calculations."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from robust201.analysis.class_summaries import CLASS_CONFIDENCES, CONFIDENCES
from robust201.analysis.dataset_results import read_results
from robust201.analysis.ranking import order_networks
from robust201.dataset.reader import Dataset
from robust201.figures.cells import ALL_CELLS, best_cells, count_omitted_ties, neighbour_changes, top_cells
from robust201.figures.confidences import class_confidences, confidence_curves, one_class_confidence
from robust201.figures.confusion import confusion_fractions
from robust201.figures.correlations import attack_correlations, corruption_correlations, view_of
from robust201.figures.scatter import near_limits
from robust201.figures.table import FIGURES
from robust201.networks.nb201 import cells as nasbench201
from robust201.networks.nb201.cells import edit_distance, kernel_parameters
from robust201.statistics.intervals import accuracy_intervals
from tests.support.fabricated import N_IMAGES, export, make_plan
from tests.support.small_results import results_of, write_results, write_sweep_json

SPECS = st.integers(0, nasbench201.N_ARCHITECTURES - 1).map(lambda index: nasbench201.specs()[index])


def make_cell(*operations: str) -> str:
    return nasbench201.format_spec(operations)


def test_kernel_parameters_count_operations_that_reach_the_output():
    assert kernel_parameters(make_cell(*["nor_conv_3x3"] * 6)) == 54
    assert kernel_parameters(make_cell(*["none"] * 6)) == 0
    # 0→1 does not reach the output, because 1→2 and 1→3 have no operation.
    spec = make_cell("nor_conv_3x3", "skip_connect", "none", "nor_conv_1x1", "none", "avg_pool_3x3")
    assert kernel_parameters(spec) == 1
    # With operations on 1→2 and 2→3, 0→1 reaches the output.
    assert kernel_parameters(make_cell("nor_conv_3x3", "none", "skip_connect", "none", "none", "nor_conv_1x1")) == 10


def test_number_of_cells_with_18_kernel_parameters_matches_the_paper():
    sizes = [kernel_parameters(nasbench201.specs()[index]) for index in nasbench201.evaluated_indices()]
    assert sizes.count(18) == 408
    assert (min(sizes), max(sizes)) == (0, 54)


def test_accuracy_boxes_have_tukeys_whiskers_and_outliers(tmp_path):
    clean = {str(index): value for index, value in zip((0, 1, 2, 3, 4), (0.5, 0.52, 0.54, 0.56, 0.9), strict=True)}
    pgd = {str(index): [0.1 * index, 0.0] for index in range(5)}
    boxes = FIGURES["attacks"].compute(results_of(write_results(tmp_path, {"clean": clean, "pgd": pgd})))
    assert boxes[["key", "strength"]].to_numpy().tolist() == [["pgd", 0.0], ["pgd", 1.0], ["pgd", 8.0]]
    # The quartiles are 0.52, 0.54 and 0.56. Whiskers reach at most 0.56 + 1.5 * 0.04 = 0.62, so 0.9 is an outlier.
    expected = {"low": 0.5, "q1": 0.52, "median": 0.54, "q3": 0.56, "high": 0.56, "n": 5}
    assert boxes.iloc[0][list(expected)].to_dict() == pytest.approx(expected)
    assert boxes.iloc[0]["outliers"] == (0.9,)
    assert boxes.iloc[1]["outliers"] == ()
    expected = {"low": 0.0, "q1": 0.1, "median": 0.2, "q3": 0.3, "high": 0.4, "n": 5}
    assert boxes.iloc[1][list(expected)].to_dict() == pytest.approx(expected)


def test_accuracy_boxes_leave_out_missing_accuracies_of_each_box(tmp_path):
    accuracies_by_key = {"clean": {"0": 0.5, "1": 0.7}, "pgd": {"1": [0.3, None], "2": [0.1, 0.0]}}
    boxes = FIGURES["attacks"].compute(results_of(write_results(tmp_path, accuracies_by_key)))
    assert boxes["n"].tolist() == [2, 2, 1]
    assert boxes["median"].tolist() == pytest.approx([0.6, 0.2, 0.0])


def test_key_correlations_are_kendalls_tau_b(tmp_path):
    # Five of six pairs agree: tau = (5 - 1) / 6.
    accuracies_by_key = {
        "clean": {"0": 0.1, "1": 0.2, "2": 0.3, "3": 0.4},
        "pgd": {"0": [0.1, 0.5], "1": [0.3, 0.5], "2": [0.2, 0.5], "3": [0.4, 0.5]},
        "fog": {"0": [0, 0, 0.4, 0, 0], "1": [0, 0, 0.3, 0, 0], "2": [0, 0, 0.2, 0, 0], "3": [0, 0, 0.1, 0, 0]},
    }
    results = results_of(write_results(tmp_path, accuracies_by_key))
    attacks = view_of(attack_correlations(results), "")
    assert list(attacks.columns) == ["Clean", "PGD, ε = 1/255", "PGD, ε = 8/255"]
    assert attacks.loc["Clean", "PGD, ε = 1/255"] == pytest.approx(4 / 6)
    # If all accuracies are equal, there is no ranking.
    assert np.isnan(attacks.loc["PGD, ε = 8/255"]).all()
    corruptions = corruption_correlations(results)
    assert list(corruptions.index.get_level_values("view").unique()) == [f"severity {n}" for n in range(1, 6)]
    assert view_of(corruptions, "severity 3").to_numpy() == pytest.approx(np.array([[1, -1], [-1, 1]]))
    assert list(view_of(corruptions, "severity 1").columns) == ["Clean", "Fog"]


def test_scores_give_all_evaluations_equal_weight(tmp_path):
    # One attack has two epsilons, and the other attack has one.
    accuracies_by_key = {
        "clean": {"0": 0.9, "1": 0.8},
        "fgsm": {"0": [0.6, 0.2], "1": [0.5, 0.5]},
        "pgd": {"0": [0.1], "1": [None]},
        "fog": {"0": [0.5, 0.4, 0.3, 0.2, 0.1], "1": [0.5] * 5},
    }
    write_results(tmp_path, accuracies_by_key)
    (tmp_path / "meta.json").write_text(nasbench201.meta_text({"fgsm": (1.0, 8.0), "pgd": (1.0,)}))
    scores = read_results(Dataset(tmp_path))[0].scores
    assert scores.loc[0].to_dict() == pytest.approx({"clean": 0.9, "adversarial": 0.3, "corruption": 0.3})
    assert np.isnan(scores.loc[1, "adversarial"])
    assert scores.loc[1, "corruption"] == 0.5


def test_kernel_parameter_boxes_group_mean_adversarial_accuracies(tmp_path):
    # Cell 1462 has 54 kernel parameters; the other cells have 18.
    sizes = {index: kernel_parameters(nasbench201.specs()[index]) for index in nasbench201.evaluated_indices()[:300]}
    same_size = [index for index, size in sizes.items() if size == 18][:3]
    pgd_accuracies = {str(index): [0.2 + position / 10, 0.0] for position, index in enumerate(same_size)}
    boxes = FIGURES["kernel-parameters"].compute(
        results_of(write_results(tmp_path, {"pgd": pgd_accuracies | {"1462": [0.8, 0.6]}}))
    )
    assert set(boxes["score"]) == {"adversarial"}
    assert boxes[["kernel_parameters", "n"]].to_numpy().tolist() == [[18, 3], [54, 1]]
    assert boxes["median"].tolist() == pytest.approx([0.15, 0.7])


def test_dataset_correlations_compare_ranks_between_datasets(tmp_path):
    write_results(tmp_path, {"clean": {"0": 0.1, "1": 0.2, "2": 0.3}, "fog": {"0": [0.5] * 5}})
    assert FIGURES["rank-correlation-datasets"].compute(results_of(tmp_path)).empty
    pgd_accuracies = {"0": [0.3, 0.1], "1": [0.2, 0.2], "2": [0.1, 0.3], "3": [0.9, 0.0]}
    write_results(tmp_path, {"pgd": pgd_accuracies}, dataset="cifar100")
    for results in read_results(Dataset(tmp_path)):
        tau = FIGURES["rank-correlation-datasets"].compute(results)
        assert list(tau.columns) == ["CIFAR-10: Clean", "CIFAR-100: PGD, ε = 1/255", "CIFAR-100: PGD, ε = 8/255"]
        # Between datasets, tau is over the three common architectures; within cifar100, it is over all four.
        assert tau.to_numpy() == pytest.approx(np.array([[1, -1, 1], [-1, 1, -1], [1, -1, 1]]))


def test_image_counts_are_recorded_or_equal_the_test_split(tmp_path):
    export(tmp_path / "sweep", make_plan([0, 2], ["clean"]))
    assert {*results_of(tmp_path / "sweep").image_counts["clean"][0.0]} == {N_IMAGES}
    published = results_of(write_results(tmp_path / "published", {"clean": {"0": 0.8562}}))
    assert {*published.image_counts["clean"][0.0]} == {10_000}


def make_confidences(mean_if_right, mean_if_wrong, diagonal):
    matrix = [[diagonal, 1 - diagonal], [1 - diagonal, diagonal]]
    return {"label": matrix, "argmax": matrix, "prediction": [mean_if_right, mean_if_wrong]}


def test_confidence_curves_are_quartiles_over_architectures(tmp_path):
    write_results(tmp_path, {"clean": {"0": 0.5, "1": 0.5, "2": 0.5}})
    rows = {
        "0": make_confidences(0.9, None, 0.6),
        "1": make_confidences(0.8, 0.5, 0.7),
        "2": make_confidences(0.7, 0.6, 0.8),
    }
    results = results_of(write_results(tmp_path, {"clean": rows}, measurement="confidence"))
    curves = confidence_curves(results).set_index("confidence")
    if_right, if_wrong, true_class = CONFIDENCES
    assert curves.loc[if_right, ["q1", "median", "q3", "n"]].tolist() == pytest.approx([0.75, 0.8, 0.85, 3])
    # The first architecture has no wrong prediction.
    assert curves.loc[if_wrong, ["q1", "median", "q3", "n"]].tolist() == pytest.approx([0.525, 0.55, 0.575, 2])
    assert curves.loc[true_class, "median"] == pytest.approx(0.7)


def make_class_confidences(label, argmax):
    """Return confidences for two classes whose matrices have these diagonals; None means that there is no image."""

    def make_matrix(diagonal):
        return [
            [None if value is None else value if row == column else 1 - value for column in range(2)]
            for row, value in enumerate(diagonal)
        ]

    return {"label": make_matrix(label), "argmax": make_matrix(argmax), "prediction": [0.9, 0.5]}


def test_class_confidences_are_diagonals_at_the_reference_strength(tmp_path):
    write_results(tmp_path, {"clean": {"0": 0.5, "1": 0.5}, "pgd": {"0": [0.5, 0.4], "1": [0.5, 0.4]}})
    clean = {"0": make_class_confidences([0.6, 0.5], [0.8, None]), "1": make_class_confidences([0.7, 0.1], [0.6, 0.9])}
    values_at_other_strength = make_class_confidences([0, 0], [1, 1])
    pgd_confidences = {key: [value, values_at_other_strength] for key, value in clean.items()}
    results = results_of(write_results(tmp_path, {"clean": clean, "pgd": pgd_confidences}, measurement="confidence"))
    rows = class_confidences(results)
    assert list(dict.fromkeys(zip(rows["key"], rows["strength"], strict=True))) == [("clean", 0.0), ("pgd", 1.0)]
    medians = rows[rows["key"] == "clean"].set_index(["confidence", "class"])["median"].to_dict()
    class_images, predicted_images = CLASS_CONFIDENCES
    expected = {(class_images, 0): 0.65, (class_images, 1): 0.3, (predicted_images, 0): 0.7, (predicted_images, 1): 0.9}
    assert medians == pytest.approx(expected)
    # The first architecture predicts no image as class 1.
    assert rows["n"].tolist() == 2 * [2, 2, 2, 1]
    attacked_rows = rows[rows["key"] == "pgd"]["median"].tolist()
    assert attacked_rows == pytest.approx(list(expected.values()))


def test_one_class_confidence_has_one_class_at_all_strengths(tmp_path):
    write_results(tmp_path, {"pgd": {"0": [0.5, 0.4]}})
    confidences = [make_class_confidences([0.6, 0.5], [0.8, 0.7]), make_class_confidences([0.2, 0.1], [0.4, 0.3])]
    results = results_of(write_results(tmp_path, {"pgd": {"0": confidences}}, measurement="confidence"))
    rows = one_class_confidence(results)
    assert rows["strength"].tolist() == [1.0, 1.0, 8.0, 8.0]
    assert rows["confidence"].tolist() == 2 * list(CLASS_CONFIDENCES)
    assert rows["median"].tolist() == pytest.approx([0.6, 0.8, 0.2, 0.4])


def test_confusion_matrices_are_summed_and_divided_by_row(tmp_path):
    write_results(tmp_path, {"pgd": {"0": [0.5, 0.5]}})
    rows = {"0": [[[0, 4], [4, 0]], [[3, 1], [0, 4]]], "1": [[[4, 0], [4, 0]], [[1, 3], [4, 0]]]}
    fractions = confusion_fractions(results_of(write_results(tmp_path, {"pgd": rows}, measurement="cm")))
    # Attacks are shown at the strength nearest to 1/255.
    assert list(fractions.index) == [("pgd", 1.0, 0), ("pgd", 1.0, 1)]
    assert fractions.to_numpy().tolist() == [[0.5, 0.5], [1, 0]]


def test_clean_vs_robust_pairs_accuracies(tmp_path):
    accuracies_by_key = {"clean": {"0": 0.9, "1462": 0.8, "2": 0.7}, "pgd": {"0": [0.5, 0.1], "1462": [0.4, 0.0]}}
    points = FIGURES["clean-vs-robust"].compute(results_of(write_results(tmp_path, accuracies_by_key)))
    size = kernel_parameters(nasbench201.specs()[0])
    assert points.to_numpy().tolist() == [["adversarial", 0, size, 0.9, 0.3], ["adversarial", 1462, 54, 0.8, 0.2]]


def test_axes_leave_out_points_far_from_the_others():
    near_values = pd.Series(np.linspace(0.8, 0.9, 50))
    assert near_limits(near_values) == pytest.approx((0.79, 0.91))
    assert near_limits(pd.concat([near_values, pd.Series([0.1, 0.2])])) == pytest.approx((0.79, 0.91))
    assert near_limits(pd.Series([0.5, 0.5])) == pytest.approx((0.49, 0.51))


def test_top_cells_are_the_twenty_best_in_order(tmp_path):
    indices = nasbench201.evaluated_indices()[:30]
    clean = {str(index): 0.5 + position / 100 for position, index in enumerate(indices)}
    top = top_cells(results_of(write_results(tmp_path, {"clean": clean})))
    all_cells = top[top["among"] == ALL_CELLS]
    assert all_cells["architecture"].drop_duplicates().tolist() == list(reversed(indices))[:20]
    best_cell_rows = all_cells[all_cells["rank"] == 1]
    assert tuple(best_cell_rows["operation"]) == nasbench201.parse(nasbench201.specs()[indices[-1]])
    assert set(best_cell_rows["accuracy"]) == {clean[str(indices[-1])]}
    assert count_omitted_ties(all_cells) == 0
    cells_of_reference_size = top[top["among"] != ALL_CELLS]["architecture"].unique()
    assert {kernel_parameters(nasbench201.specs()[index]) for index in cells_of_reference_size} == {18}


def test_best_cells_have_edit_distances(tmp_path):
    accuracies_by_key = {
        "clean": {"0": 0.9, "1462": 0.8, "3456": 0.9},
        "pgd": {"0": [0.1, 0.1], "1462": [0.2, 0.2], "3456": [0.3, 0]},
    }
    best = best_cells(results_of(write_results(tmp_path, accuracies_by_key)))
    # Cells 0 and 3456 are equally accurate, so the one with the higher adversarial mean is chosen. Cell 1462 has the
    # highest adversarial mean.
    assert best["architecture"].to_dict() == {"clean": 3456, "mean adversarial": 1462, "mean PGD": 1462}
    assert best["accuracy"].tolist() == pytest.approx([0.9, 0.2, 0.2])
    assert best["tied"].tolist() == [2, 1, 1]
    distance = edit_distance(nasbench201.specs()[3456], nasbench201.specs()[1462])
    assert best.loc["clean", ["clean", "mean adversarial"]].tolist() == [0, distance]


def test_order_networks_breaks_ties_by_other_scores_and_then_by_index(tmp_path):
    accuracies_by_key = {
        "clean": {"0": 0.5, "2": 0.9, "4": 0.9, "9": 0.9, "21": 0.9, "41": 0.7},
        "pgd": {"0": [0.9, 0.9], "2": [0.1, 0.1], "4": [0.2, 0.1], "9": [0.1, 0.2], "41": [0.1, 0.1]},
        "fog": {"4": [0.3] * 5, "9": [0.3] * 5, "2": [0.9] * 5, "0": [0.1] * 5},
    }
    results = results_of(write_results(tmp_path, accuracies_by_key))
    ranked_by_clean = order_networks(results, results.scores["clean"])
    # Cells 4 and 9 are equal by all scores, and 21 was not attacked.
    assert [(row.network, row.rank, row.n_equal) for row in ranked_by_clean] == [
        (4, 1, 4),
        (9, 1, 4),
        (2, 1, 4),
        (21, 1, 4),
        (41, 5, 1),
        (0, 6, 1),
    ]
    ranked_by_attack = order_networks(results, results.scores["adversarial"])
    assert [row.network for row in ranked_by_attack] == [0, 4, 9, 2, 41]
    top = top_cells(results)
    top_by_clean = top[(top["score"] == "clean") & (top["among"] == ALL_CELLS)].drop_duplicates("architecture")
    assert top_by_clean[["architecture", "rank", "tied"]].to_numpy().tolist() == [
        list(row[:1] + row[2:]) for row in ranked_by_clean
    ]


@example([0.1, 0.7, 0.3, 0.6, 0.2])  # a sum that differs at the 16th decimal
@settings(max_examples=10)
@given(st.permutations([0.1, 0.2, 0.3, 0.6, 0.7]))
def test_ranks_of_ties_do_not_depend_on_the_order_of_strengths(tmp_path_factory, accuracies):
    accuracies_by_key = {"fog": {"0": [0.7, 0.3, 0.1, 0.6, 0.2], "2": list(accuracies)}}
    results = results_of(write_results(tmp_path_factory.mktemp("results"), accuracies_by_key))
    assert [row.n_equal for row in order_networks(results, results.scores["corruption"])] == [2, 2]


def test_neighbour_changes_are_differences_from_the_best_cell(tmp_path):
    # The best cell, 1462, differs from cell 9930 on one edge, and from cell 3456 on two edges.
    accuracies_by_key = {"clean": {"1462": 0.9, "3456": 0.6, "9930": 0.8}}
    changes = neighbour_changes(results_of(write_results(tmp_path, accuracies_by_key)))
    expected = [index for index in (3456, 9930) if edit_distance(*(nasbench201.specs()[i] for i in (1462, index))) == 1]
    assert set(changes["architecture"]) == {1462}
    assert sorted(set(changes["neighbour"])) == expected != []
    for row in changes.itertuples():
        assert row.change == pytest.approx({3456: -0.3, 9930: -0.1}[row.neighbour])
        operations = list(nasbench201.parse(nasbench201.specs()[1462]))
        operations[row.edge] = row.operation
        assert nasbench201.isomorphs()[nasbench201.resolve(make_cell(*operations))] == row.neighbour


def test_accuracy_curves_have_intervals_and_begin_with_clean_accuracy(tmp_path):
    write_results(tmp_path, {"clean": {"0": 0.9, "2": 0.8}, "pgd": {"0": [0.5, 0.25], "2": [0.75, 0.0]}})
    results = results_of(tmp_path)
    curves = FIGURES["attack-curves"].compute_numbers(results).sort_values(["network", "strength"])
    assert curves["network"].tolist() == ["#0"] * 3 + ["#2"] * 3
    assert curves["strength"].tolist() == [0.0, 1.0, 8.0] * 2
    assert curves["accuracy"].tolist() == [0.9, 0.5, 0.25, 0.8, 0.75, 0.0]
    low, high = accuracy_intervals(curves["accuracy"].to_numpy(), 10_000)  # the complete test split
    assert curves["low"].to_numpy() == pytest.approx(low)
    assert curves["high"].to_numpy() == pytest.approx(high)
    results.__dict__["image_counts"] = results.image_counts * np.nan  # as if the folder did not record the number
    assert FIGURES["attack-curves"].compute_numbers(results)["low"].isna().all()


def test_intervals_of_accuracy_curves_use_the_number_of_images_of_each_accuracy(tmp_path):
    for key, strengths, n_images in (("clean", [0], 10_000), ("pgd", [1, 8], 500)):
        write_results(tmp_path / key, {key: {"0": 0.5 if key == "clean" else [0.5, 0.25]}})
        write_sweep_json(tmp_path / key, {"cifar10": {key: strengths}}, {"images": {"count": n_images, "seed": 0}})
    (results,) = read_results(Dataset(tmp_path / "clean", tmp_path / "pgd"))
    curves = FIGURES["attack-curves"].compute_numbers(results).sort_values("strength")
    low, high = accuracy_intervals([0.5, 0.5, 0.25], [10_000, 500, 500])
    assert curves["low"].to_numpy() == pytest.approx(low)
    assert curves["high"].to_numpy() == pytest.approx(high)


@pytest.mark.parametrize(
    ("n_networks", "expected"), [(11, {"attack-curves"}), (12, {"attacks", "rank-correlation-attacks"})]
)
def test_figures_show_few_networks_by_name_and_summarise_more(tmp_path, n_networks, expected):
    cells = nasbench201.evaluated_indices()[:n_networks]
    clean_accuracies = {str(cell): position / 20 for position, cell in enumerate(cells)}
    write_results(
        tmp_path,
        {"clean": clean_accuracies, "pgd": {cell: [value / 2, value / 3] for cell, value in clean_accuracies.items()}},
    )
    results = results_of(tmp_path)
    figures = {"attack-curves", "attacks", "rank-correlation-attacks"}
    assert {name for name in figures if len(FIGURES[name].compute_numbers(results))} == expected
