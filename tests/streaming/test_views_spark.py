"""The views in Spark SQL give the rows that they give without it."""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from typing import Any

import pytest

from anabranch.query.sql import LakeSql
from anabranch.query.views.catalogue import views
from anabranch.query.views.dialects import SPARK
from anabranch.query.views.spark import spark_statements
from streaming.sink.catalog import DATABASE, register_lake, register_views
from tests.query.views.incarnations import Incarnations
from tests.query.views.recorded import Story
from tests.query.views.recorded_cluster import ClusterStory
from tests.query.views.recorded_switch import SwitchStory

COMPARED = ("consumers_waiting", "gate_hours", "layout_at", "safeguards", "thrash_since")
"""Views that use every rule of the dialects; the soak compares all."""
AT = ("TIMESTAMP '2026-11-22 12:05:00'", "TIMESTAMP '2026-11-22 20:41:00'")


@pytest.fixture(scope="module")
def registered(spark, tmp_path_factory):
    """A recorded lake of topics, some of them created anew, a cluster and a switch that Spark knows by name."""
    folder = tmp_path_factory.mktemp("recorded") / "lake"
    lake = Story().run().write(folder)
    ClusterStory().run().write(folder)
    SwitchStory(str(folder)).run()
    Incarnations(seed=12, says_life="some", minutes=60).run().write(folder)
    register_lake(spark, lake)
    made = spark_statements(DATABASE)
    register_views(spark, made)
    register_views(spark, {name: made[name] for name in ("thrash", "layout_at")})
    yield lake
    spark.sql(f"DROP DATABASE {DATABASE} CASCADE")


def plain(row: dict[str, Any]) -> tuple[Any, ...]:
    """A row that compares equal whichever engine it is from."""

    def value(one: Any) -> Any:
        if isinstance(one, datetime):
            return one.timestamp()
        return round(one, 6) if isinstance(one, float) else one

    return tuple(value(one) for one in row.values())


def sources() -> list[Any]:
    """Every view but that of the present; with an instant, the later one in `make test`."""
    found = []
    for name, view in views().items():
        if name == "fleet_health":
            continue
        instants = [f"({AT[1]})", f"({AT[0]})"] if view.parameters else [""]
        for number, instant in enumerate(instants):
            is_soak = number > 0 or name not in COMPARED
            found.append(pytest.param(f"{name}{instant}", marks=[pytest.mark.soak] * is_soak))
    return found


@pytest.mark.spark
@pytest.mark.parametrize("source", sources())
def test_both_engines_give_the_same_rows_of(source, registered, spark):
    name = source.partition("(")[0]
    ours = LakeSql(registered).ask(f"SELECT * FROM {source}").read_all()
    theirs = spark.sql(f"SELECT * FROM {DATABASE}.{source}")
    assert theirs.columns == [column.name for column in views()[name].columns]
    assert [field.dataType.simpleString() for field in theirs.schema] == [one.type for one in views()[name].columns]
    found = Counter(plain(row) for row in theirs.toArrow().to_pylist())
    assert found == Counter(plain(row) for row in ours.to_pylist())
    assert found


def test_rules_of_the_dialect_are_all_compared():
    texts = [view.text for name, view in views().items() if name in compared()]
    assert {rule for rule in SPARK.calls if not any(rule in text for text in texts)} == set()
    assert any("$now" in text for text in texts)


def compared() -> set[str]:
    """Views that `make test` compares, with those that they are made of."""
    found, ahead = set[str](), [*COMPARED]
    while ahead:
        name = ahead.pop()
        if name in views() and name not in found:
            found.add(name)
            ahead += views()[name].needs()
    return found


@pytest.mark.spark
def test_view_in_spark_has_the_described_types(registered, spark):
    for name, view in views().items():
        if not view.parameters:
            # As Spark noted them when the view was made: nothing is planned again.
            described = [tuple(row)[:2] for row in spark.sql(f"DESCRIBE {DATABASE}.{name}").collect()]
            assert described == [(one.name, one.type) for one in view.columns], name


@pytest.mark.spark
@pytest.mark.soak
def test_the_present_is_asked_of_spark_too(registered, spark):
    question = "SELECT topics, decisions_open FROM {}fleet_health"
    row = spark.sql(question.format(f"{DATABASE}.")).first()
    assert [row.asDict()] == LakeSql(registered).ask(question.format("")).read_all().to_pylist()
    assert row["topics"] > 3
