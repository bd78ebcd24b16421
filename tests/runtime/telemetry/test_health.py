"""Probes and scrapes: a process that stalls is not live, one that waits is not ready, and pages are refused."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from prometheus_client import CollectorRegistry

from anabranch.local.broker import free_ports
from lake.tables import create_lake
from runtime.listener.names import NodeNames
from runtime.listener.protocol import TRUST
from runtime.telemetry.health import Heartbeat, ProcessHealth
from runtime.telemetry.serving import metrics_app
from streaming.job.watchdog import Watchdog
from tests.waiting import wait_until

ROOT = Path(__file__).parents[3]


def asked(path: str, health: ProcessHealth, host: str = "127.0.0.1:9", bound: str = "127.0.0.1") -> tuple[int, str]:
    async def ask() -> tuple[int, str]:
        app = metrics_app(CollectorRegistry(), health, NodeNames(bound, (), ["metrics.example"], called="metrics"))
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app)) as client:
            answer = await client.get(f"http://127.0.0.1{path}", headers={"Host": host})
            return answer.status_code, answer.text

    return asyncio.run(ask())


def test_a_stalled_loop_is_neither_live_nor_ready():
    now = [100.0]
    heartbeat = Heartbeat("the loop", 10, lambda: now[0])
    health = ProcessHealth(heartbeat.fault)
    now[0] = 110.0
    assert asked("/livez", health) == asked("/readyz", health) == (200, "ok\n")
    now[0] = 111.0
    stalled = (503, "no pass of the loop for 11 s (limit: 10 s)\n")
    assert asked("/livez", health) == asked("/readyz", health) == stalled
    heartbeat.beat()
    assert asked("/livez", health) == (200, "ok\n")


def test_a_process_that_waits_is_live_and_not_ready():
    health = ProcessHealth(not_ready=lambda: "the record has not been read yet")
    assert asked("/livez", health) == (200, "ok\n")
    assert asked("/readyz", health) == (503, "the record has not been read yet\n")


@pytest.mark.parametrize(
    ("host", "bound", "status"),
    [
        ("10.1.2.3:9090", "0.0.0.0", 200),
        ("10.1.2.3:9090", "127.0.0.1", 403),
        ("metrics.example", "0.0.0.0", 200),
        ("rebound.example", "0.0.0.0", 403),
    ],
)
def test_probes_reach_a_pod_by_its_address(host, bound, status):
    assert asked("/livez", ProcessHealth(), host, bound)[0] == status


def test_a_short_outage_of_evaluation_restarts_no_job():
    watchdog = Watchdog(tick_seconds=60, ticks=3, last_evaluation=1000.0)
    assert watchdog.fault(1000.0 + 900) is None
    assert watchdog.fault(1000.0 + 901) == "no evaluation for 901 s (limit: 900 s)"
    assert Watchdog(tick_seconds=1, ticks=3, last_evaluation=0.0).fault(599) is None


@pytest.mark.parametrize(("client", "is_known"), [("127.0.0.1", True), ("::1", True), ("203.0.113.9", False)])
def test_only_this_machine_scrapes_without_a_pace(client, is_known):
    trusted = []
    scope = {
        "type": "http",
        "method": "GET",
        "path": "/livez",
        "raw_path": b"/livez",
        "query_string": b"",
        "headers": [(b"host", b"metrics.example")],
        "client": (client, 1),
        "state": {TRUST: lambda name: trusted.append(name) or True},
    }
    app = metrics_app(CollectorRegistry(), names=NodeNames("0.0.0.0", (), ["metrics.example"], called="metrics"))
    sent = []

    async def send(message):
        sent.append(message)

    asyncio.run(app(scope, None, send))
    assert (sent[0]["status"], trusted) == (200, ["this machine"] if is_known else [])


@pytest.mark.process
@pytest.mark.parametrize(("part", "section"), [("alerts", "alerts"), ("executor", "executor"), ("web", "web")])
def test_a_process_says_that_it_is_ready(tmp_path, part, section):
    create_lake(str(tmp_path / "lake"))
    (port,) = free_ports(1)
    environment = os.environ | {
        "ANABRANCH_LAKE__PATH": str(tmp_path / "lake"),
        f"ANABRANCH_{section.upper()}__METRICS_PORT": str(port),
        "ANABRANCH_WEB__PORT": "0",
        "ANABRANCH_HOME": str(tmp_path),
    }
    command = [sys.executable, "-m", "anabranch", part]
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        try:

            def is_ready() -> bool:
                assert process.poll() is None, process.communicate()
                try:
                    return httpx.get(f"http://127.0.0.1:{port}/readyz", timeout=30).status_code == 200
                except httpx.TransportError:
                    return False

            wait_until(is_ready, 60, 0.1)
            assert httpx.get(f"http://127.0.0.1:{port}/livez", timeout=30).text == "ok\n"
            figures = httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=30).text
            assert f'anabranch_ready{{part="{part}"}} 1.0' in figures
            assert "process_resident_memory_bytes" in figures
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=30)
