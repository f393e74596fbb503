"""Checks of accuracies for signs that an attack was too weak; explain every sign before publishing a robust accuracy.

The checks are taken from Carlini et al., "On Evaluating Adversarial Robustness" (2019, section 4), and from Athalye,
Carlini and Wagner, "Obfuscated Gradients" (ICML 2018, section 3.1); checks that need more than accuracies are left out.
It is not necessary to check whether an attack reports its successes correctly, because accuracies of robust201 always
come from a new forward pass on the images that an attack returned. Zero gradients are detected only if the measure
`input_gradient` was evaluated.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from robust201.core.records import CLEAN_STRENGTH, ArchitectureId, format_architecture
from robust201.statistics.intervals import is_at_chance
from robust201.tasks import TASKS, Task
from robust201.tasks.strengths import format_term, unit_of

FLAG_LEVEL = 1e-3
"""Maximum probability that a check with a chance margin flags any network of a dataset by chance."""

MIN_HUGE_EPSILON_255 = 64.0
"""Epsilon, in units of 1/255, from which an attack in the Linf ball is hardly constrained."""

NEAR_CHANCE = 0.15
"""Margin above chance level within which an accuracy counts as near chance.

At 255/255, FGSM produces images with two values per channel. Networks do not assign such images to all classes equally
often, so the accuracy may be above chance level."""

ZERO_GRADIENTS = ("input_gradient zero_share", CLEAN_STRENGTH)
"""Key and strength under which `find_flags` looks up the fraction of images whose gradient is exactly zero."""

MAX_ZERO_FRACTION = 0.01
"""Maximum fraction of images with a zero gradient that is not flagged; our choice, as the source has no threshold."""

AT_CHANCE = "at chance"
"""Name of the check of clean accuracies."""

_CLEAN = ("clean", CLEAN_STRENGTH)

_BALL_ATTACKS = tuple(task for task in TASKS.values() if task.kind == "attack" and task.norm is not None)
"""Attacks in norm balls."""

Accuracies = Mapping[ArchitectureId, float]
"""Fraction of correctly classified images, by network."""

_Floats = NDArray[np.float64]

KeyAndStrength = tuple[str, float]
"""Key, such as ``aa_square`` (without the suffix in published files), and strength."""


@dataclass(frozen=True)
class AttackFlag:
    """A sign that an attack was too weak, and the networks of a dataset that show it.

    Attributes:
        dataset: name of the dataset; empty for a single network on images without a name.
        check: name of a rule of `_RULES`, or `AT_CHANCE`.
        where: keys and strengths, such as ``pgd:8/255 against pgd:1/255``, in the order of the compared numbers.
        reason: possible cause, and the threshold.
        networks: networks that show the sign, each with the two compared numbers; the first should be the lower one.
            The network with the clearest sign comes first.
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
            return f"{self.check}: {self.where}: {high:.4f} against {low:.4f}; {self.reason}."
        return (
            f"{self.check}: {self.dataset} {self.where}: {len(self.networks):,} of {self.n_checked:,} networks, such "
            f"as {format_architecture(name)} ({high:.4f} against {low:.4f}); {self.reason}."
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


Results = Mapping[KeyAndStrength, Accuracies]

_Comparison = tuple[str, Accuracies, Accuracies]
"""Label, the checked accuracies (or fractions), and their bounds: accuracies or a limit that they should not exceed."""

_Compare = Callable[[Results, float], Iterator[_Comparison]]
"""(results, largest plausible accuracy at a huge epsilon) → comparisons."""


@dataclass(frozen=True)
class _Rule:
    """A check that accuracies (or fractions) do not exceed their bounds (see `_Comparison`).

    Attributes:
        reason: possible cause; ``{limit}`` stands for the largest plausible accuracy at a huge epsilon.
        margin: whether only differences above the chance margin are flagged: `always`, `never`, or `optional`
            (unless `flag_any_difference` is set).
    """

    check: str
    reason: str
    compare: _Compare
    margin: Literal["always", "optional", "never"] = "never"


def _format_attack(attack: Task, strength: float) -> str:
    return format_term(attack.key, strength, unit_of(attack.constraint, attack.kind))


def _compare_attacks(weak_roles: Collection[str], strong_role: str) -> _Compare:
    """Return a function that compares attacks of some roles with supposedly stronger ones in the same ball."""
    pairs = [
        (weak, strong)
        for weak in _BALL_ATTACKS
        for strong in _BALL_ATTACKS
        if weak.norm == strong.norm and weak.model.role in weak_roles and strong.model.role == strong_role
    ]

    def compare(results: Results, _limit: float) -> Iterator[_Comparison]:
        for weak, strong in pairs:
            for key, strength in sorted(results):
                if key == weak.key and strength > CLEAN_STRENGTH and (strong.key, strength) in results:
                    where = f"{_format_attack(strong, strength)} against {_format_attack(weak, strength)}"
                    yield where, results[strong.key, strength], results[weak.key, strength]

    return compare


def _compare_strengths(results: Results, _limit: float) -> Iterator[_Comparison]:
    for attack in _BALL_ATTACKS:
        strengths = sorted(strength for key, strength in results if key == attack.key)
        for low, high in pairwise(strengths if attack.model.role != "single step" else ()):
            where = f"{_format_attack(attack, high)} against {_format_attack(attack, low)}"
            yield where, results[attack.key, high], results[attack.key, low]


def _compare_with_limit(results: Results, limit: float) -> Iterator[_Comparison]:
    attacks = {attack.key: attack for attack in _BALL_ATTACKS if attack.norm == "Linf"}
    for key, strength in sorted(results):
        if key in attacks and strength >= MIN_HUGE_EPSILON_255:
            accuracies = results[key, strength]
            yield _format_attack(attacks[key], strength), accuracies, dict.fromkeys(accuracies, limit)


def _compare_zero_gradients(results: Results, _limit: float) -> Iterator[_Comparison]:
    fractions = results.get(ZERO_GRADIENTS, {})
    yield "input_gradient", fractions, dict.fromkeys(fractions, MAX_ZERO_FRACTION)


_RULES = (
    _Rule(
        "black-box stronger",
        "an attack without gradients should not beat one with them: gradients may be masked",
        _compare_attacks({"black box"}, "white box"),
        margin="optional",
    ),
    _Rule(
        "single step stronger",
        "one step should not beat many: the iterative attack may be stuck, or its step too small",
        _compare_attacks({"single step"}, "white box"),
        margin="optional",
    ),
    _Rule(
        "ensemble weaker",
        "no attack should fool an image that AutoAttack's standard version does not fool",
        _compare_attacks({"single step", "white box", "black box", "nearest"}, "ensemble"),
        margin="optional",
    ),
    _Rule(
        "not monotone",
        "a larger ball contains the smaller one: the attack at the larger epsilon did not converge",
        _compare_strengths,
        margin="always",
    ),
    _Rule(
        "far from chance",
        f"at such a large epsilon, the accuracy should be at most {{limit:g}} ({NEAR_CHANCE:g} above chance)",
        _compare_with_limit,
    ),
    _Rule(
        "zero gradients",
        f"the gradient of the loss is zero on more than {MAX_ZERO_FRACTION:g} of the images, so attacks that follow "
        "the gradient do not change them",
        _compare_zero_gradients,
    ),
)


def find_flags(
    dataset: str, results: Results, *, n_images: int, n_classes: int, flag_any_difference: bool = False
) -> list[AttackFlag]:
    """Run all checks on the results of a dataset, which must come from the same `n_images` images.

    Rules with a margin flag a difference that two independent samples of `n_images` images would exceed by chance with
    a probability of at most `FLAG_LEVEL` per dataset (one-sided, normal approximation, Bonferroni over networks and
    comparisons). Both samples are in fact the same images, so their difference varies less and the checks are
    conservative. Other rules flag any difference. With `flag_any_difference`, any higher accuracy under the supposedly
    stronger of two attacks in the same ball is flagged, because the weaker attack must then succeed on an image on
    which the other fails.
    """
    limit = min(1.0, 1 / n_classes + NEAR_CHANCE)
    margins = ("always",) if flag_any_difference else ("always", "optional")
    flags = []
    for rule in _RULES:
        comparisons = list(rule.compare(results, limit))
        for where, checked, bounds in comparisons:
            names = [name for name in checked if name in bounds]
            values, limits = (np.array([table[name] for name in names], np.float64) for table in (checked, bounds))
            n_differences = len(comparisons) * len(names)
            excess = values - limits
            if rule.margin in margins:
                excess -= _chance_margin(values, limits, n_images, n_differences)
            order = np.argsort(-excess, kind="stable")
            flagged = tuple((names[i], float(values[i]), float(limits[i])) for i in order[excess[order] > 0].tolist())
            if flagged:
                reason = rule.reason.format(limit=limit)
                flags.append(AttackFlag(dataset, rule.check, where, reason, flagged, len(names)))
    return [*flags, *_flag_clean_accuracy(dataset, results.get(_CLEAN, {}), n_images, n_classes)]


def _chance_margin(first: _Floats, second: _Floats, n_images: int, n_differences: int) -> _Floats:
    """Return the margin that any of several differences exceeds by chance with probability `FLAG_LEVEL` at most."""
    from scipy.special import ndtri

    quantile = -float(ndtri(FLAG_LEVEL / max(1, n_differences)))
    # The variance is at least 1 / N, as if one image were misclassified: an estimate of 0 would be too small.
    variance = np.maximum(first * (1 - first) + second * (1 - second), 1 / n_images)
    margin: _Floats = quantile * np.sqrt(variance / n_images)
    return margin


def _flag_clean_accuracy(dataset: str, clean: Accuracies, n_images: int, n_classes: int) -> Iterator[AttackFlag]:
    """Flag networks whose clean accuracy is not significantly above chance; the chance level is listed first."""
    chance = 1 / n_classes
    flagged = {name: accuracy for name, accuracy in clean.items() if is_at_chance(accuracy, n_images, n_classes)}
    reason = (
        "the clean accuracy is not significantly above chance, so accuracies under attack mean nothing: the network "
        "has no path or is not trained, or weights, normalisation or the order of the classes are wrong"
    )
    if flagged:
        networks = tuple((name, chance, flagged[name]) for name in sorted(flagged, key=lambda name: flagged[name]))
        yield AttackFlag(dataset, AT_CHANCE, "clean", reason, networks, len(clean))
