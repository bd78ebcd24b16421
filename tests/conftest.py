"""What all tests share: what counts as a unit test, the jars, a broker, and hypothesis without a stop-watch."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fastapi.dependencies.models
import pytest
from hypothesis import settings as hypothesis_settings

from anabranch.local.archive import ensure_archive
from anabranch.local.broker import EmbeddedBroker, create_topics
from anabranch.local.pulsar.standalone import StandalonePulsar
from anabranch.local.setup import Jars, ensure_jar_folder, ensure_jars, ensure_pulsar
from schemas.settings.root import load_settings
from tests.examples import FEW
from tests.order import Recorder, file_of, group_of, longest_first, recorded

hypothesis_settings.register_profile("anabranch", deadline=None, max_examples=FEW)
hypothesis_settings.register_profile("soak", deadline=None, max_examples=FEW * 5)
hypothesis_settings.load_profile("anabranch")

SERVERS = {
    "broker",
    "controller",
    "guarded",
    "jars",
    "java",
    "kafka",
    "own_broker",
    "place",
    "pulsar",
    "pulsar_jars",
    "pulsar_lts_jars",
    "real_lake",
    "scrape",
    "spark",
    "zookeeper",
}
"""Fixtures that start a JVM or a server."""
SHARED_SERVERS = ("broker", "jobs_broker", "spark", "pulsar", "bookkeepers", "browser")
"""Fixtures of those that the tests of a group share."""
NO_UNIT = {"spark", "broker", "browser", "local_run", "process", "pulsar", "soak"}
"""Marks of tests that start a JVM, a server or a process, or are long."""


MOST_NAMED = 100
"""So many characters of a parameter stand in the name of a test."""
SLOW_SECONDS = 5
"""A file with a test on record that took so long is left to `make test` as a whole."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Marks the unit tests: those without a fixture that starts a JVM, a server or a process.

    Tests that share a server run one after the other in one process of xdist, those of any other file in one. The
    longest groups come first, so that all processes end at about the same time. First of all hooks: xdist reads the
    groups in its own.
    """
    seconds = recorded()
    # What the tests of a file share is set up by whichever runs first.
    slow_files = {file_of(name) for name, taken in seconds.items() if taken >= SLOW_SECONDS}
    for item in items:
        marks = {mark.name for mark in item.iter_markers()}
        fixtures = set(getattr(item, "fixturenames", ()))
        if not marks & NO_UNIT and not SERVERS & fixtures:
            item.add_marker(pytest.mark.unit)
        if item.nodeid in seconds or file_of(item.nodeid) in slow_files:
            item.add_marker(pytest.mark.long)
        if config.pluginmanager.hasplugin("xdist") and (group := shared_by(item, marks, fixtures)):
            item.add_marker(pytest.mark.xdist_group(group))
    if config.getoption("loadgroup", default=False):
        longest_first(items, seconds)


def shared_by(item: pytest.Item, marks: set[str], fixtures: set[str]) -> str | None:
    """The group of tests that share a server with this one, None if it shares none."""
    groups = {
        "real-lake": "real_lake" in fixtures,
        "spark": "spark" in fixtures or (starts_spark(item) and "secured" in fixtures),
        "bookies": "bookkeepers" in fixtures,
        "pulsar": not starts_spark(item) and "pulsar" in marks,
        "browser": "browser" in marks,
        "broker": "broker" in fixtures,
    }
    return next((group for group, is_member in groups.items() if is_member), None)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Fails where xdist does not keep a group in one process: with a pytest that it does not know it says nothing."""
    is_kept = "@" in item.nodeid.rpartition("]")[2] or not item.config.getoption("loadgroup", default=False)
    if item.get_closest_marker("xdist_group") and not is_kept:
        pytest.fail("pytest-xdist does not keep the tests of this group in one process", pytrace=False)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Lets go of apps and of Kafka clients, whose threads never rest, least of all when their broker has ended.

    FastAPI keeps the functions of each app that it has seen, and with them servers that have ended and their clients.
    """
    for cached in vars(fastapi.dependencies.models).values():
        if hasattr(cached, "cache_clear"):
            cached.cache_clear()
    if (nextitem is None or nextitem.path != item.path) and not item.get_closest_marker("unit"):
        gc.collect()
    if item.config.getoption("loadgroup", default=False) and (nextitem is None or group_of(nextitem) != group_of(item)):
        end_shared_servers(item)


def end_shared_servers(item: pytest.Item) -> None:
    """Ends what the tests of a group have shared, which would else go on to the end of all tests."""
    for name in SHARED_SERVERS:
        for fixture in item.session._fixturemanager._arg2fixturedefs.get(name, ()):
            if fixture.scope == "session":
                fixture.finish(item._request)


def pytest_make_parametrize_id(val: object) -> str | None:
    """Shortens the name of a test whose parameter is long: names go to every process and into the record."""
    if not isinstance(val, str | bytes) or len(val) <= MOST_NAMED:
        return None
    return f"{val[:MOST_NAMED]!a} of {len(val)}"


def starts_spark(item: pytest.Item) -> bool:
    """Whether the test needs a Spark: the shared session, or one in a process of its own."""
    return any(mark.name in ("spark", "local_run") for mark in item.iter_markers())


class StartsNothing:
    """Fails a unit test that starts a process or binds a port, so that what is not marked is found."""

    def __init__(self) -> None:
        self._test: pytest.Item | None = None
        self._started: list[str] = []
        sys.addaudithook(self._look)

    def _look(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self._test is None:
            return
        if event in ("subprocess.Popen", "os.fork", "os.posix_spawn"):
            self._started.append("a process")
        elif event == "socket.bind" and isinstance(arguments[1], tuple):
            self._started.append(f"a server at {arguments[1]}")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """What starts from the first fixture to the last is the test's."""
        self._test, self._started = (item if item.get_closest_marker("unit") else None), []
        try:
            return (yield)
        finally:
            self._test = None

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        """Fails the test itself, as a fault in its fixtures would be an error."""
        done = yield
        if self._started:
            pytest.fail(f"starts {', '.join(self._started)}: give it a mark of what it needs, such as `process`", False)
        return done


