"""A message of PIP-192's ownership channel, as Pulsar writes it, keyed by its bundle.

`decisions.bundles.channel` checks them; `anabranch bundles check` reads them from a file.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from schemas.base import MAX_NAME_BYTES, Millis, Name, Wire

Broker = Annotated[str, Field(max_length=MAX_NAME_BYTES)]
MAX_CHILDREN = 4096
"""Limit on the children of one split."""


class ServiceUnitStateData(Wire):
    """State of a bundle; an unnamed broker is null, empty or missing."""

    state: Literal["Init", "Free", "Owned", "Assigning", "Releasing", "Splitting", "Deleted"]
    dst_broker: Broker | None = None
    source_broker: Broker | None = None
    force: bool = False
    timestamp: Millis = 0
    version_id: Annotated[int, Field(ge=-(2**63), le=2**63 - 1)]
    split_service_unit_to_dest_broker: Annotated[dict[Name, Broker | None], Field(max_length=MAX_CHILDREN)] | None = (
        None
    )


class ChannelMessage(Wire):
    """A bundle and its state; a null value is a tombstone."""

    key: Name
    value: ServiceUnitStateData | None
