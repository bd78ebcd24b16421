"""State of a cluster of brokers and bundles, independent of clock and arrival order.

Stage: the state of the family. Between two cycles messages are only stored: the newest report of each broker, and
the newest message about each namespace, the live brokers and the policies. So a cycle sees the same state whatever
the order, repetition and batches of its messages. The message itself dates it (`lastUpdate`, `at`); its content
breaks ties.
"""

from dataclasses import dataclass, field
from typing import TypeAlias

from engine.bundles.moves import BundleMove, new_move
from schemas.bundles import BalancerState, BundleData
from schemas.kafka.broker_messages import BalancerPolicies, BundleOwnership, Circumstance, LiveBrokers, Report
from schemas.kafka.messages import EXPIRED, OutcomeEvent

MAX_OPEN_MS = 30 * 60_000
"""Time to wait for a decision's outcome; upstream leaves an unloaded bundle alone as long."""
REFUSED_MS = 5 * 60_000
"""Time to leave a bundle alone whose decision was superseded: its change was not made, for a reason that may last."""
REFUSED = "refused"
"""Action of an open decision that was superseded; stored with the state."""
MAX_CLUSTERS = 1000
"""Limit per bucket; further clusters are refused."""
MAX_BROKERS = 2000
"""Limit per cluster on brokers that report, each in at most 1 MiB; further ones are refused."""
MAX_NAMESPACES = 20_000
"""Limit per cluster on namespaces with known ownership; further ones are refused."""


@dataclass(slots=True)
class BrokerReports:
    """Reports of one broker."""

    processed_to: int = 0
    """`lastUpdate` of the newest report that a cycle has processed."""
    in_effect: Report | None = None
    """The last one that differed enough from its predecessor to count."""
    pending: Report | None = None
    """The newest report since the last cycle."""
    stored: Report | None = None
    """The pending report in the state store."""


@dataclass(slots=True)
class OpenBundleDecision:
    """A decision whose outcome is not known yet."""

    decision_id: str
    action: str
    at: int
    """Milliseconds; the bundle waits until `MAX_OPEN_MS` after. Time of the decision, earlier once it was refused."""


@dataclass(slots=True)
class LatestHold:
    """Binding gate of the cluster or a broker, and the number of its holds."""

    gate: str | None
    seq: int


@dataclass(slots=True)
class ClusterChanges:
    """Changes that the state store lacks."""

    reports: set[str] = field(default_factory=set)
    averages: set[str] = field(default_factory=set)
    namespaces: set[str] = field(default_factory=set)
    brokers: bool = False
    policies: bool = False
    balancer: bool = False
    """Memory, open decisions, moves or holds, which are stored as one."""

    def __bool__(self) -> bool:
        return bool(self.reports or self.averages or self.namespaces or self.brokers or self.policies or self.balancer)


