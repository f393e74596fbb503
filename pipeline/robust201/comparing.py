"""`robust201.compare` and `robust201.curves`: several networks on the same images."""

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from robust201.analysis.comparison import Comparison, check_protocols, check_same_images, compare_evaluations
from robust201.analysis.evaluation import Evaluation
from robust201.analysis.named_networks import UserNetwork, read_network
from robust201.analysis.network_context import Options
from robust201.analysis.requested_keys import (
    Keys,
    find_key,
    find_preset,
    pair_with_fields,
    parse_parameters,
)
from robust201.api import evaluate_network
from robust201.core.errors import ConfigError, warn_caller
from robust201.figures.security_curves import SecurityCurves
from robust201.images.user_arrays import as_image_set
from robust201.tasks import PRESETS, TASKS
from robust201.tasks.constraints import Constraint
from robust201.tasks.strengths import format_term, unit_of

_Network = nn.Module | Evaluation | UserNetwork | str | Path

_NamedNetwork = nn.Module | Evaluation | UserNetwork

Networks = Mapping[str, _Network] | Sequence[_Network] | _Network
"""Networks by name, a list of networks, or a single network."""


def compare(
    networks: Networks,
    images: Any = None,
    labels: Any = None,
    keys: Keys | None = None,
    *,
    data: str | None = None,
    **options: Any,
) -> Comparison:
    """Compare two or more networks on the same images, image by image.

    Args:
        networks: networks in a mapping by name or in a list. A network is a module; a result of `evaluate`, or the
            folder to which it was saved; ``FILE:FUNCTION`` or ``DATASET:ARCHITECTURE`` (see
            `robust201.analysis.named_networks`). In a list, text may begin with ``NAME=``, and modules and results are
            named after the classes of the networks, with numbers if classes repeat.
        images: see `evaluate`; only needed for modules and functions.
        labels: see `evaluate`.
        keys: see `evaluate`; by default clean images, FGSM and PGD. For saved results and networks in datasets: keys,
            or keys at a strength such as ``"pgd:8/255"``; by default all keys and strengths of the first saved result,
            or every key of a dataset at one strength (nearest to 1/255, to 1 in L2 and L1, or to severity 3).
        data: name of the image dataset, if the folder DATASET covers several.
        options: further arguments of `evaluate`, such as `seed`, the same for all modules.

    Returns:
        A `Comparison`. Its `table` has one row per pair, key and strength: `first` and `second` (names), `key`,
        `strength`, `unit`, `first_accuracy`, `second_accuracy`, `difference` (second minus first), `low` and `high`
        (its paired 95% interval), `only_first` and `only_second` (numbers of images that only this network classifies
        correctly), `p_value` (McNemar's exact test, two-sided), `adjusted_p_value` (Holm's correction over all rows)
        and `n_images`. Its `summary` has a sentence about each pair.

    Raises:
        ConfigError: there are fewer than two networks; two results have different images, different parameters of a
            key, or no key in common; saved results lack a key; there are images or options, but all results are saved;
            or see `evaluate`.
        DatasetError, EvaluationError: see `evaluate`.
        ResultsError: a saved evaluation is missing or damaged.
    """
    names = find_names(keys)
    named = name_networks(networks, names, data)
    if len(named) < 2:
        raise ConfigError(
            f"Comparing networks failed: expected two or more networks, got {len(named)}. Pass a list, or a mapping of "
            "names to networks."
        )
    saved = {name: network for name, network in named.items() if isinstance(network, Evaluation)}
    in_dataset = any(not network.network_sha256 for network in saved.values())
    unused = [f"data={data!r}"] if data is not None and not in_dataset else []
    _check_arguments(named, images, labels, options, unused)
    if len(saved) == len(named) and _has_parameters(keys):
        raise ConfigError(
            f"Comparing networks failed for {next(iter(saved))}: the keys have parameters, but saved results have "
            "fixed parameters. Pass names of keys only, such as pgd or pgd:8/255."
        )
    for network in saved.values():
        if names is not None:
            network.find(names)  # raises before modules are evaluated
    if keys is None:
        keys = _terms_of(next(iter(saved.values()))) if saved else ("clean", "fgsm", "pgd")
    return compare_evaluations(_evaluate_all(named, images, labels, keys, options), names if saved else None)


