"""A fixed number of the fuzzer's cases against controller and page, and those that have found something."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.runtime.listener.edges import TOPIC, running
from tests.runtime.listener.fuzz import CONTROLLER, PAGE, Case, Target, case_of

pytestmark = pytest.mark.process

CASES, THREADS = 100, 8
UPGRADE = (
    b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)
LONG = b"X: " + b"a" * 9_000 + b"\r\n"


@pytest.mark.parametrize(("kind", "requests"), [("controller", CONTROLLER), ("page", PAGE)])
def test_random_requests_do_no_harm(
    kind: str, requests: tuple[tuple[str, str], ...], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with running(kind, tmp_path) as edge, ThreadPoolExecutor(THREADS) as pool:
        target = Target(edge.port, edge.token, requests)
        cases = {number: case_of(target, f"fixed/{number}") for number in range(CASES)}
        if kind == "controller":
            consumers = f"{TOPIC}/consumers"
            cases[-1] = Case(edge.head(consumers, "HEAD", UPGRADE + LONG + b"\r\n"))
            cases[-2] = Case(edge.head(consumers, more=UPGRADE + b"\r\n") + b"\xf1\x00" * 20)
            cases[-3] = Case(edge.head(consumers, more=UPGRADE + b"Sec-WebSocket-Key: a\r\n\r\n") + b"\xf1\x00" * 20)
        for _ in pool.map(lambda case: case.play(edge.port), cases.values()):
            pass
        assert edge.ask() == 200
    assert {number: case.faults for number, case in cases.items() if case.faults} == {}
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []
