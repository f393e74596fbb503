"""Attacks of a dataset at an epsilon that a user names, in the units of pixels."""

from robust201.analysis.dataset_results import CORRUPTION, DatasetResults
from robust201.analysis.labels import strength_label
from robust201.analysis.leaderboard import default_names, nearest_strength
from robust201.core.errors import ConfigError
from robust201.reader.value_checks import CLEAN
from robust201.tasks.constraints import LINF
from robust201.tasks.parameters import parse_radius

_NEAR = 0.05
"""Largest relative difference between an epsilon of the dataset and what a user may have rounded to."""


def names_at_epsilon(results: DatasetResults, epsilon: str | None) -> list[str]:
    """Name clean images, every attack at an epsilon that it was run at, and the mean over corruptions.

    Args:
        results: of the networks.
        epsilon: such as ``8/255`` or ``0.031`` (Linf), ``0.5`` (L2, L1), or a number of values (L0). Attacks in a norm
            ball without a strength near it are left out; attacks without a ball, such as transfers, have the strength
            nearest to it in 1/255. By default, every attack is named (see `default_names`).

    Raises:
        ConfigError: the epsilon is no number, or no attack was run at one near it.
    """
    if epsilon is None:
        return default_names(results)
    try:
        radius = float(parse_radius(epsilon))
    except ValueError as error:
        raise ConfigError(f"Reading the command line failed for --epsilon: {error} Correct it.") from error
    chosen, others = [], []
    for key in (*results.keys("attack"), *results.keys("other")):
        ball = results.reader.files.ball_of(key)
        wanted = radius * (LINF if ball is None else ball).divisor
        strength = nearest_strength(key, results.strengths(key), wanted)
        if ball is None or abs(strength - wanted) <= _NEAR * wanted:
            chosen.append(f"{key}:{strength:g}")
        else:
            others += [strength_label(key, other) for other in results.strengths(key)]
    if others and not chosen:
        raise ConfigError(
            f"Choosing evaluations failed for {results.name}: expected an --epsilon that an attack was run at "
            f"({', '.join(dict.fromkeys(others))}), got {epsilon}. Choose one of these."
        )
    clean = [CLEAN] if results.keys(CLEAN) else []
    return clean + chosen + ([CORRUPTION] if CORRUPTION in results.scores else [])
