"""Security curves of networks: accuracy at every epsilon, from minimum-norm attacks."""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import nn

from robust201.api import evaluate, name_networks
from robust201.core.errors import ConfigError, RobustWarning, did_you_mean
from robust201.figures.security_curves import SecurityCurves
from robust201.images.user_arrays import as_image_set
from robust201.tasks import TASKS, Task
from robust201.tasks.constraints import CONSTRAINTS


def curves(
    networks: Mapping[str, nn.Module] | Sequence[nn.Module] | nn.Module,
    images: Any,
    labels: Any = None,
    norm: str = "Linf",
    attacks: str | Mapping[str, Mapping[str, Any]] | Sequence[str] | None = None,
    **options: Any,
) -> SecurityCurves:
    """Compute the accuracy of networks at every epsilon, with one run of each attack.

    An image's distance is the size of the smallest perturbation that fools the network, over all attacks. Perturbed
    images are classified once more after the attack, to confirm that they fool the network.

    Args:
        networks: modules in a mapping by name or in a list, or a single module.
        images: see `evaluate`.
        labels: see `evaluate`.
        norm: ``"Linf"``, ``"L2"`` or ``"L1"``.
        attacks: keys of minimum-norm attacks in this norm, alone or with parameters:
            ``{"fmn_l2": {"steps": 1000}}``. None means all of them.
        options: further arguments of `evaluate`, such as `count` and `seed`.

    Returns:
        A DataFrame with one row per network: `network`, `clean_accuracy`, `low` and `high` (its 95% interval),
        `median_distance` over all images (0 for images that are misclassified without an attack), `median_low` and
        `median_high` (its 95% interval), `half_distance` (smallest epsilon that fools half of the correctly classified
        images), `never_fooled` (fraction of the images), `n_images`, `passes` (forward and backward passes per attacked
        image in the attacks' steps) and `seconds`. Distances are in the unit of the
        strengths: 1/255 (Linf) or the pixel range (L2, L1).
        Further members: `accuracy(epsilons)`, `distances` by image, `summary` and
        `save("curves.pdf")`.

    Raises:
        ConfigError: the norm is unknown; an attack has a different norm or is not a minimum-norm attack; or see
            `evaluate`.
        DatasetError: see `evaluate`.
        EvaluationError: see `evaluate`.

    Warns:
        RobustWarning: the attacks did not fool a network on some images at any distance, or see `evaluate`.
    """
    keys = parse_attacks(norm, attacks)
    networks_by_name = networks if isinstance(networks, Mapping) else name_networks(_as_list(networks))
    image_set = as_image_set(images, labels)
    constraint = CONSTRAINTS[norm]
    largest_radius = constraint.largest_radius(image_set.images.shape[1:])
    fields_by_key = {key: {**fields, "epsilons": [largest_radius]} for key, fields in keys.items()}
    tables = {
        name: evaluate(module, image_set, None, fields_by_key, **options) for name, module in networks_by_name.items()
    }
    passes = sum(_count_passes(TASKS[key], fields) for key, fields in fields_by_key.items())
    costs = {
        "passes": [passes] * len(tables),
        "seconds": [float(table["seconds"].sum()) for table in tables.values()],
    }
    distances_by_network = {name: table.distances for name, table in tables.items()}
    security_curves = SecurityCurves.of(distances_by_network, constraint, costs)
    _warn_of_failures(security_curves, list(keys))
    return security_curves


def _warn_of_failures(security_curves: SecurityCurves, attacks: Sequence[str]) -> None:
    """Warn about attacks that do not fool a network even within the whole pixel range."""
    for name, distances in security_curves.distances.items():
        n_unfooled = int(np.isinf(distances.to_numpy(np.float64)).sum())
        if n_unfooled:
            message = (
                f"{name}: {', '.join(attacks)} did not fool {n_unfooled:,} of {len(distances):,} images at any "
                "distance, although every perturbation was allowed. The attack failed on these images; this is not "
                "evidence of robustness. Use more steps or further attacks."
            )
            warnings.warn(message, RobustWarning, stacklevel=3)


def parse_attacks(
    norm: str, attacks: str | Mapping[str, Mapping[str, Any]] | Sequence[str] | None
) -> dict[str, dict[str, Any]]:
    """Parse the attacks of `curves` and their parameters; each must be a minimum-norm attack."""
    if norm not in CONSTRAINTS:
        raise ConfigError(
            f"Computing curves failed for norm {norm!r}: expected one of {', '.join(CONSTRAINTS)}."
            f"{did_you_mean(str(norm), CONSTRAINTS)}"
        )
    known_attacks = [key for key, task in TASKS.items() if task.finds_distances and task.norm == norm]
    requested = known_attacks if attacks is None else attacks
    listed_attacks = [requested] if isinstance(requested, str) else list(requested)
    fields = {key: dict(requested[key]) if isinstance(requested, Mapping) else {} for key in listed_attacks}
    for key, parameters in fields.items():
        if key not in known_attacks:
            raise ConfigError(
                f"Computing curves failed for attack {key!r}: it is not one of the minimum-norm attacks in {norm} "
                f"({', '.join(known_attacks)}).{did_you_mean(str(key), known_attacks)}"
            )
        if "epsilons" in parameters:
            raise ConfigError(
                f"Computing curves failed for {key}.epsilons: curves cover every epsilon. Remove this "
                "parameter, and pass epsilons to the result's accuracy()."
            )
    if not fields:
        raise ConfigError(
            f"Computing curves failed for `attacks`: the list is empty. Pass one or more of {', '.join(known_attacks)}."
        )
    return fields


def _as_list(networks: Sequence[nn.Module] | nn.Module) -> Sequence[nn.Module]:
    return [networks] if isinstance(networks, nn.Module) else networks


def _count_passes(task: Task, fields: Mapping[str, Any]) -> float:
    """Return the number of forward and backward passes per image, two per step."""
    parameters = task.parameters(**fields)
    return float(2 * parameters.steps * parameters.n_runs)
