"""`anabranch config token`: makes tokens that a controller accepts, shows names only, and removes them."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from anabranch.cli.main import cli
from tests.cli.conftest import run
from tests.controller.conftest import run_controller


@pytest.fixture
def conf(tmp_path: Path) -> Path:
    written = tmp_path / "guarded.toml"
    written.write_text(f'[controller]\ntokens_file = "{tmp_path}/tokens"\n')
    return written


def token(conf: Path, *arguments: str) -> Result:
    return CliRunner().invoke(cli, ["-c", str(conf), "token", *arguments])


@pytest.mark.process
def test_token_opens_its_role_until_removed(conf: Path, tmp_path: Path) -> None:
    admin, reader = (token(conf, "new", name, "--role", name).stdout.strip() for name in ("admin", "read"))
    with run_controller(tmp_path / "layouts.db", tokens_file=tmp_path / "tokens") as controller:
        as_admin, as_reader = {"ANABRANCH_CONTROLLER_TOKEN": admin}, {"ANABRANCH_CONTROLLER_TOKEN": reader}
        assert run(controller.url, "create", "a/b/t", environment=as_admin).exit_code == 0
        assert run(controller.url, "show", "a/b/t", environment=as_reader).exit_code == 0
        refused = run(controller.url, "split", "a/b/t", "0", environment=as_reader)
        assert (refused.exit_code, refused.stdout) == (1, "")
        assert refused.stderr == ("Error: this needs a token of role operate; the token read has role read (403)\n")
        assert token(conf, "list").stdout == "admin    admin\nread     read\n"
        assert token(conf, "remove", "read").exit_code == 0
        assert "(401)" in run(controller.url, "show", "a/b/t", environment=as_reader).stderr


def test_the_token_alone_is_on_standard_output(conf: Path, tmp_path: Path) -> None:
    made = token(conf, "new", "executor", "--role", "operate")
    assert len(made.stdout.split()) == 1
    assert f"executor (operate) is in {tmp_path}/tokens" in made.stderr
    assert made.stdout.strip() not in (tmp_path / "tokens").read_text()


def test_a_token_is_bound_to_tenants_and_namespaces(conf: Path) -> None:
    made = token(conf, "new", "shop", "--role", "read", "--tenant", "globex", "--namespace", "acme/shop")
    assert "shop (read, bound to globex, acme/shop) is in" in made.stderr
    assert token(conf, "list").stdout == "read     shop acme/shop globex\n"
    for wrong in (("--tenant", "a/b"), ("--namespace", "acme"), ("--tenant", "")):
        assert token(conf, "new", "other", "--role", "read", *wrong).exit_code == 2


def test_what_is_wrong_is_one_line(conf: Path, tmp_path: Path) -> None:
    missing = token(conf, "list")
    assert (missing.exit_code, missing.stderr) == (
        1,
        f"Error: cannot read the tokens in {tmp_path}/tokens: No such file or directory\n",
    )
    conf.write_text("")
    unnamed = token(conf, "list")
    assert unnamed.exit_code == 2
    assert "set tokens_file" in unnamed.stderr
