"""The table of tasks: every attack, corruption and measure that a sweep can evaluate.

A task's name, such as `pgd`, is called its key. A task holds the data that planning needs (parameters, strengths, cost)
and the names of the functions that do the work. Only workers import these functions (`Task.load`), so planning, status
and export never import torch. "The paper" is Jung et al. (ICLR 2023), who published the original dataset.

To add an attack, write a module in `tasks/perturbations` with a `reference` function, a `fused` one or both, a
parameter class in `tasks/parameters.py`, and an entry in `TASKS`. Tests that run for every task then cover it.
"""

import importlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from robust201.core.errors import ConfigError, did_you_mean
from robust201.tasks.constraints import CONSTRAINTS, L2, LINF, Constraint
from robust201.tasks.measures.parameters import (
    HessianWeightsParameters,
    InputGradientParameters,
    InputHessianParameters,
    JacobianParameters,
)
from robust201.tasks.parameters import (
    NORMS,
    Apgd,
    ApgdTargeted,
    Attack,
    CleanParameters,
    CorruptionParameters,
    FabTargeted,
    FgsmParameters,
    Fmn,
    Grid135Parameters,
    Grid775SmallAnglesParameters,
    Parameters,
    PgdL2Parameters,
    PgdLinf7Parameters,
    PgdParameters,
    RotationParameters,
    SmallRotationParameters,
    SpatialParameters,
    Square,
    Standard,
    parameters_in_ball,
)

ENGINES = ("reference", "fused")
"""Implementations of attacks. `reference` calls the published libraries once per epsilon. `fused` is this package's
implementation, which attacks at all epsilons together."""


MAX_PASSES = 10_000_000
"""Maximum cost of a key per image, in forward-pass equivalents, summed over all strengths."""

Kind = Literal["clean", "attack", "corruption", "measure"]

Passes = Callable[[Any, int], float]
"""(parameters, number of classes) → forward-pass equivalents per image and strength."""

_COST_FACTORS = ("steps", "queries", "restarts", "targets", "projections", "passes")
"""Names of parameters that multiply the number of passes."""


@dataclass(frozen=True)
class Task:
    """One attack, corruption or measure, or the clean images, with the data that planning needs.

    Attributes:
        key: name in the paper's style, such as ``aa_square``.
        kind: kind of task; a `measure` evaluates a property of the network itself, without perturbing images.
        parameters: class of the key's parameters.
        semantics_version: increased only when results change although the parameters are equal.
        functions: engine → ``module.function`` in `tasks.perturbations` or, for a measure, in `tasks.measures`.
        passes: function that estimates the cost for planning (see `Passes`); a gradient counts as three forward passes.
        constraint: the ball that contains the perturbed images; None if they are unbounded.
        columns: a measure's columns, unless its parameters select others (see `with_parameters`); empty for a
            perturbation, whose columns follow from the sweep's measurements.
        images_version: version of a corruption's generator, increased only when equal images give different pixels; not
            used for published corrupted images.
        name: name in figures; if empty, the key with spaces.
    """

    key: str
    kind: Kind
    parameters: type[Parameters]
    semantics_version: int
    functions: Mapping[str, str]
    passes: Passes
    constraint: Constraint | None = None
    columns: tuple[str, ...] = ()
    images_version: int = 1
    name: str = ""

    @property
    def label(self) -> str:
        return self.name or self.key.replace("_", " ").capitalize()

    @property
    def finds_distances(self) -> bool:
        """Whether the attack searches for the smallest perturbation that fools a network, independently of epsilons."""
        return issubclass(self.parameters, Fmn)

    @property
    def is_divisible(self) -> bool:
        """Whether a network may be evaluated on a few images at a time. A measure needs all images at once."""
        return self.kind != "measure"

    def with_parameters(self, parameters: Parameters) -> "Task":
        """Return the task with the columns that the parameters select."""
        selected = parameters.selected_columns
        return self if selected in ((), self.columns) else replace(self, columns=selected)

    @property
    def published_key(self) -> str:
        """The key as published, with the name of the norm, such as ``pgd@Linf``."""
        return self.key if self.constraint is None else f"{self.key}@{self.constraint.name}"

    def takes_job(self, engine: str) -> bool:
        """Whether the function takes an `AttackJob` (see `tasks.attack_kit.attack_job`) instead of a `Request`."""
        return engine == "fused" and self.kind == "attack"

    def shares_random_numbers_in_batch(self, engine: str) -> bool:
        """Whether all images of a batch share random numbers, so that images may be split only between batches."""
        return engine == "reference" or (self.kind == "attack" and not self.takes_job(engine))

    def excessive_cost_reason(self, parameters: Parameters, n_classes: int) -> str | None:
        """Return why the parameters together cost too much, or None."""
        passes = self.passes(parameters, n_classes) * len(parameters.strengths)
        if passes <= MAX_PASSES:
            return None
        costly_parameters = [name for name in _COST_FACTORS if hasattr(parameters, name)]
        return (
            f"expected up to {MAX_PASSES:,} passes through the network per image over all strengths, got "
            f"{passes:,.0f}. Lower {', '.join(f'`{name}`' for name in costly_parameters)} or the number of strengths."
        )

    def load(self, engine: str = "reference") -> Callable[..., Any]:
        """Import the task's function, which imports torch.

        Raises:
            ConfigError: the engine does not exist or does not support this task; the message names an engine that does.
        """
        if engine not in self.functions:
            other_engine = next(iter(self.functions)) if engine in ENGINES else ""
            advice = f" Use engine {other_engine}." if other_engine else did_you_mean(engine, self.functions)
            raise ConfigError(
                f"Loading {self.key} failed for engine {engine!r}: expected one of {', '.join(self.functions)}, got "
                f"{engine!r}.{advice}"
            )
        module, name = self.functions[engine].split(".")
        folder = "measures" if self.kind == "measure" else "perturbations"
        function: Callable[..., Any] = getattr(importlib.import_module(f"robust201.tasks.{folder}.{module}"), name)
        return function