def curves(
    networks: Networks, images: Any = None, labels: Any = None, keys: Keys = "fmn", **options: Any
) -> SecurityCurves:
    """Compute the accuracy of networks at every epsilon, with one run of each attack.

    An image's distance is the size of the smallest perturbation that fools the network, over all attacks. Perturbed
    images are classified once more after the attack, to confirm that they fool the network.

    Args:
        networks: see `compare`; also a single network. Saved results must contain the keys, up to the largest possible
            epsilon (such as ``fmn:1``) unless all images are fooled.
        images: see `evaluate`; only needed for modules and functions.
        labels: see `evaluate`.
        keys: minimum-norm attacks in one norm: ``"fmn"`` (Linf), ``"fmn_l2"`` or ``"fmn_l1"``, alone or with
            parameters: ``{"fmn_l2": {"steps": 1000}}``.
        options: further arguments of `evaluate`, such as `count` and `seed`.

    Returns:
        `SecurityCurves`. Its `table` has one row per network: `network`, `clean_accuracy`, `low` and `high` (its 95%
        interval), `median_distance` over all images (0 for images that are misclassified without an attack),
        `median_low` and `median_high` (its 95% interval), `half_distance` (smallest epsilon that fools half of the
        correctly classified images), `never_fooled` (fraction of the images) and `n_images`. Distances are in the unit
        of the strengths: 1/255 (Linf) or the pixel range (L2, L1).
        Further members: `accuracy(epsilons)`, `distances` by image, `summary` and
        `save("curves.pdf")`.

    Raises:
        ConfigError: a key is not a minimum-norm attack, two keys have different norms, two results have different
            images or parameters, or see `evaluate`.
        DatasetError, EvaluationError: see `evaluate`.
        ResultsError: a saved evaluation is missing or damaged.

    Warns:
        RobustWarning: the attacks did not fool a network on some images at any distance, or see `evaluate`.
    """
    fields_by_key, constraint = parse_attacks(keys)
    named = name_networks(networks)
    _check_arguments(named, images, labels, options)
    _check_saved(named, fields_by_key, options.get("engine", "fused"))
    if not all(isinstance(network, Evaluation) for network in named.values()):
        images, labels = as_image_set(images, labels), None
        largest_radius = constraint.largest_radius(images.images.shape[1:])
        fields_by_key = {key: {**fields, "epsilons": [largest_radius]} for key, fields in fields_by_key.items()}
    evaluations = _evaluate_all(named, images, labels, fields_by_key, options)
    for name, evaluation in evaluations.items():
        _check_distances(name, evaluation, fields_by_key, constraint)
    check_same_images(evaluations)
    saved = [name for name, network in named.items() if isinstance(network, Evaluation)]
    for first, second in product(saved, evaluations):  # modules of one call have the same parameters
        check_protocols(first, second, evaluations, fields_by_key)
    distances = {name: evaluation.distances[[*fields_by_key]] for name, evaluation in evaluations.items()}
    security_curves = SecurityCurves(distances, constraint)
    _warn_of_failures(security_curves, list(fields_by_key))
    return security_curves


def name_networks(
    networks: Networks, keys: Sequence[str] | None = None, data: str | None = None
) -> dict[str, _NamedNetwork]:
    """Return networks by name (see `compare`), with text replaced by the networks that it names; execute no files."""
    if isinstance(networks, _Network):
        networks = [networks]
    is_mapping = isinstance(networks, Mapping)
    pairs = networks.items() if isinstance(networks, Mapping) else zip(_class_names(networks), networks, strict=True)
    named: dict[str, _NamedNetwork] = {}
    for name, network in pairs:
        resolved: Mapping[str, _NamedNetwork]
        if isinstance(network, str | Path):
            resolved = read_network(str(network), name if is_mapping else "", keys, data)
        else:
            resolved = {name: network}
        for resolved_name, resolved_network in resolved.items():
            is_text = isinstance(network, str | Path)
            unique_name = str(network) if is_text and resolved_name in named else resolved_name
            if unique_name in named:
                raise ConfigError(
                    f"Reading networks failed for {unique_name}: it is listed more than once. Give each network a "
                    "unique name: NAME=…"
                )
            named[unique_name] = resolved_network
    return named


def _class_names(networks: Sequence[object]) -> list[str]:
    """Name networks after their classes, with numbers where several have the same class."""
    names = [network.network if isinstance(network, Evaluation) else type(network).__name__ for network in networks]
    return [name if names.count(name) == 1 else f"{name} {number}" for number, name in enumerate(names, start=1)]


def find_names(keys: Keys | None) -> list[str] | None:
    """Return the names in a list of keys, without parameters; a preset is replaced by its keys, FILE.py by FILE."""
    if keys is None:
        return None
    if (preset := find_preset(keys)) is not None:
        return [*PRESETS[preset]]
    return [
        Path(name).stem if re.search(r"\.py(:|$)", str(name)) else str(name)
        for name_or_mapping in ([keys] if isinstance(keys, str) else keys)
        for name in ([name_or_mapping] if isinstance(name_or_mapping, str) else name_or_mapping)
    ]


