"""The order in which processes of xdist take groups of tests: the longest first, by their recorded seconds."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest

FILE = Path(__file__).parent / "durations.txt"
LEAST_SECONDS = 0.1
"""What a test takes to be on record."""
SHORT_SECONDS = 0.03
"""What others take, on average."""
LOCAL_RUN_SECONDS = 60
"""What a whole local run takes that is not on record yet."""


def recorded(file: Path = FILE) -> dict[str, float]:
    """Seconds of each long test with its fixtures."""
    lines = (line.split(maxsplit=1) for line in file.read_text().splitlines())
    return {name: float(seconds) for seconds, name in lines}


def longest_first(items: list[pytest.Item], seconds: dict[str, float]) -> None:
    """Make each file a group, unless its tests have one, and sort the groups by the sum of their tests.

    A file in one process sets up what its tests share once.
    """
    totals = defaultdict[str, float](float)
    for item in items:
        if item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(file_of(item.nodeid)))
        totals[group_of(item)] += seconds.get(item.nodeid, assumed(item))
    items.sort(key=lambda item: -totals[group_of(item)])


def assumed(item: pytest.Item) -> float:
    """Seconds of a test that is not on record."""
    return LOCAL_RUN_SECONDS if item.get_closest_marker("local_run") else SHORT_SECONDS


def file_of(nodeid: str) -> str:
    """The file of a test, as short as it is told apart from others."""
    return nodeid.partition("::")[0].removeprefix("tests/").removesuffix(".py")


def group_of(item: pytest.Item) -> str:
    """The group that goes to one process as a whole."""
    group = item.get_closest_marker("xdist_group")
    assert group is not None
    return str(group.args[0])


class Recorder:
    """Writes the file at the end of a run."""

    def __init__(self, file: Path = FILE) -> None:
        self._file, self._seconds = file, defaultdict[str, float](float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Takes the seconds of a test, or of what comes before and after it."""
        self._seconds[ungrouped(report.nodeid)] += report.duration

    def pytest_sessionfinish(self) -> None:
        """Keeps what is on record of tests that did not run."""
        seconds = {**recorded(self._file), **self._seconds}
        lines = (f"{value:.1f} {name}\n" for name, value in sorted(seconds.items()) if value >= LEAST_SECONDS)
        self._file.write_text("".join(lines))


def ungrouped(nodeid: str) -> str:
    """The name of a test without its group, which xdist appends."""
    name, bracket, end = nodeid.rpartition("]")
    return name + bracket + end.partition("@")[0]
