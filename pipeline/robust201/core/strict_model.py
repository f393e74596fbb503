"""Base model and field types of all YAML sections."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

MAX_COUNT = 1_000_000
"""Upper limit of numbers that multiply the work, such as attack steps; a larger number is probably a typo."""

PositiveInt = Annotated[int, Field(ge=1, le=MAX_COUNT)]
Channels = Annotated[int, Field(ge=1, le=1_024)]
Cells = Annotated[int, Field(ge=1, le=100)]
"""Number of cells per stage of a network; the limits of channels and cells are far above any published size."""

PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class StrictModel(BaseModel):
    """Immutable base model that rejects unknown fields, and booleans in place of numbers."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    @field_validator("*", mode="before")
    @classmethod
    def _reject_booleans(cls, value: object, info: ValidationInfo) -> object:
        # bool is a subclass of int.
        items = value if isinstance(value, list | tuple) else (value,)
        booleans = [item for item in items if isinstance(item, bool)]
        if booleans and cls.model_fields[str(info.field_name)].annotation is not bool:
            location = " in the list" if isinstance(value, list | tuple) else ""
            raise ValueError(f"expected a value other than true or false, got {booleans[0]}{location}.")
        return value
