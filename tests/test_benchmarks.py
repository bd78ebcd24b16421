"""What a benchmark does is asked for before it is run: it takes minutes, and writes what the release says of itself."""

from __future__ import annotations

from importlib import import_module

import pytest
from click.testing import CliRunner

from benchmarks.__main__ import BENCHMARKS

ARGPARSE = {"latency"}


@pytest.mark.parametrize("name", sorted({"__main__", "soak", *BENCHMARKS} - ARGPARSE))
def test_help_is_printed_and_nothing_is_run(name):
    done = CliRunner().invoke(import_module(f"benchmarks.{name}").main, ["--help"])
    assert done.exit_code == 0
    assert "Usage:" in done.output
    assert "--quick" in done.output or name == "soak"
