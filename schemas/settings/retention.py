"""The section [retention]: how many days of each table the lake keeps."""

from typing import Annotated

from pydantic import Field, model_validator

from schemas.settings.section import Section

Days = Annotated[int, Field(ge=0, le=36_500)]
FewerDays = Annotated[int, Field(ge=1, le=36_500)]


class NamespaceRetention(Section):
    """Shorter retention for the topics of one namespace."""

    segment_load: FewerDays | None = None
    """Days to keep the namespace's segment loads; unset: as for all."""
    events: FewerDays | None = None
    """Days to keep the namespace's events; unset: as for all."""
    holds: FewerDays | None = None
    """Days to keep the namespace's holds; unset: as for all."""
    decisions: FewerDays | None = None
    """Days to keep the namespace's decisions, outcomes and waits; unset: as for all."""


class RetentionSettings(Section):
    """Days that `anabranch lake retain --apply` keeps of each table, without today (UTC); 0: all."""

    segment_load: Days
    """Days to keep segment loads; 0: for ever. Backtests and suggestions cannot go back further."""
    events: Days
    """Days to keep events (layouts, policies, consumers, ticks, outcomes); 0: for ever."""
    holds: Days
    """Days to keep holds, the decisions not to act; 0: for ever."""
    decisions: Days
    """Days to keep decisions with their outcomes and waits; 0: for ever."""
    dead_letters: Days
    """Days to keep rejected Kafka records; 0: for ever."""
    batches: Days
    """Days to keep records of micro-batches; 0: for ever. Those that kept rows refer to stay longer."""
    namespaces: dict[Annotated[str, Field(pattern=r"^[^/\s]+/[^/\s]+$")], NamespaceRetention] = Field(
        default_factory=dict
    )
    """Fewer days for topics of some namespaces, by `tenant/namespace`: segment_load, events, holds, decisions."""

    @model_validator(mode="after")
    def _fewer(self) -> "RetentionSettings":
        for namespace, chosen in self.namespaces.items():
            for name, days in chosen.model_dump(exclude_none=True).items():
                whole = getattr(self, name)
                if whole and days > whole:
                    raise ValueError(
                        f'namespaces."{namespace}".{name}: {days} days are more than {name} = {whole} of all; '
                        f"give {name} the most days, and fewer to the other namespaces"
                    )
        return self
