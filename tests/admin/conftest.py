"""The client at a real controller behind a gate, which shows what a controller cannot by itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from anabranch.admin.topics import ScalableTopics
from anabranch.admin.transport import Transport
from tests.controller.conftest import RunningController, run_controller
from tests.executor.gate import Gate, open_gate


def transport(url: str, token: str | None = None, timeout_seconds: float = 5, **more: object) -> Transport:
    """A transport whose time-outs a server on a busy machine keeps."""
    return Transport(url, token, user_agent="test", timeout_seconds=timeout_seconds, **more)  # type: ignore[arg-type]


@dataclass
class Front:
    """A gate before a controller, and the client that goes through it."""

    controller: RunningController
    gate: Gate
    namespace: str
    topics: ScalableTopics

    def create(self, name: str, segments: int = 1) -> str:
        """A new topic; its full name."""
        self.controller.service.create_topic(f"topic://{self.namespace}/{name}", segments, {})
        return f"topic://{self.namespace}/{name}"


@pytest.fixture(scope="session")
def controller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningController]:
    """One controller for all tests here; each test takes its own namespace."""
    with run_controller(tmp_path_factory.mktemp("controller") / "layouts.db") as running:
        yield running


@pytest.fixture
def front(controller: RunningController) -> Iterator[Front]:
    """A fresh namespace with its own gate and client."""
    with open_gate(controller.url) as gate:
        topics = ScalableTopics(transport(gate.url + "/"))
        yield Front(controller, gate, controller.new_namespace(), topics)
        topics.close()