def _attack_task(
    key: str,
    module: str,
    parameters: type[Parameters],
    passes: Passes,
    constraint: Constraint | None = LINF,
    *,
    name: str,
    engines: Sequence[str] = ENGINES,
) -> Task:
    functions = {engine: f"{module}.{engine}" for engine in engines}
    return Task(key, "attack", parameters, 1, functions, passes, constraint, name=name)


def _attacks_in_balls(
    key: str, module: str, family: type[Attack], passes: Passes, name: str, *, module_of_other_norms: str = ""
) -> Iterator[Task]:
    """Yield one task per norm. The key of Linf has no suffix; other keys end with the norm's name."""
    for norm in NORMS:
        parameters, constraint = parameters_in_ball(family, norm), CONSTRAINTS[norm]
        if norm == "Linf":
            yield _attack_task(key, module, parameters, passes, constraint, name=name)
        else:
            norm_module = module_of_other_norms or module
            yield _attack_task(
                f"{key}_{norm.lower()}", norm_module, parameters, passes, constraint, name=f"{name}, {norm}"
            )


def _grid_task(key: str, parameters: type[SpatialParameters], name: str) -> Task:
    # Every grid point is a forward pass. The estimate ignores that the attack skips images that are already fooled.
    return _attack_task(key, "spatial", parameters, lambda p, _c: p.n_points + 2.0, None, name=name)


def _corruption_task(key: str, images_version: int = 1, name: str = "") -> Task:
    functions = dict.fromkeys(ENGINES, "corruption.yield_images")
    parameters = CorruptionParameters
    return Task(
        key, "corruption", parameters, 1, functions, lambda _p, _c: 1.0, images_version=images_version, name=name
    )


def _measure_task(key: str, parameters: type[Parameters], passes: Passes, columns: tuple[str, ...]) -> Task:
    functions = dict.fromkeys(ENGINES, f"{key}.measure")
    return Task(key, "measure", parameters, 1, functions, passes, columns=columns)


_LANCZOS_STEPS = 16
"""Typical number of Lanczos iterations on a network's weights (docs/measures.md)."""

_HESSIAN_PASSES = 9.0
"""Forward-pass equivalents of one Hessian-vector product for the weights, which takes two derivatives."""

_INPUT_HESSIAN_PASSES = 6.0
"""Forward-pass equivalents of one Hessian-vector product for the input, for which the first derivative is stored."""

_RESISTING_FRACTION = 0.4
"""Typical fraction of the images that the first attack or target does not fool, so that they are left for the next one.
Square makes about the same fraction of its queries (docs/protocol.md)."""


def _hessian_weights_passes(parameters: Any, _n_classes: int) -> float:
    # One Lanczos run covers all images. Per-batch columns need one run per batch, which together cost as much again.
    is_per_batch = [name.startswith("batch_") for name in parameters.selected_columns]
    n_runs = any(is_per_batch) + (not all(is_per_batch))
    return float(_HESSIAN_PASSES * min(parameters.steps, _LANCZOS_STEPS) * n_runs)


