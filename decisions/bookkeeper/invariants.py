"""Invariants I1 to I17 of PIP-477 over a snapshot, or over a change if `before` is given.

Stage: beside `work`, under `decide` (`anabranch bookies check`). Each is one function and says only what the snapshot
shows: what is not in it is not claimed either way, and `unseen_invariants` says so.
"""

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

from decisions.bookkeeper.ids import largest_id
from decisions.bookkeeper.seen import BookieView, Item, difference_of_copies
from schemas.bookie_answers import Violation
from schemas.bookies import CursorRecord, SchemaRecord

RESERVED, STAMP = "_pulsar.", "_pulsar.bookieClusterName"
Found = Iterator[tuple[str, str]]
"""Object, and what is wrong with it."""


def find_violations(seen: BookieView) -> list[Violation]:
    """Everything that does not hold, by invariant."""
    return [
        Violation(invariant=name, object=subject, detail=detail)
        for name, holds in INVARIANTS.items()
        for subject, detail in holds(seen)
    ]


def unseen_invariants(seen: BookieView) -> dict[str, str]:
    """Return the invariants that a snapshot says nothing of, or not all, with the reason."""
    snapshot, directive = seen.snapshot, seen.snapshot.directive
    unlisted = ", ".join(sorted(name for name in seen.clusters if not seen.listed(name)))
    unpaired = directive is None or not (seen.listed(directive.source) and seen.listed(directive.target))
    has_largest = directive is not None and largest_id(seen, directive.source) is not None
    earlier, steps = "no earlier state of records is given", "no steps are given"
    reasons = (
        ("I1", seen.bootstrap is None, "there is no bootstrap record, so nobody knows which ledgers need a stamp"),
        ("I2", bool(unlisted), f"the ledgers of {unlisted} were not listed"),
        ("I3", snapshot.before is None, earlier),
        ("I4", not snapshot.handles, "which ledgers brokers have open is theirs to know; none is reported"),
        ("I5", not snapshot.handles, "which clients brokers have open is theirs to know; none is reported"),
        ("I6", not snapshot.brokers, "no broker reports what it has taken up; registry and directive were checked"),
        ("I8", unpaired, "there is no switch, or the ledgers of one of its clusters were not listed"),
        ("I9", snapshot.before is None, earlier),
        ("I10", snapshot.before is None, earlier),
        ("I11", not has_largest, "there is no switch, or the ids of its source are not known"),
        (
            "I13",
            not any(promotion.kind == "cursor" for promotion in seen.progress.promoted),
            "no promotion of one is on record",
        ),
        ("I14", not snapshot.steps, steps),
        ("I15", not snapshot.steps, steps),
        ("I17", snapshot.before is None, "no earlier bootstrap record is given; the one there is was checked"),
    )
    return {name: why for name, is_unseen, why in reasons if is_unseen}


def _stamped_when_made(seen: BookieView) -> Found:
    """I1: a ledger's stamp is written with its id; none made after the bootstrap record lacks it."""
    if seen.bootstrap is None:
        return
    for item in seen.items:
        if item.ledger < 0 or item.how == "stamp":
            continue
        times = [item.created_at] if item.created_at is not None else _created_ids(seen, item.ledger)
        if times and min(times) >= seen.bootstrap.recorded_at:
            yield (
                item.object,
                f"the ledger {item.ledger} was made after the bootstrap record, without a stamp of its own",
            )


def _created_ids(seen: BookieView, ledger: int) -> list[int]:
    copies = [seen.ledger(name, ledger) for name in seen.clusters]
    return [
        ledger_seen.created_at
        for ledger_seen in copies
        if ledger_seen is not None and ledger_seen.created_at is not None
    ]


def _check_readable(seen: BookieView) -> Found:
    """I2: every ledger on record can be read where it is attributed to, as long as it is on record."""
    for item in seen.items:
        if item.how == "corruption":
            yield item.object, f"nobody knows where the ledger {item.ledger} is: {item.reason}"
        elif item.cluster is not None and seen.listed(item.cluster):
            ledger = seen.ledger(item.cluster, item.ledger)
            if ledger is None or not ledger.readable:
                yield (
                    item.object,
                    f"{item.cluster} {'has no' if ledger is None else 'cannot read the'} ledger {item.ledger}",
                )


