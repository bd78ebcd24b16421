"""The order of tests: longest first, groups by their sum."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.order import Recorder, group_of, longest_first, recorded


class Item:
    """As pytest has it, with the mark of a group or without."""

    def __init__(self, nodeid: str, group: str | None = None) -> None:
        self.nodeid, self.mark = nodeid, group and SimpleNamespace(args=(group,))

    def get_closest_marker(self, name: str) -> Any:
        return self.mark

    def add_marker(self, marker: Any) -> None:
        self.mark = marker


def test_longest_group_comes_first_in_one_piece() -> None:
    names = ["tests/a.py::x", "tests/b.py::x", "tests/a.py::y", "tests/b.py::y[1]", "tests/c.py::x"]
    items: list[Any] = [Item(name, "spark" if name.endswith("x") and "b" in name else None) for name in names]
    longest_first(items, {"tests/a.py::y": 30.0, "tests/b.py::x": 20.0, "tests/c.py::x": 40.0})
    assert [item.nodeid for item in items] == [names[at] for at in (4, 0, 2, 1, 3)]
    assert [group_of(item) for item in items] == ["c", "a", "a", "spark", "b"]


def test_long_tests_are_recorded_without_their_group(tmp_path: Path) -> None:
    file = tmp_path / "durations.txt"
    file.write_text("7 t.py::not_run_now\n9 t.py::faster_now\n")
    recorder = Recorder(file)
    for name, seconds in (
        ("t.py::a@spark", 4.0),
        ("t.py::a@spark", 2.0),
        ("t.py::b[x@y z]@pulsar", 8.0),
        ("t.py::faster_now", 1.0),
    ):
        report: Any = SimpleNamespace(nodeid=name, duration=seconds)
        recorder.pytest_runtest_logreport(report)
    recorder.pytest_sessionfinish()
    assert recorded(file) == {"t.py::a": 6.0, "t.py::b[x@y z]": 8.0, "t.py::not_run_now": 7.0}
