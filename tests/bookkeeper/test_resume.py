"""Commands killed at their effects, each followed by exactly the command that `status` prints."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from anabranch.bookkeeper.metadata import PulsarMetadata
from anabranch.bookkeeper.records import read_cursor, read_locator
from anabranch.bookkeeper.registry import RegistryStore
from lake.rows import WholeTables
from schemas.tables.rows import DECISIONS, OUTCOMES
from tests.bookkeeper.simulated import SWITCH, Simulated, registered, world
from tests.examples import only_first

ROLLBACK = ("rollback", "--no-dry-run")
CLEANUP = ("cleanup", "--force", "--no-dry-run")
MOST = 60


@pytest.fixture(scope="module")
def stages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Simulated]:
    """Return, by command, a Pulsar in which it has to be given; a test takes a copy."""
    tmp_path = tmp_path_factory.mktemp("stages")
    before = Simulated(tmp_path / "before", world())
    with before.under_the_commands():
        registered(before, "old", "new")
    switched = before.copied(tmp_path / "switched")
    with switched.under_the_commands():
        switched.ok(*SWITCH)
    back = switched.copied(tmp_path / "back")
    with back.under_the_commands():
        back.ok(*ROLLBACK)
        back.ok("precheck", "--name", "new", "--advance")
    return {"switch": before, "rollback": switched, "cleanup": switched, "switch again": back}


def outcome(one: Simulated) -> tuple[object, ...]:
    """Return attributions, ledgers and registry, without versions and times."""
    one.world.revive()
    metadata = PulsarMetadata(one.connected("pulsar:2181"))  # type: ignore[arg-type]
    stamps = {at.ledger: at.stamp for record in metadata.schemas() for at in read_locator(record.content)}
    cursors = [read_cursor(record.content) for record in metadata.cursors()]
    statuses = {at.name: at.status for at in RegistryStore(metadata, "/admin/bookie-clusters").read().clusters}
    return stamps, [(at.ledger, at.stamp) for at in cursors], one.world.ledgers, statuses


def unharmed(one: Simulated) -> None:
    """Require that every ledger on record is whole somewhere, and exactly one cluster ACTIVE."""
    for number in (1, 2):
        assert any(number in there and there[number].closed for there in one.world.ledgers.values())
    *_, statuses = outcome(one)
    assert list(statuses.values()).count("ACTIVE") == 1  # type: ignore[attr-defined]


@pytest.mark.parametrize("every", only_first(1, [3, 1]))
@pytest.mark.parametrize(("stage", "command"), [("switch", SWITCH), ("rollback", ROLLBACK), ("cleanup", CLEANUP)])
def test_kill_at_any_effect_resumes_as_stated(
    stages: dict[str, Simulated], tmp_path: Path, stage: str, command: Sequence[str], every: int
) -> None:
    """In `make test` at every second effect: over the three commands, each kind of effect has its turn."""
    undisturbed = stages[stage].copied(tmp_path / "undisturbed")
    with undisturbed.under_the_commands():
        undisturbed.ok(*command)
        expected = outcome(undisturbed)
    told = set()
    for kill_at in range(1, MOST, every):
        one = stages[stage].copied(tmp_path / f"killed-{kill_at}")
        with one.under_the_commands():
            before = outcome(one)
            if one.run(*command, kill_at=kill_at) is not None:
                break
            unharmed(one)
            # Without a command nothing has been done yet, or all of it.
            following = one.next_command()
            if following is None:
                assert outcome(one) in (before, expected), kill_at
                following = list(command)
            else:
                told.add(" ".join(following))
            assert one.run(*following, kill_at=2) is None or outcome(one) == expected, "killed while it resumes"
            unharmed(one)
            one.ok(*(one.next_command() or command))
            assert outcome(one) == expected, f"killed at effect {kill_at}, resumed with {following}"
            assert "all in order" in one.ok("check")
            rows = WholeTables(f"{one.folder}/lake")
            ends = sorted(row["decision_id"] for row in rows.rows(OUTCOMES) if row["status"] != "intent")
            assert ends == sorted(row["decision_id"] for row in rows.rows(DECISIONS)), "each step ended once"
    else:
        raise AssertionError("the command has more effects than were tried")
    assert kill_at > 5
    assert told == {" ".join(command)}


def test_repeated_rollback_does_nothing(stages: dict[str, Simulated], tmp_path: Path) -> None:
    one = stages["switch again"].copied(tmp_path / "back")
    with one.under_the_commands():
        result = one.run(*ROLLBACK)
        assert result is not None
        assert (result.exit_code, "ROLLED_BACK" in result.output) == (0, True)


def test_crash_mark_stays_until_somebody_has_waited(stages: dict[str, Simulated], tmp_path: Path) -> None:
    """One that resumes a copy need not wait, so it does not vouch for the deletions of the one before."""
    one = stages["switch"].copied(tmp_path / "crashed")
    with one.under_the_commands():
        assert one.run(*SWITCH, kill_at=8) is None
        one.ok(*SWITCH)
        assert "did not leave" in one.ok(*ROLLBACK)
        assert "did not leave" not in one.ok("precheck", "--name", "new", "--advance")
        assert "did not leave" not in one.ok(*SWITCH)
