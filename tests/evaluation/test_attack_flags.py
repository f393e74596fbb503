"""Signs of weak attacks are flagged for the right networks and not for chance differences, and commands report them."""

import json
from typing import Any

import numpy as np
import pytest

from robust201.dataset.reader import Dataset
from robust201.evaluation.attack_flags import ZERO_GRADIENTS, AttackFlag, find_flags
from robust201.networks.nb201 import cells as nasbench201
from tests.support.small_results import write_results

PLAUSIBLE_RESULTS = {
    ("clean", 0.0): {0: 0.9, 1: 0.8},
    ("fgsm", 1.0): {0: 0.5, 1: 0.4},
    ("fgsm", 8.0): {0: 0.2, 1: 0.1},
    ("fgsm", 255.0): {0: 0.12, 1: 0.09},
    ("pgd", 1.0): {0: 0.45, 1: 0.35},
    ("pgd", 8.0): {0: 0.01, 1: 0.0},
    ("aa_apgd-ce", 1.0): {0: 0.4, 1: 0.3},
    ("aa_apgd-ce", 8.0): {0: 0.0, 1: 0.0},
    ("aa_square", 1.0): {0: 0.7, 1: 0.6},
    ("aa_square", 8.0): {0: 0.1, 1: 0.1},
}

WEAK_STANDARD = {("aa_standard", 8.0): {0: 0.6, 1: 0.0}}


def find_flags_with(changes: dict[tuple[str, float], dict[int, float]], n_images: int = 10_000) -> list[AttackFlag]:
    """Return the flags of plausible results with some changes."""
    return find_flags("cifar10", PLAUSIBLE_RESULTS | changes, n_images=n_images, n_classes=10)


def test_plausible_results_have_no_flags():
    assert find_flags_with({}) == []


@pytest.mark.parametrize(
    ("changes", "check", "where", "networks"),
    [
        ({("aa_square", 1.0): {0: 0.7, 1: 0.2}}, "black-box stronger", "aa_apgd-ce:1/255 against aa_square:1/255", [1]),
        ({("fgsm", 1.0): {0: 0.3, 1: 0.4}}, "single step stronger", "pgd:1/255 against fgsm:1/255", [0]),
        ({("pgd", 8.0): {0: 0.6, 1: 0.6}}, "not monotone", "pgd:8/255 against pgd:1/255", [1, 0]),
        ({("fgsm", 255.0): {0: 0.26, 1: 0.1}}, "far from chance", "fgsm:255/255", [0]),
        (
            {("aa_standard", 1.0): {0: 0.5, 1: 0.29}},
            "ensemble weaker",
            "aa_standard:1/255 against aa_apgd-ce:1/255",
            [0],
        ),
        ({ZERO_GRADIENTS: {0: 0.02, 1: 0.01}}, "zero gradients", "input_gradient", [0]),
        ({("clean", 0.0): {0: 0.9, 1: 0.105}}, "at chance", "clean", [1]),
        (
            WEAK_STANDARD | {("fmn", 8.0): {0: 0.1, 1: 0.0}},
            "ensemble weaker",
            "aa_standard:8/255 against fmn:8/255",
            [0],
        ),
        (
            WEAK_STANDARD | {("aa_fab-t", 8.0): {0: 0.1, 1: 0.0}},
            "ensemble weaker",
            "aa_standard:8/255 against aa_fab-t:8/255",
            [0],
        ),
        (
            {("fmn_l2", 0.5): {0: 0.6, 1: 0.0}, ("aa_square_l2", 0.5): {0: 0.1, 1: 0.0}},
            "black-box stronger",
            "fmn_l2:0.5 against aa_square_l2:0.5",
            [0],
        ),
        (
            {("fmn_l1", 10.0): {0: 0.1, 1: 0.1}, ("fmn_l1", 90.0): {0: 0.9, 1: 0.0}},
            "not monotone",
            "fmn_l1:90 against fmn_l1:10",
            [0],
        ),
    ],
)
def test_find_flags_lists_networks_with_signs_of_weak_attacks(changes, check, where, networks):
    result = [flag for flag in find_flags_with(changes) if (flag.check, flag.where) == (check, where)]
    assert [[name for name, _, _ in flag.networks] for flag in result] == [networks]
    assert result[0].n_checked == 2
    assert f"{check}: cifar10 {where}: {len(networks)} of 2 networks, such as #{networks[0]} (" in result[0].message


def test_find_flags_compares_only_attacks_with_the_same_norm():
    l2_results = {("aa_square_l2", 0.5): {0: 0.2, 1: 0.2}, ("aa_apgd-ce_l2", 0.5): {0: 0.6, 1: 0.1}}
    (flag,) = find_flags_with(
        l2_results | {("aa_apgd-ce", 0.5): {0: 0.9, 1: 0.9}, ("aa_apgd-ce_l1", 0.5): {0: 0.9, 1: 0.9}}
    )
    assert (flag.where, [name for name, _, _ in flag.networks]) == ("aa_apgd-ce_l2:0.5 against aa_square_l2:0.5", [0])


def test_single_step_attack_is_not_flagged_as_not_monotone():
    """FGSM overshoots at a large epsilon, because it does not try images along its step."""
    assert find_flags_with({("fgsm", 8.0): {0: 0.6, 1: 0.6}}) == []


