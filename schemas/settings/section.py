"""Common base of all settings sections, and the error for invalid settings."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator
from pydantic_core import PydanticKnownError

Port = Annotated[int, Field(ge=0, le=65535)]
Seconds = Annotated[float, Field(gt=0, le=86_400 * 365)]


class SettingsError(ValueError):
    """The settings are invalid; the message names key and file, and the allowed values."""


class StrictModel(BaseModel):
    """Unknown keys are errors, and field docstrings become JSON Schema descriptions."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False)


class Section(StrictModel):
    """A section. It cannot be part of a union with a discriminator, because of its validator."""

    @field_validator("*", mode="before")
    @classmethod
    def _no_number_is_true_or_false(cls, value: Any, info: ValidationInfo) -> Any:
        kind = cls.model_fields[info.field_name or ""].annotation
        if isinstance(value, bool) and kind in (int, float):
            raise PydanticKnownError("int_type" if kind is int else "float_type")
        return value
