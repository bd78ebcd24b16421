"""Pure: who has which shard, over all orders in which executors come, beat, fall silent and give back."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.executor.shards.members import (
    HeartbeatWatch,
    Member,
    Members,
    Removed,
    Unlike,
    after_beat,
    excess,
    fair_part,
    shard_of,
)

AT = datetime(2026, 11, 20, 12, 0, tzinfo=timezone.utc)


def member(number: int, of: int = 4, mode: str = "act") -> Member:
    return Member(f"m{number}", mode, of, 20.0, AT + timedelta(seconds=number))


def beaten(
    members: Members, me: Member, number: int, dead: tuple[str, ...] = (), back: tuple[int, ...] = ()
) -> Members:
    known = next((one for one in members if one.name == me.name), me)
    return after_beat(members, known, number, dead, back)


@pytest.mark.parametrize(("count", "parts"), [(1, [4]), (2, [2, 2]), (3, [2, 1, 1]), (5, [1, 1, 1, 1, 0])])
def test_fair_parts_cover_all_shards(count: int, parts: list[int]):
    names = [f"m{number}" for number in range(count)]
    assert [fair_part(names, name, 4) for name in names] == parts


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["beat", "die", "give back"])), max_size=40))
def test_shard_has_one_holder_and_tokens_grow(acts: list[tuple[int, str]]):
    """All shards are held and evenly shared at rest."""
    members: Members = ()
    newest: dict[int, int] = {}
    for number, (who, act) in enumerate(acts, 1):
        names = [one.name for one in members]
        me = member(who)
        back = excess(members, me.name) if act == "give back" and me.name in names else ()
        dead = (f"m{(who + 1) % 4}",) if act == "die" else ()
        members = beaten(members, me, number, dead, back)
        held = [pair for one in members for pair in one.tokens]
        assert len({shard for shard, _ in held}) == len(held)
        for shard, token in held:
            assert token >= newest.get(shard, 0)
            newest[shard] = token
    for number in range(len(acts) + 1, len(acts) + 12):
        for one in members:
            members = beaten(members, one, number, (), excess(members, one.name))
    if members:
        assert sorted(shard for one in members for shard in one.shards) == [0, 1, 2, 3]
        assert max(len(one.shards) for one in members) - min(len(one.shards) for one in members) <= 1


def test_presumed_dead_name_not_readmitted():
    members = beaten(beaten((), member(0), 1), member(1), 2)
    me = next(one for one in members if one.name == "m0")
    without = beaten(members, member(1), 3, dead=("m0",))
    assert [one.shards for one in without] == [(0, 1, 2, 3)]
    with pytest.raises(Removed):
        after_beat(without, me, 4, (), ())


@pytest.mark.parametrize("other", [member(1, of=3), member(1, mode="observe")])
def test_mixed_shard_counts_or_modes_refused(other: Member):
    members = beaten((), member(0), 1)
    with pytest.raises(Unlike, match="the executor m0 is at work on this lake with 4 shards in mode act"):
        beaten(members, other, 2)
    assert beaten(members, other, 2, dead=("m0",))[0].name == "m1"


def test_silence_measured_between_polls():
    """Silence lasts from the end of one poll to the beginning of a later one."""
    watch, members = HeartbeatWatch(), beaten((), member(0), 1)
    assert watch.dead(members, 100.0, 105.0) == frozenset()
    assert watch.dead(members, 124.9, 130.0) == frozenset()
    assert watch.dead(members, 125.0, 130.0) == {"m0"}
    assert watch.dead(beaten(members, member(0), 2), 125.0, 130.0) == frozenset()


def test_subjects_map_to_shards_across_releases():
    spread = [shard_of(f"topic://acme/shop/t{number}", 4) for number in range(1_000)]
    assert [spread.count(shard) for shard in range(4)] == pytest.approx([250] * 4, abs=60)
    assert [shard_of("topic://acme/shop/orders", shards) for shards in (1, 4, 64)] == [0, 2, 50]
