"""Evaluation of the rules in rounds: record each change, then have it sent.

Stage: the whole of `anabranch serve alerts`, without its process. Each round asks every rule as of one instant; a
change and its notices are committed before anything is sent.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from queue import Empty

from deltalake.exceptions import DeltaError

from anabranch.alerts.asking import AskError, Asking
from anabranch.alerts.notifiers import Notifier, Settled
from anabranch.alerts.record import AlertRecord, Notice
from anabranch.alerts.rules import BROKEN, Rule, Rules
from anabranch.alerts.states import Alert, RuleMatch, advance_rule, end_alert
from lake.tables import OpenTables
from schemas.printable import printable

log = logging.getLogger(__name__)

LAKE_ERRORS = (DeltaError, OSError)
PAUSE = timedelta(minutes=2)
"""A first round that finds a row pending for longer than its rule's `for` by this much comes after a pause."""


def utc_now() -> datetime:
    return datetime.now(timezone.utc)


class Evaluator:
    """Evaluator of the rules on a lake. One thread uses it; other threads may read its counters."""

    def __init__(
        self, lake: str, rules: Rules, notifiers: Mapping[str, Notifier], now: Callable[[], datetime] = utc_now
    ) -> None:
        """Take the lease and continue from the record. Raises `lake.lease.LeaseLost`, or what Delta raises."""
        self._rules, self._notifiers, self._now = rules, notifiers, now
        self._lake, self._record, self._tables = lake, AlertRecord(lake), OpenTables(lake)
        self.interval_seconds = rules.interval_seconds(lake)
        self._unsettled: list[Settled] = []
        self.rounds, self.evaluated_at, self.seconds = 0, float("nan"), 0.0
        self.faults: dict[str, str] = {}
        """Rules that could not be evaluated in the last round, and why."""
        for notice in self._record.due:
            self._enqueue(notice)
        for notice, delivered_at in self._record.resolved:
            if notice.destination in notifiers:
                notifiers[notice.destination].resume_repeating(notice, delivered_at)
        due = {(notice.alert.key, notice.destination) for notice in self._record.due}
        for alert in self._record.alerts.values():
            rule = rules.rule(alert.rule)
            for name in () if rule is None or alert.status != "firing" else rules.destinations_of(rule):
                if (alert.key, name) not in due:
                    notifiers[name].resume_repeating(Notice(alert, name), alert.at)

    @property
    def alerts(self) -> list[Alert]:
        """Return the pending and firing alerts."""
        return list(self._record.alerts.values())

    @property
    def shortfall(self) -> str | None:
        """Return what the last round left undone; None: nothing."""
        untold = [name for name, notifier in self._notifiers.items() if notifier.fault is not None]
        if not self.rounds:
            return "the rules were not evaluated"
        if self.faults:
            return f"rules that cannot be evaluated: {', '.join(self.faults)}"
        return f"destinations that were not told: {', '.join(untold)}" if untold else None

    def run(self, stop: threading.Event, each: "Callable[[Evaluator], None]" = lambda _: None) -> None:
        """Run rounds until `stop`; retry when the lake cannot be read or written. Raises `LeaseLost`."""
        while not stop.is_set():
            began = time.monotonic()
            try:
                self.round()
            except LAKE_ERRORS as error:
                log.warning("the table alerts cannot be written, trying again: %s", error)
            each(self)
            until = began + self.interval_seconds
            while not stop.wait(min(1.0, max(0.0, until - time.monotonic()))) and time.monotonic() < until:
                self._settle_later()
        self._settle_later()

    def round(self) -> list[Alert]:
        """Evaluate every rule once; return the changed alerts. Raises `LeaseLost` or Delta's errors."""
        began, now = time.monotonic(), self._now()
        self._record.check()
        self.settle()
        changed: list[tuple[Alert, Rule | None, Sequence[str]]] = []
        lapsed = set() if self.rounds else {alert.key for alert in self.alerts if self._is_of_before_pause(alert, now)}
        changed += [(end_alert(self._record.alerts[key], now), None, ()) for key in lapsed]
        matches = self._evaluate_rules(now)
        for rule in (*self._rules.rules, BROKEN):
            if rule.name in matches:
                open_alerts = [alert for alert in self.alerts if alert.rule == rule.name and alert.key not in lapsed]
                destinations = self._rules.destinations_of(rule)
                changed += [
                    (alert, rule, destinations) for alert in advance_rule(rule, open_alerts, matches[rule.name], now)
                ]
        changed += [
            (end_alert(alert, now), None, tuple(self._notifiers))
            for alert in self._record.alerts.values()
            if self._rules.rule(alert.rule) is None
        ]
        if changed:
            for notice in self._record.change(changed, now):
                self._enqueue(notice)
        self.rounds, self.evaluated_at, self.seconds = self.rounds + 1, time.time(), time.monotonic() - began
        return [alert for alert, _, _ in changed]

    def settle(self) -> None:
        """Finish an unrecorded change, and record settled notices. Raises `LeaseLost` or Delta's errors."""
        for notice in self._record.finish():
            self._enqueue(notice)
        self._unsettled += _take_settled(self._notifiers.values())
        if self._unsettled:
            self._record.settle(self._unsettled, self._now())
            self._unsettled = []

    def _evaluate_rules(self, now: datetime) -> dict[str, list[RuleMatch]]:
        """Return the matching rows of each rule that could be evaluated; alerts of others stay."""
        matches: dict[str, list[RuleMatch]] = {}
        faults: dict[str, str] = {}
        asking = Asking(self._lake, now, self._tables)
        for rule in self._rules.rules:
            try:
                matches[rule.name] = asking.matches(rule)
            except AskError as error:
                faults[rule.name] = str(error)
                if self.faults.get(rule.name) != str(error):
                    log.warning("the rule %s cannot be evaluated: %s", rule.name, printable(str(error)))
        self.faults = faults
        matches[BROKEN.name] = [
            RuleMatch((("rule", name),), None, f"the alert rule {name} cannot be evaluated: {error}")
            for name, error in faults.items()
        ]
        return matches

    def _is_of_before_pause(self, alert: Alert, now: datetime) -> bool:
        """Return True for an alert that would have fired, had anybody evaluated: `for` does not count a pause."""
        rule = self._rules.rule(alert.rule)
        pending_for = now - alert.since - PAUSE
        return rule is not None and alert.status == "pending" and pending_for > timedelta(seconds=rule.for_)

    def _settle_later(self) -> None:
        try:
            self.settle()
        except LAKE_ERRORS as error:
            log.warning("the table alerts cannot be written, trying again: %s", error)

    def _enqueue(self, notice: Notice) -> None:
        if (notifier := self._notifiers.get(notice.destination)) is not None:
            notifier.enqueue_notice(notice)


def _take_settled(notifiers: Iterable[Notifier]) -> list[Settled]:
    settled: list[Settled] = []
    for notifier in notifiers:
        with suppress(Empty):
            while True:
                settled.append(notifier.settled.get_nowait())
    return settled
