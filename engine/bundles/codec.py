"""Byte format of a bucket's clusters: a base, and log entries with later changes.

Stage: under `family`. Compressed JSON: `{"v": 1, "clusters": {name: {…}}}`. An entry holds a cluster's changed
reports, averages and namespaces, null for removed ones, and the remaining fields as a whole. A report stored as
pending is not written again when it takes effect.
"""

import struct
from collections.abc import Iterable
from typing import Any, TypeVar

import pyarrow as pa
import pydantic_core

from engine.bundles.clusters import (
    BrokerReports,
    ClusterChanges,
    Clusters,
    ClusterState,
    LatestHold,
    OpenBundleDecision,
)
from engine.bundles.moves import BundleMove
from engine.kernel.packed import StateError, StoredPart
from schemas.base import Wire, build_model
from schemas.bundles import BalancerState, BundleData, NamespaceBundleStats, TimeAverageMessageData
from schemas.kafka.broker_messages import (
    BalancerPolicies,
    BrokerLoadReport,
    BundleOwnership,
    LiveBrokers,
    LocalBrokerReport,
)

VERSION = 1
_SIZE = struct.Struct(">Q")
_CODEC = "zstd"
_REPORTS: dict[str, type[LocalBrokerReport] | type[BrokerLoadReport]] = {
    "local-broker-data": LocalBrokerReport,
    "broker-load-data": BrokerLoadReport,
}
_RATES = ("msg_rate_in", "msg_rate_out", "msg_throughput_in", "msg_throughput_out", "max_samples", "num_samples")
WireT = TypeVar("WireT", bound=Wire)


def pack(clusters: Clusters) -> bytes:
    """Pack all clusters as a base."""
    whole = {}
    for name, state in sorted(clusters.items()):
        everything = ClusterChanges({*state.reports}, {*state.averages}, {*state.ownership}, True, True, True)
        whole[name] = _packed_fields(state, everything, is_base=True)
    return _pack_base(whole)


def pack_changes(clusters: Clusters, removed: Iterable[str]) -> bytes:
    """Pack the changes since the last packing as a log entry; `removed`: clusters that are gone."""
    changed: dict[str, Any] = dict.fromkeys(sorted(removed))
    for name, state in sorted(clusters.items()):
        if state.changes:
            changed[name] = _packed_fields(state, state.changes, is_base=False)
    return _pack_base(changed)


def unpack(part: StoredPart) -> Clusters:
    """Unpack the clusters of a bucket. Raises `StateError`."""
    clusters: Clusters = {}
    for entry in ([part.base] if part.base else []) + list(part.log):
        try:
            decoded = pydantic_core.from_json(_decompress_entry(entry))
            if decoded["v"] != VERSION:
                raise StateError(f"the state of bundles is of version {decoded['v']}: it needs a newer release")
            for name, fields in decoded["clusters"].items():
                if fields is None:
                    clusters.pop(name, None)
                else:
                    _unpack_fields(clusters.setdefault(name, ClusterState(name)), fields)
        except (ValueError, KeyError, TypeError, AttributeError, IndexError, OSError, struct.error) as error:
            raise StateError(f"the state of bundles is damaged: {error}") from error
    return clusters


def _pack_base(clusters: dict[str, Any]) -> bytes:
    plain = pydantic_core.to_json({"v": VERSION, "clusters": clusters}, inf_nan_mode="constants")
    compressed: bytes = pa.compress(plain, _CODEC, asbytes=True)
    return _SIZE.pack(len(plain)) + compressed


def _decompress_entry(entry: bytes) -> bytes:
    (size,) = _SIZE.unpack_from(entry)
    plain: bytes = pa.decompress(memoryview(entry)[_SIZE.size :], size, _CODEC, asbytes=True)
    return plain


