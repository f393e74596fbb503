"""The table of attacks, and the classes of their parameters, which are named as in the sweep YAML.

A class describes a family of attacks; `ATTACKS` has the norm and the defaults of each key. To add an attack, write a
module in `attacks` with a function `attack` (see `attacks.runner`), an entry in `ATTACKS` and, if no existing class
fits, a class of its parameters. Tests that run for every task cover the new attack. An attack without an entry in
`attacks/reference.py` has `engines=("fused",)`. "The paper" is Jung et al. (ICLR 2023), who published the dataset.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, SerializerFunctionWrapHandler, field_validator, model_serializer, model_validator

from robust201.core.radii import parse_radius
from robust201.core.strict_model import PositiveFloat, PositiveInt
from robust201.tasks.constraints import CONSTRAINTS, NORMS, Norm
from robust201.tasks.parameters import MAX_STRENGTHS, Caution, Parameters, Role, sort_strengths
from robust201.tasks.task import ENGINES, Procedure, Task

MAX_GRID_POINTS = 10_000
"""Maximum number of grid points. The coordinates of all points are in memory at once, and take 8 kB per point for
images of 32x32 pixels."""


class Attack(Parameters):
    """Base class of the parameters of attacks in a norm ball."""

    norm: Norm
    """Norm of the ball, given by the key."""
    epsilons: Annotated[tuple[float | str, ...], Field(min_length=1, max_length=MAX_STRENGTHS)]
    """Radii for pixels in [0, 1]: numbers, or text such as `8/255`."""

    @field_validator("epsilons", mode="before")
    @classmethod
    def _check_epsilons(cls, epsilons: object) -> object:
        listed = list(epsilons) if isinstance(epsilons, list | tuple) else [epsilons]
        for epsilon in listed:
            parse_radius(epsilon)
        return listed

    @model_validator(mode="after")
    def _check_balls(self) -> Self:
        largest = float(max(map(parse_radius, self.epsilons)))
        if self.norm == "Linf" and largest > 1:
            raise ValueError(
                f"epsilons: expected numbers up to 1, for pixels in [0, 1], such as 8/255, got {largest:g}."
            )
        _ = self.strengths
        unsupported = self.model_fields_set - {"norm", *self.field_names(self.norm)}
        if unsupported:
            raise ValueError(f"{min(unsupported)}: this attack does not have the parameter in {self.norm}. Remove it.")
        return self

    @model_serializer(mode="wrap")
    def _dump_fields_of_norm(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        names = self.field_names(self.norm)
        return {name: value for name, value in handler(self).items() if name in names}

    @property
    def strengths(self) -> tuple[float, ...]:
        return sort_strengths(tuple(map(CONSTRAINTS[self.norm].strength_of, self.epsilons)), "epsilons")


class Fgsm(Attack):
    """Fast gradient sign method (Goodfellow et al., 2015): one step of size epsilon, no random start."""

    role: ClassVar[Role] = "single step"

    def n_passes(self, n_classes: int) -> float:
        return 5.0


_SUFFICIENT_PATH_RADII = 2.5
"""Sufficient length of an attack's path in radii of its ball: the attack can reach the edge from any starting point and
then move along the edge (Madry et al., 2018, appendix B)."""


def _cautions_about_reach(field: str, step: float, steps: int, radius: float) -> tuple[Caution, ...]:
    """Return a warning if the path is shorter than the ball's radius, so that the attack cannot reach the edge.

    `field` is the parameter of the step length, and `radius` is the largest radius, in the unit of `step`.
    """
    if steps * step >= radius * (1 - 1e-9):
        return ()
    problem = (
        f"steps × {field} = {steps:,} × {step:.3g} = {steps * step:.4g}, so the attack does not reach the edge of a "
        f"ball of radius {radius:g} and accuracies come out too high"
    )
    sufficient = min(radius, _SUFFICIENT_PATH_RADII * radius / steps)
    return (Caution("steps", problem, f"Take more steps or longer ones, such as {field}: {sufficient:.3g}."),)


class Pgd(Attack):
    """Projected gradient descent (Kurakin et al., 2017; Madry et al., 2018), as in Foolbox.

    APGD is usually stronger.
    """

    steps: PositiveInt = 40
    """Number of steps."""
    rel_stepsize: PositiveFloat = 0.01 / 0.3
    """Length of a step as a fraction of epsilon."""
    random_start: bool = True
    """Start at a random point of the ball."""
    target: Literal["none", "least_likely"] = "none"
    """`none` for an untargeted attack; `least_likely` for the targeted attack of the paper's equation 2."""

    def n_passes(self, n_classes: int) -> float:
        return 3.0 * self.steps + 2

    @property
    def cautions(self) -> tuple[Caution, ...]:
        return _cautions_about_reach("rel_stepsize", self.rel_stepsize, self.steps, 1.0)


