"""Replay of clusters: accepted messages in, every cycle run again, and the job's state out. Pure.

Stage: beside the job (`anabranch lake state rebuild`, `replay`, `lake retain`). Unlike a topic's evaluation, a cycle
depends only on recorded data, so it is run again and its result compared with the record, byte for byte. Where they
differ, because of another release, the record wins: its decisions are under way.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

import pydantic_core

from engine.bundles.clusters import Clusters, ClusterState, LatestHold, OpenBundleDecision
from engine.bundles.codec import pack, unpack
from engine.bundles.cycle import Cycle
from engine.bundles.family import BUNDLES, BundlesState
from engine.kernel.bucket import Intake
from engine.kernel.packed import Part, StoredPart
from engine.kernel.records import Output
from engine.replay import RecordedBatch, RecordedRow, cut_text
from schemas.snapshot import ENGINE_VERSION

_SAID = {
    "decision": ("decision_id", "action", "arguments", "reason", "gates", "inputs", "policy_digest"),
    "hold": ("gate", "measured", "limit", "margin", "policy_digest"),
}
"""Columns to compare, by kind of row."""
_SAME = {"decision_id", "action", "arguments", "gate"}
"""Columns that identify the action or hold; the others are readings."""
_ANY_TIME = 2**53
"""Timestamp for recorded messages: they passed the check against clocks ahead when accepted."""


class Different(NamedTuple):
    """A difference between the record and this release."""

    cluster: str
    at: int
    """The batch's time, milliseconds."""
    text: str
    action: str | None = None
    """Action of the decision concerned; None: a hold, or a message."""
    broker: str | None = None
    """Broker that is held, or the source of a move."""
    is_only_numbers: bool = False
    """True if actions and holds agree and only their readings differ."""


class ClustersReplay:
    """Replay of some clusters, batch after batch, in the job's order."""

    def __init__(self, begun: bytes = b"", of_older: Collection[str] = (), *, every_version: bool = False) -> None:
        """Create a replay. Raises `StateError`.

        `begun` and `of_older` are the result of an earlier replay to continue from. With `every_version`, records of
        other engine versions must agree too.
        """
        self._known = BundlesState(unpack(StoredPart(begun)))
        self._intake, self._every_version = Intake((BUNDLES,)), every_version
        self.of_older = set(of_older)
        """Clusters with decisions by another engine version, which are not compared."""
        self.cycles: dict[str, Cycle] = {}
        """The last cycle of each cluster."""
        self.decisions = self.holds = self.evaluations = 0
        """Recorded rows, and cycles run."""

    @property
    def clusters(self) -> Clusters:
        """State by cluster."""
        return self._known.clusters

    @property
    def parts(self) -> Mapping[str, Part]:
        """Parts in the form of the state store."""
        return self._known.parts

    def packed(self) -> bytes:
        """Pack everything, to continue from."""
        return pack(self._known.clusters)

    def take(self, batch: RecordedBatch) -> list[Different]:
        """Apply a batch, run its cycles, and return the differences from the record."""
        output = Output()
        running = self._known.begin(batch.now, output)
        events = [event._replace(timestamp=_ANY_TIME) for event in batch.events]
        running.evaluate(self._intake.take([running], events, {}, batch.now, output))
        self.cycles.update(running.cycles)
        self.evaluations += len(running.cycles)
        differences = [
            Different(cluster, batch.now, f"what was accepted then is not now: {letter['detail']}")
            for letter in output.dead_letters
            if (cluster := (letter["key"] or b"").decode(errors="replace")) not in self.of_older
        ]
        then, now = _by_cluster(batch.decisions, batch.holds), _by_cluster(output.decisions, output.holds)
        for cluster in sorted(then.keys() | now.keys()):
            recorded, again = then.get(cluster, _NOTHING), now.get(cluster, _NOTHING)
            if self._has_to_agree(cluster, recorded, batch.is_complete):
                differences += [
                    Different(cluster, batch.now, *difference) for difference in _differences(recorded, again)
                ]
            _go_on(self.clusters.setdefault(cluster, ClusterState(cluster)), recorded, again, batch)
            self.decisions += len(recorded.decisions)
            self.holds += len(recorded.holds)
        return differences

    def _has_to_agree(self, cluster: str, recorded: "ClusterRows", is_complete: bool) -> bool:
        """Return whether the record must match this release."""
        versions = {row["engine_version"] for row in (*recorded.decisions, *recorded.holds)}
        if versions - {ENGINE_VERSION} and not self._every_version:
            self.of_older.add(cluster)
        return is_complete and cluster not in self.of_older