def _hessian_input_passes(parameters: Any, n_classes: int) -> float:
    # ReLUs make the logits piecewise linear, so the Hessian's rank is below the number of classes. In training mode,
    # BatchNorm makes the logits non-linear, and all images of a batch share one Hessian.
    max_steps = n_classes + 2 if parameters.mode == "evaluation" else _LANCZOS_STEPS
    return float(6.0 + _INPUT_HESSIAN_PASSES * min(parameters.steps, max_steps))


def _apgd_passes(parameters: Any, _n_classes: int) -> float:
    return float(3.0 * (parameters.steps + 1) * parameters.restarts + 6)


def _apgd_targeted_passes(parameters: Any, n_classes: int) -> float:
    n_runs = parameters.restarts * min(parameters.targets, n_classes - 1)
    return float((3.0 * (parameters.steps + 1) + 1) * (1 + _RESISTING_FRACTION * (n_runs - 1)) + 6)


def _fab_targeted_passes(parameters: Any, n_classes: int) -> float:
    n_runs = min(parameters.targets, n_classes - 1)
    return float((4.0 * parameters.steps + 3) * (1 + _RESISTING_FRACTION * (n_runs - 1)) + 4)


def _square_passes(parameters: Any, _n_classes: int) -> float:
    # A query is one forward pass, and fooled images make no further queries. On average over the paper's epsilons,
    # about .39 of the queries are made on CIFAR-10, and fewer on the other datasets (docs/protocol/statistics.md,
    # "Cost").
    return float(0.39 * parameters.queries * parameters.restarts + 6)


def standard_passes(parameters: Any, n_classes: int, resisting_fraction: float | None = None) -> float:
    """Estimate the cost per image of AutoAttack's standard version, in forward-pass equivalents.

    Args:
        parameters: parameters of `aa_standard`.
        n_classes: number of classes.
        resisting_fraction: fraction of the images that APGD on the cross-entropy does not fool; None for a typical one.
    """
    # APGD-CE attacks all images. Most images that it does not fool resist all targets and all queries.
    targets = min(9, n_classes - 1)
    passes_per_target = 3.0 * (parameters.steps + 1) + 1 + 4 * parameters.steps + 3
    targeted_fraction, query_fraction = (
        (_RESISTING_FRACTION, 0.39) if resisting_fraction is None else (resisting_fraction, resisting_fraction)
    )
    apgd_ce_passes = 3.0 * (parameters.steps + 1) + 10
    return float(apgd_ce_passes + targeted_fraction * targets * passes_per_target + query_fraction * parameters.queries)


def _minimum_norm_passes(parameters: Any, _n_classes: int) -> float:
    # A run serves all epsilons. Each epsilon then takes one more pass, on the images that lie in its ball.
    return float(3.0 * parameters.steps * parameters.n_runs / len(parameters.strengths) + 2)


_CORRUPTION_TASKS = (
    _corruption_task("brightness"),
    _corruption_task("contrast"),
    _corruption_task("defocus_blur"),
    _corruption_task("elastic_transform"),
    _corruption_task("fog"),
    _corruption_task("frost"),
    _corruption_task("gaussian_noise"),
    _corruption_task("glass_blur"),
    _corruption_task("impulse_noise"),
    _corruption_task("jpeg_compression", name="JPEG compression"),
    _corruption_task("motion_blur", images_version=2),
    _corruption_task("pixelate"),
    _corruption_task("shot_noise"),
    _corruption_task("snow", images_version=2),
    _corruption_task("zoom_blur"),
)

CORRUPTIONS = tuple(task.key for task in _CORRUPTION_TASKS)
"""The 15 corruptions of the paper, in the order of the published dataset's helper code."""

