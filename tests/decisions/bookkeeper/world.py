"""A small world of clusters and records as snapshots, and what carrying out a step does to it when nothing fails."""

from __future__ import annotations

from typing import Any

from decisions.bookkeeper.decide import decide, plan_steps
from schemas.bookie_answers import BookieAnswer, Step
from schemas.bookies import (
    BookieSnapshot,
    Bootstrap,
    ClusterEntry,
    Copy,
    CursorRecord,
    Directive,
    Failure,
    Generators,
    LedgerSeen,
    Position,
    Promotion,
    Request,
    SchemaRecord,
    StepTaken,
)

NOW, HOUR, BEYOND = 1_763_000_000_000, 3_600_000, 1 << 32
SCHEMA, CURSOR = "/schemas/t/n/s", "/managed-ledgers/t/n/persistent/t/c"
OLD = ClusterEntry(name="old", metadata_service_uri="zk+hierarchical://a:2181/ledgers", status="ACTIVE")
NEW = ClusterEntry(name="new", metadata_service_uri="zk+hierarchical://b:2181/ledgers", status="STANDBY")
MADE = NOW - 1_000 * HOUR
"""When ledgers were made; the bootstrap record is later."""


def ledger(number: int, **over: Any) -> LedgerSeen:
    """A closed ledger of three entries."""
    return LedgerSeen(**{"id": number, "last": 2, "length": 600, "created_at": MADE, **over})


def schema(*ledgers: int, path: str = SCHEMA, stamp: str | None = None, **over: Any) -> SchemaRecord:
    """A schema with a version in each of these ledgers."""
    positions = [
        Position(version=at, ledger=one, stamp=f"{stamp}:{one}" if stamp else None, hash=str(at))
        for at, one in enumerate(ledgers)
    ]
    return SchemaRecord(path=path, positions=positions, **over)


def cursor(number: int, path: str = CURSOR, **over: Any) -> CursorRecord:
    """A subscription whose position is in a ledger."""
    return CursorRecord(path=path, ledger=number, **over)


def before_switch(**over: Any) -> BookieSnapshot:
    """Two clusters, a schema with the ledgers 1 and 2, a subscription with ledger 3, all on `old`; no switch yet."""
    given: dict[str, Any] = {
        "now": NOW,
        "clusters": [OLD, NEW],
        "schemas": [schema(1, 2)],
        "cursors": [cursor(3)],
        "ledgers": {"old": [ledger(1), ledger(2), ledger(3)], "new": []},
        "generators": {"old": Generators(short=10), "new": Generators(short=0, long=BEYOND)},
    }
    return BookieSnapshot(**{**given, **over})


def asked(snapshot: BookieSnapshot, operation: str, **request: Any) -> BookieAnswer:
    """What a command would do."""
    return decide(changed(snapshot, operation=operation, request=Request(**request)))


def changed(snapshot: BookieSnapshot, **over: Any) -> BookieSnapshot:
    """The snapshot with other values."""
    return snapshot.model_copy(update=over)


def in_switch(snapshot: BookieSnapshot | None = None, **over: Any) -> BookieSnapshot:
    """As it is right after `switch --target new`."""
    snapshot = before_switch() if snapshot is None else snapshot
    answer = asked(snapshot, "switch", target="new")
    assert answer.action == "switch", answer.reason
    return changed(written(snapshot, answer), operation="next", **over)


def written(snapshot: BookieSnapshot, answer: BookieAnswer) -> BookieSnapshot:
    """The snapshot after the transaction of a command."""
    update: dict[str, Any] = {"request": Request()}
    if answer.registry is not None:
        former = {one.name: one for one in snapshot.clusters}
        update["clusters"] = [
            one if former.get(one.name) == one else one.model_copy(update={"version": one.version + 1})
            for one in answer.registry
        ]
    if answer.directive is not None:
        update["directive"] = answer.directive.model_copy(update={"version": answer.directive.version + 1})
    if answer.bootstrap is not None and snapshot.bootstrap is None:
        update["bootstrap"] = answer.bootstrap
    return changed(snapshot, **update)


def carried_out(snapshot: BookieSnapshot, step: Step) -> BookieSnapshot:
    """The world after a step; nothing of it fails."""
    return _EFFECTS[step.action](snapshot, step)


def to_the_end(snapshot: BookieSnapshot, most: int = 200) -> BookieSnapshot:
    """The world when nothing is left to be done."""
    for _ in range(most):
        answer = plan_steps(snapshot)
        if not answer.steps:
            return snapshot
        for step in answer.steps:
            snapshot = carried_out(snapshot, step)
    raise AssertionError(f"not at rest after {most} passes: {answer.steps[:3]}")


def _progress(snapshot: BookieSnapshot, **over: Any) -> BookieSnapshot:
    directive = snapshot.directive
    assert directive is not None
    mine = snapshot.progress if snapshot.progress.epoch == directive.epoch else type(snapshot.progress)()
    lists = {name: [*getattr(mine, name), *added] for name, added in over.items() if isinstance(added, list)}
    rest = {name: value for name, value in over.items() if not isinstance(value, list)}
    return changed(snapshot, progress=mine.model_copy(update={"epoch": directive.epoch, **lists, **rest}))


