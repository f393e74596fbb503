"""The table of tasks: every attack, corruption and measure that a sweep can evaluate.

A task's name, such as `pgd`, is called its key. A task holds the data that planning needs (parameters, strengths, cost)
and the name of the module that does the work. Only workers import these modules (`Task.load`), so planning, status and
export never import torch. "The paper" is Jung et al. (ICLR 2023), who published the original dataset.

To add an attack, write a module in `attacks` with a function `attack` (see `attacks.runner`) and
an `_attack` row with its parameters (a class in `tasks/parameters.py`) and defaults. An attack without an entry in
`attacks/reference.py` has `engines=("fused",)`. Tests that run for every task then cover it.
"""

import importlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from robust201.core.errors import ConfigError, did_you_mean
from robust201.tasks.constraints import CONSTRAINTS, NORMS, Constraint, Norm
from robust201.tasks.measure_parameters import (
    HessianWeightsParameters,
    InputGradientParameters,
    InputHessianParameters,
    JacobianParameters,
    MeasureParameters,
)
from robust201.tasks.parameters import (
    Apgd,
    ApgdTargeted,
    Attack,
    Corruption,
    FabTargeted,
    Fgsm,
    Fmn,
    Parameters,
    Pgd,
    PgdVariant,
    Role,
    Spatial,
    Square,
    Standard,
)

ENGINES = ("reference", "fused")
"""Implementations of attacks. `reference` calls the published libraries once per epsilon. `fused` is this package's
implementation, which attacks at all epsilons together."""


MAX_PASSES = 10_000_000
"""Maximum cost of a key per image, in forward-pass equivalents, summed over all strengths."""

Kind = Literal["clean", "attack", "corruption", "measure"]

Passes = Callable[[Any, int], float]
"""(parameters, number of classes) → forward-pass equivalents per image and strength."""


@dataclass(frozen=True)
class Procedure:
    """How an attack of this package is run on images at several strengths (see `attacks.runner`).

    Attributes:
        per: what a group of images that are attacked together consists of. `sample`: one batch of images at any
            strengths. `image`: one batch of images at all strengths, for attacks of which one run serves all strengths.
            `pool`: as many images at all strengths as fit into memory, of which the attack itself forms batches.
        attacks: whether the attack also changes images that are misclassified without an attack.
        runs: (parameters, number of classes) → number of runs. After each run, the results are classified, and only
            images that resist are attacked again. Images that resist all runs are returned unchanged. None for a single
            run whose results are returned as they are.
        stages: (parameters) → key and parameters of each attack of an ensemble. Each attacks the images that resist the
            earlier ones.
    """

    per: Literal["sample", "image", "pool"] = "sample"
    attacks: Literal["all", "correct"] = "all"
    runs: Callable[[Any, int], int] | None = None
    stages: Callable[[Any], tuple[tuple[str, Parameters], ...]] | None = None