def _packed_fields(state: ClusterState, changes: ClusterChanges, is_base: bool) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "reports": {name: _packed_reports(state.reports.get(name), is_base) for name in sorted(changes.reports)},
        "averages": {name: _packed_average(state.averages.get(name)) for name in sorted(changes.averages)},
        "ownership": {
            name: entry and entry.to_json()
            for name in sorted(changes.namespaces)
            for entry in [state.ownership.get(name)]
        },
    }
    if changes.brokers:
        fields["brokers"] = state.brokers and state.brokers.to_json()
    if changes.policies:
        fields["policies"] = state.policies and state.policies.to_json()
    if changes.balancer:
        fields["rest"] = {
            "memory": state.memory.model_dump(mode="json", by_alias=True, exclude={"bundles"}),
            "open": {bundle: [entry.decision_id, entry.action, entry.at] for bundle, entry in state.open.items()},
            "moves": {bundle: _packed_move(entry) for bundle, entry in state.moves.items()},
            "held": {subject: [entry.gate, entry.seq] for subject, entry in state.held.items()},
            "decisions": state.decisions,
        }
    state.changes = ClusterChanges()
    return fields


def _packed_reports(reports: BrokerReports | None, is_base: bool) -> dict[str, Any] | None:
    if reports is None:
        return None
    packed: dict[str, Any] = {"seen": reports.processed_to}
    if reports.in_effect is not None and (is_base or reports.in_effect is not reports.stored):
        packed["counted"] = reports.in_effect.to_json()
    elif reports.in_effect is not None:
        packed["promoted"] = True
    if reports.pending is not None:
        packed["pending"] = reports.pending.to_json()
    reports.stored = reports.pending or reports.in_effect
    return packed


def _packed_average(data: BundleData | None) -> list[list[float | int | None]] | None:
    if data is None:
        return None
    rows = [[getattr(load, name) for name in _RATES] for load in (data.short_term_data, data.long_term_data)]
    return [*rows, [data.topics]]


def _unpack_fields(state: ClusterState, fields: dict[str, Any]) -> None:
    for name, packed in fields["reports"].items():
        if packed is None:
            state.reports.pop(name, None)
            continue
        reports = state.reports.setdefault(name, BrokerReports())
        if packed.get("promoted"):
            reports.in_effect = reports.stored
        elif "counted" in packed:
            reports.in_effect = _read_report(packed["counted"])
        reports.processed_to, reports.pending = packed["seen"], _read_report(packed.get("pending"))
        reports.stored = reports.pending or reports.in_effect
    for name, rows in fields["averages"].items():
        if rows is None:
            state.averages.pop(name, None)
        else:
            state.averages[name] = _mean_rows(rows)
    for name, text in fields["ownership"].items():
        if text is None:
            state.ownership.pop(name, None)
        else:
            state.ownership[name] = BundleOwnership.model_validate_json(text)
    if "brokers" in fields:
        state.brokers = _read_message(LiveBrokers, fields["brokers"])
    if "policies" in fields:
        state.policies = _read_message(BalancerPolicies, fields["policies"])
    if (balancer := fields.get("rest")) is not None:
        state.memory = BalancerState.model_validate(balancer["memory"])
        state.open = {bundle: OpenBundleDecision(*cells) for bundle, cells in balancer["open"].items()}
        state.moves = {bundle: _read_move(*cells) for bundle, cells in balancer.get("moves", {}).items()}
        state.held = {subject: LatestHold(*cells) for subject, cells in balancer["held"].items()}
        state.decisions = balancer["decisions"]


def _packed_move(move: BundleMove) -> list[Any]:
    stats = move.stats.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    return [move.decision_id, move.source, move.destination, move.at, stats, move.amounts, move.applied_at]


def _read_move(
    decision_id: str,
    source: str,
    destination: str,
    decided_at: int,
    stats: Any,
    amounts: list[float],
    applied_at: int | None,
) -> BundleMove:
    cpu, coming, going, average = amounts
    bundle_stats = NamespaceBundleStats.model_validate(stats)
    return BundleMove(
        decision_id, source, destination, decided_at, bundle_stats, (cpu, coming, going, average), applied_at
    )


def _read_message(model: type[WireT], text: str | None) -> WireT | None:
    return None if text is None else model.model_validate_json(text)


def _read_report(text: str | None) -> LocalBrokerReport | BrokerLoadReport | None:
    if text is None:
        return None
    kind = "local-broker-data" if '"type":"local-broker-data"' in text[:200] else "broker-load-data"
    return _REPORTS[kind].model_validate_json(text)


def _mean_rows(rows: list[list[Any]]) -> BundleData:
    short, long = (build_model(TimeAverageMessageData, dict(zip(_RATES, row, strict=True))) for row in rows[:2])
    return build_model(BundleData, {"short_term_data": short, "long_term_data": long, "topics": rows[2][0]})
