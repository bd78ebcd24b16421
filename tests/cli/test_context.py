"""Which settings files a command reads: its own folder's unless the command line names others."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from anabranch.cli.context import DEMONSTRATION, Context, hide_new_files

HOME = Path(__file__).resolve().parents[2]


def test_anabranch_toml_of_home_is_used(tmp_path):
    (tmp_path / "anabranch.toml").write_text("[stream]\nbuckets = 3\n")
    assert Context(home=tmp_path).settings.stream.buckets == 3


def test_command_line_files_replace_home_file(tmp_path):
    (tmp_path / "anabranch.toml").write_text("[stream]\nbuckets = 3\n")
    (tmp_path / "other.toml").write_text("[stream]\ntick_seconds = 7\n")
    settings = Context((Path("other.toml"),), tmp_path).settings
    assert (settings.stream.buckets, settings.stream.tick_seconds) == (16, 7)


def test_files_passed_to_processes_are_absolute(tmp_path, monkeypatch):
    (tmp_path / "home").mkdir()
    (tmp_path / "mine.toml").touch()
    monkeypatch.chdir(tmp_path)
    context = Context((Path("mine.toml"),), tmp_path / "home", extra=[DEMONSTRATION])
    assert context.files == [HOME / DEMONSTRATION, tmp_path / "mine.toml"]


@pytest.mark.parametrize(("before", "after"), [(0o022, 0o077), (0o002, 0o077), (0o027, 0o027), (0o077, 0o077)])
def test_new_files_are_hidden_from_others(before, after):
    own = os.umask(before)
    try:
        hide_new_files()
        assert os.umask(own) == after
    finally:
        os.umask(own)


@pytest.mark.process
def test_commands_hide_the_files_that_they_make(tmp_path):
    command = [sys.executable, "-m", "anabranch", "--home", str(tmp_path), "lake", "create"]
    subprocess.run(command, check=True, umask=0o022)
    modes = {stat.S_IMODE(file.stat().st_mode) & 0o077 for file in tmp_path.rglob("*")}
    assert modes == {0}