def _compare_and_set(seen: BookieView) -> Found:
    """I3: a record that changed has a later version, and none has an earlier one than a step left it with."""
    versions = {record.path: record.version for record in seen.snapshot.schemas}
    versions |= {record.path: record.version for record in seen.snapshot.cursors}
    for step in seen.snapshot.steps:
        if step.version is not None and versions.get(step.object, step.version) < step.version:
            yield step.object, f"it is of version {versions[step.object]}, and a step left it with {step.version}"
    for kind in ("schemas", "cursors", "topics"):
        before = {record.path: record for record in getattr(seen.snapshot.before, kind, ())}
        for after in getattr(seen.snapshot, kind):
            if (former := before.get(after.path)) is None:
                continue
            same = former.model_copy(update=_VOLATILE) == after.model_copy(update=_VOLATILE)
            if after.version < former.version or (
                after.version == former.version and not same and not _is_unread(former, after)
            ):
                yield after.path, f"changed from version {former.version} to {after.version}: not by compare-and-set"


_VOLATILE = {"version": 0, "owner": None}


def _is_unread(former: object, after: object) -> bool:
    return getattr(former, "error", None) is not None or getattr(after, "error", None) is not None


def _handles_stay(seen: BookieView) -> Found:
    """I4: an open handle reads with the client that it was opened with."""
    for handle in seen.snapshot.handles:
        if handle.reads_from != handle.opened_on:
            yield (
                handle.broker,
                f"the handle of {handle.ledger} was opened on {handle.opened_on} and reads from {handle.reads_from}",
            )


def _clients_in_use(seen: BookieView) -> Found:
    """I5: no client is closed that a handle reads through."""
    for handle in seen.snapshot.handles:
        if handle.client_closed:
            yield (
                handle.broker,
                f"the client of {handle.reads_from} is closed, and the handle of {handle.ledger} reads through it",
            )


def _check_recoverable(seen: BookieView) -> Found:
    """I6: who starts again goes on where it was: directive, registry and brokers say the same."""
    if (directive := seen.snapshot.directive) is None:
        return
    needed = {directive.target, *({directive.source} if any(item.stamp is None for item in seen.items) else ())}
    for name in sorted(needed - set(seen.clusters)):
        yield name, f"the directive of epoch {directive.epoch} names it, and it is not registered"
    if len(seen.active) == 1 and seen.active[0] != directive.target:
        yield (
            seen.active[0],
            f"it is ACTIVE, and {directive.target} was asked for: a broker that starts now opens on it",
        )
    for broker in seen.snapshot.brokers:
        if broker.active is not None and broker.epoch >= directive.epoch and broker.active != directive.target:
            yield broker.name, f"it has taken up epoch {broker.epoch} and makes ledgers on {broker.active}"


def _old_readers(seen: BookieView) -> Found:
    """I7: every record can be read by a reader that knows nothing of attributions."""
    for records in (seen.snapshot.schemas, seen.snapshot.cursors, seen.snapshot.topics):
        for record in records:
            if record.error is not None:
                yield record.path, record.error


def _copies_equal(seen: BookieView) -> Found:
    """I8: where both exist and something names them, a copy has the source's ids, contents and metadata."""
    if (directive := seen.snapshot.directive) is None:
        return
    for item in seen.items:
        if item.kind == "data" or item.cluster != directive.target:
            continue
        old, new = seen.ledger(directive.source, item.ledger), seen.ledger(directive.target, item.ledger)
        # A ledger that its owner goes on with on the target may have grown: what was copied is older.
        if old is not None and new is not None and old.closed and new.closed:
            difference = difference_of_copies(old, new)
            if difference is not None:
                yield (
                    item.object,
                    f"the ledger {item.ledger} differs between {directive.source} and {directive.target}: {difference}",
                )


def _cursor_kept(seen: BookieView) -> Found:
    """I9: the promotion of a cursor changes its attribution and nothing else."""
    before = {cursor.path: cursor for cursor in seen.snapshot.before.cursors} if seen.snapshot.before else {}
    for after in seen.snapshot.cursors:
        former = before.get(after.path)
        if former is None or former.stamp == after.stamp or after.version > former.version + 1:
            continue
        for field in ("ledger", "mark_delete", "individually_deleted", "properties"):
            if getattr(former, field) != getattr(after, field) and not _is_rollover(former, after):
                yield (
                    after.path,
                    f"{field} changed with the attribution: {getattr(former, field)} to {getattr(after, field)}",
                )


def _is_rollover(former: CursorRecord, after: CursorRecord) -> bool:
    """A rollover writes ledger and stamp together (I1): it is no promotion."""
    return former.ledger != after.ledger and (after.ledger < 0 or (after.stamp or "").endswith(f":{after.ledger}"))


