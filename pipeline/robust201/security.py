"""Security curves of networks: accuracy at every epsilon, from attacks for the smallest perturbation."""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import nn

from robust201.api import evaluate, name_networks
from robust201.core.errors import ConfigError, RobustWarning, closest
from robust201.figures.security_curves import SecurityCurves
from robust201.images.user_arrays import as_image_set
from robust201.tasks import TASKS, Task
from robust201.tasks.constraints import CONSTRAINTS
from robust201.tasks.parameters import STRENGTH_FIELDS, BrendelBethge, MinimumNorm

DEFAULT_ATTACKS = {
    "Linf": ("fmn",),
    "L2": ("ddn_l2", "fmn_l2"),
    "L1": ("fmn_l1",),
    "L0": ("sigma_zero_l0",),
}
"""Attacks of a norm where none is named."""


def curves(
    networks: Mapping[str, nn.Module] | Sequence[nn.Module] | nn.Module,
    images: Any,
    labels: Any = None,
    norm: str = "Linf",
    attacks: str | Mapping[str, Mapping[str, Any]] | Sequence[str] | None = None,
    **options: Any,
) -> SecurityCurves:
    """Compute the accuracy of networks at every epsilon, by one run of each attack.

    Each image's distance is the smallest perturbation that fools the network, shown to the network once more after the
    attack. Of several attacks an image has the smallest distance.

    Args:
        networks: modules by name, in a list, or one.
        images: see `evaluate`.
        labels: see `evaluate`.
        norm: ``"Linf"``, ``"L2"``, ``"L1"`` or ``"L0"``.
        attacks: keys of attacks for the smallest perturbation in this norm, alone or with parameters:
            ``{"fmn_l2": {"steps": 1000}, "ddn_l2": {}}``. None takes `DEFAULT_ATTACKS`.
        options: further arguments of `evaluate`, such as `count` and `seed`.

    Returns:
        A DataFrame with `accuracy(epsilons)`, `distances` by image, `optimality` of the attacks, `summary` and
        `save("curves.pdf")`. One row per network: `network`, `clean_accuracy`, `low` and `high` (its 95% interval),
        `median_distance` over all images (0 for those that are wrong as they are), `median_low` and `median_high` (its
        95% interval), `half_distance` (the smallest epsilon that fools half of the images that are right as they are),
        `never_fooled` (share of the images), `n_images`, `passes` (forward and backward passes of an attacked image in
        the attacks' steps; NaN with `aa_fab` and `bb`), `seconds`.
        Distances are written as strengths: in units of 1/255 (Linf), of the pixel range (L2, L1), of values (L0).

    Raises:
        ConfigError: no such norm; an attack is of another norm, or does not look for the smallest perturbation; or a
            reason of `evaluate`.
        DatasetError: see `evaluate`.
        EvaluationError: see `evaluate`.

    Warns:
        RobustWarning: images were not fooled at any distance, or a reason of `evaluate`.
    """
    if norm not in CONSTRAINTS:
        raise ConfigError(
            f"Computing curves failed for norm {norm!r}: expected one of {', '.join(CONSTRAINTS)}."
            f"{closest(str(norm), CONSTRAINTS)}"
        )
    keys = parse_attacks(norm, attacks)
    named = networks if isinstance(networks, Mapping) else name_networks(_as_list(networks))
    given = as_image_set(images, labels)
    constraint = CONSTRAINTS[norm]
    largest = constraint.divisor * constraint.largest_radius(given.images.shape[1:])
    at_largest = {key: {**fields, _strength_field(TASKS[key]): [largest]} for key, fields in keys.items()}
    tables = {name: evaluate(module, given, None, at_largest, **options) for name, module in named.items()}
    passes = sum(_passes(TASKS[key], fields) for key, fields in at_largest.items())
    further = {
        "passes": [passes] * len(tables),
        "seconds": [float(table["seconds"].sum()) for table in tables.values()],
    }
    by_attack = {name: table.distances * constraint.divisor for name, table in tables.items()}
    curves = SecurityCurves.of(by_attack, constraint, further)
    _warn_of_failures(curves, list(keys))
    return curves


def _warn_of_failures(curves: SecurityCurves, attacks: Sequence[str]) -> None:
    """Warn of networks with images that were not fooled within the whole range of pixels."""
    for name, distances in curves.distances.items():
        count = int(np.isinf(distances.to_numpy(np.float64)).sum())
        if count:
            message = (
                f"{name}: {', '.join(attacks)} did not fool {count:,} of {len(distances):,} images at any distance, "
                "though any image would do: the attack failed there, which says nothing of robustness. Take more steps "
                "or further attacks."
            )
            warnings.warn(message, RobustWarning, stacklevel=3)


def parse_attacks(
    norm: str, attacks: str | Mapping[str, Mapping[str, Any]] | Sequence[str] | None
) -> dict[str, dict[str, Any]]:
    """Read the attacks of `curves` and their parameters; a ConfigError names one that gives no distances."""
    chosen = DEFAULT_ATTACKS[norm] if attacks is None else attacks
    listed = [chosen] if isinstance(chosen, str) else list(chosen)
    fields = {key: dict(chosen[key]) if isinstance(chosen, Mapping) else {} for key in listed}
    known = [
        key
        for key, row in TASKS.items()
        if row.finds_distances and row.constraint is not None and row.constraint.name == norm
    ]
    for key, given in fields.items():
        if key not in known:
            raise ConfigError(
                f"Computing curves failed for attack {key!r}: expected one that looks for the smallest perturbation in "
                f"{norm}: {', '.join(known)}.{closest(str(key), known)}"
            )
        named = [name for name in given if name in STRENGTH_FIELDS]
        if named:
            raise ConfigError(
                f"Computing curves failed for {key}.{named[0]}: curves have every epsilon. Leave it out, and pass "
                "epsilons to accuracy() of the result."
            )
    if not fields:
        raise ConfigError(f"Computing curves failed for attacks: none is named. Name some of {', '.join(known)}.")
    return fields


def _as_list(networks: Sequence[nn.Module] | nn.Module) -> Sequence[nn.Module]:
    return [networks] if isinstance(networks, nn.Module) else networks


def _strength_field(row: Task) -> str:
    return next(name for name in STRENGTH_FIELDS if name in row.parameters.model_fields)


def _passes(row: Task, fields: Mapping[str, Any]) -> float:
    """Forward and backward passes of an image: two for each step; NaN of attacks that take others."""
    parameters = row.parameters(**fields)
    # Brendel and Bethge's attack also looks for a starting point, with as many passes as that takes.
    if isinstance(parameters, MinimumNorm) and not isinstance(parameters, BrendelBethge):
        return 2.0 * parameters.steps
    return np.nan
