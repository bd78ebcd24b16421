"""The section [retention]: how many days of each table the lake keeps."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from schemas.settings.section import Section

Days = Annotated[int, Field(ge=0, le=36_500)]
FewerDays = Annotated[int, Field(ge=1, le=36_500)]


class NamespaceRetention(Section):
    """Shorter retention for the topics of one namespace."""

    segment_load: FewerDays | None = None
    events: FewerDays | None = None
    holds: FewerDays | None = None
    decisions: FewerDays | None = None
    """With their outcomes and waits."""


class RetentionSettings(Section):
    """Days that `anabranch lake retain --apply` keeps of each table, without today (UTC); 0: all."""

    segment_load: Days
    events: Days
    holds: Days
    decisions: Days
    """With their outcomes and waits."""
    dead_letters: Days
    batches: Days
    """Kept longer while rows of the other tables remain that queries may need them for."""
    namespaces: dict[Annotated[str, Field(pattern=r"^[^/\s]+/[^/\s]+$")], NamespaceRetention] = Field(
        default_factory=dict
    )
    """By `tenant/namespace`."""

    @model_validator(mode="after")
    def _fewer(self) -> RetentionSettings:
        for namespace, chosen in self.namespaces.items():
            for name, days in chosen.model_dump(exclude_none=True).items():
                whole = getattr(self, name)
                if whole and days > whole:
                    raise ValueError(
                        f'namespaces."{namespace}".{name}: {days} days are more than {name} = {whole} of all; '
                        f"give {name} the most days, and fewer to the other namespaces"
                    )
        return self
