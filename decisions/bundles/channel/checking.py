"""Checker of a channel's messages, in their order: all faults on the way and at the end.

Stage: over the rules. Keeps one entry per bundle, however many messages there are; findings are yielded at once.
"""

from collections.abc import Collection, Iterator, Mapping
from enum import Enum
from types import MappingProxyType
from typing import NamedTuple

from decisions.bundles.boundaries import bundle_range
from decisions.bundles.channel.conflicts import ConflictRefusal, refuse_record, refuse_transition
from decisions.bundles.channel.records import (
    ACTIVE,
    IN_FLIGHT,
    IN_FLIGHT_MS,
    BundleRecord,
    State,
    Store,
    brokers_of,
    state_of,
)


class FindingKind(str, Enum):
    """Kinds of fault."""

    BAD_LINE = "bad-line"
    TRANSITION = "illegal-transition"
    BROKERS = "brokers"
    GAP_IN_VERSIONS = "version-gap"
    NOT_FIRST = "not-first"
    TWO_OWNERS = "two-owners"
    IN_FLIGHT = "in-flight"
    ORPHAN = "orphan"
    OVERLAP = "overlap"
    GAP = "gap"


MEANINGS: Mapping[FindingKind, str] = MappingProxyType(
    {
        FindingKind.BAD_LINE: "The line is no message of a channel; it is left out.",
        FindingKind.TRANSITION: "The state may not follow the one before; every broker refuses it, unless it "
        "is a tombstone.",
        FindingKind.BROKERS: "The brokers do not fit the record before; every broker refuses it.",
        FindingKind.GAP_IN_VERSIONS: "Versions are missing, which the metadata store does not permit.",
        FindingKind.NOT_FIRST: "The first record of a bundle in the metadata store has another version than 1.",
        FindingKind.TWO_OWNERS: "Two brokers own ranges that overlap.",
        FindingKind.IN_FLIGHT: "A change was, or is, under way for longer than it may be.",
        FindingKind.ORPHAN: "At the end, the record depends on a broker that is not among the living.",
        FindingKind.OVERLAP: "At the end, two bundles of a namespace overlap, and it is no split under way.",
        FindingKind.GAP: "At the end, a bundle was split and its children do not cover its range.",
    }
)
_BY_REFUSAL = {
    ConflictRefusal.TRANSITION: FindingKind.TRANSITION,
    ConflictRefusal.BROKERS: FindingKind.BROKERS,
    ConflictRefusal.GAP: FindingKind.GAP_IN_VERSIONS,
    ConflictRefusal.NOT_FIRST: FindingKind.NOT_FIRST,
}


class ChannelFinding(NamedTuple):
    """One thing that is wrong. `line`: where it was found; 0: in what is left at the end."""

    kind: FindingKind
    line: int
    bundle: str
    detail: str


class _Entry:
    """Memory of one bundle."""

    __slots__ = ("line", "lower", "record", "upper", "was_split")

    def __init__(self, bundle: str) -> None:
        self.lower, self.upper = bundle_range(bundle)
        if self.lower >= self.upper:
            raise ValueError("its range ends before it begins")
        self.record: BundleRecord | None = None
        self.was_split = False
        self.line = 0


