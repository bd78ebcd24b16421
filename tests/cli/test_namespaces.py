"""`anabranch topics namespaces` at a real controller."""

from __future__ import annotations

import json

import pytest

from tests.cli.conftest import run_any


def test_a_namespace_is_created_listed_and_deleted(controller, namespace):
    def say(*arguments):
        done = run_any(controller.url, "namespaces", *arguments)
        return done.exit_code, (done.stdout or done.stderr).strip()

    assert say("create", namespace) == (0, f"created {namespace}")
    assert say("create", namespace) == (1, f"Error: Namespace already exists: {namespace} (409)")
    assert namespace in say("list", "acme")[1].splitlines()
    assert namespace in json.loads(say("list", "acme", "--output", "json")[1])
    assert say("delete", namespace) == (0, f"deleted {namespace}")
    assert say("delete", namespace)[1].endswith("(404)")
    assert say("list", "nobody") == (1, "Error: Tenant not found: nobody (404)")


@pytest.mark.parametrize("wrong", [("create", "acme"), ("list", "acme/shop"), ("delete", "a/b/c")])
def test_wrong_names_are_wrong_usage(wrong):
    assert run_any("http://127.0.0.1:1", "namespaces", *wrong).exit_code == 2
