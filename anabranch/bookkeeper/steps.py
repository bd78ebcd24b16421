"""Execution of one step of a switch, if everything is as the step expects; else nothing is changed.

Stage: over `sidecar`, `metadata`, `guard` and `registry`, under `orchestrator`. A step that was carried out already, by
anyone, ends as `applied` without a change; one that comes too late ends as `superseded`. Every write to metadata also
expects the orchestrator's term, so that one that was overtaken writes nothing. Copies are not bound by it: they are
judged by their contents before anything is attributed to them, and once more before the source is deleted.

BookKeeper knows nothing of the term, so a deletion has a deadline instead: it is fixed before the term is checked and
never moved, and a successor waits until every deadline that was fixed before has passed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from anabranch.admin.answers import Answered
from anabranch.admin.plain import PlainTopics
from anabranch.bookkeeper.guard import SwitchGuard
from anabranch.bookkeeper.metadata import (
    MetadataChanged,
    MetadataRefused,
    MetadataUnreachable,
    PulsarMetadata,
    ZnodeWrite,
)
from anabranch.bookkeeper.process import SidecarLost
from anabranch.bookkeeper.record import StepOutcome
from anabranch.bookkeeper.records import BROKERS_OWN, STAMP_PROPERTY, Cursor, read_cursor, stamp_cursor, stamp_locator
from anabranch.bookkeeper.registry import DIRECTIVE, Registry, RegistryStore
from anabranch.bookkeeper.sidecar import (
    CONFLICT,
    DELETES_WITHIN_S,
    SOURCE_OPEN,
    TOO_LATE,
    BookKeeperSidecar,
    LedgerRefused,
)
from anabranch.bookkeeper.snapshot_reader import cursor_of, schema_of, see_ledger
from anabranch.bookkeeper.wire import BadRecord
from decisions.bookkeeper.seen import BookieView, difference_of_copies, stamp_of
from schemas.bookie_answers import BookieAnswer, Step
from schemas.bookies import BookieSnapshot, LedgerSeen

TOPICS = "/managed-ledgers/"


class TermLost(RuntimeError):
    """Another orchestrator has taken over; this one must do nothing more."""


class _Otherwise(Exception):
    """Something is not as the step expects; the message says what."""


class Owners(Protocol):
    """The brokers, which change what they have loaded."""

    def unload(self, topic: str) -> object: ...
    def set_subscription_properties(self, topic: str, subscription: str, properties: Mapping[str, str]) -> object: ...


class Steps:
    """Carries out steps under one term; any thread may call."""

    def __init__(
        self,
        store: RegistryStore,
        metadata: PulsarMetadata,
        sidecar: BookKeeperSidecar,
        term: ZnodeWrite,
        guard: SwitchGuard,
        owners: Owners | PlainTopics | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`term` expects this to be the newest orchestrator; `owners` None: no broker can be asked."""
        self._store, self._metadata, self._sidecar, self._term, self._owners = store, metadata, sidecar, term, owners
        self._guard, self._clock = guard, clock

    def carry_out(self, step: Step, registry: Registry) -> StepOutcome:
        """Return how it ended. Raises `TermLost`, `Unsafe`, and `MetadataUnreachable` when nobody knows."""
        directive = registry.directive
        if directive is None or directive.epoch != step.epoch:
            return StepOutcome(
                "superseded", error=f"the directive is of epoch {directive.epoch if directive else 'none'}"
            )
        until = self._deadline()
        try:
            self._guard.require_brokers()
            self._guard.require_distinct(registry, step.source, step.target)
            self._check(registry)
            if step.action == "copy":
                return self._copy(step, until)
            return self._by_action[step.action](self, step, registry)
        except _Otherwise as other:
            return StepOutcome("superseded", error=str(other))
        except LedgerRefused as refused:
            status = "superseded" if refused.name in (SOURCE_OPEN, TOO_LATE) else "failed"
            return StepOutcome(status, error=_refusal_text(refused))  # type: ignore[arg-type]
        except (SidecarLost, MetadataRefused, BadRecord) as error:
            return StepOutcome("failed", error=str(error))

    def _deadline(self) -> float:
        """Return the deadline of deletions that rest on a check still to be made, as Unix time in seconds."""
        return self._clock() + DELETES_WITHIN_S

    def _copy(self, step: Step, until: float) -> StepOutcome:
        source, target, ledger = _ends_of_step(step)
        self._expect(source, ledger, step.expectation)
        done = self._sidecar.copy(source, target, ledger, until)
        return self._compared(source, target, ledger, {"how": done.how})

    def _verify(self, step: Step, registry: Registry) -> StepOutcome:
        source, target, ledger = _ends_of_step(step)
        self._expect(source, ledger, step.expectation)
        return self._compared(source, target, ledger, {})

    def _compared(self, source: str, target: str, ledger: int, more: dict[str, Any]) -> StepOutcome:
        comparison = self._sidecar.verify(source, target, ledger)
        if not comparison.same:
            return StepOutcome(
                "failed", more, f"{target} has another ledger {ledger}: {', '.join(comparison.differences)}"
            )
        return StepOutcome(
            "applied", {**more, "last": comparison.last, "length": comparison.length, "sha256": comparison.sha256}
        )

    def _seal(self, step: Step, registry: Registry) -> StepOutcome:
        source, _, ledger = _ends_of_step(step)
        self._require_unloaded(step)
        sealed = self._sidecar.seal(source, ledger)
        return StepOutcome("applied", {"last": sealed.last, "length": sealed.length})

    def _unload(self, step: Step, registry: Registry) -> StepOutcome:
        if self._owners is None:
            return StepOutcome("failed", error="no broker can be asked: see [controller] url")
        reply = self._owners.unload(step.object.removeprefix(TOPICS))
        return (
            StepOutcome("applied")
            if isinstance(reply, Answered)
            else StepOutcome("superseded", error=f"unload: {reply}"[:500])
        )

    def _fail(self, step: Step, registry: Registry) -> StepOutcome:
        return StepOutcome("failed", error=step.reason)

    def _note(self, step: Step, registry: Registry) -> StepOutcome:
        return StepOutcome("applied")

    def _promote(self, step: Step, registry: Registry) -> StepOutcome:
        stamps = {int(ledger): stamp for ledger, stamp in (step.stamps or {}).items()}
        record = self._metadata.read(step.object)
        if record is None:
            raise _Otherwise("the record is gone")
        is_cursor = step.kind == "cursor"
        if is_cursor and read_cursor(record.content).ledger != step.expectation["ledger"]:
            raise _Otherwise(f"it has the ledger {read_cursor(record.content).ledger} now")
        after = stamp_cursor(record.content, next(iter(stamps.values()))) if is_cursor else None
        after = stamp_locator(record.content, stamps) if after is None else after
        if after == record.content:
            return StepOutcome("applied", {"how": "already"})
        if record.version != step.expectation["version"]:
            raise _Otherwise(f"the record is of version {record.version} now")
        for ledger in stamps:
            self._expect_copy(step, ledger)
        self._require_unloaded(step)
        self._write(registry, ZnodeWrite(step.object, after, record.version))
        # One that began in between may have read the subscription before it was changed.
        loaded = {"loaded": True} if is_cursor and self._guard.running_brokers() else {}
        return StepOutcome("applied", {"how": "promoted", "version": record.version + 1} | loaded)

    def _require_unloaded(self, step: Step) -> None:
        """No broker may have a subscription that is sealed or changed without its owner."""
        self._guard.require_brokers()
        running = self._guard.running_brokers() if step.kind == "cursor" else []
        if running:
            raise _Otherwise(f"brokers run now, such as {running[0]}: its owner has to do this")

    def _forward(self, step: Step, registry: Registry) -> StepOutcome:
        if self._owners is None:
            return StepOutcome("failed", error="no broker can be asked: see [controller] url")
        [(number, stamp)] = (step.stamps or {}).items()
        ledger = int(number)
        topic, _, subscription = step.object.removeprefix(TOPICS).rpartition("/")
        if self._cursor(step.object, ledger)[0].stamp == stamp:
            return StepOutcome("applied", {"how": "already"})
        self._expect_copy(step, ledger)
        # A rollover, or a mark-delete that is written, since the copy was made: the copy misses it.
        self._expect(str(step.source), ledger, {"closed": True, "last": step.expectation.get("last")})
        self._check(registry)
        # Its owner replaces all properties: they are read in the last moment.
        before, version = self._cursor(step.object, ledger)
        fault = self._stamp_by_owner(topic, subscription, before, str(stamp))
        if fault is not None:
            return StepOutcome("superseded", error=fault)
        record = self._metadata.read(step.object)
        after = None if record is None else read_cursor(record.content)
        if after is None or record is None:
            raise _Otherwise("the record is gone")
        if after.ledger != ledger:
            self._stamp_rolled(step, topic, subscription, after)
            raise _Otherwise("it rolled over meanwhile: the stamp names the old ledger and counts for nothing")
        # More than one write: whatever a client has set between reading and writing was replaced.
        other_writes = record.version - version - 1
        return StepOutcome(
            "applied",
            {"how": "promoted", "version": record.version} | ({"others": other_writes} if other_writes else {}),
        )

    def _cursor(self, path: str, ledger: int) -> tuple[Cursor, int]:
        """Return a subscription that still has this ledger, and the version of its znode."""
        record = self._metadata.read(path)
        cursor = None if record is None else read_cursor(record.content)
        if record is None or cursor is None or cursor.ledger != ledger:
            raise _Otherwise(f"it has the ledger {cursor.ledger if cursor else 'none'} now")
        return cursor, record.version

    def _stamp_by_owner(self, topic: str, subscription: str, cursor: Cursor, stamp: str) -> str | None:
        """Have the owner write a stamp beside all other properties; return why it did not."""
        assert self._owners is not None
        # Those of the broker itself are refused, and stay.
        properties = {name: value for name, value in cursor.properties.items() if not name.startswith(BROKERS_OWN)}
        reply = self._owners.set_subscription_properties(topic, subscription, {**properties, STAMP_PROPERTY: stamp})
        return None if isinstance(reply, Answered) else f"its owner did not take the stamp: {reply}"[:500]

    def _stamp_rolled(self, step: Step, topic: str, subscription: str, cursor: Cursor) -> None:
        """Put back the stamp of a new ledger that ours has replaced, found by its id, which is never shared."""
        homes = [name for name in (step.source, step.target) if name and see_ledger(self._sidecar, name, cursor.ledger)]
        if cursor.ledger >= 0 and len(homes) == 1 and cursor.stamp in (step.stamps or {}).values():
            self._stamp_by_owner(topic, subscription, cursor, stamp_of(homes[0], cursor.ledger))

    def _delete(self, step: Step, registry: Registry) -> StepOutcome:
        source, ledger, holder = str(step.source), int(step.ledger or 0), step.target
        there = see_ledger(self._sidecar, source, ledger)
        if there is None:
            return StepOutcome("applied", {"how": "already"})
        checks = self._still_named(step, registry, source, ledger)
        # Of what nothing names any more, who owned it may have deleted the copy by attribution.
        is_needed = bool(step.expectation.get("records")) or (holder and see_ledger(self._sidecar, holder, ledger))
        if holder is not None and is_needed and not self._sidecar.verify(source, holder, ledger).same:
            raise _Otherwise(f"{holder} has no equal copy any more")
        # The order is the point: deadline, then the check of the term, then the call.
        until = self._deadline()
        self._guard.require_brokers()
        self._write(registry, *checks)
        self._sidecar.delete(source, ledger, until)
        return StepOutcome("applied", {"how": "deleted", "last": there.last, "length": there.length})

    def _still_named(self, step: Step, registry: Registry, source: str, ledger: int) -> list[ZnodeWrite]:
        """That the records which name a ledger are those that were seen, and lead elsewhere; as expectations."""
        checks = []
        for path, version in dict(step.expectation.get("records", {})).items():
            record = self._metadata.read(path)
            if record is None or record.version != version:
                raise _Otherwise(f"{path} has changed since")
            is_schema = path.startswith("/schemas/")
            changed = {"schemas": [schema_of(record)]} if is_schema else {"cursors": [cursor_of(record, None)]}
            seen = BookieView(
                BookieSnapshot(
                    now=0,
                    clusters=list(registry.clusters),
                    bootstrap=registry.bootstrap,
                    directive=registry.directive,
                    **changed,
                )
            )
            for item in seen.naming.get(ledger, ()):
                if item.cluster in (None, source):
                    raise _Otherwise(f"{path} leads to {item.cluster or 'nowhere'}")
            checks.append(ZnodeWrite(path, None, version))
        return checks

    def _flip(self, step: Step, registry: Registry) -> StepOutcome:
        wanted: Mapping[str, str] = step.expectation["statuses"]
        there = {cluster.name: cluster for cluster in registry.clusters}
        if all(name in there and there[name].status == status for name, status in wanted.items()):
            return StepOutcome("applied", {"how": "already"})
        after = [
            cluster.model_copy(update={"status": wanted.get(cluster.name, cluster.status)})
            for cluster in registry.clusters
        ]
        if sum(cluster.status == "ACTIVE" for cluster in after) != 1:
            raise _Otherwise("the registry has changed since")
        answer = BookieAnswer(cluster="", operation="next", action="steps", phase=step.phase, registry=after)
        try:
            self._store.write(answer, registry, (self._term,))
        except MetadataChanged as changed:
            raise self._fault(changed) from None
        return StepOutcome("applied", {"how": "flipped"})

    def _expect(self, cluster: str, ledger: int, expectation: Mapping[str, Any]) -> None:
        seen = see_ledger(self._sidecar, cluster, ledger)
        if seen is None:
            raise _Otherwise(f"{cluster} has no ledger {ledger} any more")
        if not seen.readable:
            raise LedgerRefused("Unreadable", f"{cluster}: {seen.error}")
        for name in ("closed", "last", "length"):
            if name in expectation and getattr(seen, name) != expectation[name]:
                raise _Otherwise(f"ledger {ledger} of {cluster} has {name} {getattr(seen, name)} now")

    def _expect_copy(self, step: Step, ledger: int) -> None:
        """The copy is whole: another orchestrator may have begun it anew since it was compared."""
        source, target = (see_ledger(self._sidecar, str(name), ledger) for name in (step.source, step.target))
        if not _is_whole(target):
            raise _Otherwise(f"{step.target} has no whole copy of ledger {ledger} any more")
        if (
            source is not None
            and target is not None
            and source.closed
            and difference_of_copies(source, target) is not None
        ):
            raise _Otherwise(f"{step.target} has another ledger {ledger}: {difference_of_copies(source, target)}")

    def _check(self, registry: Registry) -> None:
        self._write(registry)

    def _write(self, registry: Registry, *writes: ZnodeWrite) -> None:
        """Under this term, and this directive: what an operator has asked for meanwhile comes first."""
        directive = registry.directive
        assert directive is not None
        expected = ZnodeWrite(f"{self._store.path}/{DIRECTIVE}", None, directive.version)
        try:
            self._metadata.write([*writes, self._term, expected])
        except MetadataChanged as changed:
            raise self._fault(changed) from None

    def _fault(self, changed: MetadataChanged) -> Exception:
        if changed.path == self._term.path:
            return TermLost("another orchestrator has taken over: this one stops")
        return _Otherwise(f"{changed.path} has changed since")

    _by_action: Mapping[str, Callable[[Steps, Step, Registry], StepOutcome]] = {
        "verify": _verify,
        "seal": _seal,
        "unload": _unload,
        "fail": _fail,
        "skip_not_source": _note,
        "cas_attribution": _promote,
        "forward_owner": _forward,
        "rollover_fallback": _note,
        "delete": _delete,
        "flip_status": _flip,
    }


def _is_whole(ledger: LedgerSeen | None) -> bool:
    return ledger is not None and ledger.closed and ledger.readable


def _ends_of_step(step: Step) -> tuple[str, str, int]:
    return str(step.source), str(step.target), int(step.ledger or 0)


def _refusal_text(refused: LedgerRefused) -> str:
    return (
        f"{refused.name}: the id is there with other contents: {refused}" if refused.name == CONFLICT else str(refused)
    )


__all__ = ["MetadataUnreachable", "Owners", "Steps", "TermLost"]