@dataclass(frozen=True)
class Task:
    """One attack, corruption or measure, or the clean images, with the data that planning needs.

    Attributes:
        key: name in the paper's style, such as ``aa_square``.
        kind: kind of task; a `measure` evaluates a property of the network itself, without perturbing images.
        model: class of the key's parameters.
        module: module of `attacks` or, for a measure, of `measures`; that of the first attack of an
            ensemble.
        passes: function that estimates the cost for planning (see `Passes`); a gradient counts as three forward passes.
        defaults: default parameters of the key where they differ from those of the class.
        procedure: how an attack is run.
        constraint: the ball that contains the perturbed images; None if they are unbounded.
        attack: key without the norm's suffix, if it has one; empty if the task is no attack.
        group: group of a corruption (Hendrycks and Dietterich, ICLR 2019), which figures show together.
        engines: engines that have the task.
        columns: a measure's columns, unless its parameters select others (see `with_parameters`); empty for a
            perturbation, whose columns follow from the sweep's measurements.
        semantics_version: increased only when results change although the parameters are equal.
        images_version: version of a corruption's generator, increased only when equal images give different pixels; not
            used for published corrupted images.
        name: name in figures; if empty, the key with spaces.
    """

    key: str
    kind: Kind
    model: type[Parameters]
    module: str
    passes: Passes = lambda _parameters, _n_classes: 1.0
    defaults: Mapping[str, Any] = field(default_factory=dict, hash=False)
    procedure: Procedure = Procedure()
    constraint: Constraint | None = None
    attack: str = ""
    group: str = ""
    engines: tuple[str, ...] = ENGINES
    columns: tuple[str, ...] = ()
    semantics_version: int = 1
    images_version: int = 1
    name: str = ""

    @property
    def label(self) -> str:
        return self.name or self.key.replace("_", " ").capitalize()

    @property
    def norm(self) -> Norm | None:
        return None if self.constraint is None else self.constraint.name

    @property
    def field_names(self) -> tuple[str, ...]:
        """Names of the key's parameters in the sweep YAML."""
        return self.model.field_names(self.norm)

    def complete(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields of `model` for parameters from a sweep: with the key's norm and defaults.

        Raises:
            ValueError: the fields contain the norm, which the key determines.
        """
        if self.kind != "attack" or self.constraint is None:
            return {**self.defaults, **fields}
        if "norm" in fields:
            raise ValueError(f"norm: expected no value, since {self.key} is an attack in {self.norm}. Remove it.")
        return {"norm": self.norm, **self.defaults, **fields}

    def parameters(self, **fields: Any) -> Any:
        """Return the key's parameters, an object of `model`.

        Raises:
            ValueError: a field is invalid (pydantic's ValidationError is a subclass).
        """
        return self.model(**self.complete(fields))

    @property
    def role(self) -> Role:
        """Kind of the attack (see `Role`)."""
        return self.model.role

    @property
    def finds_distances(self) -> bool:
        """Whether the attack searches for the smallest perturbation that fools a network, independently of epsilons."""
        return issubclass(self.model, Fmn)

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

    def stages(self, parameters: Any) -> tuple[tuple[str, Parameters], ...]:
        """Return the key and the parameters of each attack of an ensemble; of any other task, its own."""
        return ((self.key, parameters),) if self.procedure.stages is None else self.procedure.stages(parameters)

    def uses_runner(self, engine: str) -> bool:
        """Whether the engine's function is an attack that `attacks.runner` runs."""
        return engine == "fused" and self.kind == "attack"

    def shares_random_numbers_in_batch(self, engine: str) -> bool:
        """Whether all images of a batch share random numbers, so that images may be split only between batches."""
        return engine == "reference" or (self.kind == "attack" and not self.uses_runner(engine))

    def excessive_cost_reason(self, parameters: Parameters, n_classes: int) -> str | None:
        """Return why the parameters together cost too much, or None."""
        passes = self.passes(parameters, n_classes) * len(parameters.strengths)
        if passes <= MAX_PASSES:
            return None
        return (
            f"expected up to {MAX_PASSES:,} passes through the network per image over all strengths, got "
            f"{passes:,.0f}. Lower the parameters or the number of strengths."
        )

    def load(self, engine: str = "reference") -> Callable[..., Any]:
        """Import the task's function, which imports torch.

        Raises:
            ConfigError: the engine does not have the task.
        """
        if engine not in self.engines:
            raise ConfigError(
                f"Loading {self.key} failed for engine {engine!r}: expected one of {', '.join(self.engines)}, got "
                f"{engine!r}.{did_you_mean(engine, self.engines)}"
            )
        folder = {"attack": "attacks", "measure": "measures"}.get(self.kind, "evaluation")
        name = {"clean": "yield_clean", "corruption": "yield_corrupted"}.get(self.kind, self.kind)
        module_name = "reference" if (self.kind, engine) == ("attack", "reference") else self.module
        module = importlib.import_module(f"robust201.{folder}.{module_name}")
        function: Callable[..., Any] = getattr(module, name)
        return function


_LANCZOS_STEPS = 16
"""Typical number of Lanczos iterations on a network's weights (docs/measures.md)."""

_HESSIAN_PASSES = 9.0
"""Forward-pass equivalents of one Hessian-vector product for the weights, which takes two derivatives."""

_INPUT_HESSIAN_PASSES = 6.0
"""Forward-pass equivalents of one Hessian-vector product for the input, for which the first derivative is stored."""

_RESISTING_FRACTION = 0.4
"""Typical fraction of the images that the first attack or target does not fool, so that they are left for the next one.
Square makes about the same fraction of its queries (docs/protocol/statistics.md)."""


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


def stage_passes(parameters: Standard, n_classes: int) -> tuple[float, ...]:
    """Return the passes of each of AutoAttack's attacks per image that reaches it, if no target or query fools it."""
    targets = min(9, n_classes - 1)
    steps = parameters.steps
    return 3.0 * (steps + 1) + 10, targets * (3.0 * (steps + 1) + 1), targets * (4.0 * steps + 3), parameters.queries


def _standard_passes(parameters: Any, n_classes: int) -> float:
    # APGD-CE attacks all images. Most images that it does not fool resist all targets and all queries.
    apgd_ce, apgd_t, fab_t, square = stage_passes(parameters, n_classes)
    return float(apgd_ce + _RESISTING_FRACTION * (apgd_t + fab_t) + 0.39 * square)


def _minimum_norm_passes(parameters: Any, _n_classes: int) -> float:
    # A run serves all epsilons. Each epsilon then takes one more pass, on the images that lie in its ball.
    return float(3.0 * parameters.steps * parameters.n_runs / len(parameters.strengths) + 2)


def _pgd_passes(parameters: Any, _n_classes: int) -> float:
    return float(3.0 * parameters.steps + 2)


def _n_target_runs(parameters: Any, n_classes: int) -> int:
    n_targets: int = min(parameters.targets, n_classes - 1)
    return n_targets * getattr(parameters, "restarts", 1)


_RESTARTS = Procedure(attacks="correct", runs=lambda parameters, _n_classes: parameters.restarts)
_TARGETS = Procedure(attacks="correct", runs=_n_target_runs)


def _stages(parameters: Standard) -> tuple[tuple[str, Parameters], ...]:
    """Return AutoAttack's attacks, with the requested steps and queries, and the norm's defaults otherwise."""
    tasks = [find_attack(key, parameters.norm) for key in ("aa_apgd-ce", "aa_apgd-t", "aa_fab-t", "aa_square")]
    counts = (*[{"steps": parameters.steps}] * 3, {"queries": parameters.queries})
    return tuple((task.key, task.parameters(**count)) for task, count in zip(tasks, counts, strict=True))


def _jacobian_passes(parameters: JacobianParameters, n_classes: int) -> float:
    # With `projections: exact`, the Jacobian takes one gradient per class.
    return 3.0 * (n_classes if parameters.projections == "exact" else parameters.projections)


PAPER_EPSILONS = ("0.1/255", "0.5/255", "1/255", "2/255", "3/255", "4/255", "8/255")
"""Epsilons of PGD, APGD-CE and Square (meta.json of the published dataset)."""

PAPER_FGSM_EPSILONS = (*PAPER_EPSILONS[:-1], "5/255", "6/255", "7/255", "8/255", "255/255")
"""Epsilons of FGSM (meta.json of the published dataset)."""

_PGD_7_EPSILONS = ("1/255", "2/255", "4/255", "8/255")

_EPSILONS: dict[Norm, tuple[float | str, ...]] = {"Linf": PAPER_EPSILONS, "L2": (0.25, 0.5), "L1": (3.0, 6.0, 12.0)}
"""Default epsilons of each norm."""


def _attack(
    key: str,
    name: str,
    model: type[Attack],
    module: str,
    passes: Passes,
    procedure: Procedure = Procedure(),
    norm: Norm = "Linf",
    attack: str = "",
    engines: tuple[str, ...] = ENGINES,
    semantics_version: int = 1,
    **defaults: Any,
) -> Task:
    defaults = {"epsilons": _EPSILONS[norm]} | defaults
    return Task(
        key,
        "attack",
        model,
        module,
        passes,
        defaults,
        procedure,
        CONSTRAINTS[norm],
        attack=attack or key,
        engines=engines,
        semantics_version=semantics_version,
        name=name,
    )


def _attack_in_all_norms(
    key: str,
    name: str,
    model: type[Attack],
    module: str,
    passes: Passes,
    procedure: Procedure,
    **defaults_by_norm: Mapping[str, Any],
) -> Iterator[Task]:
    """Yield one task per norm. The key in Linf has no suffix; other keys end with the norm's name."""
    for norm in NORMS:
        suffix, note = ("", "") if norm == "Linf" else (f"_{norm.lower()}", f", {norm}")
        defaults = defaults_by_norm.get(norm, {})
        yield _attack(key + suffix, name + note, model, module, passes, procedure, norm, key, **defaults)


def _grid(key: str, name: str, **defaults: Any) -> Task:
    # Every grid point is a forward pass. The estimate ignores that the attack skips images that are already fooled.
    return Task(
        key,
        "attack",
        Spatial,
        "spatial",
        lambda p, _c: p.n_points + 2.0,
        defaults,
        Procedure(attacks="correct"),
        attack=key,
        name=name,
    )


def _corruption(key: str, group: str, images_version: int = 1, name: str = "") -> Task:
    return Task(key, "corruption", Corruption, "images", group=group, images_version=images_version, name=name)


_CORRUPTION_TASKS = (
    _corruption("brightness", "weather"),
    _corruption("contrast", "digital"),
    _corruption("defocus_blur", "blur"),
    _corruption("elastic_transform", "digital"),
    _corruption("fog", "weather"),
    _corruption("frost", "weather"),
    _corruption("gaussian_noise", "noise"),
    _corruption("glass_blur", "blur"),
    _corruption("impulse_noise", "noise"),
    _corruption("jpeg_compression", "digital", name="JPEG compression"),
    _corruption("motion_blur", "blur", images_version=2),
    _corruption("pixelate", "digital"),
    _corruption("shot_noise", "noise"),
    _corruption("snow", "weather", images_version=2),
    _corruption("zoom_blur", "blur"),
)

CORRUPTIONS = tuple(task.key for task in _CORRUPTION_TASKS)
"""The 15 corruptions of the paper, in the order of the published dataset's helper code."""


def _measure(key: str, model: type[MeasureParameters], passes: Passes) -> Task:
    return Task(key, "measure", model, key, passes, columns=model.default_columns)


TASKS: dict[str, Task] = {
    task.key: task
    for task in (
        Task("clean", "clean", Parameters, "images"),
        *_attack_in_all_norms("aa_apgd-ce", "APGD-CE", Apgd, "apgd", _apgd_passes, _RESTARTS, L1={"restarts": 5}),
        *_attack_in_all_norms(
            "aa_apgd-t", "APGD-T", ApgdTargeted, "apgd", _apgd_targeted_passes, _TARGETS, L1={"targets": 5}
        ),
        *_attack_in_all_norms(
            "aa_fab-t", "FAB-T", FabTargeted, "fab", _fab_targeted_passes, replace(_TARGETS, per="image")
        ),
        *_attack_in_all_norms("aa_square", "Square", Square, "square", _square_passes, replace(_RESTARTS, per="pool")),
        *_attack_in_all_norms(
            "aa_standard",
            "AutoAttack",
            Standard,
            "apgd",
            _standard_passes,
            Procedure("sample", "correct", None, _stages),
        ),
        _attack("fgsm", "FGSM", Fgsm, "fgsm", lambda _p, _c: 5.0, Procedure("image"), epsilons=PAPER_FGSM_EPSILONS),
        _attack("pgd", "PGD", Pgd, "pgd", _pgd_passes),
        _attack("pgd_linf7", "PGD-7", PgdVariant, "pgd", _pgd_passes, epsilons=_PGD_7_EPSILONS, steps=7),
        _attack("pgd_l2", "PGD-L2", PgdVariant, "pgd", _pgd_passes, norm="L2", steps=100),
        *_attack_in_all_norms("fmn", "FMN", Fmn, "fmn", _minimum_norm_passes, Procedure("image", "correct")),
        _grid("grid775", "Grid 775"),
        _grid("grid135", "Grid 135", rotations=15, translations=3),
        _grid("grid775_10", "Grid 775, 10°", max_rotation=10.0),
        _grid("rot30", "Rotation 30°", translations=1, max_translation=0.0),
        _grid("rot10", "Rotation 10°", max_rotation=10.0, translations=1, max_translation=0.0),
        *_CORRUPTION_TASKS,
        _measure("jacobian", JacobianParameters, _jacobian_passes),
        _measure("input_gradient", InputGradientParameters, lambda _p, _c: 3.0),
        _measure("hessian_weights", HessianWeightsParameters, _hessian_weights_passes),
        _measure("hessian_input", InputHessianParameters, _hessian_input_passes),
    )
}
"""Tasks by key, in the order in which results are listed."""


def find_attack(attack: str, norm: Norm) -> Task:
    """Return an attack in a norm, by the key of the attack in Linf."""
    return next(task for task in TASKS.values() if (task.attack, task.norm) == (attack, norm))


PAPER_KEYS = ("clean", "aa_apgd-ce", "aa_square", "fgsm", "pgd", *CORRUPTIONS)
"""The twenty keys of the paper, which a sweep evaluates by default."""


CORRUPTION_GROUP = "corruptions"
"""Name of the group of all corruptions in lists of keys."""

KEY_GROUPS = {
    CORRUPTION_GROUP: CORRUPTIONS,
    "paper": PAPER_KEYS,
    "autoattack": ("aa_standard",),
    "autoattack_l2": ("aa_standard_l2",),
    "autoattack_l1": ("aa_standard_l1",),
}
"""Group → keys that replace it in lists of keys."""

_LINF_BALL = {"epsilons": ["8/255"]}

_QUICK_CORRUPTIONS = ("gaussian_noise", "defocus_blur", "jpeg_compression")
"""One corruption from each of the groups noise, blur and digital."""

PRESETS: dict[str, dict[str, dict[str, Any]]] = {
    "quick": {"clean": {}}
    | dict.fromkeys(("fgsm", "pgd", "aa_standard"), _LINF_BALL)
    | {key: {"severities": [5]} for key in _QUICK_CORRUPTIONS},
    "robustbench-linf": {"clean": {}, "aa_standard": _LINF_BALL},
    "robustbench-l2": {"clean": {}, "aa_standard_l2": {"epsilons": [0.5]}},
    "robustbench-corruptions": {key: {} for key in ("clean", *CORRUPTIONS)},
}
"""Preset → its keys with their parameters, for evaluations of single networks. A preset is not combined with keys."""

QUICK_IMAGES = 200
"""Number of images that the preset `quick` evaluates by default."""

FEW_CLASSES = dict.fromkeys(("aa_apgd-ce", "aa_fab-t", "aa_square"), _LINF_BALL)
"""Keys that replace AutoAttack in the preset `quick` for networks with two or three classes."""


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
    """Return advice on an unknown key: how to list keys, how to define custom attacks, or the closest key."""
    name, colon, _ = key.partition(":")
    if colon and name in TASKS:
        return f" {name} has no strengths."
    if "," in key:
        return " In Python, pass several keys as a list."
    if key.endswith(".py"):
        return " Custom attacks and measures have the fields of docs/your-own.md, such as `file`."
    return suggest_key(key, [*TASKS, *KEY_GROUPS, *PRESETS])


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
