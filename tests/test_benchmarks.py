"""What a benchmark does is asked for before it is run: it takes minutes, and writes what the release says of itself."""

from __future__ import annotations

import sys
from importlib import import_module

import pytest

from benchmarks.__main__ import BENCHMARKS
from benchmarks.growth import is_enough

READS_ITS_ARGUMENTS_BEFORE_MAIN = {"latency"}


@pytest.mark.parametrize("name", sorted({"__main__", "reality", "soak", *BENCHMARKS} - READS_ITS_ARGUMENTS_BEFORE_MAIN))
def test_help_is_printed_and_nothing_is_run(name, monkeypatch, capsys):
    main = import_module(f"benchmarks.{name}").main
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    assert "usage:" in capsys.readouterr().out.lower()


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        ([], False),
        ([9.0], False),
        ([9.0, 1.0], False),
        ([1.0, 1.04], True),
        ([9.0, 1.04, 1.0], True),
        ([1.0, 1.2, 1.4, 1.6], False),
        ([1.0, 1.2, 1.4, 1.6, 1.8], True),
        ([40.0], False),
        ([10.0, 20.0], True),
    ],
)
def test_rounds_repeated_until_best_agree(seconds, expected):
    assert is_enough(seconds) is expected
