"""Replay of a record: every decision from its own inputs, every evaluation from the rebuilt state.

Stage: above `again`, under `anabranch decisions replay`. docs/what-if.md describes comparison and form of each
difference.
"""

import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

from anabranch.history.recorded import RecordedHistory
from anabranch.history.replay.again import Again, Disagreement
from decisions.autoscale.answers import Action, Answer, Hold, gates_to_json
from decisions.autoscale.decide import decide
from decisions.topic.layout import LayoutError
from engine.agreement import snapshot_on_record
from engine.autoscale.topics import ConfiguredPolicy
from engine.cluster_replay import ClustersReplay
from engine.replay import AS_RECORDED, BucketReplay, RecordedBatch, RecordedRow, cut_text
from schemas.ids import canonical_json

MOST_LISTED = 100
"""Differences that are kept in words; all are counted."""
Progress = Callable[[int, int], None]
"""Called now and then with the number of rows decided again, and the time of their batch, milliseconds."""


@dataclass
class Replayed:
    """Counts and differences of a replay."""

    decisions: int = 0
    """Decided again from their own inputs."""
    holds: int = 0
    """Worked out again from the rebuilt state."""
    evaluations: int = 0
    """Evaluations of a topic, at ticks and events, from the rebuilt state."""
    untold: int = 0
    """Of those: too much is not on record to tell."""
    differences: int = 0
    listed: list[str] = field(default_factory=list)
    """The first `MOST_LISTED` in words."""
    since: int | None = None
    until: int | None = None
    """The first and the last batch that was compared, milliseconds."""
    versions: dict[str, int] = field(default_factory=dict)
    """Number of rows by version of the engine."""

    def add(self, text: str) -> None:
        """Add a difference."""
        self.differences += 1
        if len(self.listed) < MOST_LISTED:
            self.listed.append(text)

    def include(self, other: "Replayed") -> None:
        """Add the results of other topics."""
        for name in ("decisions", "holds", "evaluations", "untold", "differences"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.listed = [*self.listed, *other.listed][:MOST_LISTED]
        self.since = min((bound for bound in (self.since, other.since) if bound is not None), default=None)
        self.until = max((bound for bound in (self.until, other.until) if bound is not None), default=None)

    def to_json(self) -> dict[str, Any]:
        """Return the results for scripts."""
        return {
            "decisions": self.decisions,
            "holds": self.holds,
            "evaluations": self.evaluations,
            "untold": self.untold,
            "differences": self.differences,
            "told": self.listed,
            "since": self.since,
            "until": self.until,
            "engineVersions": self.versions,
        }


def replay(
    recorded: RecordedHistory,
    configured: ConfiguredPolicy,
    since: int | None = None,
    topics: Collection[str] | None = None,
    progress: Progress = lambda *_: None,
) -> Replayed:
    """Decide everything again and compare it from `since` on (milliseconds; None: all).

    Before `since` the state is rebuilt and nothing is compared. `configured`: the job's policy now, for releases that
    did not record it. Raises what reading the record raises.
    """
    results = Replayed()
    doubts = _Doubts()
    names = [name for name in recorded.topics if topics is None or name in topics]
    replayed = BucketReplay(AS_RECORDED, configured, doubts, every_version=True, **recorded.begun(names))
    again, versions = Again(replayed), _Versions()
    repeated: dict[str, tuple[str | None, str | None]] = {}
    next_told = 0.0
    for chunk in recorded.chunks():
        for batch in chunk.of_bucket(names):
            due = replayed.take_in(batch)
            is_compared = since is None or batch.now >= since
            if is_compared:
                results.since = batch.now if results.since is None else results.since
                results.until = batch.now
                versions.compare(results, batch)
                _compare(results, again.evaluate(batch, due), repeated)
                _decide_again(results, batch)
            doubts.sink = results.add if is_compared else None
            replayed.take_over(batch)
            if (now := time.monotonic()) >= next_told:
                next_told = now + 1.0
                progress(results.decisions + results.holds, batch.now)
    results.evaluations, results.untold = again.evaluations, again.untold
    return results


class _Versions:
    """Versions of the engine that wrote the rows.

    A job has one, and another after an upgrade or a downgrade. So the rows of a batch have one version, and no single
    batch has another than both its neighbours.
    """

    def __init__(self) -> None:
        self._before: str | None = None
        self._now: str | None = None
        self._only: str | None = None
        """The batch of the present version, in words, as long as it is the only one."""

    def compare(self, replayed: Replayed, batch: RecordedBatch) -> None:
        """Count the rows of a batch, and add impossible versions as differences."""
        rows = [row["engine_version"] for row in (*batch.decisions, *batch.holds)]
        for version in rows:
            replayed.versions[version] = replayed.versions.get(version, 0) + 1
        if not rows:
            return
        which = f"the batch at {_time(batch.now)} UTC"
        if len(set(rows)) > 1:
            replayed.add(f"{which} has rows of engine versions {' and '.join(sorted(set(rows)))}")
        elif rows[0] == self._now:
            self._only = None
        else:
            if rows[0] == self._before and self._only is not None:
                replayed.add(f"{self._only} has rows of engine version {self._now}, between those of {rows[0]}")
            self._before, self._now, self._only = self._now, rows[0], which


class _Doubts(list[str]):
    """List that passes the replay's doubts on to `sink` and keeps nothing."""

    sink: Callable[[str], None] | None = None

    def append(self, text: str) -> None:
        if self.sink is not None:
            self.sink(text)


def _compare(
    replayed: Replayed, disagreements: Iterable[Disagreement], repeated: dict[str, tuple[str | None, str | None]]
) -> None:
    """Count the differences; one that lasts over consecutive evaluations counts once."""
    for difference in disagreements:
        answers = difference.then, difference.now
        if repeated.get(difference.topic) != answers:
            repeated[difference.topic] = answers
            replayed.add(
                f"{difference.topic} at {_time(difference.at)} UTC: on record is "
                f"{difference.then or 'nothing new'}, this release says {difference.now or 'nothing new'}"
            )


def _decide_again(replayed: Replayed, batch: RecordedBatch) -> None:
    """Decide every row with recorded inputs again."""
    for row in batch.decisions:
        replayed.decisions += 1
        _compare_row(replayed, row, batch.now, "decision")
    for row in batch.holds:
        replayed.holds += 1
        if row["inputs"] is not None:
            _compare_row(replayed, row, batch.now, "hold")


def _compare_row(replayed: Replayed, row: RecordedRow, decided_at: int, kind: str) -> None:
    which = f"{kind} {row['seq']} of {row['subject']} at {_time(decided_at)} UTC"
    try:
        snapshot = snapshot_on_record(row)
    except (ValueError, LayoutError) as error:
        replayed.add(f"{which}: its inputs cannot be read: {str(error).splitlines()[0]}")
        return
    if snapshot is None:
        return
    answer = decide(snapshot)
    stored, now = _said(row, kind), _says(answer, kind)
    if not isinstance(answer, Hold):
        # Of several actions it is the one that the row is of.
        of_all = [{**now, **_action(action)} for action in (answer, *answer.also)]
        now = next((candidate for candidate in of_all if candidate["arguments"] == row["arguments"]), now)
    changes = [
        f"{name} was {cut_text(stored[name])}, is now {cut_text(now[name])}"
        for name in stored
        if stored[name] != now[name]
    ]
    if changes:
        replayed.add(f"{which}, from its own inputs: {'; '.join(changes)}")


def _said(row: RecordedRow, kind: str) -> dict[str, object]:
    names = ("gate",) if kind == "hold" else ("action", "arguments", "reason", "gates")
    return {name: row[name] for name in names}


def _says(answer: Answer, kind: str) -> dict[str, object]:
    """Return the columns of a row as this release writes them."""
    if isinstance(answer, Hold):
        gate = answer.gate.value
        return {"gate": gate, "action": "hold", "arguments": gate, "reason": gate, "gates": gates_to_json(answer.gates)}
    return {"gate": answer.action, **_action(answer), "gates": gates_to_json(answer.gates)}


def _action(action: Action) -> dict[str, object]:
    return {"action": action.action, "arguments": canonical_json(action.arguments), "reason": action.reason}


def _time(instant: int) -> str:
    return f"{datetime.fromtimestamp(instant / 1000, timezone.utc):%F %T}"


def replay_clusters(
    replayed: Replayed,
    recorded: RecordedHistory,
    since: int | None = None,
    clusters: Collection[str] | None = None,
    progress: Progress = lambda *_: None,
) -> None:
    """Add differences of clusters since `since` (milliseconds; None: all). Raises as reading the record."""
    names = [name for name in recorded.topics if clusters is None or name in clusters]
    replay = ClustersReplay(**recorded.begun_clusters(names), every_version=True)
    next_told = 0.0
    for chunk in recorded.chunks():
        for batch in chunk.of_bucket(names):
            before = replay.decisions, replay.holds, replay.evaluations
            different = replay.take(batch)
            if since is not None and batch.now < since:
                continue
            replayed.since = batch.now if replayed.since is None else min(replayed.since, batch.now)
            replayed.until = batch.now if replayed.until is None else max(replayed.until, batch.now)
            replayed.decisions += replay.decisions - before[0]
            replayed.holds += replay.holds - before[1]
            replayed.evaluations += replay.evaluations - before[2]
            for difference in different:
                instant = datetime.fromtimestamp(difference.at / 1000, timezone.utc)
                replayed.add(f"cluster {difference.cluster} at {instant:%F %T} UTC: {difference.text}")
            if (now := time.monotonic()) >= next_told:
                next_told = now + 1.0
                progress(replayed.decisions + replayed.holds, batch.now)
