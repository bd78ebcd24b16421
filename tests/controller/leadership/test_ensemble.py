"""Nodes at different servers of a real ensemble: what one has answered, every other one knows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from anabranch.controller.metadata.zookeeper import ZooKeeperStore
from anabranch.local.setup import Jars
from tests.controller.conftest import run_controller
from tests.harness.ensemble import LEADER, ZooKeeperEnsemble
from tests.waiting import wait_until

ROUNDS = 9


@pytest.fixture
def ensemble(jars: Jars, tmp_path: Path) -> Iterator[ZooKeeperEnsemble]:
    one = ZooKeeperEnsemble(tmp_path, jars.zookeeper)
    try:
        one.start()
        yield one
    finally:
        one.stop()


def test_node_at_lagging_server_sees_new_topic(ensemble: ZooKeeperEnsemble) -> None:
    ahead = next(member for member in ensemble.members if member.mode() == LEADER)
    lagging = next(member for member in ensemble.members if member is not ahead)
    with (
        run_controller(ZooKeeperStore(ahead.address, "/e", session_s=10)) as first,
        run_controller(ZooKeeperStore(lagging.address, "/e", session_s=10)) as second,
    ):
        for number in range(ROUNDS):
            path = f"/admin/v2/scalable/acme/e/t{number}"
            lagging.freeze()
            try:
                assert first.client.put(path).status_code == 204
            finally:
                lagging.thaw()
            if number % 2:
                assert answered(lambda: second.client.get(path)).status_code == 200  # noqa: B023
            else:
                assert answered(lambda: second.client.put(f"{path}/subscriptions/s")).status_code == 307  # noqa: B023
            lagging.freeze()
            try:
                assert first.client.post(f"{path}/split/0").status_code == 204
            finally:
                lagging.thaw()
            assert answered(lambda: second.client.get(path)).json()["epoch"] == 1  # noqa: B023


def answered(call: Callable[[], httpx.Response]) -> httpx.Response:
    """The first answer that is one: on a busy machine the member that lagged may be left behind for a moment."""
    return wait_until(lambda: answer if (answer := call()).status_code != 503 else None, 30)
