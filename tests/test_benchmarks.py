"""What a benchmark does is asked for before it is run: it takes minutes, and writes what the release says of itself."""

from __future__ import annotations

import sys
from importlib import import_module

import pytest

from benchmarks.__main__ import BENCHMARKS

READS_ITS_ARGUMENTS_BEFORE_MAIN = {"latency"}


@pytest.mark.parametrize("name", sorted({"__main__", "soak", *BENCHMARKS} - READS_ITS_ARGUMENTS_BEFORE_MAIN))
def test_help_is_printed_and_nothing_is_run(name, monkeypatch, capsys):
    main = import_module(f"benchmarks.{name}").main
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    assert "usage:" in capsys.readouterr().out.lower()
