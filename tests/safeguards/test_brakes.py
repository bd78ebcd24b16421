"""The executor held by its brakes: it waits, forgets nothing over kill -9, and judges again when it is let go on.

On a real lake and a real controller; people speak through the command line.

Longer than other files: one test for each brake and each way in which it is let go.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from anabranch.cli.main import cli
from anabranch.executor.kernel.outcomes import Shard
from anabranch.executor.metrics import registry_of
from anabranch.executor.shards.members import part_of, shard_of
from anabranch.history.live import LakeReader
from anabranch.history.picture import BrakesView
from anabranch.query.sql import LakeSql
from lake.tables import open_table
from schemas.settings.brakes import DAYS, BrakeSettings
from schemas.tables.rows import WAITS
from tests.examples import only_first
from tests.executor.conftest import Clock, House
from tests.executor.conftest import settings as executor_settings
from tests.executor.gate import LOST_BEFORE, answers
from tests.executor.test_crash import started
from tests.harness.screen import export_frame
from tests.waiting import wait_until


def brakes(**changed: object) -> BrakeSettings:
    return BrakeSettings.model_validate({**executor_settings().brakes.model_dump(), **changed})


def say(house: House, *arguments: str, reason: str | None = "because", by: str = "ann") -> Result:
    """A command of a person."""
    file = Path(house.lake).parent / "people.toml"
    file.write_text(f'[lake]\npath = "{house.lake}"\n')
    more = [] if reason is None else ["--reason", reason, "--by", by]
    return CliRunner().invoke(cli, ["--config", str(file), *arguments, *more])


def status(house: House) -> dict[str, object]:
    found: dict[str, object] = json.loads(say(house, "executor", "status", "--output", "json", reason=None).output)
    return found


def waits(house: House) -> list[tuple[str, str]]:
    """Decision and brake of all rows of `waits`, in order."""
    table = open_table(house.lake, WAITS)
    rows = [] if table is None else sorted(table.to_pyarrow_table().to_pylist(), key=lambda row: row["at"])
    return [(row["decision_id"], row["brake"]) for row in rows]


def test_approve_mode_waits_for_a_person(house: House):
    yes, no = house.decide(house.create("yes"), 0), house.decide(house.create("no"), 0)
    with house.running(mode="approve", brakes=brakes(failures=1)):
        house.commit(yes, no)
        wait_until(lambda: len(waits(house)) == 2)
        assert house.outcomes() == []
        assert {(row["decisionId"], row["brake"]) for row in status(house)["waiting"]} == {
            (yes.decision_id, "approval"),
            (no.decision_id, "approval"),
        }
        assert say(house, "approve", yes.decision_id).output == f"approved {yes.decision_id} on {yes.subject}\n"
        assert say(house, "reject", no.decision_id, reason="too  late", by="bob").exit_code == 0
        assert house.end(yes)["status"] == "applied"
        end = house.end(no)
        wait_until(lambda: len(house.published.events) == 2)
    assert end["status"] == "rejected"
    assert "by bob at" in end["error"]
    assert end["error"].endswith(": too late")
    assert [row["status"] for row in house.outcomes(no)] == ["rejected"]
    assert house.layout(no.subject).epoch == 0
    # A single failure would stop this executor; a person's rejection is none.
    assert (status(house)["waiting"], status(house)["stop"]) == ([], None)


def test_impossible_approval_refused_with_reason(house: House):
    ended, approved = house.decide(house.create("ended"), 0), house.decide(house.create("approved"), 0)
    with house.running():
        house.commit(ended)
        house.end(ended)
    house.commit(approved)
    say(house, "approve", approved.decision_id)
    for verb, one, why in (
        ("approve", "nobody-knows-me", "no such decision in"),
        ("approve", ended.decision_id, "it has ended already: applied at"),
        ("reject", ended.decision_id, "it has ended already: applied at"),
        ("reject", approved.decision_id, "it was approved already, by ann at"),
        ("approve", approved.decision_id, "it was approved already, by ann at"),
    ):
        said = say(house, verb, one, by="bob")
        assert (said.exit_code, why in said.stderr) == (1, True), said.stderr
    assert say(house, "approve", approved.decision_id, reason=" ").exit_code == 2


def test_decision_outdated_while_waiting_superseded(house: House):
    split = house.decide(house.create("orders", 2), 0)
    with house.running(mode="approve"):
        house.commit(split)
        wait_until(lambda: waits(house))
        house.post(split.subject, "merge/0/1")
        say(house, "approve", split.decision_id)
        assert house.end(split)["status"] == "superseded"
    assert house.gate.count("POST") == 0


@pytest.mark.parametrize("scope", only_first(1, ["topic", "namespace", "all"]))
def test_pause_holds_its_scope_across_restart(house: House, scope: str):
    held, other = house.decide(house.create("held"), 0), house.decide(house.create("other"), 0)
    name = {"topic": held.subject, "namespace": house.namespace, "all": "all"}[scope]
    assert say(house, "executor", "pause", name, "--force").exit_code == 0
    paused = [held] if scope == "topic" else [held, other]
    for decided in ([held], [other]):
        with house.running():
            house.commit(*decided)
            expected = {one.decision_id for one in decided if one in paused}
            wait_until(lambda expected=expected: {one for one, _ in waits(house)} >= expected)
            if decided == [other] and other not in paused:
                assert house.end(other)["status"] == "applied"
        assert not [row for one in paused for row in house.outcomes(one)]
    with house.running():
        said = say(house, "executor", "resume", name, reason="go on")
        assert f"ended the pause of {'everything' if scope == 'all' else name} by ann at" in said.output
        for one in (held, other):
            assert house.end(one)["status"] == "applied"
    again = say(house, "executor", "resume", name)
    assert (again.exit_code, "is not paused; paused: nothing is" in again.stderr) == (1, True)


def test_unknown_name_paused_by_force_only(house: House):
    house.commit(house.decide(house.create("orders"), 0))
    tenant, _, namespace = house.namespace.partition("/")
    for wrong, near in (
        (f"{tenant}/x{namespace}", house.namespace),
        (house.namespace[:-1], house.namespace),
        (f"{house.namespace}/ordres", f"topic://{house.namespace}/orders"),
        ("pulsar", "nothing of a similar name is"),
    ):
        refused = say(house, "executor", "pause", wrong)
        assert refused.exit_code == 1
        assert near in refused.stderr
        assert "--force" in refused.stderr
    assert status(house)["pauses"] == []
    for right in (house.namespace, f"{house.namespace}/orders", "all"):
        assert say(house, "executor", "pause", right).exit_code == 0
    assert say(house, "executor", "pause", "pulsar", "--force").output == "paused pulsar until it is resumed\n"
    assert len(status(house)["pauses"]) == 4


def test_a_pause_with_an_end_ends_by_itself(house: House):
    split = house.decide(house.create("orders"), 0)
    assert " until 20" in say(house, "executor", "pause", "all", "--for", "1s").output
    with house.running():
        house.commit(split)
        assert house.end(split)["status"] == "applied"
    if waits(house):
        assert waits(house) == [(split.decision_id, "pause")]


def test_paused_decision_not_called_again_nor_failed(house: House):
    split, clock = house.decide(house.create("orders"), 0), Clock()
    house.gate.always("POST", LOST_BEFORE)
    with house.running(clock):
        house.commit(split)
        wait_until(lambda: house.gate.count("POST"))
        say(house, "executor", "pause", house.namespace, "--force")
        wait_until(lambda: waits(house))
        calls = house.gate.count("POST")
        clock.now += timedelta(hours=2)
        house.gate.heal()
    with house.running(clock):
        assert status(house)["begun"] == 1
        wait_until(lambda: len(waits(house)) == 2)
        clock.now += timedelta(hours=2)
        assert house.gate.count("POST") == calls
        say(house, "executor", "resume", house.namespace)
        assert house.end(split)["status"] == "applied"
    assert house.gate.count("POST") == calls + 1


def test_paused_decision_survives_cluster_outage(house: House):
    split, clock = house.decide(house.create("orders"), 0), Clock()
    house.gate.always("POST", LOST_BEFORE)
    with house.running(clock):
        house.commit(split)
        wait_until(lambda: house.gate.count("POST"))
        house.gate.always("GET", LOST_BEFORE)
        say(house, "executor", "pause", "all")
        clock.now += timedelta(seconds=100)
        wait_until(lambda: waits(house))
        clock.now += timedelta(hours=2)
        house.gate.heal()
        say(house, "executor", "resume", "all")
        assert house.end(split)["status"] == "applied"


def test_effect_visible_during_pause_ends_decision(house: House):
    split = house.decide(house.create("orders"), 0)
    stale = house.controller.client.get(f"/admin/v2/scalable/{house.namespace}/orders").text
    house.gate.on("GET", answers(200, stale), answers(200, stale))
    with house.running(retry_seconds=(1, 1)):
        house.commit(split)
        wait_until(lambda: house.gate.count("POST"))
        say(house, "executor", "pause", "all")
        assert house.end(split)["status"] == "applied"
    assert house.gate.count("POST") == 1


class Steady:
    """A steady clock that the test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def splits(house: House, number: int) -> list:
    return [house.decide(house.create(f"topic-{one:02d}"), 0) for one in range(number)]