def test_find_flags_ignores_a_difference_that_may_be_chance_on_few_images():
    changes = {("aa_square", 1.0): {0: 0.7, 1: 0.25}}
    assert find_flags_with(changes, n_images=10_000)
    assert not find_flags_with(changes, n_images=100)


@pytest.mark.parametrize(
    ("changes", "check", "where"),
    [
        ({("fgsm", 1.0): {0: 0.44}}, "single step stronger", "pgd:1/255 against fgsm:1/255"),
        ({("aa_square", 1.0): {0: 0.39}}, "black-box stronger", "aa_apgd-ce:1/255 against aa_square:1/255"),
        ({("aa_standard", 1.0): {0: 0.41}}, "ensemble weaker", "aa_standard:1/255 against aa_apgd-ce:1/255"),
        ({("aa_standard", 1.0): {0: 0.46}}, "ensemble weaker", "aa_standard:1/255 against pgd:1/255"),
        ({("aa_standard", 1.0): {0: 0.51}}, "ensemble weaker", "aa_standard:1/255 against fgsm:1/255"),
    ],
)
def test_find_flags_reports_any_difference_if_requested(changes, check, where):
    options: Any = {"n_images": 100, "n_classes": 10, "flag_any_difference": True}
    result = find_flags("", PLAUSIBLE_RESULTS | changes, **options)
    assert (check, where) in [(flag.check, flag.where) for flag in result]
    assert find_flags("", PLAUSIBLE_RESULTS | changes, **options | {"flag_any_difference": False}) == []
    assert find_flags("", PLAUSIBLE_RESULTS, **options) == []
    # Attacks at different epsilons are separate runs, so one more correct image at the larger epsilon may be chance.
    assert not find_flags("", {("pgd", 1.0): {0: 0.45}, ("pgd", 8.0): {0: 0.46}}, **options)


def test_chance_differences_are_not_flagged():
    """Accuracies of 1,000 networks have equal expected values; a check flags at most one such dataset in 1,000."""
    rng = np.random.default_rng(0)
    sampled_accuracies = {
        (key, strength): dict(enumerate(rng.binomial(1_000, 0.3, 1_000) / 1_000))
        for key in ("pgd", "aa_apgd-ce", "aa_square")
        for strength in (1.0, 2.0, 4.0)
    }
    assert find_flags("cifar10", sampled_accuracies, n_images=1_000, n_classes=10) == []


def test_only_networks_with_both_attacks_are_checked():
    result = next(flag for flag in find_flags_with({("aa_square", 1.0): {1: 0.1, 7: 0.0}}) if "apgd" in flag.where)
    assert (result.n_checked, result.networks) == (1, ((1, 0.3, 0.1),))


def test_verify_shows_flags(tmp_path, robust201):
    folder = tmp_path / "dataset"
    apgd, square = {"0": [0.5, 0.4], "1": [0.45, 0.41]}, {"0": [0.9, 0.8], "1": [0.1, 0.05]}
    write_results(folder, {"clean": {"0": 0.9, "1": 0.8}, "aa_apgd-ce": apgd, "aa_square": square})
    epsilons = dict.fromkeys(("aa_apgd-ce", "aa_square"), (1.0, 8.0))
    (folder / "meta.json").write_text(nasbench201.meta_text(epsilons))
    assert "signs of weak attacks" not in robust201("verify", folder).out
    verify_result = robust201("verify", folder, "--attack-flags")
    assert verify_result.code == 0
    message = "black-box stronger: cifar10 aa_apgd-ce:1/255 against aa_square:1/255: 1 of 2 networks, such as #1 ("
    assert f"warning: {message}0.4500 against" in verify_result.err
    assert "2 signs of weak attacks" in " ".join(verify_result.out.split())
    payload = json.loads(robust201("verify", folder, "--attack-flags", "--json").out)
    assert [flag["where"] for flag in payload["flags"]] == [
        f"aa_apgd-ce:{epsilon}/255 against aa_square:{epsilon}/255" for epsilon in (1, 8)
    ]
    assert payload["flags"][0]["networks"] == [{"architecture": 1, "higher": 0.45, "lower": 0.1}]


@pytest.mark.usefixtures("without_figures")
def test_report_of_a_sweep_shows_flags(finished_results, robust201, tmp_path):
    export_folder = tmp_path / "exported"
    assert robust201("export", finished_results, "--out", export_folder).code == 0
    file = export_folder / "digits" / "fgsm_accuracy.json"
    content = json.loads(file.read_text())
    assert Dataset(export_folder).strengths("digits", "fgsm") == (1.0, 8.0)
    sweep = export_folder / "sweep.json"
    sweep_json = sweep.read_text()
    assert '"fgsm": [\n' in sweep_json
    sweep.write_text(sweep_json.replace("8.0", "255.0"))
    meta = export_folder / "meta.json"
    meta.write_text(meta.read_text().replace("8.0", "255.0"))
    content["digits"]["fgsm"]["accuracy"] = {"0": [0.5, 0.1], "21": [0.5, 0.9]}
    file.write_text(json.dumps(content))
    assert robust201("report", export_folder, "--out", tmp_path / "page.html").code == 0
    page = (tmp_path / "page.html").read_text()
    assert "Signs of weak attacks: <ul><li>far from chance: digits fgsm:255/255: 1 of 2 networks, such as #21" in page
