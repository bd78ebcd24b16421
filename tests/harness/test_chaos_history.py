"""The checker of a chaos run: a good history passes, and every kind of bad one is found and named."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from tests.harness.chaos.announced import announced
from tests.harness.chaos.checker import Checker, check
from tests.harness.chaos.history import (
    AnnouncedCount,
    AnnouncedLayout,
    Call,
    ClientHistory,
    Delivery,
    End,
    Held,
    LostSession,
    SeenAbsent,
    SeenAssignment,
    SeenLayout,
)
from tests.harness.chaos.topic_rules import KEPT_EPOCHS, KEPT_IDS, KEPT_LIVES, KEPT_NAMES

TOPIC = "topic://acme/chaos/t"
WHOLE, LOWER, UPPER = (0, 0xFFFF), (0, 0x7FFF), (0x8000, 0xFFFF)
FIRST = SeenLayout(TOPIC, 0, {0: WHOLE}, {0: WHOLE}, "one", 1.0, 2.0)
SECOND = SeenLayout(TOPIC, 1, {1: LOWER, 2: UPPER}, {0: WHOLE, 1: LOWER, 2: UPPER}, "one", 3.0, 4.0)
END = End(SECOND, (), {"rest": frozenset({"r1"})})
NEXT = replace(FIRST, life=1, by="next", asked_at=9.5, seen_at=10.0)
MINE = Held(TOPIC, 0, "streams", 1, "a", 1.0, 5.0)
LATE = replace(SECOND, by="late", asked_at=11.0, seen_at=12.0)
LOST = Delivery(TOPIC, 0, frozenset({4, 7}), frozenset({7}))
PARENT = "segment://acme/chaos/t/0000-ffff-0"


def counted(*counts: int) -> list[AnnouncedCount]:
    return [AnnouncedCount(TOPIC, "rest", count) for count in counts]


def layouts(*epochs: int, cause: str = "split") -> list[AnnouncedLayout]:
    return [AnnouncedLayout(TOPIC, epoch, cause, 1 + 2 * epoch) for epoch in epochs]


def good() -> ClientHistory:
    """One split, two registrations and a goodbye; one call without an answer that did not happen."""
    return ClientHistory(
        layouts=[FIRST, SECOND, replace(SECOND, by="two", asked_at=3.5, seen_at=9.0)],
        calls=[
            Call(TOPIC, "split", "0", 204),
            Call(TOPIC, "split", "1", 412),
            Call(TOPIC, "merge", "1 2", None),
            Call(TOPIC, "register", "rest/r1", 204),
            Call(TOPIC, "register", "rest/r2", 204),
            Call(TOPIC, "unregister", "rest/r2", 204),
            Call(TOPIC, "register", "rest/r3", 503),
        ],
        assignments=[SeenAssignment(TOPIC, "streams", frozenset({1, 2}), {"a": (1,), "b": (2,), "c": ()})],
        held=[MINE, replace(MINE, segment=2, consumer="b"), replace(MINE, consumer="c", since=4.5, until=9.0)],
        deliveries=[Delivery(TOPIC, 0, frozenset({1, 2}), frozenset({1, 2, 3}))],
        announced=[*layouts(0, 1), *counted(1, 2, 1)],
        ends=[END],
    )


def test_a_good_history_breaks_no_rule() -> None:
    assert check(good()) == []


def with_layout(layout: SeenLayout) -> Callable[[ClientHistory], None]:
    return lambda history: history.layouts.append(layout)


def with_end(**changed: object) -> Callable[[ClientHistory], None]:
    return lambda history: history.ends.__setitem__(0, replace(END, **changed))  # type: ignore[arg-type]


def with_assignment(**held: tuple[int, ...]) -> Callable[[ClientHistory], None]:
    return lambda history: history.assignments.append(SeenAssignment(TOPIC, "streams", frozenset({1, 2}), held))


def with_held(**changed: object) -> Callable[[ClientHistory], None]:
    return lambda history: history.held.append(replace(MINE, **changed))  # type: ignore[arg-type]


def with_call(call: Call) -> Callable[[ClientHistory], None]:
    return lambda history: history.calls.append(call)


def announcing(*announced: Sequence[AnnouncedLayout | AnnouncedCount]) -> Callable[[ClientHistory], None]:
    return lambda history: history.announced.__setitem__(slice(None), [one for some in announced for one in some])


def unanswered(at: int) -> Callable[[ClientHistory], None]:
    return lambda history: history.calls.__setitem__(at, replace(history.calls[at], status=None))


@pytest.mark.parametrize(
    ("spoil", "found"),
    [
        (with_layout(replace(SECOND, active={1: LOWER}, epoch=1)), "gap at 8000 in epoch 1"),
        (with_layout(replace(SECOND, active={1: (0, 0x7FFE), 2: UPPER})), "gap at 7fff"),
        (with_layout(replace(SECOND, active={1: LOWER, 2: (0x7FFF, 0xFFFF)})), "overlap at 7fff"),
        (with_layout(replace(SECOND, active={0: WHOLE, 2: UPPER})), "overlap at 8000"),
        (with_layout(replace(FIRST, asked_at=5.0, seen_at=6.0)), "one went back from epoch 1 to 0"),
        (with_layout(replace(FIRST, by="late", asked_at=5.0, seen_at=6.0)), "asked after epoch 1 was seen"),
        (with_layout(replace(SECOND, by="x", active={3: WHOLE}, known={3: WHOLE})), "two layouts of epoch 1"),
        (with_layout(replace(SECOND, by="x", known={0: WHOLE, 1: UPPER, 2: LOWER})), "two segments of id 1"),
        (with_assignment(a=(1, 2), b=(2,)), "segment 2 belongs to a and b"),
        (with_assignment(a=(1,), b=()), "segment 2 belongs to nobody"),
        (with_held(since=3.0, consumer="c"), "segment 1 belonged to a and c for 2.00 s, from 3.00 on"),
        (with_held(since=0.0, until=9.0, consumer="c"), "segment 1 belonged to c and a for 4.00 s, from 1.00 on"),
        (lambda history: history.deliveries.append(LOST), "1 of 2 messages were never read: 4"),
        (lambda history: history.absences.append(SeenAbsent(TOPIC, "x", 1.0, 1.5)), "asked 0.50 s after its creation"),
        (lambda history: history.layouts.extend([NEXT, LATE]), "asked after epoch 0 of life 1 was seen"),
        (lambda history: history.lost.append(LostSession(TOPIC, "s", "c", "why")), "c of s was evicted: why"),
        (with_end(open_operations=("split 7f",)), "the split 7f is half done"),
        (with_end(consumers={"rest": frozenset()}), "the registration of rest/r1 is lost"),
        (with_end(consumers={"rest": frozenset({"r1", "r2"})}), "nobody has registered rest/r2, or it was"),
        (with_end(consumers={"rest": frozenset({"r1", "r9"})}), "nobody has registered rest/r9"),
        (announcing(layouts(0), counted(1)), "epoch 0 was announced last, and it is at 1"),
        (announcing(layouts(0, 1, 1), counted(1)), "epoch 1 (split) was announced after 1"),
        (announcing(layouts(1, 0), counted(1)), "epoch 1 (split) was announced after -1"),
        (announcing(layouts(0, 1, cause="prune"), counted(1)), "epoch 1 (prune) was announced after 0"),
        (announcing(layouts(0, 1), counted(1, 2)), "2 consumers of rest were announced last, and there are 1"),
        (announcing(layouts(0, 1), counted(1, 3, 2, 1)), "were announced as 3 after 1"),
        (announcing(layouts(0, 1), []), "0 consumers of rest were announced last, and there are 1"),
        (with_end(segment_topics={}, segments={PARENT: True}), "0000-ffff-0 has no topic"),
        (with_end(segment_topics={PARENT: True}), "0000-ffff-0 has a topic and is in no layout"),
        (with_end(segment_topics={PARENT: False}, segments={PARENT: True}), "is sealed and takes writes"),
        (with_end(segment_topics={PARENT: True}, segments={PARENT: False}), "is active and takes none"),
        (with_call(Call(TOPIC, "split", "2", 204)), "2 changes were done and 1 had no answer, 0 segments"),
        (lambda history: history.calls.pop(0) and history.calls.pop(1), "0 changes were done and 0 had no answer"),
    ],
)
def test_what_is_wrong_is_found_and_named(spoil: Callable[[ClientHistory], object], found: str) -> None:
    history = good()
    spoil(history)
    assert found in "\n".join(check(history))


@pytest.mark.parametrize("at", [0, 3, 5])
def test_unanswered_call_may_have_happened(at: int) -> None:
    history = good()
    unanswered(at)(history)
    assert check(history) == []


def test_push_may_predate_other_observations() -> None:
    history = good()
    history.layouts.append(replace(FIRST, by="watch", asked_at=1.5, seen_at=20.0))
    assert check(history) == []


def test_repeated_announcements_allowed_where_declared() -> None:
    history = good()
    history.announced = [*layouts(0, 1, 0, 1), *counted(1, 2, 1, 2, 1)]
    assert check(history) != []
    assert Checker(repeats=True).check(history) == []
    history.announced = [*layouts(0), *counted(1)]
    assert Checker(repeats=True).check(history) == [f"{TOPIC}: epoch 0 was announced last, and it is at 1"]


def test_pruned_segments_raise_the_epoch_each_by_one() -> None:
    history = good()
    pruned = replace(SECOND, epoch=2, known={1: LOWER, 2: UPPER}, seen_at=10.0, asked_at=9.5, by="three")
    history.layouts.append(pruned)
    history.announced.append(AnnouncedLayout(TOPIC, 2, "prune", 2))
    history.ends = [replace(END, layout=pruned)]
    assert check(history) == []


def test_recreated_topic_begins_new_incarnation() -> None:
    history = good()
    history.layouts.append(NEXT)
    history.calls.append(Call(TOPIC, "register", "rest/r9", 204, life=1))
    history.announced += [
        AnnouncedCount(TOPIC, "rest", 0, deleted=True),
        AnnouncedLayout(TOPIC, 1, "deleted", 3),
        AnnouncedLayout(TOPIC, 0, "created", 1, life=1),
        AnnouncedCount(TOPIC, "rest", 1),
    ]
    history.held.append(replace(MINE, life=1, consumer="c"))
    history.ends = [End(NEXT, (), {"rest": frozenset({"r9"})})]
    assert check(history) == []
    history.announced.append(AnnouncedLayout(TOPIC, 2, "split", 5))
    assert check(history) == [f"{TOPIC}: life 0 was announced after life 1"]
    history.announced[-1:] = []
    history.ends = [End(NEXT, (), {"rest": frozenset({"r1", "r9"})})]
    assert f"{TOPIC}: nobody has registered rest/r1, or it was unregistered" in check(history)


def test_deleted_incarnation_is_silent() -> None:
    history = good()
    history.announced += [AnnouncedLayout(TOPIC, 1, "deleted", 3), AnnouncedLayout(TOPIC, 2, "split", 5)]
    assert f"{TOPIC}: epoch 2 (split) was announced after 1" in check(history)


def parts(*histories: ClientHistory) -> list[str]:
    checker = Checker()
    return [line for history in histories for line in checker.check(history)]


def test_divided_history_judged_as_whole() -> None:
    whole = good()
    first = ClientHistory(layouts=whole.layouts[:1], calls=whole.calls[:4], announced=whole.announced[:3])
    second = ClientHistory(
        layouts=whole.layouts[1:],
        calls=whole.calls[4:],
        announced=whole.announced[3:],
        ends=whole.ends,
        assignments=whole.assignments,
    )
    assert parts(first, second) == []
    went_back = ClientHistory(layouts=[replace(FIRST, asked_at=20.0, seen_at=21.0)])
    assert f"{TOPIC}: one went back from epoch 1 to 0" in parts(whole, went_back)
    late = ClientHistory(layouts=[replace(FIRST, by="late", asked_at=20.0, seen_at=21.0)])
    assert parts(whole, late) == [f"{TOPIC}: late asked after epoch 1 was seen, and was given 0"]
    pushed = ClientHistory(layouts=[replace(FIRST, by="watch", asked_at=1.5, seen_at=21.0)])
    assert parts(whole, pushed) == []
    forked = ClientHistory(
        layouts=[replace(SECOND, by="x", asked_at=20.0, seen_at=21.0, active={3: WHOLE}, known={2: LOWER})]
    )
    assert len(parts(whole, forked)) == 2
    assert parts(whole, ClientHistory(announced=[*layouts(1)])) == [f"{TOPIC}: epoch 1 (split) was announced after 1"]


def test_incarnation_with_many_followers_still_known() -> None:
    """Many incarnations follow within one part before its end is announced."""
    calls = [Call(TOPIC, "split", "0", 204, life) for life in range(KEPT_LIVES + 2)]
    announced = [
        AnnouncedLayout(TOPIC, epoch, cause, 1 + 2 * epoch, life)
        for life in range(KEPT_LIVES + 2)
        for epoch, cause in ((0, "created"), (1, "split"), (1, "deleted"))
    ]
    assert parts(ClientHistory(announced=announced[:1]), ClientHistory(calls=calls, announced=announced[1:])) == []


def test_what_is_carried_from_part_to_part_is_bounded() -> None:
    checker = Checker()
    for start in range(0, 3_000, 100):
        history = ClientHistory()
        for epoch in range(start, start + 100):
            at = float(epoch)
            known = dict.fromkeys(range(10 * epoch, 10 * epoch + 10), WHOLE)
            history.layouts.append(SeenLayout(TOPIC, epoch, {0: WHOLE}, known, f"by {epoch}", at, at + 0.5))
            history.calls.append(Call(TOPIC, "register", f"rest/{epoch}", 204))
            history.calls.append(Call(TOPIC, "unregister", f"rest/{epoch}", 204))
        assert checker.check(history) == []
    topic = checker._topics[TOPIC]
    assert (len(topic._by_epoch), len(topic._by_id), len(topic._newest)) == (KEPT_EPOCHS, KEPT_IDS, KEPT_NAMES)
    assert not topic._lives[0].registered
    for life in range(10):
        checker.check(ClientHistory(calls=[Call(TOPIC, "split", "0", 204, life)]))
    assert len(topic._lives) == KEPT_LIVES


def test_foreign_announcements_left_out():
    others = [("control-events", key, b"of others") for key in (b"topic://acme/others/t", None)]
    assert not list(announced(others))
