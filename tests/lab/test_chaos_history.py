"""The checker of a chaos run: a good history passes, and every kind of bad one is found and named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from lab.chaos.history import Call, End, History, Holding, LostSession, SeenLayout, check

TOPIC = "topic://acme/chaos/t"
WHOLE, LOWER, UPPER = (0, 0xFFFF), (0, 0x7FFF), (0x8000, 0xFFFF)
FIRST = SeenLayout(TOPIC, 0, {0: WHOLE}, {0: WHOLE}, "one", 1.0, 2.0)
SECOND = SeenLayout(TOPIC, 1, {1: LOWER, 2: UPPER}, {0: WHOLE, 1: LOWER, 2: UPPER}, "one", 3.0, 4.0)
END = End(SECOND, (), {"rest": frozenset({"r1"})}, (0, 1), {"rest": (1, 2, 1)})


def good() -> History:
    """One split, two registrations and a goodbye; one call without an answer that did not happen."""
    return History(
        layouts=[FIRST, SECOND, replace(SECOND, by="two", asked_at=3.5, seen_at=9.0)],
        calls=[
            Call(TOPIC, "split", "0", 204),
            Call(TOPIC, "split", "1", 409),
            Call(TOPIC, "merge", "1 2", None),
            Call(TOPIC, "register", "rest/r1", 204),
            Call(TOPIC, "register", "rest/r2", 204),
            Call(TOPIC, "unregister", "rest/r2", 204),
            Call(TOPIC, "register", "rest/r3", 503),
        ],
        holdings=[Holding(TOPIC, "streams", frozenset({1, 2}), {"a": (1,), "b": (2,), "c": ()})],
        ends=[END],
    )


def test_a_good_history_breaks_no_rule() -> None:
    assert check(good()) == []


def with_layout(layout: SeenLayout) -> Callable[[History], None]:
    return lambda history: history.layouts.append(layout)


def with_end(**changed: object) -> Callable[[History], None]:
    return lambda history: history.ends.__setitem__(0, replace(END, **changed))  # type: ignore[arg-type]


def with_holding(**held: tuple[int, ...]) -> Callable[[History], None]:
    return lambda history: history.holdings.append(Holding(TOPIC, "streams", frozenset({1, 2}), held))


def with_call(call: Call) -> Callable[[History], None]:
    return lambda history: history.calls.append(call)


def unanswered(at: int) -> Callable[[History], None]:
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
        (with_holding(a=(1, 2), b=(2,)), "segment 2 belongs to a and b"),
        (with_holding(a=(1,), b=()), "segment 2 belongs to nobody"),
        (lambda history: history.lost.append(LostSession(TOPIC, "s", "c", "why")), "c of s was put out: why"),
        (with_end(open_operations=("split 7f",)), "the split 7f is half done"),
        (with_end(consumers={"rest": frozenset()}), "the registration of rest/r1 is lost"),
        (with_end(consumers={"rest": frozenset({"r1", "r2"})}), "the registration of rest/r2 is there"),
        (with_end(consumers={"rest": frozenset({"r1", "r9"})}), "nobody has registered rest/r9"),
        (with_end(announced_epochs=(0,)), "announced as [0]"),
        (with_end(announced_epochs=(0, 1, 1)), "announced as [0, 1, 1]"),
        (with_end(announced_epochs=(1, 0)), "announced as [1, 0]"),
        (with_end(announced_counts={"rest": (1, 2)}), "announced as [1, 2]"),
        (with_end(announced_counts={"rest": (1, 3, 2, 1)}), "announced as [1, 3, 2, 1]"),
        (with_call(Call(TOPIC, "split", "2", 204)), "2 changes were done and 1 had no answer, but the epoch is 1"),
        (lambda history: history.calls.pop(0) and history.calls.pop(1), "0 changes were done and 0 had no answer"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_found_and_named(spoil: Callable[[History], object], found: str) -> None:
    history = good()
    spoil(history)
    assert found in "\n".join(check(history))


@pytest.mark.parametrize("at", [0, 3, 5])
def test_a_call_without_an_answer_may_have_happened_or_not(at: int) -> None:
    history = good()
    unanswered(at)(history)
    assert check(history) == []


def test_a_push_may_be_older_than_what_others_saw_after_its_session_began() -> None:
    history = good()
    history.layouts.append(replace(FIRST, by="watch", asked_at=1.5, seen_at=20.0))
    assert check(history) == []
