"""What every part of a YAML has in common."""

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
    """Base of what a YAML gives: immutable; unknown fields, and yes or no for a number, are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    @field_validator("*", mode="before")
    @classmethod
    def _refuse_truth_values(cls, value: object, info: ValidationInfo) -> object:
        # To Python true is the number 1.
        items = value if isinstance(value, list | tuple) else (value,)
        found = [item for item in items if isinstance(item, bool)]
        if found and cls.model_fields[str(info.field_name)].annotation is not bool:
            among = " among them" if isinstance(value, list | tuple) else ""
            raise ValueError(f"expected a value other than true or false, got {found[0]}{among}.")
        return value
