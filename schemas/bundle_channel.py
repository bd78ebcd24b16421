"""A message of the ownership channel of PIP-192, as Pulsar writes it (`ServiceUnitStateData`), under its bundle's name.

`decisions.bundles.channel` judges them; `anabranch bundles check` reads them from a file.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from schemas.base import MAX_NAME_BYTES, Millis, Name, Wire

Broker = Annotated[str, Field(max_length=MAX_NAME_BYTES)]
MAX_CHILDREN = 4096
"""Children of one split."""


class ServiceUnitStateData(Wire):
    """What is said of a bundle; a broker that is not named is null, empty or left out."""

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
    """A bundle and what is said of it; a value of null is a tombstone."""

    key: Name
    value: ServiceUnitStateData | None
