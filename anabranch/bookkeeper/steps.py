"""Execution of one step of a switch; nothing is changed unless the state is as the step expects.

Stage: over `sidecar`, `metadata`, `guard` and `registry`, under `orchestrator`. A step that somebody has carried out
before ends as `applied` without a change; one that comes too late ends as `superseded`. Every write to metadata also
expects the orchestrator's term, so a replaced orchestrator writes nothing. Copies do not depend on the term: their
contents are compared before a ledger is attributed to them, and again before the source is deleted.

BookKeeper does not know the term, so a deletion has a deadline instead. It is fixed before the term is checked and
never extended, and a successor waits until all deadlines of its predecessor have passed.
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
from schemas.bookies import BookieSnapshot

TOPICS = "/managed-ledgers/"
_NO_BROKER = StepOutcome("failed", error="no broker can be asked: see [controller] url")


class TermLost(RuntimeError):
    """Another orchestrator has taken over; this one must do nothing more."""


class _Superseded(Exception):
    """The state is not as the step expects; the message says how it differs."""


class Owners(Protocol):
    """Admin interface of the brokers, which own the topics that are loaded."""

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
        """`term` is the expectation of being the newest orchestrator; `owners` None: no broker can be asked."""
        self._store, self._metadata, self._sidecar, self._term, self._owners = store, metadata, sidecar, term, owners
        self._guard, self._clock = guard, clock

    def carry_out(self, step: Step, registry: Registry) -> StepOutcome:
        """Carry out a step and return its outcome.

        Raises `TermLost`, `Unsafe`, and `MetadataUnreachable` if the outcome is unknown.
        """
        directive = registry.directive
        if directive is None or directive.epoch != step.epoch:
            epoch = directive.epoch if directive else "none"
            return StepOutcome("superseded", error=f"the directive is of epoch {epoch}")
        until = self._deadline()
        try:
            self._guard.require_brokers()
            self._guard.require_distinct(registry, step.source, step.target)
            self._write(registry)
            if step.action == "copy":
                return self._copy(step, until)
            return self._by_action[step.action](self, step, registry)
        except _Superseded as difference:
            return StepOutcome("superseded", error=str(difference))
        except LedgerRefused as refused:
            status = "superseded" if refused.name in (SOURCE_OPEN, TOO_LATE) else "failed"
            return StepOutcome(status, error=_describe_refusal(refused))  # type: ignore[arg-type]
        except (SidecarLost, MetadataRefused, BadRecord) as error:
            return StepOutcome("failed", error=str(error))

    def _deadline(self) -> float:
        """Return the deadline of deletions that rest on a check still to be made, as Unix time in seconds."""
        return self._clock() + DELETES_WITHIN_S

    def _copy(self, step: Step, until: float) -> StepOutcome:
        source, target, ledger = _source_target_ledger(step)
        self._expect(source, ledger, step.expectation)
        return self._compare(source, target, ledger, {"how": self._sidecar.copy(source, target, ledger, until).how})

    def _verify(self, step: Step, registry: Registry) -> StepOutcome:
        source, target, ledger = _source_target_ledger(step)
        self._expect(source, ledger, step.expectation)
        return self._compare(source, target, ledger, {})

    def _compare(self, source: str, target: str, ledger: int, more: dict[str, Any]) -> StepOutcome:
        comparison = self._sidecar.verify(source, target, ledger)
        if not comparison.same:
            differences = ", ".join(comparison.differences)
            return StepOutcome("failed", more, f"{target} has another ledger {ledger}: {differences}")
        result = {"last": comparison.last, "length": comparison.length, "sha256": comparison.sha256}
        return StepOutcome("applied", more | result)

    def _seal(self, step: Step, registry: Registry) -> StepOutcome:
        source, _, ledger = _source_target_ledger(step)
        self._require_unloaded(step)
        sealed = self._sidecar.seal(source, ledger)
        return StepOutcome("applied", {"last": sealed.last, "length": sealed.length})

    def _unload(self, step: Step, registry: Registry) -> StepOutcome:
        if self._owners is None:
            return _NO_BROKER
        reply = self._owners.unload(step.object.removeprefix(TOPICS))
        if not isinstance(reply, Answered):
            return StepOutcome("superseded", error=f"unload: {reply}"[:500])
        return StepOutcome("applied")

    def _fail(self, step: Step, registry: Registry) -> StepOutcome:
        return StepOutcome("failed", error=step.reason)

    def _record_only(self, step: Step, registry: Registry) -> StepOutcome:
        return StepOutcome("applied")

    def _promote(self, step: Step, registry: Registry) -> StepOutcome:
        stamps = {int(ledger): stamp for ledger, stamp in (step.stamps or {}).items()}
        if (record := self._metadata.read(step.object)) is None:
            raise _Superseded("the record is gone")
        if is_cursor := step.kind == "cursor":
            if (ledger := read_cursor(record.content).ledger) != step.expectation["ledger"]:
                raise _Superseded(f"it has the ledger {ledger} now")
            after = stamp_cursor(record.content, next(iter(stamps.values())))
        else:
            after = stamp_locator(record.content, stamps)
        if after == record.content:
            return StepOutcome("applied", {"how": "already"})
        if record.version != step.expectation["version"]:
            raise _Superseded(f"the record is of version {record.version} now")
        for ledger in stamps:
            self._expect_copy(step, ledger)
        self._require_unloaded(step)
        self._write(registry, ZnodeWrite(step.object, after, record.version))
        # A broker that started meanwhile may have read the subscription before the change.
        loaded = {"loaded": True} if is_cursor and self._guard.running_brokers() else {}
        return StepOutcome("applied", {"how": "promoted", "version": record.version + 1} | loaded)

    def _require_unloaded(self, step: Step) -> None:
        """Reject changes of a subscription behind the back of a broker that may have loaded it."""
        self._guard.require_brokers()
        running = self._guard.running_brokers() if step.kind == "cursor" else []
        if running:
            raise _Superseded(f"brokers run now, such as {running[0]}: its owner has to do this")

    def _forward(self, step: Step, registry: Registry) -> StepOutcome:
        if self._owners is None:
            return _NO_BROKER
        [(number, stamp)] = (step.stamps or {}).items()
        ledger = int(number)
        topic, _, subscription = step.object.removeprefix(TOPICS).rpartition("/")
        if self._cursor(step.object, ledger)[0].stamp == stamp:
            return StepOutcome("applied", {"how": "already"})
        self._expect_copy(step, ledger)
        # The copy lacks whatever was written since, such as a mark-delete or a rollover.
        self._expect(str(step.source), ledger, {"closed": True, "last": step.expectation.get("last")})
        self._write(registry)
        # Its owner replaces all properties, so read them at the last moment.
        before, version = self._cursor(step.object, ledger)
        if (fault := self._stamp_by_owner(topic, subscription, before, str(stamp))) is not None:
            return StepOutcome("superseded", error=fault)
        if (record := self._metadata.read(step.object)) is None:
            raise _Superseded("the record is gone")
        after = read_cursor(record.content)
        if after.ledger != ledger:
            self._stamp_rolled(step, topic, subscription, after)
            raise _Superseded("it rolled over meanwhile: the stamp names the old ledger and counts for nothing")
        # Properties that a client set between our reading and writing were replaced.
        other_writes = record.version - version - 1
        replaced = {"others": other_writes} if other_writes else {}
        return StepOutcome("applied", {"how": "promoted", "version": record.version} | replaced)

    def _cursor(self, path: str, ledger: int) -> tuple[Cursor, int]:
        """Return a subscription that still has this ledger, and the version of its znode."""
        record = self._metadata.read(path)
        cursor = None if record is None else read_cursor(record.content)
        if record is None or cursor is None or cursor.ledger != ledger:
            raise _Superseded(f"it has the ledger {cursor.ledger if cursor else 'none'} now")
        return cursor, record.version

    def _stamp_by_owner(self, topic: str, subscription: str, cursor: Cursor, stamp: str) -> str | None:
        """Have the owner add a stamp to the properties; return the reason if it did not."""
        assert self._owners is not None
        # The broker refuses its own properties, and keeps them.
        properties = {name: value for name, value in cursor.properties.items() if not name.startswith(BROKERS_OWN)}
        reply = self._owners.set_subscription_properties(topic, subscription, {**properties, STAMP_PROPERTY: stamp})
        return None if isinstance(reply, Answered) else f"its owner did not take the stamp: {reply}"[:500]

    def _stamp_rolled(self, step: Step, topic: str, subscription: str, cursor: Cursor) -> None:
        """Restore the stamp of a rolled-over ledger that ours has replaced; its id exists in one cluster only."""
        homes = [name for name in (step.source, step.target) if name and see_ledger(self._sidecar, name, cursor.ledger)]
        if cursor.ledger >= 0 and len(homes) == 1 and cursor.stamp in (step.stamps or {}).values():
            self._stamp_by_owner(topic, subscription, cursor, stamp_of(homes[0], cursor.ledger))

    def _delete(self, step: Step, registry: Registry) -> StepOutcome:
        source, ledger, holder = str(step.source), int(step.ledger or 0), step.target
        if (seen := see_ledger(self._sidecar, source, ledger)) is None:
            return StepOutcome("applied", {"how": "already"})
        checks = self._require_unused(step, registry, source, ledger)
        # No equal copy is needed if nothing names the ledger: its owner may have deleted the copy by attribution.
        is_needed = bool(step.expectation.get("records")) or (holder and see_ledger(self._sidecar, holder, ledger))
        if holder is not None and is_needed and not self._sidecar.verify(source, holder, ledger).same:
            raise _Superseded(f"{holder} has no equal copy any more")
        # The order matters: deadline, then the check of the term, then the call.
        until = self._deadline()
        self._guard.require_brokers()
        self._write(registry, *checks)
        self._sidecar.delete(source, ledger, until)
        return StepOutcome("applied", {"how": "deleted", "last": seen.last, "length": seen.length})

    def _require_unused(self, step: Step, registry: Registry, source: str, ledger: int) -> list[ZnodeWrite]:
        """Require that the records naming a ledger are unchanged and lead elsewhere; return expectations."""
        checks = []
        for path, version in dict(step.expectation.get("records", {})).items():
            record = self._metadata.read(path)
            if record is None or record.version != version:
                raise _Superseded(f"{path} has changed since")
            is_schema = path.startswith("/schemas/")
            changed = {"schemas": [schema_of(record)]} if is_schema else {"cursors": [cursor_of(record, None)]}
            clusters, bootstrap, directive = list(registry.clusters), registry.bootstrap, registry.directive
            snapshot = BookieSnapshot(now=0, clusters=clusters, bootstrap=bootstrap, directive=directive, **changed)
            for item in BookieView(snapshot).naming.get(ledger, ()):
                if item.cluster in (None, source):
                    raise _Superseded(f"{path} leads to {item.cluster or 'nowhere'}")
            checks.append(ZnodeWrite(path, None, version))
        return checks

    def _flip(self, step: Step, registry: Registry) -> StepOutcome:
        wanted: Mapping[str, str] = step.expectation["statuses"]
        statuses = {cluster.name: cluster.status for cluster in registry.clusters}
        if all(statuses.get(name) == status for name, status in wanted.items()):
            return StepOutcome("applied", {"how": "already"})
        after = [
            cluster.model_copy(update={"status": wanted.get(cluster.name, cluster.status)})
            for cluster in registry.clusters
        ]
        if sum(cluster.status == "ACTIVE" for cluster in after) != 1:
            raise _Superseded("the registry has changed since")
        answer = BookieAnswer(cluster="", operation="next", action="steps", phase=step.phase, registry=after)
        try:
            self._store.write(answer, registry, (self._term,))
        except MetadataChanged as changed:
            raise self._error_for(changed) from None
        return StepOutcome("applied", {"how": "flipped"})

    def _expect(self, cluster: str, ledger: int, expectation: Mapping[str, Any]) -> None:
        if (seen := see_ledger(self._sidecar, cluster, ledger)) is None:
            raise _Superseded(f"{cluster} has no ledger {ledger} any more")
        if not seen.readable:
            raise LedgerRefused("Unreadable", f"{cluster}: {seen.error}")
        for name in ("closed", "last", "length"):
            if name in expectation and getattr(seen, name) != expectation[name]:
                raise _Superseded(f"ledger {ledger} of {cluster} has {name} {getattr(seen, name)} now")

    def _expect_copy(self, step: Step, ledger: int) -> None:
        """Require a whole copy: another orchestrator may have restarted it since it was compared."""
        source, target = (see_ledger(self._sidecar, str(name), ledger) for name in (step.source, step.target))
        if target is None or not (target.closed and target.readable):
            raise _Superseded(f"{step.target} has no whole copy of ledger {ledger} any more")
        if source is not None and source.closed and (difference := difference_of_copies(source, target)) is not None:
            raise _Superseded(f"{step.target} has another ledger {ledger}: {difference}")

    def _write(self, registry: Registry, *writes: ZnodeWrite) -> None:
        """Write if this term and this directive still hold; without `writes` this only checks them."""
        directive = registry.directive
        assert directive is not None
        expected = ZnodeWrite(f"{self._store.path}/{DIRECTIVE}", None, directive.version)
        try:
            self._metadata.write([*writes, self._term, expected])
        except MetadataChanged as changed:
            raise self._error_for(changed) from None

    def _error_for(self, changed: MetadataChanged) -> Exception:
        if changed.path == self._term.path:
            return TermLost("another orchestrator has taken over: this one stops")
        return _Superseded(f"{changed.path} has changed since")

    _by_action: Mapping[str, Callable[[Steps, Step, Registry], StepOutcome]] = {
        "verify": _verify,
        "seal": _seal,
        "unload": _unload,
        "fail": _fail,
        "skip_not_source": _record_only,
        "cas_attribution": _promote,
        "forward_owner": _forward,
        "rollover_fallback": _record_only,
        "delete": _delete,
        "flip_status": _flip,
    }


def _source_target_ledger(step: Step) -> tuple[str, str, int]:
    return str(step.source), str(step.target), int(step.ledger or 0)


def _describe_refusal(refused: LedgerRefused) -> str:
    return f"{CONFLICT}: the id is there with other contents: {refused}" if refused.name == CONFLICT else str(refused)


__all__ = ["MetadataUnreachable", "Owners", "Steps", "TermLost"]
