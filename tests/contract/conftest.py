"""The servers of the contract: our controller, and a Pulsar 5."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from anabranch.local.pulsar.standalone import StandalonePulsar
from tests.contract.servers import Server, open_server
from tests.controller.conftest import run_controller


@pytest.fixture(scope="session")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Our controller."""
    with (
        run_controller(tmp_path_factory.mktemp("contract") / "layouts.db") as running,
        open_server("anabranch", running.url) as server,
    ):
        yield server


@pytest.fixture(scope="session")
def pulsars(pulsar: StandalonePulsar) -> Iterator[Server]:
    """A real Pulsar."""
    with open_server("pulsar", pulsar.admin_url) as server:
        yield server


@pytest.fixture(params=["ours", "pulsars"])
def server(request: pytest.FixtureRequest) -> Server:
    """The test runs on both."""
    found: Server = request.getfixturevalue(request.param)
    return found
