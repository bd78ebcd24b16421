"""Records of the channel about one bundle, and which state may follow which.

Source: PIP-192 "Bundle State Channel", `ServiceUnitState`, `ServiceUnitStateData`. Under the whole channel.
"""

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import NamedTuple

FIRST_VERSION = 1
LAST_VERSION = 2**63 - 1
"""After it comes -2**63, as a Java long does."""


class State(str, Enum):
    """A bundle's state on the wire. `Init`: there is no record."""

    INIT = "Init"
    FREE = "Free"
    ASSIGNING = "Assigning"
    OWNED = "Owned"
    RELEASING = "Releasing"
    SPLITTING = "Splitting"
    DELETED = "Deleted"


class Store(str, Enum):
    """Stores of the channel (`loadManagerServiceUnitStateTableViewClassName`)."""

    TOPIC = "topic"
    """The compacted system topic `loadbalancer-service-unit-state`."""
    METADATA = "metadata"
    """The metadata store (4.0): each write is checked there, so nobody reads a refused one."""


class BundleRecord(NamedTuple):
    """`ServiceUnitStateData`. A tombstone is None; a broker that is not named is empty."""

    state: State
    version: int = FIRST_VERSION
    destination: str = ""
    source: str = ""
    force: bool = False
    children: tuple[tuple[str, str], ...] = ()
    """Of a split: each child, and the broker that it shall go to, if one was named."""
    at: int = 0
    """Milliseconds since 1970, by the writer's clock."""

    @property
    def owner(self) -> str:
        """Return the broker that serves the bundle by this record: nobody while it is handed over."""
        if self.state is State.OWNED:
            return self.destination
        return self.source if self.state is State.SPLITTING else ""


IN_FLIGHT = frozenset({State.ASSIGNING, State.RELEASING, State.SPLITTING})
ACTIVE = IN_FLIGHT | {State.OWNED}
IN_FLIGHT_MS = 30_000
"""`loadBalancerInFlightServiceUnitStateWaitingTimeInMillis`."""

_BOTH = {
    State.ASSIGNING: frozenset({State.OWNED}),
    State.OWNED: frozenset({State.SPLITTING, State.RELEASING}),
    State.RELEASING: frozenset({State.ASSIGNING, State.FREE}),
    State.SPLITTING: frozenset({State.DELETED}),
    State.DELETED: frozenset({State.INIT}),
}
TRANSITIONS: Mapping[Store, Mapping[State, frozenset[State]]] = MappingProxyType(
    {
        Store.TOPIC: MappingProxyType(
            {
                # After compaction the first record that is read may be any.
                State.INIT: frozenset(set(State) - {State.INIT}),
                State.FREE: frozenset({State.ASSIGNING, State.INIT}),
                **_BOTH,
            }
        ),
        Store.METADATA: MappingProxyType(
            {State.INIT: frozenset({State.ASSIGNING}), State.FREE: frozenset({State.ASSIGNING}), **_BOTH}
        ),
    }
)
"""Which states may come next (`ServiceUnitState.isValidTransition`)."""


def state_of(record: BundleRecord | None) -> State:
    """The state that a record, or that there is none, stands for."""
    return State.INIT if record is None else record.state


def brokers_of(record: BundleRecord | None) -> tuple[str, ...]:
    """The brokers whose loss concerns a record: the destination while active, the source while in flight."""
    if record is None:
        return ()
    named = (record.source if record.state in IN_FLIGHT else "", record.destination if record.state in ACTIVE else "")
    return tuple(filter(None, named))
