"""Work on each ledger that the source still owns: BUILD copies and compares it, PROMOTE attributes it.

Stage: over `seen`, under `phases`, `switching` and `decide`. Nothing here is remembered between evaluations: what the
clusters and the records show decides, so a step that was done is not asked for again, and one that got lost is.
Source: PIP-477 phases 4 and 5. Steps are in a fixed order: schemas before cursors, by path and ledger.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum

from decisions.bookkeeper.gates import SENTENCES, BookieGate
from decisions.bookkeeper.ids import largest_id
from decisions.bookkeeper.seen import BookieView, Item, difference_of_copies, stamp_of
from schemas.bookie_answers import Step
from schemas.bookies import Directive, Failure, Kind, LedgerSeen


class Stage(Enum):
    """Stages of the work on a ledger."""

    UNLOAD = "unload"
    SEAL = "seal"
    COPY = "copy"
    VERIFY = "verify"
    FAIL = "fail"
    FAILED = "failed"
    BUILT = "built"
    LOST = "lost"
    """Built, but its record could not be changed."""


BUILDING = (Stage.UNLOAD, Stage.SEAL, Stage.COPY, Stage.VERIFY, Stage.FAIL)


@dataclass(frozen=True, slots=True)
class LedgerWork:
    """A ledger of the source and its stage."""

    item: Item
    stage: Stage
    gate: BookieGate | None
    """What keeps it from being promoted; None: nothing."""
    reason: str
    source: str = ""
    """Cluster that it is copied from; empty: from the directive's source."""


def ledger_works(seen: BookieView, directive: Directive) -> list[LedgerWork]:
    """Return each schema and cursor ledger that is not on the target yet, in order.

    Empty while a cluster is not listed. A ledger that an earlier switch left on a third cluster is among those that
    failed. When the same switch is asked for again it is moved from where it is, like everything that failed.
    """
    if not (seen.listed(directive.source) and seen.listed(directive.target)):
        return []
    failed = {
        (entry.object, entry.ledger): entry for entry in seen.progress.failed if entry.attempt == directive.attempt
    }
    verified = {entry.ledger: entry for entry in seen.progress.verified}
    begun = frozenset(seen.progress.begun)
    pending = []
    for item in seen.items:
        is_gone = item.cluster == directive.target and _copy_is_gone(seen, directive, item, begun)
        if item.kind == "data" or item.cluster is None or (item.cluster == directive.target and not is_gone):
            continue
        if (failure := failed.get((item.object, item.ledger))) is not None:
            pending.append(LedgerWork(item, Stage.FAILED, BookieGate.FAILED_BEFORE, failure.reason))
            continue
        if is_gone:
            pending.append(LedgerWork(item, Stage.COPY, None, "it is attributed there, and its copy is gone"))
            continue
        origin = str(item.cluster)
        if origin == directive.source:
            work = _classify_item(seen, directive, item, item.ledger in begun)
        elif directive.attempt == 1:
            left = f"an earlier switch left it on {origin}; asked for again, this one moves it from there"
            pending.append(LedgerWork(item, Stage.FAILED, BookieGate.FAILED_BEFORE, left, origin))
            continue
        else:
            work = _left_behind(seen, directive, item, item.ledger in begun)
        if work.stage is Stage.VERIFY:
            done = verified.get(item.ledger)
            here = seen.ledger(origin, item.ledger)
            if done is not None and here is not None and (done.last, done.length) == (here.last, here.length):
                work = replace(work, stage=Stage.BUILT, reason="its contents were compared")
        if work.stage is Stage.BUILT and _count_tries(seen, item.object) >= seen.snapshot.settings.max_tries:
            reason = f"its record changed during each of {_count_tries(seen, item.object)} tries"
            work = replace(work, stage=Stage.LOST, gate=BookieGate.TRIES, reason=reason)
        pending.append(work)
    return sorted(pending, key=lambda entry: (entry.item.kind == "cursor", entry.item.object, entry.item.ledger))