def ended(house: House, decided: Sequence) -> set[str]:
    return {row["decision_id"] for row in house.ends()} & {one.decision_id for one in decided}


@pytest.mark.parametrize("limit", ["actions_per_minute", "actions_per_minute_per_namespace"])
def test_rate_kept_across_restart_in_order(house: House, limit: str):
    decided, clock, steady = splits(house, 6), Clock(), Steady()
    limited = {"brakes": brakes(**{limit: 4})}
    house.commit(*decided[:3])
    with house.running(clock, steady=steady, **limited):
        wait_until(lambda: len(house.ends()) == 3)
    clock.now += timedelta(seconds=30)
    steady.now = 5.0  # another process, perhaps on another machine
    with house.running(clock, steady=steady, **limited):
        house.commit(*decided[3:])
        wait_until(lambda: len(house.ends()) == 4 and len(waits(house)) == 2)
        assert waits(house) == [(one.decision_id, "rate") for one in decided[4:]]
        assert house.outcomes(decided[4]) == []
        assert status(house)["calls"]["limit"] == 0  # of the settings that people have
        steady.now, clock.now = 36.0, clock.now + timedelta(seconds=31)
        wait_until(lambda: len(house.ends()) == 6)
    assert house.gate.count("POST") == 6


def test_namespace_rate_spares_other_namespaces(house: House):
    decided = splits(house, 4)
    other = House(house.lake, house.controller, house.gate, house.controller.new_namespace(), house.published)
    elsewhere = other.decide(other.create("orders"), 0)
    with house.running(brakes=brakes(actions_per_minute_per_namespace=2)):
        house.commit(*decided[:3], elsewhere)
        wait_until(lambda: len(house.ends()) == 3 and waits(house))
        # The calls have ended, but still count for a minute.
        house.commit(decided[3])
        wait_until(lambda: len(waits(house)) == 2)
    assert waits(house) == [(one.decision_id, "rate") for one in decided[2:]]
    assert house.gate.count("POST") == 3
    assert ended(house, [elsewhere])


