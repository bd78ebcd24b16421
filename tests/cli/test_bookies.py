"""`anabranch bookies` where no cluster is needed: usage, history, what a status says."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from urllib.error import URLError
from urllib.request import urlopen

import pytest
from click.testing import CliRunner, Result

from anabranch.bookkeeper.orchestrator import Progressed
from anabranch.bookkeeper.term import CurrentOrchestrator
from anabranch.cli.bookies import switch
from anabranch.cli.bookies.report import status_text
from anabranch.cli.main import cli
from anabranch.local.broker import free_ports
from decisions.bookkeeper.decide import decide
from decisions.bookkeeper.gates import ledger_advice
from schemas.bookies import BookieSnapshot
from schemas.settings.root import load_settings
from tests.decisions.bookkeeper.world import before_switch, changed, in_switch, ledger, to_the_end
from tests.query.views.recorded_switch import SwitchStory


def run(*arguments: str, lake: Path | None = None) -> Result:
    config = []
    if lake is not None:
        file = lake.parent / "own.toml"
        file.write_text(f'[lake]\npath = "{lake}"\n')
        config = ["--config", str(file)]
    return CliRunner().invoke(cli, [*config, "bookies", *arguments])


def status(world: BookieSnapshot, held: CurrentOrchestrator | None = None) -> str:
    world = changed(world, operation="status")
    return status_text(world, decide(world), held)


def test_missing_metadata_store_gets_advice() -> None:
    result = run("list")
    assert result.exit_code == 2
    assert "--metadata HOST:PORT" in result.output


@pytest.mark.parametrize(
    ("address", "reason"), [("127.0.0.1:1", "Connection refused"), ("no.invalid:2181", "Cannot resolve no.invalid")]
)
def test_silent_metadata_store_is_one_line_of_error(
    address: str, reason: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("anabranch.cli.metadata_client._CONNECT_SECONDS", 1.0)
    result = run("list", "--metadata", address)
    assert result.exit_code == 3
    assert result.stderr.count(reason) == 1
    assert f"Error: no ZooKeeper answers at {address}: " in result.stderr.splitlines()[-1]
    # Threads that other tests left in this process may say something.
    assert not [record for record in caplog.records if not record.name.startswith("anabranch.controller.")]


def test_history_shows_phases_and_what_failed(tmp_path: Path) -> None:
    assert "no switch is on record" in run("history", lake=tmp_path / "empty").output
    SwitchStory(str(tmp_path / "lake")).run(first_attempt_only=True)
    shown = run("history", lake=tmp_path / "lake").output
    assert "BUILD             attempt 1       10 steps in 1 s  1 failed" in shown
    assert "failed: ledger 4 of /schemas/acme/shop/carts" in shown
    [one] = json.loads(run("history", "--output", "json", lake=tmp_path / "lake").output)
    assert [phase["phase"] for phase in one["phases"]] == ["BUILD", "PROMOTE"]


@pytest.mark.parametrize(
    ("world", "following"),
    [
        (before_switch(clusters=[]), "anabranch bookies register --name NAME"),
        (before_switch(), "anabranch bookies precheck --name TARGET"),
        (in_switch(), "anabranch bookies switch --target new --no-dry-run goes on where it was"),
        (to_the_end(in_switch()), "anabranch bookies cleanup from 2025-11-28"),
        (changed(in_switch(), ledgers={}), "the ledgers of old were not listed"),
    ],
)
def test_a_status_ends_with_what_to_do_next(world: BookieSnapshot, following: str) -> None:
    assert following in status(world).splitlines()[-1]


def test_a_status_says_who_is_at_work_and_how_far() -> None:
    shown = status(in_switch(), CurrentOrchestrator("host:7", 3))
    assert "carried out by       host:7, term 3" in shown
    assert "0 of 3 on new, 3 to copy" in shown
    assert shown.splitlines()[-1].startswith("next: wait")


def test_every_switch_failure_has_advice() -> None:
    worlds = {
        "has no such ledger": [ledger(2), ledger(3)],
        "it is open": [ledger(1, closed=False), ledger(2), ledger(3)],
    }
    told = set()
    for reason, ledgers in worlds.items():
        stamped = in_switch(before_switch(ledgers={"old": ledgers, "new": []}))
        positions = [one.model_copy(update={"stamp": f"old:{one.ledger}"}) for one in stamped.schemas[0].positions]
        world = changed(stamped, schemas=[stamped.schemas[0].model_copy(update={"positions": positions})])
        answer = decide(changed(to_the_end(world), operation="status"))
        [failed] = answer.failed_ledgers
        assert reason in failed.reason
        told.add(ledger_advice(failed.ledger, failed.reason, "old", "new"))
    there = changed(in_switch(), ledgers={**in_switch().ledgers, "new": [ledger(1, length=1)]})
    [failed] = decide(changed(to_the_end(there), operation="status")).failed_ledgers
    told.add(ledger_advice(failed.ledger, failed.reason, "old", "new"))
    for reason in ("LedgerFenced: x", "NotEnoughBookies: x", "was open again after each of 5 unloads", "else"):
        told.add(ledger_advice(1, reason, "old", "new"))
    assert len(told) == 7


@pytest.mark.process
def test_progress_of_switch_is_served(tmp_path):
    (port,) = free_ports(1)
    settings = load_settings([], tmp_path, {"ANABRANCH_BOOKIES__METRICS_PORT": str(port)})
    with switch._meter(SimpleNamespace(settings=settings)) as moved:
        moved(Progressed("BUILD", "copy", done=5, of=17, failed=2))
        with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        with urlopen(f"http://127.0.0.1:{port}/livez", timeout=10) as answer:
            assert answer.status == 200
    for line in ('status="done"} 3.0', 'status="failed"} 2.0', 'status="left"} 12.0'):
        assert f"anabranch_bookies_steps{{{line}" in lines
    assert 'anabranch_live{part="bookies"} 1.0' in lines
    with pytest.raises(URLError):
        urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10)
