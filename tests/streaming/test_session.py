"""Spark's own ports are closed to others: they run what they are sent."""

from __future__ import annotations

import pytest

from streaming.session import authenticated


@pytest.mark.parametrize("master", [{}, {"spark.master": "local[2]"}, {"spark.master": "local"}])
def test_local_cores_are_authenticated(master, caplog):
    assert authenticated(master) == {"spark.authenticate": "true", **master}
    assert authenticated({**master, "spark.authenticate": "false"})["spark.authenticate"] == "false"
    assert caplog.messages == []


def test_cluster_without_a_secret_is_warned_of(caplog):
    plain = {"spark.master": "spark://host:7077"}
    assert authenticated(plain) == plain
    [line] = caplog.messages
    assert "spark.authenticate.secret" in line
    caplog.clear()
    secured = {**plain, "spark.authenticate": "true", "spark.authenticate.secret": "x"}
    assert authenticated(secured) == secured
    assert caplog.messages == []


def test_session_of_local_cores_has_a_secret(spark):
    assert spark.sparkContext.getConf().get("spark.authenticate") == "true"
    assert spark.range(100).repartition(2).count() == 100
