"""What all sections of the settings have in common, and the one error of wrong settings."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Port = Annotated[int, Field(ge=0, le=65535)]
Seconds = Annotated[float, Field(gt=0, le=86_400 * 365)]


class SettingsError(ValueError):
    """The settings are wrong; the message says which key of which file, and what it may be."""


class Section(BaseModel):
    """A section: unknown keys are errors, and the words under a key describe it in the JSON Schema."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)
