"""The recorded lake, made once."""

from __future__ import annotations

import pytest

from tests.query.views.recorded import recorded_story
from tests.query.views.recorded_cluster import recorded_cluster
from tests.query.views.recorded_switch import switched


@pytest.fixture(scope="session")
def story():
    """What happened, with its rows."""
    return recorded_story()


@pytest.fixture(scope="session")
def lake(story, tmp_path_factory):
    """The lake that it left."""
    return story.write(tmp_path_factory.mktemp("recorded") / "lake")


@pytest.fixture(scope="session")
def cluster_story():
    """What happened to a cluster with bundles."""
    return recorded_cluster()


@pytest.fixture(scope="session")
def lake_of_clusters(cluster_story, tmp_path_factory):
    """The lake that it left."""
    return cluster_story.write(tmp_path_factory.mktemp("recorded") / "clusters")


@pytest.fixture(scope="session")
def lake_of_switch(tmp_path_factory):
    """The lake that a switch between BookKeeper clusters left."""
    return switched(tmp_path_factory.mktemp("recorded"))