class ClusterRows(NamedTuple):
    """Rows about a cluster in a batch."""

    decisions: list[RecordedRow]
    holds: list[RecordedRow]


_NOTHING = ClusterRows([], [])


def _by_cluster(decisions: Iterable[RecordedRow], holds: Iterable[RecordedRow]) -> dict[str, ClusterRows]:
    by_cluster: dict[str, ClusterRows] = {}
    for row in decisions:
        by_cluster.setdefault(row["subject"], ClusterRows([], [])).decisions.append(row)
    for row in holds:
        # The subject of a broker is `cluster/broker`.
        by_cluster.setdefault(row["subject"].partition("/")[0], ClusterRows([], [])).holds.append(row)
    return by_cluster


def _differences(recorded: ClusterRows, again: ClusterRows) -> Iterator[tuple[str, str | None, str | None, bool]]:
    """Yield the last fields of `Different` for each row that differs."""
    for kind, then, now in (("decision", recorded.decisions, again.decisions), ("hold", recorded.holds, again.holds)):
        original, replayed = _by_number(then), _by_number(now)
        for key in sorted(original.keys() | replayed.keys()):
            which = f"{kind} {key[1]}" + (f" of {key[0]}" if kind == "hold" else "")
            about = _about(original.get(key) or replayed[key])
            if key not in replayed:
                yield (
                    f"{which} is on record ({_short_row(original[key])}), and this release says nothing",
                    *about,
                    False,
                )
            elif key not in original:
                yield f"{which} is not on record, and this release says {_short_row(replayed[key])}", *about, False
            else:
                changes = {
                    name: f"{name} was {cut_text(original[key][name])}, is now {cut_text(replayed[key][name])}"
                    for name in _SAID[kind]
                    if original[key][name] != replayed[key][name]
                }
                if changes:
                    yield f"{which}: {'; '.join(changes.values())}", *about, not changes.keys() & _SAME


def _about(row: RecordedRow) -> tuple[str | None, str | None]:
    if "action" in row:
        return row["action"], pydantic_core.from_json(row["arguments"]).get("sourceBroker")
    return None, row["subject"].partition("/")[2] or None


def _go_on(state: ClusterState, recorded: ClusterRows, again: ClusterRows, batch: RecordedBatch) -> None:
    """Make a cluster follow its recorded rows, except for holds missing in an incomplete batch."""
    ours = {row["decision_id"] for row in again.decisions} - {row["decision_id"] for row in recorded.decisions}
    if ours:
        state.open = {bundle: entry for bundle, entry in state.open.items() if entry.decision_id not in ours}
        state.moves = {bundle: entry for bundle, entry in state.moves.items() if entry.decision_id not in ours}
    known_moves = {entry.decision_id for entry in state.moves.values()}
    for row in recorded.decisions:
        arguments = pydantic_core.from_json(row["arguments"])
        opened = OpenBundleDecision(row["decision_id"], row["action"], batch.now)
        if row["decision_id"] in known_moves:
            state.open[arguments["bundle"]] = opened
        else:
            state.open_decision(
                arguments["bundle"], opened, arguments.get("sourceBroker"), arguments.get("destinationBroker")
            )
    if ours or len(recorded.decisions) > len(again.decisions):
        state.decisions = max([state.decisions - len(again.decisions), *(row["seq"] for row in recorded.decisions)])
    held = {row["subject"] for row in recorded.holds}
    for row in again.holds:
        if row["subject"] not in held:
            state.held[row["subject"]] = LatestHold(row["gate"] if batch.is_complete else None, row["seq"] - 1)
    for row in recorded.holds:
        state.held[row["subject"]] = LatestHold(row["gate"], row["seq"])
    state.changes.balancer = True


def _by_number(rows: Iterable[RecordedRow]) -> dict[tuple[str, int], RecordedRow]:
    return {(row["subject"], row["seq"]): row for row in rows}


def _short_row(row: RecordedRow) -> str:
    return f"{row['action']} {row['arguments']}" if "action" in row else str(row["gate"])
