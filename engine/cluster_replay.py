"""Clusters out of what the lake has on record: accepted messages in, every cycle run again, state as the job had it
out. Pure.

Stage: beside the job (`anabranch state rebuild`, `replay`, `lake retain`). Unlike a topic's evaluation a cycle hangs on
nothing that is in no table: so it is not taken over but run again, and what it says is compared with what is on
record, byte for byte. Where that differs, by another release, the record goes on: what it decided is under way.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

import pydantic_core

from engine.bundles.clusters import Clusters, ClusterState, HeldAt, OpenDecision
from engine.bundles.codec import pack, unpack
from engine.bundles.cycle import Cycle
from engine.bundles.family import BUNDLES, BundlesState
from engine.kernel.bucket import Intake
from engine.kernel.packed import Part, StoredPart
from engine.kernel.records import Output
from engine.replay import RecordedBatch, RecordedRow
from schemas.version import ENGINE_VERSION

_SAID = {
    "decision": ("decision_id", "action", "arguments", "reason", "gates", "inputs", "policy_digest"),
    "hold": ("gate", "measured", "limit", "margin", "policy_digest"),
}
"""The columns that are compared, by the kind of row."""
_SAME = {"decision_id", "action", "arguments", "gate"}
"""Those of what is done and held; the others are readings."""
_ANY_TIME = 2**53
"""Kafka's time of a message that was accepted then: it was not ahead of that."""


class Different(NamedTuple):
    """A cluster of which this release says something else."""

    cluster: str
    at: int
    """The batch's time, milliseconds."""
    said: str
    action: str | None = None
    """Of the decision that it is about; None: a hold, or a message."""
    broker: str | None = None
    """Who is held, or was to give."""
    is_only_numbers: bool = False
    """Whether the same is done and held, on other readings."""


class ClustersReplay:
    """Some clusters, batch after batch, in the order in which the job ran them."""

    def __init__(self, begun: bytes = b"", of_older: Collection[str] = (), *, every_version: bool = False) -> None:
        """`begun` and `of_older`: what a replay of all that was before has left, to go on from. `every_version`: what
        other versions of the engine have said has to agree too. Raises `StateError`."""
        self._known = BundlesState(unpack(StoredPart(begun)))
        self._intake, self._every_version = Intake((BUNDLES,)), every_version
        self.of_older = set(of_older)
        """Clusters that another version of the engine has decided on: what it led to is not held against this one's."""
        self.cycles: dict[str, Cycle] = {}
        """The last cycle of each cluster."""
        self.decisions = self.holds = self.evaluations = 0
        """Rows on record that were said again, and cycles that were run."""

    @property
    def clusters(self) -> Clusters:
        """All that is known of them."""
        return self._known.clusters

    @property
    def parts(self) -> Mapping[str, Part]:
        """As the state store holds them."""
        return self._known.parts

    def packed(self) -> bytes:
        """All of it, to go on from."""
        return pack(self._known.clusters)

    def take(self, batch: RecordedBatch) -> list[Different]:
        """Takes a batch in and runs its cycles; what of them is not as it is on record."""
        output = Output()
        running = self._known.begin(batch.now, output)
        events = [event._replace(timestamp=_ANY_TIME) for event in batch.events]
        is_tick = self._intake.take([running], events, {}, batch.now, output)
        running.evaluate(is_tick)
        self.cycles.update(running.cycles)
        self.evaluations += len(running.cycles)
        found = [
            Different(cluster, batch.now, f"what was accepted then is not now: {letter['detail']}")
            for letter in output.dead_letters
            if (cluster := (letter["key"] or b"").decode(errors="replace")) not in self.of_older
        ]
        then, now = _by_cluster(batch.decisions, batch.holds), _by_cluster(output.decisions, output.holds)
        for cluster in sorted(then.keys() | now.keys()):
            recorded, again = then.get(cluster, _NOTHING), now.get(cluster, _NOTHING)
            if self._has_to_agree(cluster, recorded, batch.is_complete):
                found += [Different(cluster, batch.now, *one) for one in _differences(recorded, again)]
            _go_on(self.clusters.setdefault(cluster, ClusterState(cluster)), recorded, again, batch)
            self.decisions += len(recorded.decisions)
            self.holds += len(recorded.holds)
        return found

    def _has_to_agree(self, cluster: str, recorded: Said, is_complete: bool) -> bool:
        """Whether what is on record has to be what comes out now."""
        versions = {row["engine_version"] for row in (*recorded.decisions, *recorded.holds)}
        if versions - {ENGINE_VERSION} and not self._every_version:
            self.of_older.add(cluster)
        return is_complete and cluster not in self.of_older


