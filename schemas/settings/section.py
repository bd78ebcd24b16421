"""Common base of all settings sections, and the error for invalid settings."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Port = Annotated[int, Field(ge=0, le=65535)]
Seconds = Annotated[float, Field(gt=0, le=86_400 * 365)]


class SettingsError(ValueError):
    """The settings are invalid; the message names key and file, and the allowed values."""


class Section(BaseModel):
    """A section: unknown keys are errors, and field docstrings become JSON Schema descriptions."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)
