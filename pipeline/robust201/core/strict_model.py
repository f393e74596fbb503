"""Base model and field types of every part of a YAML."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

MAX_COUNT = 1_000_000
"""Upper limit of fields whose value multiplies the work, such as steps: above it, a mistake is likelier than a wish."""

PositiveInt = Annotated[int, Field(ge=1, le=MAX_COUNT)]
Channels = Annotated[int, Field(ge=1, le=1_024)]
Cells = Annotated[int, Field(ge=1, le=100)]
"""Sizes of a skeleton, up to far above any that was published."""

PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class StrictModel(BaseModel):
    """Base of what a YAML gives: immutable; unknown fields, and booleans instead of numbers, are rejected."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    @field_validator("*", mode="before")
    @classmethod
    def _reject_booleans(cls, value: object, info: ValidationInfo) -> object:
        # To Python true is the number 1.
        items = value if isinstance(value, list | tuple) else (value,)
        booleans = [item for item in items if isinstance(item, bool)]
        if booleans and cls.model_fields[str(info.field_name)].annotation is not bool:
            among = " among them" if isinstance(value, list | tuple) else ""
            raise ValueError(f"expected a value other than true or false, got {booleans[0]}{among}.")
        return value
