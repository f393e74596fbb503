"""The section `sampling` of a sweep: its budget, and the networks and keys that are evaluated on all images."""

import re
from typing import Annotated, Any, NamedTuple

from pydantic import AfterValidator, BeforeValidator, Field

from robust201.core.strict_model import MAX_COUNT, StrictModel

DEFAULT_CHEAP = ("clean", "fgsm")
"""Keys that cost little, so that by default every network is evaluated on all images under them."""


class Budget(NamedTuple):
    """Maximum cost of a sampled sweep: either worker-hours or a fraction of the full cost; one field is None."""

    hours: float | None
    fraction: float | None


def parse_budget(text: str) -> Budget:
    """Parse a budget such as ``500h`` or ``2.5%``; raise ValueError if the text is not a budget."""
    match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*(h|%)\s*", text)
    amount = float(match[1]) if match else 0.0
    if match is None or amount <= 0 or (match[2] == "%" and amount > 100):
        raise ValueError(
            f"expected worker-hours above 0 such as 500h, or a fraction of the cost such as 2.5%, got {text!r}."
        )
    return Budget(amount, None) if match[2] == "h" else Budget(None, amount / 100)


def _check_budget(value: object) -> object:
    if not isinstance(value, str):
        raise ValueError(f"expected a budget with its unit, such as 500h or 2.5%, got {value!r}.")  # noqa: TRY004 - pydantic expects ValueError
    parse_budget(value)
    return value.strip()


def _check_pilot(value: int) -> int:
    if value < 2:
        raise ValueError(
            f"expected at least 2 networks, because a single network does not show how networks differ, got {value}."
        )
    return value


class SamplingSection(StrictModel):
    """Estimate accuracies from a sample of the images, for a budget.

    Attributes:
        budget: worker-hours, or a fraction of the cost of evaluating all images.
        pilot: number of networks that are evaluated on all images; their outcomes determine which images are sampled.
        cheap: keys under which every network is evaluated on all images. All keys that are not attacks count as cheap.
        seed: seed of the choice of the pilot networks and of the samples.
    """

    budget: Annotated[str, BeforeValidator(_check_budget)]
    pilot: Annotated[int, Field(le=MAX_COUNT), AfterValidator(_check_pilot)] = 20
    cheap: tuple[str, ...] = DEFAULT_CHEAP
    seed: Annotated[int, Field(ge=0)] = 0

    def design(self) -> dict[str, Any]:
        """Return the fields that must not change after a sample is drawn, which are all except the budget."""
        return {"pilot": self.pilot, "cheap": sorted(self.cheap), "seed": self.seed}