class PgdVariant(Attack):
    """Projected gradient descent as in Wang and Horne (2020), with parameters in which their two programs differ."""

    norm_by_parameter: ClassVar[Mapping[str, Norm]] = {"rel_stepsize": "Linf", "step_size": "L2"}

    steps: PositiveInt
    """Number of steps."""
    rel_stepsize: PositiveFloat = 0.25
    """Length of a step as a fraction of epsilon (Linf)."""
    step_size: PositiveFloat = 0.1
    """Length of a step (L2)."""
    random_start: bool = False
    """Start at a random point of the ball."""
    iterate: Literal["last", "best"] = "last"
    """Iterate that the attack returns; `best` (highest cross-entropy) needs the fused engine."""
    label: Literal["given", "predicted"] = "given"
    """Class that the attack leads away from: the image's label (`given`), or the class predicted at the starting point
    (`predicted`). With a random start, `predicted` needs the fused engine."""

    def n_passes(self, n_classes: int) -> float:
        return 3.0 * self.steps + 2

    @property
    def cautions(self) -> tuple[Caution, ...]:
        if self.norm == "Linf":
            return _cautions_about_reach("rel_stepsize", self.rel_stepsize, self.steps, 1.0)
        return _cautions_about_reach("step_size", self.step_size, self.steps, max(self.strengths))

    def unsupported_engine_reason(self, engine: str) -> str | None:
        """Return why Foolbox cannot run this variant: it returns only the last iterate, without the starting point."""
        if engine == "reference" and self.iterate == "best":
            return (
                "iterate: best needs engine: fused, since Foolbox returns the last iterate, got engine: reference. "
                "Set engine: fused or iterate: last."
            )
        if engine == "reference" and self.label == "predicted" and self.random_start:
            return (
                "label: predicted with random_start: true needs engine: fused, since Foolbox does not return its "
                "starting points, got engine: reference. Set engine: fused or random_start: false."
            )
        return None


_RESISTING_FRACTION = 0.4
"""Typical fraction of the images that the first attack (or target class) does not fool, so that the next one is run on
them (docs/protocol/statistics.md, "Cost")."""

_QUERY_FRACTION = 0.39
"""Fraction of Square's queries that are made on CIFAR-10, on average over the paper's epsilons, since fooled images
make no further queries; on the other datasets, fewer are made (docs/protocol/statistics.md, "Cost")."""


class Apgd(Attack):
    """AutoAttack's APGD on the cross-entropy (Croce and Hein, 2020; for L1 balls, Croce and Hein, 2021)."""

    norm_by_parameter: ClassVar[Mapping[str, Norm]] = {"larger_epsilons": "L1"}

    steps: PositiveInt = 100
    """Number of iterations."""
    restarts: PositiveInt = 1
    """Number of runs."""
    larger_epsilons: bool = True
    """Whether the first three fifths of the iterations use balls of 3 and 2 epsilon (L1)."""

    def n_passes(self, n_classes: int) -> float:
        return 3.0 * (self.steps + 1) * self.restarts + 6


