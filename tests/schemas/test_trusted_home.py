"""Settings are found only in folders that nobody else could have written."""

from __future__ import annotations

import os

import pytest

from schemas.settings import root as settings_module
from schemas.settings.root import SettingsError, default_home, load_settings


@pytest.fixture
def work(tmp_path, monkeypatch):
    """A working directory below a home."""
    home = tmp_path / "home"
    (home / "conf").mkdir(parents=True)
    (home / "conf" / "anabranch.toml").write_text('[controller]\nurl = "http://elsewhere:1"\n')
    (home / "a" / "b").mkdir(parents=True)
    monkeypatch.chdir(home / "a" / "b")
    monkeypatch.delenv("ANABRANCH_HOME", raising=False)
    for path in (home, home / "conf", home / "conf" / "anabranch.toml"):
        path.chmod(0o755)
    return home


def test_own_home_is_taken(work):
    assert default_home() == work
    assert load_settings(environment={}).controller.url == "http://elsewhere:1"


@pytest.mark.parametrize(
    ("part", "mode"), [(".", 0o777), (".", 0o1777), (".", 0o757), ("conf", 0o777), ("conf/anabranch.toml", 0o777)]
)
def test_home_that_everybody_may_write_is_refused(work, part, mode):
    (work / part).chmod(mode)
    with pytest.raises(SettingsError, match=rf"may be written by everybody.*--home {work}"):
        load_settings(environment={})


def test_home_of_another_group_is_refused(work, monkeypatch):
    (work / "conf").chmod(0o775)
    monkeypatch.setattr("schemas.settings.trusted_home._is_private", lambda _group: False)
    with pytest.raises(SettingsError, match="all of the group"):
        default_home()
    monkeypatch.setattr("schemas.settings.trusted_home._is_private", lambda _group: True)
    assert default_home() == work


@pytest.mark.parametrize("part", [".", "conf", "conf/anabranch.toml"])
def test_home_of_another_account_is_refused(work, part, monkeypatch):
    if os.geteuid():
        monkeypatch.setattr("os.geteuid", lambda: 1 + os.getuid())
    else:
        os.chown(work / part, 12_345, -1)
    with pytest.raises(SettingsError, match="belongs to"):
        default_home()
    # Whoever names it trusts it.
    assert load_settings(home=work, environment={}).controller.url == "http://elsewhere:1"
    monkeypatch.setenv("ANABRANCH_HOME", str(work))
    assert default_home() == work


def test_working_directory_file_checked_too(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ANABRANCH_HOME", raising=False)
    monkeypatch.setattr(settings_module, "PROJECT", tmp_path / "package")
    assert default_home() == tmp_path
    (tmp_path / "anabranch.toml").touch()
    (tmp_path / "anabranch.toml").chmod(0o666)
    with pytest.raises(SettingsError, match="may be written by everybody"):
        default_home()


def test_project_itself_is_trusted(monkeypatch):
    monkeypatch.chdir(settings_module.PROJECT / "docs")
    monkeypatch.delenv("ANABRANCH_HOME", raising=False)
    monkeypatch.setattr("schemas.settings.trusted_home._trust_fault", lambda _status: "belongs to somebody")
    assert default_home() == settings_module.PROJECT
