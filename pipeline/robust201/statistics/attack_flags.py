"""Checks of accuracies for signs that an attack was too weak; explain every sign before publishing a robust accuracy.

The checks are taken from Carlini et al., "On Evaluating Adversarial Robustness" (2019, section 4), and from Athalye,
Carlini and Wagner, "Obfuscated Gradients" (ICML 2018, section 3.1); checks that need more than accuracies are left out.
It is not necessary to check whether an attack reports its successes correctly, because accuracies of robust201 always
come from a new forward pass on the images that an attack returned. Zero gradients are detected only if the measure
`input_gradient` was evaluated.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from robust201.core.records import CLEAN_STRENGTH, ArchitectureId, format_architecture
from robust201.statistics.intervals import is_at_chance

FLAG_LEVEL = 1e-3
"""Maximum probability that a check flags any network of a dataset by chance."""

MIN_HUGE_EPSILON_255 = 64.0
"""Epsilon, in units of 1/255, from which an attack in the Linf ball is hardly constrained."""

NEAR_CHANCE = 0.15
"""Margin above chance level within which an accuracy counts as near chance.

At 255/255, FGSM produces images with two values per channel. Networks do not assign such images to all classes equally
often, so the accuracy may be above chance level."""

ARITHMETIC_TOLERANCE = 1e-3
"""Difference in accuracy on equal images that floating-point arithmetic may cause (see
`weights_check.ACCURACY_TOLERANCE`)."""

ZERO_GRADIENTS = ("input_gradient zero_share", CLEAN_STRENGTH)
"""Key and strength under which `find_flags` looks up the fraction of images whose gradient is exactly zero."""

MAX_ZERO_FRACTION = 0.01
"""Maximum fraction of images with a zero gradient that is not flagged; our choice, as the source has no threshold."""

AT_CHANCE = "at chance"
"""Name of the check of clean accuracies."""

_CLEAN, _FGSM = "clean", "fgsm"


class _NormAttacks(NamedTuple):
    """Keys of the attacks in balls of one norm; the strengths of these attacks can therefore be compared.

    Attributes:
        white_box: attacks that use gradients.
        black_box: the attack without gradients.
        standard: AutoAttack's standard version.
        fab: targeted FAB, which no check compares with black-box attacks.
    """

    white_box: tuple[str, ...]
    black_box: str
    standard: str
    fab: str

    @property
    def iterative(self) -> tuple[str, ...]:
        """Keys of all iterative attacks; each attack should fool more images in a larger ball."""
        return (*self.white_box, self.black_box, self.standard, self.fab)


def _make_norm_attacks(suffix: str, *first_white_box: str) -> _NormAttacks:
    white_box = *first_white_box, *(f"aa_{name}{suffix}" for name in ("apgd-ce", "apgd-t")), f"fmn{suffix}"
    return _NormAttacks(white_box, f"aa_square{suffix}", f"aa_standard{suffix}", f"aa_fab-t{suffix}")


_ATTACKS_BY_NORM = (
    _make_norm_attacks("", "pgd", "pgd_linf7"),
    _make_norm_attacks("_l2", "pgd_l2"),
    _make_norm_attacks("_l1"),
)
"""All attacks of the task table except FGSM, one entry per norm; a test checks that none is missing."""

_LINF_ATTACKS = _ATTACKS_BY_NORM[0]

Accuracies = Mapping[ArchitectureId, float]
"""Fraction of correctly classified images, by network."""

_Floats = NDArray[np.float64]

KeyAndStrength = tuple[str, float]
"""Key without the suffix of published files (such as ``aa_square``), and strength."""


@dataclass(frozen=True)
class AttackFlag:
    """A sign that an attack was too weak, and the networks of a dataset that show it.

    Attributes:
        dataset: name of the dataset; empty for a single network on images without a name.
        check: name of the check: ``black-box stronger``, ``single step stronger``,
            ``ensemble weaker``, ``not monotone``, ``far from chance``, ``changed at zero``, ``zero gradients`` or ``at
            chance``.
        where: keys and strengths, such as ``aa_square against aa_apgd-ce at 8``.
        reason: possible cause, and the threshold.
        networks: networks that show the sign, each with the two compared numbers, the higher one first. The network
            with the clearest sign comes first.
        n_checked: number of networks that have both numbers.
    """

    dataset: str
    check: str
    where: str
    reason: str
    networks: tuple[tuple[ArchitectureId, float, float], ...]
    n_checked: int

    @property
    def message(self) -> str:
        """Text with the observation, an example network and the possible cause."""
        name, high, low = self.networks[0]
        if not self.dataset:
            return f"{self.check}: {self.where}: {high:.4f} above {low:.4f}; {self.reason}."
        return (
            f"{self.check}: {self.dataset} {self.where}: {len(self.networks):,} of {self.n_checked:,} networks, such "
            f"as {format_architecture(name)} ({high:.4f} above {low:.4f}); {self.reason}."
        )

    def to_payload(self) -> dict[str, Any]:
        return {
            "dataset": self.dataset,
            "check": self.check,
            "where": self.where,
            "reason": self.reason,
            "checked": self.n_checked,
            "networks": [{"architecture": name, "higher": high, "lower": low} for name, high, low in self.networks],
        }


def find_flags(
    dataset: str,
    results: Mapping[KeyAndStrength, Accuracies],
    *,
    n_images: int,
    n_classes: int,
    flag_any_difference: bool = False,
) -> list[AttackFlag]:
    """Run all checks on the results of a dataset, which must come from the same `n_images` images.

    A difference is flagged if two independent samples of `n_images` images would exceed it by chance with a probability
    of at most `FLAG_LEVEL` per dataset (one-sided, normal approximation, Bonferroni over networks and strengths). Both
    samples are in fact the same images, so their difference varies less and the checks are conservative. With
    `flag_any_difference`, any higher accuracy under the supposedly stronger of two attacks in the same ball is flagged,
    because it proves that only the weaker attack fools some of these images.
    """
    n_images_for_margin = None if flag_any_difference else n_images  # None: no margin for chance
    flags = [
        flag
        for check, (reason, pairs) in _list_attack_pairs().items()
        for flag in _compare_attacks(check, reason, results, pairs, n_images_for_margin)
    ]
    flags += _check_monotonicity(results, n_images)
    flags += _check_large_epsilons(results, n_classes)
    flags += _check_strength_zero(results)
    flags += _check_gradients(results)
    flags += _check_clean_accuracy(results, n_images, n_classes)
    return [AttackFlag(dataset, *flag) for flag in flags]


_Flag = tuple[str, str, str, tuple[tuple[ArchitectureId, float, float], ...], int]
"""The fields of an `AttackFlag` except the dataset."""


def _list_attack_pairs() -> dict[str, tuple[str, list[tuple[str, str]]]]:
    """Return the reason and the pairs (weaker attack, stronger attack) of each check, by name of the check."""
    ensemble_pairs = [
        (attack, norm_attacks.standard)
        for norm_attacks in _ATTACKS_BY_NORM
        for attack in ((_FGSM,) if norm_attacks is _LINF_ATTACKS else ()) + norm_attacks.iterative
        if attack != norm_attacks.standard
    ]
    return {
        "black-box stronger": (
            "an attack without gradients should not beat one with them: gradients may be masked",
            [
                (norm_attacks.black_box, stronger)
                for norm_attacks in _ATTACKS_BY_NORM
                for stronger in norm_attacks.white_box
            ],
        ),
        "single step stronger": (
            "one step should not beat many: the iterative attack may be stuck, or its step too small",
            [(_FGSM, stronger) for stronger in _LINF_ATTACKS.white_box],
        ),
        "ensemble weaker": (
            "no attack should fool an image that AutoAttack's standard version does not fool",
            ensemble_pairs,
        ),
    }


def _compare_attacks(
    check: str,
    reason: str,
    results: Mapping[KeyAndStrength, Accuracies],
    pairs: Sequence[tuple[str, str]],
    n_images: int | None,
) -> Iterator[_Flag]:
    """Flag networks whose accuracy under the supposedly stronger attack of a pair exceeds that under the weaker one.

    If `n_images` is None, any difference is flagged; otherwise, it must exceed the margin for chance.
    """
    comparisons = [
        (weak, strong, strength)
        for weak, strong in pairs
        for key, strength in sorted(results)
        if key == weak and strength > CLEAN_STRENGTH and (strong, strength) in results
    ]
    for weak, strong, strength in comparisons:
        weak_accuracies, strong_accuracies = results[weak, strength], results[strong, strength]
        margin = 0.0 if n_images is None else _ChanceMargin(n_images, len(comparisons) * len(weak_accuracies))
        yield from _flag_excess(
            check, f"{weak} against {strong} at {strength:g}", reason, strong_accuracies, weak_accuracies, margin
        )


def _check_monotonicity(results: Mapping[KeyAndStrength, Accuracies], n_images: int) -> Iterator[_Flag]:
    adjacent_strengths = []
    for key in (key for norm_attacks in _ATTACKS_BY_NORM for key in norm_attacks.iterative):
        strengths = sorted(strength for name, strength in results if name == key)
        adjacent_strengths += [(key, low, high) for low, high in pairwise(strengths)]
    for key, low, high in adjacent_strengths:
        accuracies_at_low, accuracies_at_high = results[key, low], results[key, high]
        yield from _flag_excess(
            "not monotone",
            f"{key} at {high:g} against {low:g}",
            "a larger ball contains the smaller one: the attack at the larger epsilon did not converge",
            accuracies_at_high,
            accuracies_at_low,
            _ChanceMargin(n_images, len(adjacent_strengths) * len(accuracies_at_low)),
        )


def _check_large_epsilons(results: Mapping[KeyAndStrength, Accuracies], n_classes: int) -> Iterator[_Flag]:
    limit = min(1.0, 1 / n_classes + NEAR_CHANCE)
    reason = f"at such a large epsilon, the accuracy should be at most {limit:g} ({NEAR_CHANCE:g} above chance)"
    for (key, strength), accuracies in sorted(results.items(), key=lambda item: item[0]):
        if key in (_FGSM, *_LINF_ATTACKS.iterative) and strength >= MIN_HUGE_EPSILON_255:
            limits = dict.fromkeys(accuracies, limit)
            yield from _flag_excess("far from chance", f"{key} at {strength:g}", reason, accuracies, limits)


def _check_strength_zero(results: Mapping[KeyAndStrength, Accuracies]) -> Iterator[_Flag]:
    """Flag accuracies at strength 0 that differ from the clean accuracy.

    Sweeps reject strength 0, so only results of other programs contain such accuracies.
    """
    clean = results.get((_CLEAN, CLEAN_STRENGTH), {})
    reason = f"at epsilon 0 the images are clean, so accuracies should differ by at most {ARITHMETIC_TOLERANCE:g}"
    known_keys = {_FGSM, *(key for norm_attacks in _ATTACKS_BY_NORM for key in norm_attacks.iterative)}
    for (key, strength), accuracies in sorted(results.items(), key=lambda item: item[0]):
        if key in known_keys and strength == 0:
            for higher, lower in ((accuracies, clean), (clean, accuracies)):
                yield from _flag_excess(
                    "changed at zero", f"{key} at 0 against clean", reason, higher, lower, ARITHMETIC_TOLERANCE
                )


def _check_gradients(results: Mapping[KeyAndStrength, Accuracies]) -> Iterator[_Flag]:
    fractions = results.get(ZERO_GRADIENTS, {})
    reason = (
        f"the gradient of the loss is zero on more than {MAX_ZERO_FRACTION:g} of the images, "
        "so attacks that follow the gradient do not change them"
    )
    yield from _flag_excess(
        "zero gradients", "input_gradient", reason, fractions, dict.fromkeys(fractions, MAX_ZERO_FRACTION)
    )


def _check_clean_accuracy(
    results: Mapping[KeyAndStrength, Accuracies], n_images: int, n_classes: int
) -> Iterator[_Flag]:
    """Flag networks whose clean accuracy is not above chance; the chance level is listed as the higher number."""
    chance = 1 / n_classes
    clean = results.get((_CLEAN, CLEAN_STRENGTH), {})
    flagged = {name: accuracy for name, accuracy in clean.items() if is_at_chance(accuracy, n_images, n_classes)}
    reason = (
        "the clean accuracy is not significantly above chance, so accuracies under attack mean nothing: the network "
        "has no path or is not trained, or weights, normalisation or the order of the classes are wrong"
    )
    if flagged:
        networks = tuple((name, chance, flagged[name]) for name in sorted(flagged, key=lambda name: flagged[name]))
        yield AT_CHANCE, "clean", reason, networks, len(clean)


class _ChanceMargin(NamedTuple):
    """Margin that any of several differences of accuracies exceeds by chance with probability `FLAG_LEVEL` at most."""

    n_images: int
    n_comparisons: int

    def compute(self, high: _Floats, low: _Floats) -> _Floats:
        from scipy.special import ndtri

        quantile = -float(ndtri(FLAG_LEVEL / max(1, self.n_comparisons)))
        # The variance is at least 1 / N, as if one image were misclassified: an estimate of 0 would be too small.
        variance = np.maximum(high * (1 - high) + low * (1 - low), 1 / self.n_images)
        margin: _Floats = quantile * np.sqrt(variance / self.n_images)
        return margin


def _flag_excess(
    check: str, where: str, reason: str, higher: Accuracies, lower: Accuracies, margin: _ChanceMargin | float = 0.0
) -> Iterator[_Flag]:
    """Yield one flag if there are networks whose `higher` accuracy exceeds `lower` by more than a margin."""
    common_networks = [name for name in higher if name in lower]
    high = np.array([higher[name] for name in common_networks], np.float64)
    low = np.array([lower[name] for name in common_networks], np.float64)
    excess = high - low - (margin.compute(high, low) if isinstance(margin, _ChanceMargin) else margin)
    order = np.argsort(-excess, kind="stable")
    flagged = [
        (common_networks[index], float(high[index]), float(low[index])) for index in order[excess[order] > 0].tolist()
    ]
    if flagged:
        yield check, where, reason, tuple(flagged), len(common_networks)
