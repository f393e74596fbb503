"""Selection of a dataset's attacks at an epsilon in pixel units."""

from robust201.analysis.dataset_results import CORRUPTION, DatasetResults
from robust201.analysis.labels import strength_label
from robust201.analysis.leaderboard import default_names, nearest_strength
from robust201.core.errors import ConfigError
from robust201.core.radii import parse_radius
from robust201.dataset.layout import CLEAN
from robust201.tasks.constraints import LINF

_RELATIVE_TOLERANCE = 0.05
"""Maximum relative difference between an epsilon of the dataset and the user's epsilon, which may be rounded."""


def choose_evaluations_at_epsilon(results: DatasetResults, epsilon: str | None) -> list[str]:
    """Return the names of the clean evaluation, of every attack near an epsilon, and of the mean over corruptions.

    Args:
        results: results of the networks.
        epsilon: a radius such as ``8/255`` or ``0.031`` (Linf) or ``0.5`` (L2, L1). Attacks in a norm ball are left out
            if they have no strength near the epsilon. Attacks without a norm ball use the strength
            nearest to the epsilon in units of 1/255. None includes every attack (see `default_names`).

    Raises:
        ConfigError: the epsilon is not a number, or no attack has a strength near it.
    """
    if epsilon is None:
        return default_names(results)
    try:
        radius = float(parse_radius(epsilon))
    except ValueError as error:
        raise ConfigError(f"Reading the command line failed for --epsilon: {error} Correct this option.") from error
    names, available_epsilons = [], []
    for key in (*results.keys("attack"), *results.keys("other")):
        ball = results.reader.norm_ball_of(key)
        target = radius * (LINF if ball is None else ball).divisor
        strength = nearest_strength(key, results.strengths(key), target)
        if ball is None or abs(strength - target) <= _RELATIVE_TOLERANCE * target:
            names.append(f"{key}:{strength:g}")
        else:
            available_epsilons += [strength_label(key, other_strength) for other_strength in results.strengths(key)]
    if available_epsilons and not names:
        raise ConfigError(
            f"Choosing evaluations failed for {results.name}: no attack has a strength near --epsilon {epsilon}. "
            f"Choose one of these epsilons: {', '.join(dict.fromkeys(available_epsilons))}."
        )
    clean = [CLEAN] if results.keys(CLEAN) else []
    return clean + names + ([CORRUPTION] if CORRUPTION in results.scores else [])