def build_steps(seen: BookieView, directive: Directive, pending: list[LedgerWork]) -> Iterator[Step]:
    """Yield the next steps of BUILD, one for each ledger and topic."""
    done: set[tuple[str, object]] = set()
    for work in pending:
        if work.stage not in BUILDING:
            continue
        item, action = work.item, work.stage.value
        topic = item.object.rpartition("/")[0]
        subject = topic if work.stage is Stage.UNLOAD else item.object
        key = (action, subject if work.stage in (Stage.UNLOAD, Stage.FAIL) else item.ledger)
        if key in done and work.stage is not Stage.FAIL:
            continue
        done.add(key)
        origin = work.source or directive.source
        source = seen.ledger(origin, item.ledger)
        expectation: dict[str, object] = {"closed": work.stage in (Stage.COPY, Stage.VERIFY)}
        if work.stage in (Stage.COPY, Stage.VERIFY) and source is not None:
            expectation |= {"last": source.last, "length": source.length}
        if item.kind == "cursor":
            expectation["owner"] = item.owner
        yield Step(
            epoch=directive.epoch,
            phase="BUILD",
            kind="topic" if work.stage is Stage.UNLOAD else _kind(item),
            object=subject,
            action=action,  # type: ignore[arg-type]
            ledger=None if work.stage is Stage.UNLOAD else item.ledger,
            source=origin,
            target=directive.target,
            expectation=expectation,
            reason=work.reason,
        )


def promote_steps(seen: BookieView, directive: Directive, pending: list[LedgerWork]) -> Iterator[Step]:
    """Yield the next steps of PROMOTE: one compare-and-set per record, for its built ledgers only."""
    by_record: dict[tuple[str, str], list[Item]] = {}
    for work in pending:
        if work.stage is Stage.BUILT:
            by_record.setdefault((work.item.object, work.source or directive.source), []).append(work.item)
    for (path, origin), items in by_record.items():
        first = items[0]
        forward = first.kind == "cursor" and first.owner is not None
        expectation: dict[str, object] = {"version": first.version}
        if first.kind == "cursor":
            expectation["ledger"] = first.ledger
        else:
            expectation["stamps"] = {str(entry.ledger): entry.stamp for entry in items}
        if forward:
            expectation |= {"owner": first.owner, "last": _last_id(seen, origin, first)}
        yield Step(
            epoch=directive.epoch,
            phase="PROMOTE",
            kind=_kind(first),
            object=path,
            action="forward_owner" if forward else "cas_attribution",
            ledger=first.ledger if len(items) == 1 else None,
            source=origin,
            target=directive.target,
            expectation=expectation,
            stamps={str(entry.ledger): stamp_of(directive.target, entry.ledger) for entry in items},
            reason="its owner changes it in the cursor's lock" if forward else "equal copies are on the target",
        )


def rolled_over(seen: BookieView, directive: Directive) -> list[Step]:
    """Return copied cursors whose ledger is another one by now, on the target: recorded, not changed."""
    cursors = {item.object: item for item in seen.items if item.kind == "cursor"}
    promoted = {(promotion.object, promotion.ledger) for promotion in seen.progress.promoted}
    steps = []
    for copy in seen.progress.verified:
        item = cursors.get(copy.object) if copy.kind == "cursor" else None
        if item is None or item.ledger == copy.ledger or (copy.object, copy.ledger) in promoted:
            continue
        if item.cluster == directive.target:
            steps.append(
                Step(
                    epoch=directive.epoch,
                    phase="PROMOTE",
                    kind="cursor",
                    object=copy.object,
                    action="rollover_fallback",
                    ledger=copy.ledger,
                    source=directive.source,
                    target=directive.target,
                    expectation={"ledger": item.ledger, "stamp": item.stamp},
                    reason=f"it has the ledger {item.ledger} now, which is on {directive.target}; the old one ages out",
                )
            )
    return steps


def ledger_failures(pending: list[LedgerWork], directive: Directive) -> list[Failure]:
    """Every ledger that stays on the source, with its reason."""
    return [
        Failure(
            kind=_kind(work.item),
            object=work.item.object,
            ledger=work.item.ledger,
            reason=work.reason,
            attempt=directive.attempt,
        )
        for work in pending
        if work.stage in (Stage.FAIL, Stage.FAILED)
    ]


def _copy_is_gone(seen: BookieView, directive: Directive, item: Item, begun: frozenset[int]) -> bool:
    """Tell if the source still has a ledger that the target has lost.

    An orchestrator that was overtaken while it made a partial copy anew may have deleted a whole one. Nobody opens a
    ledger again that the source has closed.
    """
    source, target = seen.ledger(directive.source, item.ledger), seen.ledger(directive.target, item.ledger)
    if item.ledger < 0 or source is None or not source.closed or not source.readable:
        return False
    return target is None or (not target.closed and (item.ledger in begun or _may_be_copy(source, target)))


