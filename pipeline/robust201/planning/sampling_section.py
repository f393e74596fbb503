"""The section `sampling` of a sweep: how much may be spent, and which networks and keys are counted in full."""

import re
from typing import Annotated, Any, NamedTuple

from pydantic import AfterValidator, BeforeValidator, Field

from robust201.core.strict_model import MAX_COUNT, StrictModel

DEFAULT_CHEAP = ("clean", "fgsm")


class Budget(NamedTuple):
    """What a sampled sweep may cost: worker-hours, or a fraction of the cost of all images; the other one is None."""

    hours: float | None
    fraction: float | None


def parse_budget(text: str) -> Budget:
    """Read a budget such as ``500h`` or ``2.5%``; ValueError if it is none."""
    match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*(h|%)\s*", text)
    amount = float(match[1]) if match else 0.0
    if match is None or amount <= 0 or (match[2] == "%" and amount > 100):
        raise ValueError(
            f"expected worker-hours above 0 such as 500h, or a share of the sweep's cost such as 2.5%, got {text!r}."
        )
    return Budget(amount, None) if match[2] == "h" else Budget(None, amount / 100)


def _check_budget(value: object) -> object:
    if not isinstance(value, str):
        raise ValueError(f"expected a budget such as 500h or 2.5%, got {value!r}. Write its unit.")  # noqa: TRY004 - which pydantic expects
    parse_budget(value)
    return value.strip()


def _check_pilot(value: int) -> int:
    if value < 2:
        raise ValueError(f"expected at least 2 networks, since one says nothing about how others differ, got {value}.")
    return value


class SamplingSection(StrictModel):
    """Estimate accuracies from a sample of the images, for a budget.

    Attributes:
        budget: worker-hours, or a share of the cost of evaluating all images.
        pilot: networks that are evaluated on all images, from whose outcomes the samples are drawn.
        cheap: keys that every network is evaluated under on all images. Keys other than attacks always are.
        seed: of the choice of the pilot networks and of the samples.
    """

    budget: Annotated[str, BeforeValidator(_check_budget)]
    pilot: Annotated[int, Field(le=MAX_COUNT), AfterValidator(_check_pilot)] = 20
    cheap: tuple[str, ...] = DEFAULT_CHEAP
    seed: Annotated[int, Field(ge=0)] = 0

    def design(self) -> dict[str, Any]:
        """What may not change once a sample is drawn: everything but the budget."""
        return {"pilot": self.pilot, "cheap": sorted(self.cheap), "seed": self.seed}
