"""Evidence for both passes: known and missing loads, and the pause after failed decisions."""

from collections.abc import Sequence

from decisions.autoscale.gates import Gate
from decisions.autoscale.snapshot import Load, TopicSnapshot
from decisions.kernel.readings import MAX_INSTANT_MS, Reading, at_most, read_waited

MAX_BACKOFF_MS = 3_600_000
"""The pause after repeated failures stops doubling here (or at the policy's first pause, if that is longer)."""
MAX_DOUBLINGS = 20
Loads = Sequence[Load | None]
"""The known load of each active segment, in their order; None: missing, or too old to be trusted."""


def known_loads(snapshot: TopicSnapshot) -> Loads:
    """The load of each active segment, unless it is missing or, by the guard, too old to be trusted."""
    load_of = snapshot.loads.get
    loads = [load_of(segment.segment_id) for segment in snapshot.layout.active]
    if snapshot.policy.max_load_age_ms == 0:
        return loads
    oldest = snapshot.now - snapshot.policy.max_load_age_ms
    return [load if load is not None and load.last_seen_at >= oldest else None for load in loads]


def load_evidence(snapshot: TopicSnapshot) -> list[Reading[Gate]]:
    """Return the readings on missing and old loads, before any load is judged."""
    active, loads = snapshot.layout.active, snapshot.loads
    missing = [segment.segment_id for segment in active if segment.segment_id not in loads]
    readings = [at_most(Gate.LOAD_MISSING, len(missing), 0, missing[0] if missing else None)]
    limit = snapshot.policy.max_load_age_ms
    if limit and len(missing) < len(active):
        with_load = [segment for segment in active if segment.segment_id in loads] if missing else active
        seen = [loads[segment.segment_id].last_seen_at for segment in with_load]
        oldest = min(seen)
        segment_id = with_load[seen.index(oldest)].segment_id
        readings.append(at_most(Gate.LOAD_STALE, snapshot.now - oldest, limit, segment_id))
    return readings


def fresh_until(snapshot: TopicSnapshot, load: Load | None) -> int:
    """The last instant at which a known load is still known."""
    if load is None or snapshot.policy.max_load_age_ms == 0:
        return MAX_INSTANT_MS
    return load.last_seen_at + snapshot.policy.max_load_age_ms


def retry_backoff(snapshot: TopicSnapshot, action: str) -> list[Reading[Gate]]:
    """Return the reading of the pause after decisions without effect; empty if the action needs none."""
    first = snapshot.policy.retry_backoff_ms
    if first == 0 or snapshot.failures == 0 or snapshot.failed_at is None:
        return []
    if snapshot.failed_action is not None and snapshot.failed_action != action:
        return []
    pause = min(first << min(snapshot.failures - 1, MAX_DOUBLINGS), max(first, MAX_BACKOFF_MS))
    return [read_waited(Gate.RETRY_BACKOFF, snapshot.now, snapshot.failed_at, pause)]
