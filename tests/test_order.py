"""The order of tests: longest first, groups by their sum."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.order import Recorder, longest_first, recorded


def item(name: str, group: str | None) -> Any:
    """As pytest has it, with the mark of a group."""
    return SimpleNamespace(nodeid=name, get_closest_marker=lambda _: group and SimpleNamespace(args=(group,)))


def test_longest_comes_first_and_groups_count_as_one() -> None:
    items = [item(name, "group" if name in "bd" else None) for name in ("a", "b", "c", "long", "d")]
    longest_first(items, {"b": 20.0, "d": 30.0, "long": 40.0})
    assert [each.nodeid for each in items] == ["b", "d", "long", "a", "c"]


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
