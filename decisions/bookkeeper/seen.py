"""View of a snapshot by ledger: records that name it, the cluster each attributes it to, and brokers.

Stage: over `schemas.bookies`, under every rule of the family. The resolver is the only place that says where a ledger
is: by its stamp; without one, by the bootstrap record when it was made before that; else it is corruption, never a
guess (PIP-477 rev 3, "Resolution"; I17). The same rule serves reading, opening and deleting (I15).
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from decisions.bookkeeper.account import BookieAccount
from decisions.bookkeeper.gates import BookieGate
from schemas.bookie_answers import Attribution
from schemas.bookies import BookieMetadata, BookieSnapshot, Bootstrap, CursorRecord, LedgerSeen, Routing

COMPACTED, DELAYED = "CompactedTopicLedger", "#pulsar.internal.delayed.bucket"
"""A cursor's property that names the ledger of a compacted topic; beginning of those with snapshots of delayed
messages. Their ledgers are long-lived, and in no list of Pulsar's."""
COPIED = frozenset({"schema", "managed-ledger"})
"""Values of `component` in the custom metadata of ledgers that schemas, subscriptions and topics name."""
ItemKind = Literal["schema", "cursor", "data"]


@dataclass(frozen=True, slots=True)
class Item:
    """A ledger that a record names."""

    kind: ItemKind
    object: str
    ledger: int
    """-1: the record needs none."""
    version: int
    """Of the record's znode."""
    stamp: str | None
    created_at: int | None
    owner: str | None
    cluster: str | None
    """Where it is; None: not known, or there is none."""
    how: Literal["stamp", "bootstrap", "corruption", "in-znode"]
    reason: str | None = None


def stamp_of(cluster: str, ledger: int) -> str:
    """Return the attribution to write; it names the ledger, as a cursor's stamp outlives its ledger."""
    return f"{cluster}:{ledger}"


class BookieView:
    """A snapshot, looked up by cluster and ledger."""

    def __init__(self, snapshot: BookieSnapshot, bootstrap: Bootstrap | None = None) -> None:
        """`bootstrap` stands in while there is no record of it yet."""
        self.snapshot = snapshot
        self.bootstrap = snapshot.bootstrap or bootstrap
        self.clusters = {entry.name: entry for entry in snapshot.clusters}
        self.active = [entry.name for entry in snapshot.clusters if entry.status == "ACTIVE"]
        self._ledgers = {name: {entry.id: entry for entry in ledgers} for name, ledgers in snapshot.ledgers.items()}
        self.items = tuple(_items(snapshot, self))
        self.naming: dict[int, list[Item]] = {}
        for item in self.items:
            self.naming.setdefault(item.ledger, []).append(item)
        progress, directive = snapshot.progress, snapshot.directive
        self.progress = progress if directive and progress.epoch == directive.epoch else type(progress)()

    def instances(self, cluster: str) -> frozenset[str]:
        """Return the instance ids that are known of a cluster: on record, and as it shows it now."""
        generators, entry = self.snapshot.generators.get(cluster), self.clusters.get(cluster)
        ids = (generators.instance if generators else None, entry.instance if entry else None)
        return frozenset(instance for instance in ids if instance is not None)

    def listed(self, cluster: str) -> bool:
        """Tell if the ledgers of a cluster are known."""
        return cluster in self._ledgers

    def ledger(self, cluster: str, ledger: int) -> LedgerSeen | None:
        """A ledger of a cluster, or None."""
        return self._ledgers.get(cluster, {}).get(ledger)

    def ledgers(self, cluster: str) -> dict[int, LedgerSeen]:
        """All ledgers of a cluster that was listed."""
        return self._ledgers.get(cluster, {})

    def beside(self) -> list[tuple[str, int]]:
        """Return ledgers of compacted topics and delayed messages, each with the subscription that names it."""
        return ledgers_beside(self.snapshot.cursors)

    def of_another_use(self, cluster: str) -> list[tuple[str, int]]:
        """Return ledgers of a cluster that belong to no schema, subscription or topic, with their owners."""
        named = {number: path for path, number in self.beside() if self.ledger(cluster, number) is not None}
        for seen in self.ledgers(cluster).values():
            component = (seen.custom or {}).get("component")
            if component is not None and component not in COPIED:
                named.setdefault(seen.id, f"component {component}")
        return [(whose, number) for number, whose in sorted(named.items())]

    def unknown(self) -> list[Attribution]:
        """Ledgers of which nobody knows where they are."""
        return [attribution_of(item) for item in self.items if item.how == "corruption"]

    def lost(self) -> list[Item]:
        """Return schemas and subscriptions of which nobody knows where their ledger is."""
        return [item for item in self.items if item.how == "corruption" and item.kind != "data"]

    def resolve(
        self, kind: ItemKind, ledger: int, stamp: str | None, created_at: int | None
    ) -> tuple[str | None, Literal["stamp", "bootstrap", "corruption"], str | None]:
        """Cluster, by what, and what is wrong."""
        if stamp is not None:
            name, colon, number = stamp.partition(":")
            if colon and number != str(ledger):
                # A cursor's stamp outlives a rollover; that of a schema's position cannot.
                if kind != "cursor":
                    return None, "corruption", f"its stamp {stamp!r} names another ledger"
            elif name not in self.clusters:
                return None, "corruption", f"its stamp names {name!r}, which is not registered"
            else:
                return name, "stamp", None
        if self.bootstrap is None:
            return None, "corruption", "it has no stamp, and there is no bootstrap record"
        first, recorded = self.bootstrap.bootstrap_cluster_name, self.bootstrap.recorded_at
        if created_at is None:
            # That of a ledger of the same id elsewhere would be a guess.
            there = self.ledger(first, ledger)
            created_at = None if there is None else there.created_at
            if there is None and self.listed(first):
                return None, "corruption", f"it has no stamp, and {first}, where it would be, has no such ledger"
        if created_at is None:
            return None, "corruption", "it has no stamp, and nothing says when it was made"
        if created_at >= recorded:
            return (
                None,
                "corruption",
                f"it has no stamp, and was made {created_at - recorded} ms after the bootstrap record",
            )
        if first not in self.clusters:
            return None, "corruption", f"it has no stamp, and the bootstrap cluster {first!r} is not registered"
        return first, "bootstrap", None


