"""Metadata copied from SQLite to a real ZooKeeper and back: all of it, once, and never under a running controller."""

from __future__ import annotations

import itertools
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from anabranch.cli.main import cli
from anabranch.controller.errors import StartError
from anabranch.controller.layouts.reader import LayoutReader
from anabranch.controller.leadership.node_registry import NodeRegistration
from anabranch.controller.metadata import store_copy, store_paths
from anabranch.controller.metadata.base import MetadataStore, StoreUnavailable
from anabranch.controller.metadata.sqlite import SqliteStore
from anabranch.controller.metadata.store_copy import copy
from anabranch.controller.metadata.zookeeper import ZooKeeperStore
from anabranch.controller.outbox.entries import StoredOutbox
from tests.controller.conftest import run_controller
from tests.examples import only_first
from tests.harness.zookeeper import EmbeddedZooKeeper
from tests.waiting import wait_until

_roots = (f"copy-{number}" for number in itertools.count())
PATH = "/admin/v2/scalable/acme/copy"


def quiet(line: str) -> None:
    """No one reads it."""


@pytest.fixture
def root() -> str:
    return next(_roots)


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a controller has left: topics, one with an odd name, operations, subscriptions, a policy."""
    file = tmp_path_factory.mktemp("ended") / "controller.db"
    with run_controller(file) as controller:
        client = controller.client
        for topic in ("t0", "t1", "controller", "a%2Fb%20%C3%BC"):
            assert client.put(f"{PATH}/{topic}?numInitialSegments=3").status_code == 204
        assert client.post(f"{PATH}/t0/split/1").status_code == 204
        assert client.post(f"{PATH}/t0/merge/0/3").status_code == 204
        assert client.put(f"{PATH}/t0/subscriptions/s/consumers/controller").status_code == 204
        assert client.post(f"{PATH}/t1/autoScalePolicy", content='{"maxSegments": 4}').status_code == 204
        policy = "/admin/v2/namespaces/acme/copy/scalableTopicAutoScalePolicy"
        assert client.post(policy, content='{"maxSegments": 8}').status_code == 204
        assert client.delete(f"{PATH}/controller").status_code == 204
        assert client.put(f"{PATH}/controller").status_code == 204
    return file


@pytest.fixture
def database(ended: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    for file in ended.parent.iterdir():
        shutil.copy(file, tmp_path)
    return tmp_path / ended.name


def held(nodes: MetadataStore) -> list[tuple[str, bytes]]:
    """All that is copied; of announcements what they say, in their order."""
    return [("" if store_paths.is_announcement(path) else path, value) for path, value in store_copy._walk(nodes)]


def run(folder: Path, *arguments: str) -> Result:
    (folder / "copy.toml").write_text(f'[controller]\ndatabase = "{folder}/controller.db"\nsession_seconds = 5\n')
    return CliRunner().invoke(cli, ["-c", str(folder / "copy.toml"), "controller", "copy", *arguments])


def test_copy_round_trip_keeps_everything(
    database: Path, tmp_path: Path, zookeeper: EmbeddedZooKeeper, root: str
) -> None:
    """A controller goes on with the copy."""
    place = f"zk://{zookeeper.address}/{root}"
    there = run(tmp_path, "--to", place)
    assert there.exit_code == 0, there.output
    assert "4 topics (" in there.stdout
    assert "11 announcements that wait) are in zk://" in there.stdout
    again = run(tmp_path, "--to", place)
    assert (again.exit_code, "already" in again.stdout) == (0, True)
    before = SqliteStore(database)
    nodes = ZooKeeperStore(zookeeper.address, f"/{root}")
    kept = held(before)
    assert held(nodes) == kept
    announced = [entry.records for entry in StoredOutbox(before).read(StoredOutbox(before).names())]
    before.close()
    with run_controller(nodes) as controller:
        assert controller.client.post(f"{PATH}/t0/split/2").status_code == 204
        assert controller.client.get(f"{PATH}/t0").json()["epoch"] == 3
        assert controller.client.get(f"{PATH}/t0/stats").json()["subscriptions"] == {"s": {"consumerCount": 1}}
        after = [entry.records for entry in StoredOutbox(controller.nodes).read(StoredOutbox(controller.nodes).names())]
        assert after[:-1] == announced, "what is announced later comes later"
        refused = run(tmp_path, "--to", place)
        assert refused.exit_code == 1
        assert f"controllers run on {place}, or did a moment ago: {controller.url}" in refused.stderr
    database.rename(tmp_path / "before.db")
    back = run(tmp_path, "--from", place, "--to", "sqlite")
    assert back.exit_code == 0, back.output
    nodes, after_copy = ZooKeeperStore(zookeeper.address, f"/{root}"), SqliteStore(database)
    assert held(after_copy) == held(nodes) != kept
    after_copy.close()
    nodes.close()
    with run_controller(database) as controller:
        assert controller.client.post(f"{PATH}/t0/split/5").status_code == 204
        assert controller.client.get(f"{PATH}/t0").json()["epoch"] == 4


class _Broken(SqliteStore):
    """Fails at a commit."""

    left = 0

    def commit(self, *ops: object) -> list[int]:
        self.left -= 1
        if self.left < 0:
            raise StoreUnavailable("gone")
        return super().commit(*ops)  # type: ignore[arg-type]


@pytest.mark.process
@pytest.mark.parametrize("commits", only_first(2, [1, 7, 2, 4]))
def test_broken_copy_blocks_controllers_until_redone(
    database: Path, tmp_path: Path, commits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_copy, "MAX_OPS", 8)
    source, broken = SqliteStore(database), _Broken(tmp_path / "copy.db")
    broken.left = commits
    with pytest.raises(StoreUnavailable):
        copy(source, broken, "here", "there", quiet)
    broken.close()
    target = SqliteStore(tmp_path / "copy.db")
    with pytest.raises(StartError, match="repeat anabranch serve controller copy"):
        NodeRegistration(target, "http://n", 1).claim()
    target.close()
    target, third = SqliteStore(tmp_path / "copy.db"), SqliteStore(tmp_path / "third.db")
    with pytest.raises(StartError, match="itself a copy"):
        copy(target, third, "there", "third", quiet)
    for store in (source, target, third):
        store.close()
    source, target = SqliteStore(database), SqliteStore(tmp_path / "copy.db")
    said: list[str] = []
    copied = copy(source, target, "here", "there", said.append)
    assert said[0] == "a copy to there was not finished: starting again"
    assert (copied.topics, held(target)) == (4, held(source))
    assert target.get(store_paths.COPYING) is None
    for store in (source, target):
        store.close()


def test_killed_copy_is_repeated(database: Path, tmp_path: Path, zookeeper: EmbeddedZooKeeper, root: str) -> None:
    place = f"zk://{zookeeper.address}/{root}"
    run(tmp_path, "--help")
    killer = (
        "import os, sys; from anabranch.controller.metadata import store_copy; from anabranch.cli.main import main\n"
        "store_copy._first_difference = lambda *_: os.kill(os.getpid(), 9)\nmain()"
    )
    arguments = ["-c", str(tmp_path / "copy.toml"), "controller", "copy", "--to", place]
    killed = subprocess.run([sys.executable, "-c", killer, *arguments], cwd=Path(__file__).parents[3], check=False)
    assert killed.returncode == -signal.SIGKILL
    nodes = ZooKeeperStore(zookeeper.address, f"/{root}")
    assert LayoutReader(nodes).has_topic("topic://acme/copy/t0")
    assert nodes.get(store_paths.COPYING) is not None
    wait_until(lambda: nodes.get(store_paths.COPIER) is None)
    nodes.close()
    done = run(tmp_path, "--to", place)
    assert done.exit_code == 0, done.output
    assert "starting again" in done.stderr
    assert "are in zk://" in done.stdout


def test_nonempty_missing_or_busy_target_refused(
    database: Path, tmp_path: Path, zookeeper: EmbeddedZooKeeper, root: str
) -> None:
    place = f"zk://{zookeeper.address}/{root}"
    nodes = ZooKeeperStore(zookeeper.address, f"/{root}")
    nodes.put("/topics/a/b/t", b"{}")
    nodes.close()
    assert "is not empty: choose another place" in run(tmp_path, "--to", place).stderr
    assert (
        f"there is nothing in {place}-none to copy" in run(tmp_path, "--from", f"{place}-none", "--to", "sqlite").stderr
    )
    assert run(tmp_path, "--to", "mysql://x").exit_code == 2
    assert run(tmp_path, "--to", "sqlite").exit_code == 2
    with run_controller(database):
        assert "in use by another controller" in run(tmp_path, "--to", f"{place}-other").stderr
    database.unlink()
    assert "no database" in run(tmp_path, "--to", f"{place}-other").stderr
    assert not database.exists()


def test_controller_waits_for_metadata_copy(tmp_path: Path) -> None:
    nodes = SqliteStore(tmp_path / "a.db")
    store_copy._keep_controllers_out(nodes, "here")
    with pytest.raises(StartError, match="being copied"):
        NodeRegistration(nodes, "http://n", 1).claim()
    with pytest.raises(StartError, match="controllers run on here, or did a moment ago: http://n"):
        store_copy._keep_controllers_out(nodes, "here")
    nodes.close()