class Said(NamedTuple):
    """Rows about a cluster in a batch."""

    decisions: list[RecordedRow]
    holds: list[RecordedRow]


_NOTHING = Said([], [])


def _by_cluster(decisions: Iterable[RecordedRow], holds: Iterable[RecordedRow]) -> dict[str, Said]:
    found: dict[str, Said] = {}
    for row in decisions:
        found.setdefault(row["subject"], Said([], [])).decisions.append(row)
    for row in holds:
        # Of a broker it is `cluster/broker`.
        found.setdefault(row["subject"].partition("/")[0], Said([], [])).holds.append(row)
    return found


def _differences(recorded: Said, again: Said) -> Iterator[tuple[str, str | None, str | None, bool]]:
    """The last fields of `Different`, of each row."""
    for kind, then, now in (
        ("decision", recorded.decisions, again.decisions), ("hold", recorded.holds, again.holds),
    ):  # fmt: skip
        known, found = _by_number(then), _by_number(now)
        for key in sorted(known.keys() | found.keys()):
            which = f"{kind} {key[1]}" + (f" of {key[0]}" if kind == "hold" else "")
            about = _about(known.get(key) or found[key])
            if key not in found:
                yield f"{which} is on record ({_short(known[key])}), and this release says nothing", *about, False
            elif key not in known:
                yield f"{which} is not on record, and this release says {_short(found[key])}", *about, False
            else:
                told = {
                    name: f"{name} was {_cut(known[key][name])}, is now {_cut(found[key][name])}"
                    for name in _SAID[kind] if known[key][name] != found[key][name]
                }  # fmt: skip
                if told:
                    yield f"{which}: {'; '.join(told.values())}", *about, not told.keys() & _SAME


def _about(row: RecordedRow) -> tuple[str | None, str | None]:
    if "action" in row:
        return row["action"], pydantic_core.from_json(row["arguments"]).get("sourceBroker")
    return None, row["subject"].partition("/")[2] or None


def _go_on(state: ClusterState, recorded: Said, again: Said, batch: RecordedBatch) -> None:
    """Has a cluster be as its rows on record say, where this release has said something else.

    A reason that is not on record counts as said, but of a batch that was cut short: there it is said again.
    """
    ours = {row["decision_id"] for row in again.decisions} - {row["decision_id"] for row in recorded.decisions}
    if ours:
        state.open = {bundle: one for bundle, one in state.open.items() if one.decision_id not in ours}
        state.moves = {bundle: one for bundle, one in state.moves.items() if one.decision_id not in ours}
    known_moves = {one.decision_id for one in state.moves.values()}
    for row in recorded.decisions:
        told = pydantic_core.from_json(row["arguments"])
        opened = OpenDecision(row["decision_id"], row["action"], batch.now)
        if row["decision_id"] in known_moves:
            state.open[told["bundle"]] = opened
        else:
            state.open_decision(told["bundle"], opened, told.get("sourceBroker"), told.get("destinationBroker"))
    if ours or len(recorded.decisions) > len(again.decisions):
        state.decisions = max([state.decisions - len(again.decisions), *(row["seq"] for row in recorded.decisions)])
    known = {row["subject"] for row in recorded.holds}
    for row in again.holds:
        if row["subject"] not in known:
            state.held[row["subject"]] = HeldAt(row["gate"] if batch.is_complete else None, row["seq"] - 1)
    for row in recorded.holds:
        state.held[row["subject"]] = HeldAt(row["gate"], row["seq"])
    state.changes.rest = True


def _by_number(rows: Iterable[RecordedRow]) -> dict[tuple[str, int], RecordedRow]:
    return {(row["subject"], row["seq"]): row for row in rows}


def _short(row: RecordedRow) -> str:
    return f"{row['action']} {row['arguments']}" if "action" in row else str(row["gate"])


def _cut(value: object) -> str:
    text = str(value)
    return text if len(text) < 300 else f"{text[:300]}…"