def pytest_addoption(parser: pytest.Parser) -> None:
    """How to write down anew how long tests take."""
    parser.addoption("--record-durations", action="store_true", help="write tests/durations.txt at the end")


def pytest_configure(config: pytest.Config) -> None:
    """Watches what tests start."""
    if config.getoption("--record-durations") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Recorder(), "durations")
    # When it is imported, it binds a port for a moment to see whether there is IPv6: no server of a test.
    import urllib3.util.connection  # noqa: F401

    config.pluginmanager.register(StartsNothing(), "starts-nothing")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect tests without the garbage collector, which finds nothing among more than a million objects that stay.

    It does not look at them later either: one look at all takes a second.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="session")
def jars() -> Jars:
    """The checked jars, fetched if this is the first time."""
    settings = load_settings(environment={})
    found = ensure_jars(settings, print)
    ensure_archive(settings, "kafka", print)
    return found


@pytest.fixture(scope="session")
def pulsar_jars() -> Path:
    """The checked jars of a Pulsar 5 with our programs for it, fetched if this is the first time."""
    settings = load_settings(environment={})
    folder = ensure_pulsar(settings, print)
    ensure_archive(settings, "pulsar", print)
    return folder


@pytest.fixture(scope="session")
def pulsar_lts_jars() -> Path:
    """The checked jars of a Pulsar 4.0.7, fetched if this is the first time."""
    return ensure_jar_folder(load_settings(environment={}), "pulsar-lts", print)


@pytest.fixture(scope="session")
def pulsar(pulsar_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandalonePulsar]:
    """One standalone Pulsar 5 for the whole session (mark the test `pulsar`); tests use topic names of their own."""
    one = StandalonePulsar(tmp_path_factory.mktemp("pulsar"), pulsar_jars)
    one.start()
    try:
        yield one
    finally:
        one.kill()


@pytest.fixture(scope="session")
def broker(jars: Jars, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    """One broker with the three topics for the whole session; tests use topic names and group ids of their own."""
    one = EmbeddedBroker(tmp_path_factory.mktemp("kafka"), jars.kafka)
    one.start()
    try:
        create_topics(one.connection)
        yield one
    finally:
        # Clients that tests have left would ask for it in vain, and say so, until the other processes have ended.
        gc.collect()
        one.stop()