def _check_arguments(
    named: Mapping[str, object], images: Any, labels: Any, options: Mapping[str, Any], unused: Sequence[str] = ()
) -> None:
    """Reject `unused` arguments and, if all networks have saved results, arguments of an evaluation."""
    if all(isinstance(network, Evaluation) for network in named.values()):
        image_arguments = [name for name, value in (("images", images), ("labels", labels)) if value is not None]
        unused = [*unused, *image_arguments, *options]
    if unused:
        raise ConfigError(
            f"Reading arguments failed for {', '.join(unused)}: they have no effect, because saved results are not "
            "evaluated again, and `data` is only for DATASET:ARCHITECTURE. Leave these arguments out."
        )


def _check_saved(named: Mapping[str, object], fields_by_key: Mapping[str, Mapping[str, Any]], engine: str) -> None:
    """Check that saved results have the requested parameters."""
    for key, fields in fields_by_key.items():
        requested = parse_parameters(find_key(key), fields, engine).identity()
        for name, network in named.items():
            protocol = network.protocols.get(key) if isinstance(network, Evaluation) else None
            if protocol and (different := [field for field in fields if protocol.get(field) != requested[field]]):
                raise ConfigError(
                    f"Computing curves failed for {name}: {key} was evaluated with other parameters "
                    f"({', '.join(different)}). Evaluate it with the requested parameters, or request none."
                )


def _terms_of(evaluation: Evaluation) -> list[str]:
    return [format_term(key, strength, evaluation.unit_of(key)) for key, strength in evaluation.evaluations]


def _has_parameters(keys: Keys | None) -> bool:
    mappings = [keys] if isinstance(keys, Mapping) else [item for item in keys or () if isinstance(item, Mapping)]
    return any(fields for mapping in mappings for fields in mapping.values())


def _evaluate_all(
    networks: Mapping[str, _NamedNetwork],
    images: Any,
    labels: Any,
    keys: Keys,
    options: Mapping[str, Any],
) -> dict[str, Evaluation]:
    """Return the result of each network; modules and functions are evaluated."""
    evaluations: dict[str, Evaluation] = {}
    shown_cautions: set[str] = set()
    for name, network in networks.items():
        if isinstance(network, Evaluation):
            evaluations[name] = network
            continue
        network_options = {**options, "name": name, "shown_cautions": shown_cautions}
        if isinstance(network, UserNetwork):
            if network.normalisation is not None:
                network_options["normalisation"] = network.normalisation
            network = network.build()  # noqa: PLW2901
        evaluations[name] = evaluate_network(network, images, labels, keys, Options(**network_options))
    return evaluations


def parse_attacks(keys: Keys) -> tuple[dict[str, dict[str, Any]], Constraint]:
    """Return the parameters of each attack in the keys of `curves`, and the norm that all attacks share."""
    fields_by_key = {key: dict(fields or {}) for key, fields in pair_with_fields(keys)}
    known = [key for key, task in TASKS.items() if task.model.finds_distances]
    for key, fields in fields_by_key.items():
        if find_key(key).key not in known:
            raise ConfigError(
                f"Computing curves failed for {key!r}: it is not a minimum-norm attack. Choose one or more of "
                f"{', '.join(known)}."
            )
        if "epsilons" in fields:
            raise ConfigError(
                f"Computing curves failed for {key!r}: curves cover every epsilon, but the key has one. Remove it, and "
                "pass epsilons to the result's accuracy()."
            )
    constraints = {constraint for key in fields_by_key if (constraint := TASKS[key].constraint) is not None}
    if len(constraints) != 1:
        raise ConfigError(
            f"Computing curves failed for {', '.join(fields_by_key) or 'no key'}: expected attacks in one norm, got "
            f"{len(constraints)}. Choose one or more of {', '.join(known)}."
        )
    return fields_by_key, constraints.pop()


def _check_distances(name: str, evaluation: Evaluation, keys: Iterable[str], constraint: Constraint) -> None:
    """Check that an evaluation has distances for all keys, and that the distances cover every epsilon."""
    for key in keys:
        results = evaluation.results.get(key)
        largest = constraint.largest_radius(evaluation.image_shape)
        if results is None or results.distances is None:
            problem = f"it has no results under {key}"
        elif np.isinf(results.distances).any() and constraint.radius(max(results.strengths)) < largest * (1 - 1e-4):
            largest_key = format_term(key, max(results.strengths), unit_of(constraint, "attack"))
            problem = f"it was evaluated only up to {largest_key}"
        else:
            continue
        raise ConfigError(
            f"Computing curves failed for {name}: {problem}, but curves cover every epsilon. Evaluate it with the key "
            f"{key}:{largest:.6g}, and save it in another folder."
        )


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
            warn_caller(message)
