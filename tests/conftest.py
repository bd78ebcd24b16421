"""What all tests share: the jars, a broker that starts when first asked for, and hypothesis without a stop-watch."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import settings as hypothesis_settings

from lab.broker import EmbeddedBroker, create_topics
from lab.setup import Jars, ensure_jars
from schemas.settings import load_settings

hypothesis_settings.register_profile("anabranch", deadline=None)
hypothesis_settings.load_profile("anabranch")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests with a Spark session run one after the other in one process, all others beside them in another one."""
    for item in items:
        if any(item.iter_markers("spark")) or any(item.iter_markers("local_run")):
            item.add_marker(pytest.mark.xdist_group("spark"))


@pytest.fixture(scope="session")
def jars() -> Jars:
    """The checked jars, fetched if this is the first time."""
    return ensure_jars(load_settings(environment={}), print)


@pytest.fixture(scope="session")
def broker(jars: Jars, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    """One broker with the three topics for the whole session; tests use topic names and group ids of their own."""
    one = EmbeddedBroker(tmp_path_factory.mktemp("kafka"), jars.kafka)
    one.start()
    try:
        create_topics(one.bootstrap)
        yield one
    finally:
        one.stop()