class Checker:
    """Reads messages in the order of the channel. `limit_ms`: how long a change may be under way."""

    def __init__(self, store: Store = Store.TOPIC, limit_ms: int = IN_FLIGHT_MS) -> None:
        self.messages = self.stale = self.forced = self.hidden = 0
        """Messages; those that were refused as not newer; overrides; those before which versions are missing."""
        self.newest = 0
        """The newest timestamp among them."""
        self._store, self._limit = store, limit_ms
        self._namespaces: dict[str, dict[str, _Entry]] = {}

    @property
    def bundles(self) -> int:
        """Bundles that have a record now."""
        return sum(entry.record is not None for entries in self._namespaces.values() for entry in entries.values())

    def read(self, bundle: str, record: BundleRecord | None, line: int) -> Iterator[ChannelFinding]:
        """Yield the faults of the next message. Raises `ValueError` for a name without a range."""
        entries = self._namespaces.get(bundle.rpartition("/")[0], {})
        entry = entries.get(bundle) or _Entry(bundle)
        self._namespaces.setdefault(bundle.rpartition("/")[0], entries)[bundle] = entry
        return self._judged(entries, bundle, entry, record, line)

    def _judged(
        self, entries: Mapping[str, _Entry], bundle: str, entry: _Entry, record: BundleRecord | None, line: int
    ) -> Iterator[ChannelFinding]:
        self.messages += 1
        old = entry.record
        self.newest = max(self.newest, record.at if record else 0)
        refused = refuse_record(old, record, self._store)
        if refused is ConflictRefusal.STALE:
            self.stale += 1
            return
        if refused is not None:
            yield ChannelFinding(_BY_REFUSAL[refused], line, bundle, _describe_step(old, record))
            return
        if record is None and old is not None and refuse_transition(old, None, Store.TOPIC):
            yield ChannelFinding(FindingKind.TRANSITION, line, bundle, _describe_step(old, None))
        if record is not None:
            self.forced += record.force
            self.hidden += record.version > (old.version if old else 0) + 1
            # Where versions are missing, nobody can say how long the change before took.
            if old is not None and record.version == old.version + 1:
                yield from self._late(bundle, old, record.at, line, "was")
        had = old.owner if old else ""
        entry.record, entry.line = record, line
        entry.was_split = state_of(record) is State.DELETED or (record is None and entry.was_split)
        if record is not None and record.owner and record.owner != had:
            for other, its in entries.items():
                owner = its.record.owner if its.record else ""
                if owner not in ("", record.owner) and _overlap(entry, its):
                    detail = f"owned by {record.owner}, and {owner} owns {other} (line {its.line})"
                    yield ChannelFinding(FindingKind.TWO_OWNERS, line, bundle, detail)

    def end(self, now: int, brokers: Collection[str] | None = None) -> Iterator[ChannelFinding]:
        """Yield the faults that remain at the end. `brokers`: those that live; None: not known."""
        for entries in self._namespaces.values():
            for bundle, entry in entries.items():
                if entry.record is not None:
                    yield from self._late(bundle, entry.record, now, 0, "has been")
                    for broker in brokers_of(entry.record) if brokers is not None else ():
                        if broker not in (brokers or ()):
                            yield ChannelFinding(
                                FindingKind.ORPHAN, 0, bundle, f"{entry.record.state.value} depends on {broker}"
                            )
            yield from _find_overlaps(entries)
            yield from _find_gaps(entries)

    def _late(self, bundle: str, record: BundleRecord, until: int, line: int, tense: str) -> Iterator[ChannelFinding]:
        took = until - record.at
        if record.state in IN_FLIGHT and record.at and took > self._limit:
            detail = f"{tense} {record.state.value} for {took / 1000:.1f} s, {self._limit / 1000:g} s are the limit"
            yield ChannelFinding(FindingKind.IN_FLIGHT, line, bundle, detail)


def _find_overlaps(entries: Mapping[str, _Entry]) -> Iterator[ChannelFinding]:
    """Yield overlaps of active bundles, each with the earlier one that reaches furthest."""
    active = [(bundle, entry) for bundle, entry in entries.items() if state_of(entry.record) in ACTIVE]
    active.sort(key=lambda named_entry: (named_entry[1].lower, -named_entry[1].upper))
    furthest: tuple[str, _Entry] | None = None
    for bundle, entry in active:
        if furthest is not None and _overlap(furthest[1], entry):
            splits = State.SPLITTING in (state_of(furthest[1].record), state_of(entry.record))
            if not splits:
                yield ChannelFinding(FindingKind.OVERLAP, 0, bundle, f"overlaps {furthest[0]}")
        if furthest is None or entry.upper > furthest[1].upper:
            furthest = (bundle, entry)


def _find_gaps(entries: Mapping[str, _Entry]) -> Iterator[ChannelFinding]:
    """Ranges of bundles that were split, as far as no smaller bundle within has ever been heard of."""
    inner = sorted((entry.lower, entry.upper) for entry in entries.values())
    for bundle, entry in entries.items():
        if not entry.was_split:
            continue
        covered = entry.lower
        for lower, upper in inner:
            is_child = entry.lower <= lower and upper <= entry.upper and (lower, upper) != (entry.lower, entry.upper)
            if is_child and lower <= covered:
                covered = max(covered, upper)
        if covered < entry.upper:
            yield ChannelFinding(
                FindingKind.GAP, 0, bundle, f"it was split, and from 0x{covered:08x} on there is no child"
            )


def _overlap(entry: _Entry, other: _Entry) -> bool:
    return entry.lower < other.upper and other.lower < entry.upper


def meanings_table() -> str:
    """The kinds as a table in Markdown: a part of docs/bundles.md."""
    rows = "\n".join(f"| `{kind.value}` | {MEANINGS[kind]} |" for kind in FindingKind)
    return f"| finding | means |\n| --- | --- |\n{rows}\n"


def _describe_step(old: BundleRecord | None, new: BundleRecord | None) -> str:
    return f"{_describe_record(old)}, then {_describe_record(new)}"


def _describe_record(record: BundleRecord | None) -> str:
    if record is None:
        return "no record"
    source = f" from {record.source}" if record.source else ""
    to = f" to {record.destination}" if record.destination else ""
    return f"{record.state.value} v{record.version}{source}{to}"


if __name__ == "__main__":
    print(meanings_table(), end="")