def test_failures_of_all_shards_count_until_resumed(house: House):
    house.gate.always("POST", answers(412, '{"reason":"not now"}'))
    names = [f"topic-{number}" for number in range(16)]
    for turn, number in enumerate((0, 1, 0)):
        chosen = next(name for name in names if shard_of(f"topic://{house.namespace}/{name}", 2) == number)
        names.remove(chosen)
        one = house.decide(house.create(chosen), 0)
        shard = Shard(number, turn + 1, lambda subject, mine=number: shard_of(subject, 2) == mine)
        with house.running(shard=shard, brakes=part_of(brakes(failures=2), number, 2)):
            house.commit(one)
            assert house.end(one)["status"] == "rejected"
        stop = status(house)["stop"]
        assert (stop is not None) == (turn == 1)
        if stop is not None:
            assert stop["reason"].startswith("2 failures within 600 s")
            assert say(house, "executor", "resume", "all").exit_code == 0


def test_failures_stop_executor_until_resumed(house: House):
    decided, limits = splits(house, 6), {"brakes": brakes(failures=2), "workers": 1}
    house.gate.always("POST", answers(412, '{"reason":"not now"}'))
    with house.running(**limits):
        house.commit(*decided[:1])
        assert house.end(decided[0])["status"] == "rejected"
        house.commit(*decided[1:2])
        assert house.end(decided[1])["status"] == "rejected"
        house.commit(*decided[2:5])
        wait_until(lambda: len(waits(house)) == 3)
    stop = status(house)["stop"]
    assert stop["reason"] == f"2 failures within 600 s, the last: {decided[1].subject}: 412 not now"
    house.gate.heal()
    with house.running(**limits):
        wait_until(lambda: len(waits(house)) == 6)
        assert {brake for _, brake in waits(house)} == {"stop"}
        assert len(house.ends()) == 2
        assert "ended the stop of everything by" in say(house, "executor", "resume", "all", reason="mended").output
        wait_until(lambda: len(house.ends()) == 5)
    assert status(house)["stop"] is None
    # Failures from before the resumption no longer count, not even after a restart.
    house.gate.always("POST", answers(412, '{"reason":"not now"}'))
    with house.running(**limits):
        house.commit(decided[5])
        assert house.end(decided[5])["status"] == "rejected"
    assert status(house)["stop"] is None


