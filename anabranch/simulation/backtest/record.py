"""Facts about the job from the lake: batches, ticks, the delay of actions, the policies that ran.

Stage: under `reading`. Instants are milliseconds since 1970, of the job's clock.
"""

from statistics import median
from zlib import crc32

import numpy as np
import pyarrow.compute as pc

from anabranch.simulation.backtest.spilling import ROWS, as_arrow, millis
from anabranch.simulation.topics.timeline import Ints
from engine.autoscale.topics import ConfiguredPolicy
from lake.tables import stream_columns
from schemas.ids import EVERY_TOPIC
from schemas.kafka.messages import PolicyEvent
from schemas.tables.rows import BATCHES, DECISIONS, EVENTS

SLOT_MS = 10_000
_FOREVER = 4_000_000_000_000
"""2096."""
_DECISION = r'"decisionId"\s*:\s*"(?P<id>[^"]+)"'
_FEW_TICKS, _ENOUGH_TICKS, _MANY_INSTANTS = 5, 11, 1_000_000
_MOST_DELAYS = 100_000
"""Decisions whose delays are compared."""


def batch_instants(lake: str) -> Ints:
    """Return instants of batches, ascending: the first and last of each ten seconds, which keeps all gaps."""
    waiting: list[Ints] = []
    count = 0
    for rows in stream_columns(lake, BATCHES, ("batch_at",), ROWS):
        waiting.append(_thinned([millis(rows["batch_at"])]))
        count += len(waiting[-1])
        if count > _MANY_INSTANTS:
            waiting = [_thinned(waiting)]
            count = 0
    return _thinned(waiting)