TASKS: dict[str, Task] = {
    task.key: task
    for task in (
        Task("clean", "clean", CleanParameters, 1, dict.fromkeys(ENGINES, "clean.yield_images"), lambda _p, _c: 1.0),
        *_attacks_in_balls("aa_apgd-ce", "apgd", Apgd, _apgd_passes, "APGD-CE"),
        *_attacks_in_balls("aa_apgd-t", "apgd_targeted", ApgdTargeted, _apgd_targeted_passes, "APGD-T"),
        *_attacks_in_balls("aa_fab-t", "fab", FabTargeted, _fab_targeted_passes, "FAB-T"),
        *_attacks_in_balls("aa_square", "square", Square, _square_passes, "Square", module_of_other_norms="square_lp"),
        *_attacks_in_balls("aa_standard", "standard", Standard, standard_passes, "AutoAttack"),
        _attack_task("fgsm", "fgsm", FgsmParameters, lambda _p, _c: 5.0, name="FGSM"),
        _attack_task("pgd", "pgd", PgdParameters, lambda p, _c: 3.0 * p.steps + 2, name="PGD"),
        _attack_task("pgd_linf7", "pgd_linf7", PgdLinf7Parameters, lambda p, _c: 3.0 * p.steps + 2, name="PGD-7"),
        _attack_task("pgd_l2", "pgd_l2", PgdL2Parameters, lambda p, _c: 3.0 * p.steps + 2, L2, name="PGD-L2"),
        *_attacks_in_balls("fmn", "fmn", Fmn, _minimum_norm_passes, "FMN"),
        _grid_task("grid775", SpatialParameters, "Grid 775"),
        _grid_task("grid135", Grid135Parameters, "Grid 135"),
        _grid_task("grid775_10", Grid775SmallAnglesParameters, "Grid 775, 10°"),
        _grid_task("rot30", RotationParameters, "Rotation 30°"),
        _grid_task("rot10", SmallRotationParameters, "Rotation 10°"),
        *_CORRUPTION_TASKS,
        # With `projections: exact`, the Jacobian takes one gradient per class.
        _measure_task(
            "jacobian",
            JacobianParameters,
            lambda p, c: 3.0 * (c if p.projections == "exact" else p.projections),
            JacobianParameters.default_columns,
        ),
        _measure_task("input_gradient", InputGradientParameters, lambda _p, _c: 3.0, ("norm", "zero_share")),
        _measure_task(
            "hessian_weights",
            HessianWeightsParameters,
            _hessian_weights_passes,
            HessianWeightsParameters.default_columns,
        ),
        _measure_task(
            "hessian_input", InputHessianParameters, _hessian_input_passes, InputHessianParameters.default_columns
        ),
    )
}
"""Tasks by key, in the order in which results are listed."""

AUTOATTACK = ("aa_standard", "aa_standard_l2", "aa_standard_l1")
"""Keys of AutoAttack's standard version, one per norm."""

PAPER_KEYS = ("clean", "aa_apgd-ce", "aa_square", "fgsm", "pgd", *CORRUPTIONS)
"""The twenty keys of the paper, which a sweep evaluates by default."""


CORRUPTION_GROUP = "corruptions"
"""Name of the group of all corruptions in lists of keys."""

KEY_GROUPS = {
    CORRUPTION_GROUP: CORRUPTIONS,
    "all": PAPER_KEYS,
    "autoattack": ("aa_standard",),
    "autoattack_l2": ("aa_standard_l2",),
    "autoattack_l1": ("aa_standard_l1",),
}
"""Group → keys that replace it in lists of keys."""


def expand_keys(names: Iterable[str], known: Collection[str] = TASKS) -> tuple[str, ...]:
    """Replace each group with its known keys, without duplicates.

    A group without known keys stays in the list, to be rejected as a key.
    """
    members = {
        group: tuple(key for key in keys if key in known) or (group,)
        for group, keys in KEY_GROUPS.items()
        if group not in known
    }
    return tuple(dict.fromkeys(key for name in names for key in members.get(name, (name,))))


def suggest_key(name: str, known: Iterable[str]) -> str:
    """Suggest a known key for an unknown name, as a sentence to append to an error message (see `did_you_mean`).

    The name may also be a label in figures, such as AutoAttack.
    """
    known = list(known)
    key_by_label = {_normalise(task.label): task.key for task in TASKS.values() if task.key in known}
    return did_you_mean(key_by_label.get(_normalise(name), name), known)


def _advise_key(key: str) -> str:
    """Return advice on an unknown key: how to set strengths, how to define custom attacks, or the closest key."""
    name, colon, _ = key.partition(":")
    if colon and name in TASKS:
        example = f"{{{name!r}: {{'epsilons': ['8/255']}}}}"
        option = f"--set {name}.epsilons=8/255"
        return f" Strengths are parameters of {name}: in Python {example}, on the command line {option}."
    if "," in key:
        return " In Python, pass several keys as a list."
    if key.endswith(".py"):
        return " Custom attacks and measures have the fields of docs/your-own.md, such as `file`."
    return suggest_key(key, [*TASKS, *KEY_GROUPS])


def _normalise(text: str) -> str:
    """Return the letters and digits of a text, without regard to case."""
    return "".join(filter(str.isalnum, text.casefold()))


def find_task(key: str) -> Task:
    """Return the task of a key in the paper's style or as published (``pgd`` or ``pgd@Linf``).

    Raises:
        ConfigError: the key is unknown; the message names the closest key.
    """
    task = next((task for task in TASKS.values() if key in (task.key, task.published_key)), None)
    if task is None:
        raise ConfigError(f"Looking up a key failed for {key!r}: no such key.{_advise_key(key)}")
    return task