@pytest.mark.process
def test_approval_survives_kill_before_intent(house: House, tmp_path: Path):
    split = house.decide(house.create("orders"), 0)
    house.commit(split)
    with started(house, tmp_path, "before-intent", 'mode = "approve"\n') as process:
        wait_until(lambda: waits(house), 30)
        say(house, "approve", split.decision_id)
        assert process.wait(30) == -signal.SIGKILL
    assert house.outcomes() == []
    with house.running(mode="approve"):
        assert house.end(split)["status"] == "applied"
    assert waits(house) == [(split.decision_id, "approval")]


@pytest.mark.process
def test_kill_between_stop_and_failure_keeps_both(house: House, tmp_path: Path):
    split = house.decide(house.create("orders"), 0)
    house.gate.always("POST", answers(412, '{"reason":"not now"}'))
    house.commit(split)
    with started(house, tmp_path, "before-end", "[executor.brakes]\nfailures = 1\n") as process:
        assert process.wait(30) == -signal.SIGKILL
    assert status(house)["stop"]["reason"] == f"1 failures within 600 s, the last: {split.subject}: 412 not now"
    house.gate.heal()
    with house.running(brakes=brakes(failures=1)):
        wait_until(lambda: waits(house) == [(split.decision_id, "stop")])
        assert (house.ends(), house.gate.count("POST")) == ([], 1)
        say(house, "executor", "resume", "all")
        assert house.end(split)["status"] == "applied"


@pytest.mark.process
def test_call_without_row_after_kill_counts_for_rate(house: House, tmp_path: Path):
    first, second = splits(house, 2)
    house.commit(first)
    with started(house, tmp_path, "after-call", "[executor.brakes]\nactions_per_minute = 1\n") as process:
        assert process.wait(30) == -signal.SIGKILL
    house.commit(second)
    with house.running(brakes=brakes(actions_per_minute=1)):
        assert house.end(first)["status"] == "applied"
        wait_until(lambda: waits(house) == [(second.decision_id, "rate")])
    assert (house.outcomes(second), house.gate.count("POST")) == ([], 1)


def test_a_window_holds_until_it_opens(house: House):
    split, clock = house.decide(house.create("orders"), 0), Clock()
    nightly = {"acting": "allowed", "days": DAYS, "start": "22:00", "end": "23:00", "zone": "UTC"}
    with house.running(clock, steady=Steady(), brakes=brakes(windows=[nightly])):
        house.commit(split)
        wait_until(lambda: waits(house) == [(split.decision_id, "window")])
    clock.now = clock.now.replace(hour=22)
    with house.running(clock, brakes=brakes(windows=[nightly])):
        assert house.end(split)["status"] == "applied"


def test_metrics_and_page_name_every_safeguard(house: House):
    split = house.decide(house.create("orders"), 0)
    say(house, "executor", "pause", house.namespace, "--force")
    with house.running() as executor:
        registry = registry_of(lambda: [executor])
        house.commit(split)
        wait_until(lambda: registry.get_sample_value("anabranch_executor_waiting_decisions", {"brake": "pause"}))
        assert registry.get_sample_value("anabranch_executor_pauses") == 1
        assert registry.get_sample_value("anabranch_executor_stopped") == 0
        say(house, "executor", "resume", house.namespace)
        house.end(split)
        wait_until(lambda: registry.get_sample_value("anabranch_executor_calls_total") == 1)
        wait_until(lambda: registry.get_sample_value("anabranch_executor_open_decisions") == 0)
        samples = {sample.name for metric in registry.collect() for sample in metric.samples}
    page = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
    assert {name for name in samples if f"`{name}`" not in page} == set()


