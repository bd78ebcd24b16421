"""The recorded lake, made once."""

from __future__ import annotations

import pytest

from tests.query.views.recorded import Story
from tests.query.views.recorded_cluster import ClusterStory
from tests.query.views.recorded_switch import switched


@pytest.fixture(scope="session")
def story():
    """What happened, with its rows."""
    return Story().run()


@pytest.fixture(scope="session")
def lake(story, tmp_path_factory):
    """The lake that it left."""
    return story.write(tmp_path_factory.mktemp("recorded") / "lake")


@pytest.fixture(scope="session")
def cluster_story():
    """What happened to a cluster with bundles."""
    return ClusterStory().run()


@pytest.fixture(scope="session")
def lake_of_clusters(cluster_story, tmp_path_factory):
    """The lake that it left."""
    return cluster_story.write(tmp_path_factory.mktemp("recorded") / "clusters")


@pytest.fixture(scope="session")
def lake_of_switch(tmp_path_factory):
    """The lake that a switch between BookKeeper clusters left."""
    return switched(tmp_path_factory.mktemp("recorded"))
