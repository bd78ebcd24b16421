"""The order of tests: longest first, groups by their sum."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.conftest import MOST_NAMED, pytest_make_parametrize_id
from tests.order import Recorder, group_of, longest_first, recorded


class Item:
    """As pytest has it, with its marks by name."""

    def __init__(self, nodeid: str, **marks: Any) -> None:
        self.nodeid, self.marks = nodeid, marks

    def get_closest_marker(self, name: str) -> Any:
        return self.marks.get(name)

    def add_marker(self, marker: Any) -> None:
        self.marks[marker.name] = marker.mark


def test_longest_group_comes_first_in_one_piece() -> None:
    spark, run = SimpleNamespace(args=("spark",)), SimpleNamespace(args=())
    items: list[Any] = [
        Item("tests/a.py::x"),
        Item("tests/b.py::x", xdist_group=spark),
        Item("tests/a.py::y"),
        Item("tests/b.py::y[1]"),
        Item("tests/c.py::x"),
        Item("tests/d.py::x", local_run=run),
    ]
    longest_first(items, {"tests/a.py::y": 30.0, "tests/b.py::x": 20.0, "tests/c.py::x": 80.0})
    assert [group_of(item) for item in items] == ["c", "d", "a", "a", "spark", "b"]
    assert [item.nodeid for item in items[2:4]] == ["tests/a.py::x", "tests/a.py::y"]


def test_long_tests_are_recorded_without_their_group(tmp_path: Path) -> None:
    file = tmp_path / "durations.txt"
    file.write_text("7 t.py::not_run_now\n9 t.py::faster_now\n")
    recorder = Recorder(file)
    for name, seconds in (
        ("t.py::a@spark", 4.0),
        ("t.py::a@spark", 2.0),
        ("t.py::b[x@y z]@pulsar", 8.0),
        ("t.py::faster_now", 0.05),
    ):
        report: Any = SimpleNamespace(nodeid=name, duration=seconds)
        recorder.pytest_runtest_logreport(report)
    recorder.pytest_sessionfinish()
    assert recorded(file) == {"t.py::a": 6.0, "t.py::b[x@y z]": 8.0, "t.py::not_run_now": 7.0}


def test_no_recorded_name_is_long() -> None:
    assert pytest_make_parametrize_id("as it is") is None
    assert pytest_make_parametrize_id(b"x" * 2**24) == f"b'{'x' * MOST_NAMED}' of 16777216"
    assert max(map(len, recorded())) < 500
