"""Decisions that wait for too long: when they expire, and that what may have been applied never does."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.safeguards.rules import HeldBySafeguard, Over, PendingDecision, held_by
from lake.brakes import ALL, Acts, SafeguardAct
from schemas.kafka.messages import EXPIRED
from schemas.settings.root import load_settings

NOW = datetime(2026, 11, 24, 12, 0, tzinfo=timezone.utc)
SHIPPED = load_settings(environment={}).executor
PAUSED = SafeguardAct("pause", ALL, "upgrade", "ann", NOW)


def found(age_seconds, mode="act", paused=False, begun=False, **acts):
    decided_at = NOW - timedelta(seconds=age_seconds)
    candidate = PendingDecision("d", "autoscale", "topic://a/b/c", "a/b", decided_at, begun)
    known = Acts(pauses={ALL: PAUSED} if paused else {}, **acts)
    return held_by(candidate, known, SHIPPED.model_copy(update={"mode": mode}), NOW)


@pytest.mark.parametrize(("age", "expires"), [(0, False), (300, False), (301, True), (-300, False), (-301, True)])
def test_a_free_decision_expires_after_five_minutes(age, expires):
    over = found(age)
    assert (over is None) is not expires
    assert over is None or (over.status, over.why.startswith(EXPIRED)) == ("superseded", True)


def test_the_reason_tells_the_age_and_what_follows():
    assert found(412).why == (
        "expired: decided 412 s ago, which is more than 300 s; decided again at the next evaluation"
    )
    assert "decided 900 s ahead of the executor's clock" in found(-900).why


@pytest.mark.parametrize(("mode", "paused"), [("act", True), ("approve", False), ("approve", True)])
def test_a_held_decision_expires_after_an_hour(mode, paused):
    assert isinstance(found(3600, mode, paused), HeldBySafeguard)
    assert found(3601, mode, paused).status == "superseded"


def test_approved_decision_begins_within_hour():
    verdict = {"d": SafeguardAct("approve", "topic://a/b/c", "fine", "ann", NOW, decision_id="d")}
    assert found(3600, "approve", approvals=verdict) is None
    assert found(3601, "approve", approvals=verdict).status == "superseded"


@given(st.integers(-10_000_000, 10_000_000), st.sampled_from(["act", "approve"]), st.booleans())
def test_a_begun_decision_never_expires(age, mode, paused):
    assert not isinstance(found(age, mode, paused, begun=True), Over)


def test_a_rejection_is_told_before_the_age():
    rejected = {"d": SafeguardAct("reject", "topic://a/b/c", "no", "ann", NOW, decision_id="d")}
    assert found(1e6, rejections=rejected).status == "rejected"


@pytest.mark.parametrize(
    "decided_at", [datetime(1, 1, 1, tzinfo=timezone.utc), datetime(9999, 12, 31, tzinfo=timezone.utc)]
)
def test_an_instant_out_of_any_range_expires(decided_at):
    candidate = PendingDecision("d", "autoscale", "topic://a/b/c", "a/b", decided_at)
    assert held_by(candidate, Acts(pauses={ALL: PAUSED}), SHIPPED, NOW).status == "superseded"