class ApgdTargeted(Apgd):
    """APGD on the targeted difference of logits ratio, one target class after the other (Croce and Hein, 2020)."""

    min_classes: ClassVar[int] = 4
    targets: PositiveInt = 9
    """Number of target classes, limited by the number of other classes. Each takes `restarts` runs."""

    def n_runs(self, n_classes: int) -> int:
        """Return the number of runs, one or several per target."""
        return self.restarts * min(self.targets, n_classes - 1)

    def n_passes(self, n_classes: int) -> float:
        n_runs = 1 + _RESISTING_FRACTION * (self.n_runs(n_classes) - 1)
        return (3.0 * (self.steps + 1) + 1) * n_runs + 6


class FabTargeted(Attack):
    """Fast adaptive boundary attack towards one target class after the other, as in AutoAttack."""

    role: ClassVar[Role] = "nearest"
    steps: PositiveInt = 100
    """Number of iterations."""
    targets: PositiveInt = 9
    """Number of target classes, limited by the number of other classes."""

    def n_runs(self, n_classes: int) -> int:
        """Return the number of runs, one per target."""
        return min(self.targets, n_classes - 1)

    def n_passes(self, n_classes: int) -> float:
        n_runs = 1 + _RESISTING_FRACTION * (self.n_runs(n_classes) - 1)
        return (4.0 * self.steps + 3) * n_runs + 4


def _too_small_reason(norm: Norm, height: int, width: int) -> str | None:
    """Return why Square cannot start on images of this size in a norm, or None if it can."""
    if norm == "Linf" or height >= 5:
        return None
    return f"expected a height of at least 5 pixels, for Square's first tiles in {norm}, got {height}x{width}."


class Square(Attack):
    """Square attack (Andriushchenko et al., 2020; for L1 balls, Croce and Hein, 2021), as in AutoAttack."""

    role: ClassVar[Role] = "black box"
    queries: PositiveInt = 5000
    """Maximum number of queries per image and run."""
    restarts: PositiveInt = 1
    """Number of runs."""
    p_init: Annotated[float, Field(gt=0, le=1)] = 0.8
    """Fraction of the pixels that the first squares change."""

    def n_passes(self, n_classes: int) -> float:
        return _QUERY_FRACTION * self.queries * self.restarts + 6

    def unsupported_shape_reason(self, height: int, width: int) -> str | None:
        return _too_small_reason(self.norm, height, width)


class Standard(Attack):
    """AutoAttack's standard version (Croce and Hein, 2020): APGD-CE, APGD-T, FAB-T and Square."""

    role: ClassVar[Role] = "ensemble"
    min_classes: ClassVar[int] = 4
    steps: PositiveInt = 100
    """Number of steps of APGD-CE, APGD-T and FAB-T."""
    queries: PositiveInt = 5000
    """Maximum number of queries of Square per image."""

    def stages(self, key: str) -> tuple[tuple[str, Parameters], ...]:
        # Other parameters have the norm's defaults. Each attack gets the images that no earlier attack fooled.
        counts = (*[{"steps": self.steps}] * 3, {"queries": self.queries})
        attacks = ("aa_apgd-ce", "aa_apgd-t", "aa_fab-t", "aa_square")
        tasks = [next(task for task in ATTACKS if (task.attack, task.norm) == (name, self.norm)) for name in attacks]
        return tuple((task.key, task.parameters(**count)) for task, count in zip(tasks, counts, strict=True))

    def stage_passes(self, n_classes: int) -> tuple[float, ...]:
        """Return each attack's cost in forward passes for one image that the attack does not fool."""
        targets, gradients = min(9, n_classes - 1), 3.0 * (self.steps + 1)
        return gradients + 10, targets * (gradients + 1), targets * (4.0 * self.steps + 3), self.queries

    def n_passes(self, n_classes: int) -> float:
        # APGD-CE attacks all images. Most images that it does not fool resist all targets and all queries.
        apgd_ce, apgd_t, fab_t, square = self.stage_passes(n_classes)
        return apgd_ce + _RESISTING_FRACTION * (apgd_t + fab_t) + _QUERY_FRACTION * square

    def unsupported_shape_reason(self, height: int, width: int) -> str | None:
        return _too_small_reason(self.norm, height, width)


