"""Names by which commands select accuracies, and names of measures.

    adversarial | corruption    all pairs of attack and epsilon, or of corruption and severity (see `averaged_keys`)
    KEY                         clean, or all strengths of a key or of a group's keys, such as paper
    KEY:STRENGTH                one evaluation, such as pgd:8/255, pgd_l2:0.5 or fog:3

A name with several accuracies per architecture stands for their mean.
"""

import pandas as pd

from robust201.analysis.dataset_results import ADVERSARIAL, SCORE_KINDS, DatasetResults
from robust201.analysis.network_costs import network_costs
from robust201.core.errors import ConfigError, did_you_mean
from robust201.core.records import CLEAN_STRENGTH
from robust201.dataset.layout import architecture_of_network, paper_key
from robust201.dataset.reader import MEAN_DECIMALS
from robust201.tasks import expand_keys
from robust201.tasks.strengths import parse_strength, parse_term


def measure_name(key: str, measurement: str, strength: float) -> str:
    """Return a measurement's name, such as ``jacobian.squared_norm``, with the strength appended unless that is 0."""
    return f"{key}.{measurement}" + (f":{strength:g}" if strength != CLEAN_STRENGTH else "")


def find_evaluations(results: DatasetResults, name: str) -> list[tuple[str, float]]:
    """Return the keys and strengths of a score, a key, a group or a key at a strength; empty for other names."""
    if name in SCORE_KINDS:
        keys = results.averaged_keys(name)
        return [column for column in results.columns if column[0] in keys]
    expanded_keys = expand_keys([paper_key(name)])
    evaluations = [column for column in results.columns if column[0] in expanded_keys]
    return evaluations or [column for column in results.columns if _is_named(results, name, *column)]


def require_evaluations(results: DatasetResults, name: str) -> list[tuple[str, float]]:
    """Return the keys and strengths that a name refers to (see `find_evaluations`).

    Raises:
        ConfigError: no evaluation has this name.
    """
    evaluations = find_evaluations(results, name)
    if evaluations:
        return evaluations
    if name in SCORE_KINDS:
        required_results = "an attack in a norm ball" if name == ADVERSARIAL else "a corruption"
        raise ConfigError(
            f"Looking up {name} failed for {results.name}: it has no results under {required_results}. Choose another "
            "score, or export more keys."
        )
    key = paper_key(parse_term(name)[0])
    if strengths := results.strengths(key):
        raise ConfigError(
            f"Looking up {name} failed for {results.name}: it has no results under {key} at this strength. "
            f"Choose one of {', '.join(results.term(key, strength) for strength in strengths)}."
        )
    names = [*results.scores, *dict(results.columns), *(results.term(*column) for column in results.columns)]
    raise ConfigError(
        f"Looking up {name!r} failed for {results.name}: no such name; expected a score, a key, or a key at a strength."
        f"{did_you_mean(name, names)}"
    )


def mean_accuracy(results: DatasetResults, name: str) -> "pd.Series[float]":
    """Return each architecture's mean accuracy over a name's evaluations, or NaN if any of them is missing.

    Raises:
        ConfigError: no evaluation has this name.
    """
    columns = results.accuracies[require_evaluations(results, name)]
    if columns.shape[1] == 1:
        return columns.iloc[:, 0]
    return columns.mean(axis=1, skipna=False).round(MEAN_DECIMALS)


def collect_measures(results: DatasetResults, table: pd.DataFrame | None = None) -> pd.DataFrame:
    """Return measures of the evaluated architectures and, if they are cells, their sizes.

    Args:
        results: results of a dataset.
        table: measures to use instead of those of the results, with a column `architecture`.

    Returns:
        float64 by evaluated architecture: `parameters` and `flops` (multiply-accumulates) of cells, and the measures.
    """
    columns: dict[str, pd.Series] = dict(
        network_costs(results.reader, results.name, results.architectures, n_classes=results.n_classes)
    )
    if table is None:
        columns |= {measure_name(*column): values for column, values in results.measures.items()}  # type: ignore[misc]
    else:
        rows = table.set_index("architecture").reindex(list(map(architecture_of_network, results.architectures)))
        columns |= {str(name): values.set_axis(results.accuracies.index) for name, values in rows.items()}
    return pd.DataFrame(columns).reindex(results.accuracies.index)


def _is_named(results: DatasetResults, name: str, key: str, strength: float) -> bool:
    """Return whether a name, such as ``pgd:8/255``, refers to this key at this strength."""
    if name == results.term(key, strength):  # also matches keys without strengths
        return True
    named_key, text = parse_term(name)
    try:
        named_strength = parse_strength(text, results.reader.norm_ball_of(key))
    except ValueError:
        return False
    return (paper_key(named_key), named_strength) == (key, strength)