SQL_PAGE = Path(__file__).parents[2] / "docs" / "sql.md"


def test_documented_queries_show_pauses_and_waits(house: House):
    split = house.decide(house.create("orders"), 0)
    for scope, verb in (("all", "pause"), ("acme/one", "pause"), ("acme/two", "pause"), ("acme/one", "resume")):
        say(house, "executor", verb, scope, *(["--force"] if verb == "pause" else []), reason=f"{verb} {scope}")
    with house.running():
        house.commit(split)
        wait_until(lambda: waits(house))
        say(house, "reject", split.decision_id, by="bob")
        house.end(split)
        house.commit(house.decide(split.subject, 0), decision_id="second")
        wait_until(lambda: len(waits(house)) == 2)
    part = SQL_PAGE.read_text().partition("What brakes the executor")[2]
    paused, waiting, verdicts = part.partition("```sql\n")[2].partition("```")[0].split(";\n")[:3]

    def answer(query: str) -> list[dict]:
        return LakeSql(house.lake).ask(query).read_all().to_pylist()

    assert sorted(row["subject"] for row in answer(paused)) == ["*", "acme/two"]
    assert [(row["decision_id"], row["brake"]) for row in answer(waiting)] == [("second", "pause")]
    assert [(row["act"], row["actor"], row["status"]) for row in answer(verdicts)] == [("reject", "bob", "rejected")]


def test_live_picture_shows_current_holds(house: House):
    split = house.decide(house.create("orders"), 0)
    reader = LakeReader(house.lake)
    say(house, "executor", "pause", house.namespace, "--force", reason="broker upgrade")
    with house.running():
        house.commit(split)
        view = wait_until(lambda: (seen := reader.refresh()).brakes.waiting and seen)
        assert [(act.subject, act.reason) for act in view.brakes.pauses] == [(house.namespace, "broker upgrade")]
        assert dict(view.brakes.waiting) == {"pause": 1}
        assert [decision.brake for decision in view.decisions] == ["pause"]
        frame = export_frame(view, (), form="text")
        assert f"‖ {house.namespace} is paused by ann: broker upgrade" in frame
        assert "waits: pause" in frame
        say(house, "executor", "resume", house.namespace)
        house.end(split)
    view = reader.refresh()
    assert (view.brakes, [decision.brake for decision in view.decisions]) == (BrakesView(), [None])


def test_the_status_tells_people_what_holds_and_why(house: House):
    split = house.decide(house.create("orders"), 0)
    say(house, "executor", "pause", "acme/other", "--force", reason="broker upgrade", by="bob")
    with house.running(mode="approve"):
        house.commit(split)
        wait_until(lambda: waits(house))
    text = say(house, "executor", "status", reason=None).output
    assert "paused    acme/other without an end, bob at" in text
    assert ": broker upgrade" in text
    assert "waiting   1 for approval" in text
    assert f'  {split.decision_id}  split {{"segments":[0]}} of {split.subject}' in text
    assert f"needs: anabranch decisions approve {split.decision_id} --reason …" in text
    assert executor_settings().mode == "act"


def test_foreign_decisions_and_failures_ignored(house: House):
    """A switch between BookKeeper clusters records its steps itself, among the same tables."""
    ours, theirs = splits(house, 2)
    house.commit(theirs, family="bookies", subject="standalone/old-new-1", action="copy")
    ledger = house.open_ledger()
    rows = [
        ledger.row(
            decision_id=f"step-{number}",
            family="bookies",
            subject="standalone/old-new-1",
            status="failed",
            attempt=1,
            at=datetime.now(timezone.utc),
        )
        for number in range(3)
    ]
    ledger.append(rows)
    with house.running(brakes=brakes(failures=1)) as executor:
        house.commit(ours)
        assert house.end(ours)["status"] == "applied"
        assert executor.open_decisions == 0
    assert house.outcomes(theirs) == []
    assert status(house)["stop"] is None