def ledgers_beside(cursors: Iterable[CursorRecord]) -> list[tuple[str, int]]:
    """Return ledgers of compacted topics and delayed messages, each with the subscription that names it."""
    return [
        (cursor.path, int(value))
        for cursor in cursors
        for name, value in sorted(cursor.properties.items())
        if (name == COMPACTED or name.startswith(DELAYED)) and value.isdecimal()
    ]


def attribution_of(item: Item) -> Attribution:
    """The item as an answer has it."""
    return Attribution(
        kind=item.kind, object=item.object, ledger=item.ledger, cluster=item.cluster, how=item.how, reason=item.reason
    )


def difference_of_copies(copy: LedgerSeen, other: LedgerSeen) -> str | None:
    """Return what tells two closed ledgers apart, as far as was looked, or None (I8)."""
    pairs = (
        ("last entry", copy.last, other.last),
        ("length", copy.length, other.length),
        ("contents", copy.sha256, other.sha256),
        ("custom metadata", copy.custom, other.custom),
        ("quorums", copy.quorums, other.quorums),
    )
    for field, here, there in pairs:
        if here is not None and there is not None and here != there:
            return f"{field}: {here} != {there}"
    return None


def _items(metadata: BookieMetadata, seen: BookieView) -> Iterator[Item]:
    for schema in metadata.schemas:
        if schema.error is not None:
            yield Item("schema", schema.path, -1, schema.version, None, None, None, None, "corruption", schema.error)
        for position in sorted({(entry.ledger, entry.stamp, entry.created_at) for entry in schema.positions}, key=str):
            yield _item(seen, "schema", schema.path, schema.version, position)
    for cursor in metadata.cursors:
        if cursor.error is not None:
            yield Item(
                "cursor", cursor.path, -1, cursor.version, None, None, cursor.owner, None, "corruption", cursor.error
            )
        elif cursor.ledger < 0:
            yield Item("cursor", cursor.path, -1, cursor.version, cursor.stamp, None, cursor.owner, None, "in-znode")
        else:
            yield _item(
                seen,
                "cursor",
                cursor.path,
                cursor.version,
                (cursor.ledger, cursor.stamp, cursor.created_at),
                cursor.owner,
            )
    for topic in metadata.topics:
        if topic.error is not None:
            yield Item("data", topic.path, -1, topic.version, None, None, None, None, "corruption", topic.error)
        for entry in topic.ledgers:
            yield _item(seen, "data", topic.path, topic.version, (entry.id, entry.stamp, entry.created_at))


def _item(
    seen: BookieView,
    kind: ItemKind,
    path: str,
    version: int,
    position: tuple[int, str | None, int | None],
    owner: str | None = None,
) -> Item:
    """`position`: the ledger with its stamp and its creation time."""
    ledger, stamp, created_at = position
    cluster, how, reason = seen.resolve(kind, ledger, stamp, created_at)
    return Item(kind, path, ledger, version, stamp, created_at, owner, cluster, how, reason)


def routing_fault(routing: Routing, registered: Sequence[str]) -> str | None:
    """Return why nothing may be moved under these brokers; None: it may."""
    if routing == "stock":
        return (
            "brokers that know one cluster only, when they are pointed at another, remove from topics the data ledgers "
            "that they do not find there, and lose what is deleted here. Stop them, and say --brokers stopped; "
            "rehearse on copies of the metadata (docs/bookies.md)"
        )
    if routing == "stopped" and registered:
        return (
            f"brokers are said to be stopped, and {len(registered)} are registered now, such as {registered[0]}: what "
            "they write would be fenced, and subscriptions changed behind their back. Stop them, wait until their "
            "sessions have ended, then give the same command again"
        )
    return None


def require_routing(seen: BookieView, account: BookieAccount) -> bool:
    """Require that all registered brokers route by attribution or are stopped."""
    fault = routing_fault(seen.snapshot.routing, seen.snapshot.registered_brokers or ())
    return account.require(BookieGate.BROKERS_ROUTE, fault is None, fault)
