"""Acts on brakes: what they come to, and that of two at once one is made knowing the other."""

from __future__ import annotations

import threading
from datetime import datetime, timedelta, timezone
from pathlib import Path

from deltalake import DeltaTable

from lake.brakes import ALL, Acts, BrakeLog, BrakeReader, Kind, SafeguardAct
from lake.tables import table_path
from schemas.tables.rows import BRAKES

NOON = datetime(2026, 11, 22, 12, tzinfo=timezone.utc)


def act(kind: Kind, subject: str = ALL, actor: str = "ann", decision: str | None = None, until: datetime | None = None):
    return SafeguardAct(kind, subject, "because", actor, NOON, decision_id=decision, until=until)


def test_safeguard_actions_read_by_other_process(tmp_path: Path):
    mine, other, only = BrakeLog(str(tmp_path)), BrakeLog(str(tmp_path)), BrakeReader(str(tmp_path))
    pause = act("pause", "acme/shop", until=NOON + timedelta(hours=1))
    [written] = mine.write(lambda _: [pause])
    other.write(lambda _: [act("approve", "topic://acme/shop/orders", "bob", "d1")])
    for reader in (mine, other, only, BrakeReader(str(tmp_path))):
        reader.read()
        assert reader.acts.pauses == {"acme/shop": written}
        assert reader.acts.approvals["d1"].actor == "bob"
        assert reader.acts.number == 2
    assert str(written) == "by ann at 2026-11-22 12:00:00 UTC: because"


def test_lake_without_table_has_no_safeguard_actions(tmp_path: Path):
    reader = BrakeReader(str(tmp_path))
    assert not reader.read()
    BrakeLog(str(tmp_path)).write(lambda _: [act("pause")])
    assert reader.read()
    assert not reader.read()


def test_concurrent_approval_and_rejection_one_wins(tmp_path: Path):
    """The loser is told."""
    BrakeLog(str(tmp_path))
    together, told = threading.Barrier(2), []

    def decide(kind: Kind, actor: str) -> None:
        log, waits = BrakeLog(str(tmp_path)), [together]

        def make(acts: Acts) -> list[SafeguardAct]:
            if waits:
                waits.pop().wait()  # both have read the same acts
            before = acts.verdict_on("d1")
            told.append((actor, before and before.actor))
            return [] if before else [act(kind, "topic://a/b/c", actor, "d1")]

        log.write(make)

    threads = [threading.Thread(target=decide, args=one) for one in (("approve", "ann"), ("reject", "bob"))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rows = DeltaTable(table_path(str(tmp_path), BRAKES)).to_pyarrow_table().to_pylist()
    assert [row["number"] for row in rows] == [1]
    winner = rows[0]["actor"]
    [loser] = {"ann", "bob"} - {winner}
    assert (loser, winner) in told


def test_pause_ends_by_time_or_resume():
    acts = Acts()
    for number, one in enumerate(
        (
            act("pause"),
            act("pause", "acme/shop", until=NOON + timedelta(seconds=60)),
            act("pause", "topic://acme/shop/a"),
        ),
        start=1,
    ):
        acts.take(SafeguardAct(**{**vars(one), "number": number}))
    names = ["topic://acme/shop/a", "acme/shop", ALL]
    assert [pause.subject for pause in acts.paused(NOON)] == [ALL, "acme/shop", "topic://acme/shop/a"]
    acts.take(act("resume", "topic://acme/shop/a"))
    for seconds, expected in ((59.999, "acme/shop"), (60.0, ALL)):
        pause = acts.pause_of(names, NOON + timedelta(seconds=seconds))
        assert pause is not None
        assert pause.subject == expected
    acts.take(act("resume"))
    assert acts.pause_of(names, NOON + timedelta(seconds=60)) is None


def test_a_stop_ends_with_a_resume_of_everything_only():
    acts = Acts()
    acts.take(act("stop", actor="executor"))
    acts.take(act("resume", "acme/shop"))
    assert acts.stop is not None
    acts.take(act("resume"))
    assert acts.stop is None
    assert acts.resumed_at == NOON
