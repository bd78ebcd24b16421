"""`anabranch config`: what counts in the end, without secrets, and what is wrong with it."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner, Result

from anabranch.cli.main import cli
from schemas.settings.root import load_settings


def run(home, *arguments, **environment: str) -> Result:
    return CliRunner().invoke(cli, ["--home", str(home), "config", *arguments], env=environment)


def test_show_has_the_value_that_counts(tmp_path):
    (tmp_path / "anabranch.toml").write_text("[stream]\nbuckets = 3\n")
    assert "stream.buckets = 3\n" in run(tmp_path, "show").output
    shown = run(tmp_path, "show", "stream", "--output", "json", ANABRANCH_STREAM__BUCKETS="5")
    assert json.loads(shown.output)["stream.buckets"] == 5
    assert run(tmp_path, "show", "strem").exit_code == 2


def test_show_hides_secrets(tmp_path):
    shown = run(tmp_path, "show", ANABRANCH_CONTROLLER_TOKEN="s3cret-s3cret")
    assert 'controller.token = "(set)"' in shown.output
    assert "s3cret" not in shown.output


def test_shown_variables_give_the_same_settings(tmp_path):
    text = '[executor]\nmode = "approve"\n[metrics]\nnames = ["a", "b"]\n[lake]\npath = "/a b"\n'
    (tmp_path / "anabranch.toml").write_text(text)
    lines = run(tmp_path, "show", "--output", "environment").output.splitlines()
    variables = dict(line.split("=", 1) for line in lines)
    assert load_settings([], tmp_path, variables) == load_settings([tmp_path / "anabranch.toml"], tmp_path, {})


@pytest.mark.parametrize(
    ("section", "key"),
    [
        ("alerts", "rules"),
        ("stream", "spark_conf"),
        ("controller", "tokens_file"),
        ("controller", "oauth2_key"),
        ("web", "tokens_file"),
    ],
)
def test_check_names_the_file_that_is_missing(tmp_path, section, key):
    assert run(tmp_path, "check").exit_code == 0
    (tmp_path / "anabranch.toml").write_text(f'[{section}]\n{key} = "nowhere.yaml"\n')
    checked = run(tmp_path, "check")
    assert (checked.exit_code, "nowhere.yaml" in checked.output) == (1, True)


def test_schema_refuses_unknown_keys():
    schema = json.loads(CliRunner().invoke(cli, ["config", "schema"]).output)
    assert schema["$defs"]["StreamSettings"]["additionalProperties"] is False