class Fmn(Attack):
    """Fast minimum-norm attack (Pintor et al., 2021), as in Foolbox.

    The attack searches for the smallest perturbation that fools a network. One run serves all epsilons: an image counts
    as fooled at every epsilon at or above its distance.
    """

    norm_by_parameter: ClassVar[Mapping[str, Norm]] = {"projection": "L2"}
    finds_distances: ClassVar[bool] = True
    min_strong_steps: ClassVar[int] = 50
    """Number of steps below which distances are overestimated."""

    steps: PositiveInt = 100
    """Number of iterations, with one gradient each."""
    max_stepsize: PositiveFloat = 1.0
    """L2 length of the first step; the length decreases to a hundredth of it."""
    gamma: Annotated[float, Field(gt=0, lt=1)] = 0.05
    """Relative change of epsilon in the first step; later changes are smaller."""
    projection: Literal["ball", "none", "both"] = "both"
    """In L2, `ball` projects onto the ball of epsilon, as published; `none` does not, like Foolbox 3.3.4; `both` runs
    both variants, and takes the nearer image (docs/protocol/attacks.md)."""

    @property
    def n_runs(self) -> int:
        """Number of runs of the attack."""
        return 2 if self.norm == "L2" and self.projection == "both" else 1

    def n_passes(self, n_classes: int) -> float:
        # A run serves all epsilons. Each epsilon then takes one more pass, on the images that lie in its ball.
        return 3.0 * self.steps * self.n_runs / len(self.epsilons) + 2

    @property
    def cautions(self) -> tuple[Caution, ...]:
        if self.steps >= self.min_strong_steps:
            return ()
        problem = f"{self.steps:,} steps are few, so distances come out too large and accuracies too high"
        return (Caution("steps", problem, f"Take {self.min_strong_steps:,} or more."),)


class Spatial(Parameters):
    """A grid of evenly spaced rotations and translations (Engstrom et al., 2019)."""

    role: ClassVar[Role] = "black box"
    rotations: PositiveInt = 31
    """Number of angles."""
    max_rotation: Annotated[float, Field(gt=0, le=180)] = 30.0
    """Largest angle in degrees, in both directions."""
    translations: PositiveInt = 5
    """Number of shifts along each axis."""
    max_translation: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 3.0
    """Largest shift in pixels, in both directions."""

    def unsupported_shape_reason(self, height: int, width: int) -> str | None:
        """Return why images that are not square cannot be rotated, or None if the images are square.

        Foolbox maps both axes of an image to [-1, 1] before it rotates and translates. Rotations therefore shear images
        that are not square, and a shift of one pixel has different lengths along the two axes.
        """
        if height == width:
            return None
        return (
            f"expected square images, since Foolbox's rotations and translations distort others, got {height}x{width}."
        )

    @property
    def n_points(self) -> int:
        return self.rotations * self.translations**2

    def n_passes(self, n_classes: int) -> float:
        # Every grid point is a forward pass. The estimate ignores that fooled images are skipped.
        return self.n_points + 2.0

    @model_validator(mode="after")
    def _check_points(self) -> Self:
        # A single angle or shift would be the lower end of its range instead of the centre.
        if self.rotations == 1 or (self.translations == 1 and self.max_translation):
            raise ValueError(
                "expected two or more rotations, and two or more translations unless max_translation is 0, got one."
            )
        if self.n_points > MAX_GRID_POINTS:
            raise ValueError(
                f"expected up to {MAX_GRID_POINTS:,} grid points, got {self.n_points:,}: rotations "
                f"({self.rotations:,}) times the square of translations ({self.translations:,}). Lower one of them."
            )
        return self


PAPER_EPSILONS = ("0.1/255", "0.5/255", "1/255", "2/255", "3/255", "4/255", "8/255")
"""Epsilons of PGD, APGD-CE and Square (meta.json of the published dataset)."""

PAPER_FGSM_EPSILONS = (*PAPER_EPSILONS[:-1], "5/255", "6/255", "7/255", "8/255", "255/255")
"""Epsilons of FGSM (meta.json of the published dataset)."""

