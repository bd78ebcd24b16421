"""What is known of a cluster of brokers and bundles, and what a message changes in it. No clock, no order of arrival.

Stage: the state of the family. Between two cycles messages are only laid down: of each broker its newest report, of
each namespace, and of brokers and policies, the newest word. So a cycle sees the same whatever order messages came in,
however often, and in whatever batches. What counts as newest is said by the message (`lastUpdate`, `at`), and between
two of one instant by their content.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from engine.bundles.moves import Move, new_move
from schemas.broker_messages import BalancerPolicies, BundleOwnership, Circumstance, LiveBrokers, Report
from schemas.bundles import BalancerState, BundleData
from schemas.messages import EXPIRED, OutcomeEvent

MAX_CLUSTERS = 1000
"""Of a bucket; more are refused."""
MAX_BROKERS = 2000
"""Of a cluster that have reported, each in at most 1 MiB; more are refused."""
MAX_NAMESPACES = 20_000
"""Of a cluster whose ownership is known; more are refused."""


@dataclass(slots=True)
class BrokerReports:
    """The reports of one broker."""

    seen: int = 0
    """`lastUpdate` of the newest that a cycle has looked at."""
    counted: Report | None = None
    """The one that counts: the last that had moved by more than the rule asks for."""
    pending: Report | None = None
    """The newest that has come since the last cycle."""
    stored: Report | None = None
    """The pending one that the state store has."""


@dataclass(slots=True)
class OpenDecision:
    """A decision that nobody has said yet how it ended."""

    decision_id: str
    action: str
    at: int
    """When it was taken, milliseconds."""


@dataclass(slots=True)
class HeldAt:
    """The binding reason of the cluster, or of one of its brokers, and how many there were."""

    gate: str | None
    seq: int


@dataclass(slots=True)
class Changes:
    """What the state store does not have yet."""

    reports: set[str] = field(default_factory=set)
    averages: set[str] = field(default_factory=set)
    namespaces: set[str] = field(default_factory=set)
    brokers: bool = False
    policies: bool = False
    rest: bool = False

    def __bool__(self) -> bool:
        return bool(
            self.reports or self.averages or self.namespaces or self.brokers or self.policies or self.rest
        )  # fmt: skip


@dataclass(slots=True)
class ClusterState:
    """All that is known of a cluster."""

    name: str
    reports: dict[str, BrokerReports] = field(default_factory=dict)
    ownership: dict[str, BundleOwnership] = field(default_factory=dict)
    """By namespace."""
    brokers: LiveBrokers | None = None
    policies: BalancerPolicies | None = None
    averages: dict[str, BundleData] = field(default_factory=dict)
    memory: BalancerState = field(default_factory=BalancerState)
    """What the balancer remembers between cycles, averages apart."""
    open: dict[str, OpenDecision] = field(default_factory=dict)
    """By bundle."""
    moves: dict[str, Move] = field(default_factory=dict)
    """Unloads that reports do not show yet, by bundle."""
    held: dict[str, HeldAt] = field(default_factory=dict)
    """By subject of a hold."""
    decisions: int = 0
    """How many were taken."""
    changes: Changes = field(default_factory=Changes)

    def is_news(self, message: Report | Circumstance) -> bool:
        """Whether a message says more than is known."""
        if isinstance(message, BundleOwnership):
            return is_newer(message, self.ownership.get(message.namespace))
        if isinstance(message, LiveBrokers):
            return is_newer(message, self.brokers)
        if isinstance(message, BalancerPolicies):
            return is_newer(message, self.policies)
        known = self.reports.get(message.broker)
        return known is None or (
            message.last_update > known.seen and is_newer_report(message, known.pending)
        )  # fmt: skip

    def has_room(self, message: Report | Circumstance) -> bool:
        """Whether what a message is about is known, or there may be more of it."""
        if isinstance(message, BundleOwnership):
            return message.namespace in self.ownership or len(self.ownership) < MAX_NAMESPACES
        if isinstance(message, LiveBrokers | BalancerPolicies):
            return True
        return message.broker in self.reports or len(self.reports) < MAX_BROKERS

    def lay_down(self, message: Report | Circumstance) -> None:
        """Takes in a message that is news."""
        if isinstance(message, BundleOwnership):
            self.ownership[message.namespace] = message
            self.changes.namespaces.add(message.namespace)
        elif isinstance(message, LiveBrokers):
            self.brokers, self.changes.brokers = message, True
        elif isinstance(message, BalancerPolicies):
            self.policies, self.changes.policies = message, True
        else:
            self.reports.setdefault(message.broker, BrokerReports()).pending = message
            self.changes.reports.add(message.broker)

    def open_decision(self, bundle: str, opened: OpenDecision, source: str | None, destination: str | None) -> None:
        """Remember a decision until it has ended; and a move until reports show it."""
        self.open[bundle] = opened
        if opened.action == "unload" and source is not None and destination is not None:
            known = self.reports.get(source)
            report = None if known is None else known.counted
            self.moves[bundle] = new_move(opened.decision_id, bundle, source, destination, opened.at, report)
        self.changes.rest = True

    def end(self, outcome: OutcomeEvent) -> None:
        """End a decision.

        After one that was applied, or has expired, its bundle may be acted on again. Any other end leaves it as it is
        until it is too old: what failed is not tried each minute. A move that was only observed goes on to count, so
        that a shadow decides what an executor would have done.
        """
        bundle = next((name for name, one in self.open.items() if one.decision_id == outcome.decision_id), None)
        if bundle is None:
            return
        self.changes.rest = True
        if outcome.status == "applied" or (outcome.error or "").startswith(EXPIRED):
            del self.open[bundle]
        move = self.moves.get(bundle)
        if move is None or move.decision_id != outcome.decision_id or outcome.status == "observed":
            return
        if outcome.status == "applied":
            move.applied_at = outcome.at
        else:
            self.take_back(bundle)

    def take_back(self, bundle: str) -> None:
        """Forget a move that was not made, and that the balancer remembers as made."""
        move = self.moves.pop(bundle)
        bundles, brokers = dict(self.memory.recently_unloaded_bundles), dict(self.memory.recently_unloaded_brokers)
        if bundles.get(bundle) == move.at:
            del bundles[bundle]
        if brokers.get(move.source) == move.at and all(one.source != move.source for one in self.moves.values()):
            del brokers[move.source]
        gain = self.memory.gain_shedder
        if gain is not None:
            moves = {name: one for name, one in gain.moves.items() if name != bundle}
            gain = gain.model_copy(update={"moves": moves})
        self.memory = self.memory.model_copy(
            update={
                "recently_unloaded_bundles": bundles, "recently_unloaded_brokers": brokers, "gain_shedder": gain,
            }
        )  # fmt: skip
        self.changes.rest = True


def is_newer(one: Circumstance, known: Circumstance | None) -> bool:
    """Whether it is the later of two words about the same; of one instant, the greater as text."""
    if known is None or one.at != known.at:
        return known is None or one.at > known.at
    return one.to_json() > known.to_json()


def is_newer_report(one: Report, known: Report | None) -> bool:
    """The same of two reports of a broker, by when the broker made them."""
    if known is None or one.last_update != known.last_update:
        return known is None or one.last_update > known.last_update
    return one.to_json() > known.to_json()


Clusters: TypeAlias = dict[str, ClusterState]