def _left_behind(seen: BookieView, directive: Directive, item: Item, begun: bool) -> LedgerWork:
    """Return the work on a ledger of a third cluster, whose ids must be below the target's first."""
    origin = str(item.cluster)
    if not seen.listed(origin):
        return LedgerWork(item, Stage.FAIL, BookieGate.LISTED, f"the ledgers of {origin} were not listed", origin)
    used, limit = largest_id(seen, origin), directive.target_ids_from
    if limit is not None and not seen.snapshot.settings.skip_idgen_precheck and (used is None or used >= limit):
        used_ids = "an unknown number of ids" if used is None else f"the id {used}"
        reason = f"{origin} has used {used_ids}, and {directive.target} gives ids from {limit} on"
        return LedgerWork(item, Stage.FAIL, BookieGate.IDS_APART, reason, origin)
    alike = directive.model_copy(update={"kind": "switch", "source": origin})
    return replace(_classify_item(seen, alike, item, begun), source=origin)


def _may_be_copy(source: LedgerSeen, target: LedgerSeen) -> bool:
    """Tell if one ledger may be a part of the other: their attributes at creation are known and equal."""
    return source.custom is not None and (source.custom, source.quorums) == (target.custom, target.quorums)


def _classify_item(seen: BookieView, directive: Directive, item: Item, begun: bool) -> LedgerWork:
    source = seen.ledger(directive.source, item.ledger)
    if directive.kind == "rollback" and (source is None or not source.closed):
        original = seen.ledger(directive.target, item.ledger)
        if original is not None and original.closed and original.readable:
            # Ids of the two clusters are apart (I11): what it has under this id is what was copied from it.
            return LedgerWork(
                item, Stage.BUILT, None, f"{directive.source} has no whole copy, {directive.target} the original"
            )
    if source is None:
        return LedgerWork(item, Stage.FAIL, BookieGate.SOURCE_READABLE, f"{directive.source} has no such ledger")
    if not source.readable:
        return LedgerWork(
            item,
            Stage.FAIL,
            BookieGate.SOURCE_READABLE,
            f"{directive.source}: {source.error or SENTENCES[BookieGate.SOURCE_READABLE]}",
        )
    if not source.closed:
        return _open_ledger_work(seen, item)
    if (target := seen.ledger(directive.target, item.ledger)) is None:
        return LedgerWork(item, Stage.COPY, None, f"{directive.target} does not have it")
    return _compare_copies(item, source, target, begun)


def _open_ledger_work(seen: BookieView, item: Item) -> LedgerWork:
    """A ledger that is written to: a copy would miss what comes later (hole 5)."""
    gate, tries = (
        BookieGate.SOURCE_CLOSED,
        _count_tries(seen, item.object.rpartition("/")[0] if item.owner else item.object),
    )
    if item.kind == "schema":
        return LedgerWork(item, Stage.FAIL, gate, "it is open: read this schema once through a broker, which closes it")
    if tries >= seen.snapshot.settings.max_tries:
        return LedgerWork(
            item,
            Stage.FAIL,
            gate,
            f"it was open again after each of {tries} unloads: stop its subscribers, or the brokers",
        )
    if item.owner is not None:
        return LedgerWork(item, Stage.UNLOAD, gate, f"{item.owner} writes to it; unloading folds it into its znode")
    return LedgerWork(item, Stage.SEAL, gate, "its owner left it open, and no broker has the topic")


def _compare_copies(item: Item, source: LedgerSeen, target: LedgerSeen, begun: bool) -> LedgerWork:
    whole = target.closed and target.readable
    shorter = (target.last, target.length) < (source.last, source.length)
    # The sidecar compares contents: what is no beginning of the source is a conflict, and stays.
    if (begun or _may_be_copy(source, target)) and (not target.closed or shorter):
        return LedgerWork(item, Stage.COPY, None, "half a copy is there: it is deleted and made again at once")
    if not whole:
        return LedgerWork(
            item, Stage.FAIL, BookieGate.COPY_EQUAL, f"the id is there: {'open' if target.readable else target.error}"
        )
    if (difference := difference_of_copies(source, target)) is not None:
        return LedgerWork(item, Stage.FAIL, BookieGate.COPY_EQUAL, f"the id is there, and differs: {difference}")
    if source.sha256 is not None and source.sha256 == target.sha256:
        return LedgerWork(item, Stage.BUILT, None, "its contents are equal")
    return LedgerWork(item, Stage.VERIFY, None, "a copy of that length is there: its contents are compared")


def _count_tries(seen: BookieView, subject: str) -> int:
    return seen.progress.tries.get(subject, 0)


def _kind(item: Item) -> Kind:
    return "cursor" if item.kind == "cursor" else "schema"


def _last_id(seen: BookieView, origin: str, item: Item) -> int | None:
    ledger = seen.ledger(origin, item.ledger)
    return None if ledger is None else ledger.last