def _schema_kept(seen: BookieView) -> Found:
    """I10: the promotion of a schema changes attributions and nothing else."""
    before = {schema.path: schema for schema in seen.snapshot.before.schemas} if seen.snapshot.before else {}
    for after in seen.snapshot.schemas:
        former = before.get(after.path)
        if former is None or after.error or former.error:
            continue
        if _stamps_of(former) == _stamps_of(after):
            continue
        if missing := _positions_of(former) - _positions_of(after):
            yield after.path, f"positions are gone or changed: {sorted(missing)}"


def _stamps_of(record: SchemaRecord) -> frozenset[tuple[int, str | None]]:
    return frozenset((position.ledger, position.stamp) for position in record.positions)


def _positions_of(record: SchemaRecord) -> frozenset[tuple[int, int, int, str]]:
    return frozenset(
        (position.version, position.ledger, position.entry, position.hash or "") for position in record.positions
    )


def _ids_beyond(seen: BookieView) -> Found:
    """I11: from the first copy on, the target gives no id that the source has used."""
    directive = seen.snapshot.directive
    if directive is None or directive.kind == "rollback":
        return
    used, limit = largest_id(seen, directive.source), directive.target_ids_from
    if used is not None and limit is not None and used >= limit:
        yield directive.target, f"it gives ids from {limit} on, and {directive.source} has used {used}"


def _one_active(seen: BookieView) -> Found:
    """I12: exactly one registered cluster is ACTIVE."""
    if seen.clusters and len(seen.active) != 1:
        yield "registry", f"{len(seen.active)} clusters are ACTIVE: {', '.join(seen.active) or 'none'}"


def _by_the_owner(seen: BookieView) -> Found:
    """I13: if a broker has a cursor's topic, that broker promotes the cursor, with the ledger copied."""
    for promotion in seen.progress.promoted:
        if promotion.kind == "cursor" and promotion.loaded and promotion.by == "compare-and-set":
            yield promotion.object, "it was promoted behind the back of the broker that has its topic"


def _one_orchestrator(seen: BookieView) -> Found:
    """I14: the steps of a switch come from one orchestrator at a time: none from before the last takeover."""
    newest = 0
    for step in seen.snapshot.steps:
        if step.token < newest:
            yield step.object, f"{step.action} under token {step.token}, after steps under {newest}"
        newest = max(newest, step.token)


def _deletion_routed(seen: BookieView) -> Found:
    """I15: deletions and opens go by attribution; nothing was deleted where a record attributes it to."""
    for step in seen.snapshot.steps:
        if step.action != "delete" or step.ledger is None:
            continue
        for item in seen.naming.get(step.ledger, ()):
            if item.cluster == step.cluster:
                yield (
                    item.object,
                    f"the ledger {step.ledger} was deleted from {step.cluster}, where it is attributed to",
                )


def _check_reserved(seen: BookieView) -> Found:
    """I16: nobody else has properties that begin with `_pulsar.`."""
    for cursor in seen.snapshot.cursors:
        for name in cursor.properties:
            if name.startswith(RESERVED) and name != STAMP:
                yield cursor.path, f"the property {name!r} is reserved"


def _bootstrap_kept(seen: BookieView) -> Found:
    """I17: the bootstrap record is there as soon as something rests on it, and is never rewritten."""
    former = seen.snapshot.before.bootstrap if seen.snapshot.before else None
    now = seen.snapshot.bootstrap
    if former is not None and now != former:
        yield "bootstrap", f"it was {former.bootstrap_cluster_name} at {former.recorded_at}, and has changed"
    unstamped: list[Item] = [item for item in seen.items if item.stamp is None and item.ledger >= 0]
    if now is None and seen.snapshot.directive is not None and unstamped:
        yield "bootstrap", f"it is missing, and {len(unstamped)} ledgers have no stamp"
    elif now is not None and now.bootstrap_cluster_name not in seen.clusters and unstamped:
        yield "bootstrap", f"it names {now.bootstrap_cluster_name!r}, which is not registered"


INVARIANTS: Mapping[str, Callable[[BookieView], Found]] = MappingProxyType(
    {
        "I1": _stamped_when_made,
        "I2": _check_readable,
        "I3": _compare_and_set,
        "I4": _handles_stay,
        "I5": _clients_in_use,
        "I6": _check_recoverable,
        "I7": _old_readers,
        "I8": _copies_equal,
        "I9": _cursor_kept,
        "I10": _schema_kept,
        "I11": _ids_beyond,
        "I12": _one_active,
        "I13": _by_the_owner,
        "I14": _one_orchestrator,
        "I15": _deletion_routed,
        "I16": _check_reserved,
        "I17": _bootstrap_kept,
    }
)
