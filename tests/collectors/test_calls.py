"""Calls under way: a load waits for no other call."""

from __future__ import annotations

import threading

import pytest

from anabranch.admin.answers import Answered
from anabranch.collectors.pulsar.calls import Call, Calls

pytestmark = pytest.mark.unit


def test_a_load_is_read_although_all_other_calls_hang():
    calls, end = Calls(2), threading.Event()
    try:
        for topic in ("a", "b"):
            assert calls.make(Call("stats", topic, "silent"), lambda: Answered(end.wait(10)))
        assert not calls.has_room
        assert calls.make(Call("load", "well", "well"), lambda: Answered("rates"))
        [answer] = calls.answers(5)
        assert answer.reply == Answered("rates")
        assert not calls.has_room
    finally:
        end.set()
        calls.close()
