"""Counts of message ledgers by cluster, made while their records are read: there may be millions.

Stage: over `records`, under `snapshot_reader`. They are never copied, so a switch needs their number, and single ones
only if they are irregular: the record does not reveal the cluster, the ledger is missing there, or a schema or
subscription has the same id. Those are examined one by one, by the rule of `decisions.bookkeeper.seen`.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from anabranch.bookkeeper.metadata import ZnodeRecord
from anabranch.bookkeeper.records import DataLedgerPosition, read_data_ledgers
from anabranch.bookkeeper.registry import Registry
from anabranch.bookkeeper.wire import BadRecord
from schemas.bookies import DataLedger, TopicRecord


@dataclass(frozen=True)
class DataLedgers:
    """Summary of the records of all topics."""

    where: dict[str, int] = field(default_factory=dict)
    """By cluster: how many are attributed to it, and there."""
    topics: list[TopicRecord] = field(default_factory=list)
    """Records that cannot be read, and ledgers that have to be looked at."""

    def ids(self) -> set[int]:
        """Return the ledgers that have to be looked at."""
        return {ledger.id for topic in self.topics for ledger in topic.ledgers}


def count_data_ledgers(
    records: Iterable[ZnodeRecord],
    registry: Registry,
    listings: Mapping[str, Collection[int] | str],
    named: Collection[int],
) -> DataLedgers:
    """Count the ledgers in `records` by cluster, without offloaded ones; list irregular ones.

    `listings` has the ids of each cluster, or the reason why they are unknown; `named` has those that
    schemas, cursors and verified steps name.
    """
    there = {entry.name: _ids(listings.get(entry.name)) for entry in registry.clusters}
    first, recorded = _unstamped_owner(registry)
    where, topics = Counter[str](), list[TopicRecord]()
    for record in records:
        try:
            ledgers = read_data_ledgers(record.content)
        except BadRecord as error:
            topics.append(TopicRecord(path=record.path, version=record.version, error=str(error)))
            continue
        odd = []
        for ledger in ledgers:
            if ledger.offloaded:
                continue
            cluster = (
                _stamped_cluster(ledger) if ledger.stamp is not None else first if _is_older(ledger, recorded) else None
            )
            if cluster is not None and ledger.ledger not in named and ledger.ledger in there.get(cluster, ()):
                where[cluster] += 1
            else:
                odd.append(DataLedger(id=ledger.ledger, stamp=ledger.stamp))
        if odd:
            topics.append(TopicRecord(path=record.path, version=record.version, ledgers=odd))
    return DataLedgers(dict(where), topics)


def _unstamped_owner(registry: Registry) -> tuple[str | None, float]:
    """Return the cluster of ledgers without a stamp, and the time before which they were made.

    Without a bootstrap record the time is infinite: all of them count.
    """
    if registry.bootstrap is not None:
        return registry.bootstrap.bootstrap_cluster_name, registry.bootstrap.recorded_at
    active = [cluster.name for cluster in registry.clusters if cluster.status == "ACTIVE"]
    return (active[0] if registry.directive is None and len(active) == 1 else None), float("inf")


def _is_older(position: DataLedgerPosition, recorded: float) -> bool:
    """Return whether a ledger was made before the bootstrap record, as far as when it was closed tells."""
    return recorded == float("inf") or (position.closed_at is not None and position.closed_at < recorded)


def _stamped_cluster(position: DataLedgerPosition) -> str | None:
    name, colon, number = str(position.stamp).partition(":")
    return None if colon and number != str(position.ledger) else name


def _ids(listing: Collection[int] | str | None) -> Collection[int]:
    return () if listing is None or isinstance(listing, str) else listing