@dataclass(slots=True)
class ClusterState:
    """Full state of a cluster."""

    name: str
    reports: dict[str, BrokerReports] = field(default_factory=dict)
    ownership: dict[str, BundleOwnership] = field(default_factory=dict)
    """By namespace."""
    brokers: LiveBrokers | None = None
    policies: BalancerPolicies | None = None
    averages: dict[str, BundleData] = field(default_factory=dict)
    memory: BalancerState = field(default_factory=BalancerState)
    """The balancer's memory between cycles, except averages."""
    open: dict[str, OpenBundleDecision] = field(default_factory=dict)
    """By bundle."""
    moves: dict[str, BundleMove] = field(default_factory=dict)
    """Unloads that reports do not show yet, by bundle."""
    held: dict[str, LatestHold] = field(default_factory=dict)
    """By subject of the hold."""
    decisions: int = 0
    """Number of decisions so far."""
    changes: ClusterChanges = field(default_factory=ClusterChanges)

    def is_news(self, message: Report | Circumstance) -> bool:
        """Return whether a message is newer than the known state."""
        if isinstance(message, BundleOwnership):
            return is_newer(message, self.ownership.get(message.namespace))
        if isinstance(message, LiveBrokers):
            return is_newer(message, self.brokers)
        if isinstance(message, BalancerPolicies):
            return is_newer(message, self.policies)
        reports = self.reports.get(message.broker)
        return reports is None or (
            message.last_update > reports.processed_to and is_newer_report(message, reports.pending)
        )

    def has_room(self, message: Report | Circumstance) -> bool:
        """Return whether the subject of a message is known, or fits within the limits."""
        if isinstance(message, BundleOwnership):
            return message.namespace in self.ownership or len(self.ownership) < MAX_NAMESPACES
        if isinstance(message, LiveBrokers | BalancerPolicies):
            return True
        return message.broker in self.reports or len(self.reports) < MAX_BROKERS

    def store_message(self, message: Report | Circumstance) -> None:
        """Store a newer message."""
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

    def open_decision(
        self, bundle: str, opened: OpenBundleDecision, source: str | None, destination: str | None
    ) -> None:
        """Open a decision, and track a move until reports show it."""
        self.open[bundle] = opened
        if opened.action == "unload" and source is not None and destination is not None:
            reports = self.reports.get(source)
            report = None if reports is None else reports.in_effect
            self.moves[bundle] = new_move(opened.decision_id, bundle, source, destination, opened.at, report)
        self.changes.balancer = True

    def close_decision(self, outcome: OutcomeEvent) -> None:
        """Close a decision after its outcome.

        After one that was applied or expired, its bundle may be acted on again, and `REFUSED_MS` after one that was
        superseded. Any other outcome blocks the bundle until the decision is too old, so a failure is not retried each
        minute. An observed move stays in effect, so that a shadow decides as if an executor had acted.
        """
        bundle = next((name for name, entry in self.open.items() if entry.decision_id == outcome.decision_id), None)
        if bundle is None:
            return
        self.changes.balancer = True
        decision = self.open[bundle]
        if outcome.status == "applied" or (outcome.error or "").startswith(EXPIRED):
            del self.open[bundle]
        elif outcome.status == "superseded" and decision.action != REFUSED:
            # From the decision to its full wait, whatever the executor's clock says, and once: ends are repeated.
            refused_at = max(decision.at, outcome.at)
            decision.at = min(decision.at, refused_at + REFUSED_MS - MAX_OPEN_MS)
            decision.action = REFUSED
        move = self.moves.get(bundle)
        if move is None or move.decision_id != outcome.decision_id or outcome.status == "observed":
            return
        if outcome.status == "applied":
            move.applied_at = outcome.at
        else:
            self.cancel_move(bundle)

    def cancel_move(self, bundle: str) -> None:
        """Drop a move that was not made, also from the balancer's memory."""
        move = self.moves.pop(bundle)
        bundles, brokers = dict(self.memory.recently_unloaded_bundles), dict(self.memory.recently_unloaded_brokers)
        if bundles.get(bundle) == move.at:
            del bundles[bundle]
        if brokers.get(move.source) == move.at and all(other.source != move.source for other in self.moves.values()):
            del brokers[move.source]
        if (gain := self.memory.gain_shedder) is not None:
            moves = {name: other for name, other in gain.moves.items() if name != bundle}
            gain = gain.model_copy(update={"moves": moves})
        self.memory = self.memory.model_copy(
            update={"recently_unloaded_bundles": bundles, "recently_unloaded_brokers": brokers, "gain_shedder": gain}
        )
        self.changes.balancer = True


def is_newer(message: Circumstance, previous: Circumstance | None) -> bool:
    """Return whether `message` is the later message on its subject; ties are broken by text."""
    if previous is None or message.at != previous.at:
        return previous is None or message.at > previous.at
    return message.to_json() > previous.to_json()


def is_newer_report(report: Report, previous: Report | None) -> bool:
    """Return whether `report` is the later report of a broker, by the broker's time."""
    if previous is None or report.last_update != previous.last_update:
        return previous is None or report.last_update > previous.last_update
    return report.to_json() > previous.to_json()


Clusters: TypeAlias = dict[str, ClusterState]