def _thinned(parts: list[Ints]) -> Ints:
    instants: Ints = np.unique(np.concatenate([np.zeros(0, np.int64), *parts]))
    if not len(instants):
        return instants
    is_new = np.diff(instants // SLOT_MS) > 0
    thinned: Ints = instants[np.r_[True, is_new] | np.r_[is_new, True]]
    return thinned


def recorded_ticks(lake: str, begin: int, end: int, configured_ms: int) -> tuple[int, int]:
    """Return the period of the ticks of all topics, and their offset from whole multiples of it.

    The period is the median on record, in whole seconds; `configured_ms` if that is about the same, or ticks are few.
    A few ticks that are far too frequent for `configured_ms` are enough; outages only make them rarer.
    """
    where = (
        (pc.field("type") == "tick") & (pc.field("subject") == EVERY_TOPIC) & (pc.field("accepted_at") < as_arrow(end))
    )
    parts = [millis(rows["accepted_at"]) for rows in stream_columns(lake, EVENTS, ("accepted_at",), ROWS, where)]
    accepted_at = np.concatenate([np.zeros(0, np.int64), *parts])
    accepted_at = np.unique(accepted_at[accepted_at >= begin])
    if not len(accepted_at):
        return configured_ms, 0
    tick_ms = configured_ms
    if len(accepted_at) >= _FEW_TICKS:
        median = float(np.median(np.diff(accepted_at)))
        is_other = len(accepted_at) >= _ENOUGH_TICKS and abs(median - configured_ms) > configured_ms / 10
        if is_other or median < configured_ms / 2:
            tick_ms = max(1_000, round(median / 1_000) * 1_000)
    # On a circle: 59 s and 1 s are two seconds apart.
    turned = np.exp(2j * np.pi * (accepted_at % tick_ms) / tick_ms).mean()
    return tick_ms, round(float(np.angle(turned)) / (2 * np.pi) * tick_ms) % tick_ms


def recorded_delay(lake: str, begin: int = 0, end: int = _FOREVER) -> int | None:
    """Return the median time from a topic's decision between two instants to its layout, milliseconds.

    Where no layout names its decision, up to the message that the decision was applied. None: nothing tells. Of many
    decisions a part tells, chosen by their ids, so that memory is bounded.
    """
    decided: dict[str, int] = {}
    part = 1
    where = (pc.field("decided_at") >= as_arrow(begin)) & (pc.field("decided_at") < as_arrow(end))
    where &= pc.field("family") == "autoscale"
    for rows in stream_columns(lake, DECISIONS, ("decision_id", "decided_at"), ROWS, where):
        for name, at in zip(rows["decision_id"].to_pylist(), millis(rows["decided_at"]).tolist(), strict=True):
            if crc32(name.encode()) % part == 0:
                decided[name] = at
        while len(decided) > _MOST_DELAYS:
            part *= 2
            decided = {name: at for name, at in decided.items() if crc32(name.encode()) % part == 0}
    first: dict[str, dict[str, int]] = {"layout": {}, "outcome": {}}
    columns = ("type", "body", "accepted_at")
    where = ((pc.field("type") == "layout") | ((pc.field("type") == "outcome") & (pc.field("cause") == "applied"))) & (
        pc.field("accepted_at") >= as_arrow(begin)
    )
    for rows in stream_columns(lake, EVENTS, columns, ROWS, where) if decided else ():
        names = pc.struct_field(pc.extract_regex(rows["body"], _DECISION), "id").to_pylist()
        for kind, name, accepted_at in zip(
            rows["type"].to_pylist(), names, millis(rows["accepted_at"]).tolist(), strict=True
        ):
            if name in decided:
                first[kind][name] = min(accepted_at, first[kind].get(name, accepted_at))
    heard = first["layout"] or first["outcome"]
    return round(median(heard[name] - decided[name] for name in heard)) if heard else None


def recorded_policies(
    lake: str, begin: int, end: int, configured: ConfiguredPolicy
) -> tuple[ConfiguredPolicy, list[tuple[int, int]], dict[str, str]]:
    """Return the cluster's policy that ran longest, the spans of other ones, and namespace overrides.

    `configured` is assumed to have run where none is on record. Overrides are JSON, the last of each namespace.
    """
    events: list[tuple[int, int, PolicyEvent]] = []
    where = (pc.field("type") == "policy") & (pc.field("accepted_at") < as_arrow(end))
    for rows in stream_columns(lake, EVENTS, ("body", "accepted_at", "kafka_offset"), ROWS, where):
        events += zip(
            millis(rows["accepted_at"]).tolist(),
            rows["kafka_offset"].to_pylist(),
            map(PolicyEvent.model_validate_json, rows["body"].to_pylist()),
            strict=True,
        )
    events.sort(key=lambda row: row[:2])
    own, over = configured, None
    namespaces: dict[str, str] = {}
    spans: list[tuple[int, ConfiguredPolicy]] = []
    for announced_at, _, event in events:
        override = None if event.policy is None else event.policy.known_json()
        if event.scope == "namespace":
            namespaces.pop(event.name or "", None)
            if override is not None:
                namespaces[event.name or ""] = override
            continue
        if event.profile is not None:
            own = ConfiguredPolicy(event.profile, override)
        else:
            over = override
        now = own if over is None else ConfiguredPolicy(own.profile, over)
        # What the job says at its start is what had been running when it began to be recorded.
        spans.append((announced_at if spans else min(announced_at, begin), now))
    if not spans:
        return configured, [], namespaces
    lasted: dict[ConfiguredPolicy, list[tuple[int, int]]] = {}
    for (announced_at, policy), following in zip(
        spans, [*(announced_at for announced_at, _ in spans[1:]), end], strict=True
    ):
        from_, to = max(announced_at, begin), min(following, end)
        if from_ < to:
            lasted.setdefault(policy, []).append((from_, to))
    ran = max(lasted, key=lambda policy_of_span: sum(to - from_ for from_, to in lasted[policy_of_span]))
    other = sorted(span for policy, intervals in lasted.items() if policy != ran for span in intervals)
    return ran, other, namespaces