_PGD_7_EPSILONS = ("1/255", "2/255", "4/255", "8/255")

_EPSILONS: dict[Norm, tuple[float | str, ...]] = {"Linf": PAPER_EPSILONS, "L2": (0.25, 0.5), "L1": (3.0, 6.0, 12.0)}
"""Default epsilons of each norm."""

_ALL_ONCE = Procedure()  # one run on every image
_CORRECT_ONCE = Procedure(images="correct")  # one run on the images that are classified correctly
_CORRECT_PER_RESTART = replace(_CORRECT_ONCE, count_runs=lambda options, _n_classes: options.restarts)
_CORRECT_PER_TARGET = replace(_CORRECT_ONCE, count_runs=lambda options, n_classes: options.n_runs(n_classes))


def _attack(
    key: str,
    name: str,
    model: type[Parameters],
    module: str,
    procedure: Procedure = _ALL_ONCE,
    norm: Norm | None = "Linf",
    attack: str = "",
    engines: tuple[str, ...] = ENGINES,
    semantics_version: int = 1,
    **defaults: Any,
) -> Task:
    return Task(
        key,
        "attack",
        model,
        f"attacks.{module}",
        defaults if norm is None else {"epsilons": _EPSILONS[norm]} | defaults,
        procedure,
        None if norm is None else CONSTRAINTS[norm],
        attack or key,
        engines=engines,
        semantics_version=semantics_version,
        name=name,
    )


def _attack_in_all_norms(
    key: str,
    name: str,
    model: type[Attack],
    module: str,
    procedure: Procedure,
    **defaults_by_norm: Mapping[str, Any],
) -> Iterator[Task]:
    """Yield one task per norm. The key in Linf has no suffix; other keys end with the norm's name."""
    for norm in NORMS:
        suffix, note = ("", "") if norm == "Linf" else (f"_{norm.lower()}", f", {norm}")
        yield _attack(key + suffix, name + note, model, module, procedure, norm, key, **defaults_by_norm.get(norm, {}))


_spatial_attack = partial(_attack, model=Spatial, module="spatial", procedure=_CORRECT_ONCE, norm=None)

ATTACKS: tuple[Task, ...] = (
    *_attack_in_all_norms("aa_apgd-ce", "APGD-CE", Apgd, "apgd", _CORRECT_PER_RESTART, L1={"restarts": 5}),
    *_attack_in_all_norms("aa_apgd-t", "APGD-T", ApgdTargeted, "apgd", _CORRECT_PER_TARGET, L1={"targets": 5}),
    *_attack_in_all_norms("aa_fab-t", "FAB-T", FabTargeted, "fab", replace(_CORRECT_PER_TARGET, grouping="image")),
    *_attack_in_all_norms("aa_square", "Square", Square, "square", replace(_CORRECT_PER_RESTART, grouping="pool")),
    *_attack_in_all_norms("aa_standard", "AutoAttack", Standard, "apgd", _CORRECT_ONCE),
    _attack("fgsm", "FGSM", Fgsm, "fgsm", Procedure("image"), epsilons=PAPER_FGSM_EPSILONS),
    _attack("pgd", "PGD", Pgd, "pgd"),
    _attack("pgd_linf7", "PGD-7", PgdVariant, "pgd", epsilons=_PGD_7_EPSILONS, steps=7),
    _attack("pgd_l2", "PGD-L2", PgdVariant, "pgd", norm="L2", steps=100),
    *_attack_in_all_norms("fmn", "FMN", Fmn, "fmn", replace(_CORRECT_ONCE, grouping="image")),
    _spatial_attack("grid775", "Grid 775"),
    _spatial_attack("grid135", "Grid 135", rotations=15, translations=3),
    _spatial_attack("grid775_10", "Grid 775, 10°", max_rotation=10.0),
    _spatial_attack("rot30", "Rotation 30°", translations=1, max_translation=0.0),
    _spatial_attack("rot10", "Rotation 10°", max_rotation=10.0, translations=1, max_translation=0.0),
)
"""Attacks, in the order in which results are listed."""