def _tried(snapshot: BookieSnapshot, what: str) -> BookieSnapshot:
    tries = {} if snapshot.progress.epoch != snapshot.directive.epoch else snapshot.progress.tries  # type: ignore[union-attr]
    return _progress(snapshot, tries={**tries, what: tries.get(what, 0) + 1})


def _ledgers(snapshot: BookieSnapshot, cluster: str, *add: LedgerSeen, without: int | None = None) -> BookieSnapshot:
    wanted = {one.id for one in add} | {without}
    kept = [one for one in snapshot.ledgers.get(cluster, []) if one.id not in wanted]
    return changed(snapshot, ledgers={**snapshot.ledgers, cluster: [*kept, *add]})


def _copy(snapshot: BookieSnapshot, step: Step) -> BookieSnapshot:
    [source] = [one for one in snapshot.ledgers[str(step.source)] if one.id == step.ledger]
    assert (source.closed, source.last, source.length) == tuple(
        step.expectation[name] for name in ("closed", "last", "length")
    )
    return _verified(_ledgers(snapshot, str(step.target), source), step)


def _verified(snapshot: BookieSnapshot, step: Step) -> BookieSnapshot:
    about = {name: step.expectation[name] for name in ("last", "length")}
    copied = Copy(kind=step.kind, object=step.object, ledger=step.ledger, **about)  # type: ignore[arg-type]
    return _progress(snapshot, verified=[copied])


def _seal(snapshot: BookieSnapshot, step: Step) -> BookieSnapshot:
    [source] = [one for one in snapshot.ledgers[str(step.source)] if one.id == step.ledger]
    return _ledgers(snapshot, str(step.source), source.model_copy(update={"closed": True, "last": 2, "length": 600}))


def _unload(snapshot: BookieSnapshot, step: Step) -> BookieSnapshot:
    folded = [
        one.model_copy(update={"ledger": -1, "version": one.version + 1})
        if one.path.rpartition("/")[0] == step.object
        else one
        for one in snapshot.cursors
    ]
    return _tried(changed(snapshot, cursors=folded), step.object)


def _fail(snapshot: BookieSnapshot, step: Step) -> BookieSnapshot:
    attempt = snapshot.directive.attempt  # type: ignore[union-attr]
    failed = Failure(kind=step.kind, object=step.object, ledger=step.ledger, reason=step.reason, attempt=attempt)  # type: ignore[arg-type]
    return _progress(snapshot, failed=[failed])


def _promote(snapshot: BookieSnapshot, step: Step) -> BookieSnapshot:
    stamps = {int(number): stamp for number, stamp in (step.stamps or {}).items()}

    def stamped(one: Any) -> Any:
        if one.path != step.object:
            return one
        assert one.version == step.expectation["version"]
        if step.kind == "cursor":
            assert one.ledger == step.expectation["ledger"]
            return one.model_copy(update={"stamp": stamps[one.ledger], "version": one.version + 1})
        positions = [at.model_copy(update={"stamp": stamps.get(at.ledger, at.stamp)}) for at in one.positions]
        return one.model_copy(update={"positions": positions, "version": one.version + 1})

    by = "owner" if step.action == "forward_owner" else "compare-and-set"
    promoted = [Promotion(kind=step.kind, object=step.object, ledger=one, by=by) for one in stamps]  # type: ignore[arg-type]
    after = changed(
        snapshot, schemas=[stamped(one) for one in snapshot.schemas], cursors=[stamped(one) for one in snapshot.cursors]
    )
    return _progress(after, promoted=promoted, promoted_at=snapshot.now)


def _rolled(snapshot: BookieSnapshot, step: Step) -> BookieSnapshot:
    promoted = Promotion(kind="cursor", object=step.object, ledger=step.ledger, by="rollover")  # type: ignore[arg-type]
    return _progress(snapshot, promoted=[promoted], promoted_at=snapshot.now)


def _delete(snapshot: BookieSnapshot, step: Step) -> BookieSnapshot:
    taken = StepTaken(
        epoch=step.epoch,
        token=1,
        kind=step.kind,
        object=step.object,
        action="delete",
        ledger=step.ledger,
        cluster=step.source,
    )
    return changed(_ledgers(snapshot, str(step.source), without=step.ledger), steps=[*snapshot.steps, taken])


def _flip(snapshot: BookieSnapshot, step: Step) -> BookieSnapshot:
    versions, statuses = step.expectation["versions"], step.expectation["statuses"]
    after = []
    for one in snapshot.clusters:
        if one.name in statuses:
            assert one.version == versions[one.name]
            one = one.model_copy(update={"status": statuses[one.name], "version": one.version + 1})
        after.append(one)
    return changed(snapshot, clusters=after)


_EFFECTS = {
    "copy": _copy,
    "verify": _verified,
    "seal": _seal,
    "unload": _unload,
    "fail": _fail,
    "cas_attribution": _promote,
    "forward_owner": _promote,
    "rollover_fallback": _rolled,
    "delete": _delete,
    "flip_status": _flip,
}

__all__ = ["BEYOND", "CURSOR", "HOUR", "MADE", "NEW", "NOW", "OLD", "SCHEMA", "Bootstrap", "Directive"]
