"""Shared parts of commands: readers of names, connection to the controller, output of results.

Commands that only read the lake use the readers of names too.
"""

import functools
import json
import os
import re
from collections.abc import Callable
from typing import Any

import click

from anabranch.admin.credentials import credentials_of
from anabranch.cli.admin_client import AdminInterface
from anabranch.cli.context import Context
from anabranch.cli.reports import reading_lake
from schemas.ids import topic_parts
from schemas.printable import printable
from schemas.settings.exposure import url_exposures

_UNPAIRED = re.compile("[\ud800-\udfff]")
"""Characters that Python puts in place of bytes on a command line that are not UTF-8."""


def encodable_text(value: str) -> str:
    """Return `value`. Raises `click.BadParameter` if the command line held bytes that are not UTF-8."""
    if _UNPAIRED.search(value):
        raise click.BadParameter(f"{printable(value)} is not UTF-8")
    return value


def topic_name(value: str) -> str:
    """Read `topic://tenant/namespace/name`, or the same without `topic://`."""
    name = value if "://" in value else f"topic://{value}"
    encodable_text(name)
    try:
        topic_parts(name)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    return name


class KnownTopic(click.ParamType):  # type: ignore[type-arg]  # generic in newer releases only
    """A topic in full, or as much of its end as only one topic in the lake has; only for an end is the lake read."""

    name = "topic"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the full name."""
        context = ctx.find_object(Context) if ctx else None
        if context is None or not value or value.removeprefix("topic://").count("/") >= 2:
            return topic_name(value)
        from anabranch.query.topics import NoTopics, topic_on_record
        from lake.tables import LakeError

        lake = context.settings.lake_path
        with reading_lake(lake):
            try:
                return topic_on_record(lake, encodable_text(value))
            except (NoTopics, LakeError) as error:
                reason = f"{printable(value)} is not a whole name, tenant/namespace/name, and {printable(str(error))}"
                raise click.BadParameter(reason) from None


KNOWN_TOPIC = KnownTopic()


def tenant_name(value: str) -> str:
    """Read the name of a tenant."""
    if not value or "/" in value:
        raise click.BadParameter(f"{value!r} is no tenant")
    return encodable_text(value)


def namespace_name(value: str) -> str:
    """Read `tenant/namespace`."""
    tenant, _, namespace = value.partition("/")
    if not tenant or not namespace or "/" in namespace:
        raise click.BadParameter(f"{value!r} is no namespace; expected tenant/namespace")
    return encodable_text(value)


def subscription_name(value: str) -> str:
    """Read the name of a subscription."""
    if not value:
        raise click.BadParameter("the name of a subscription is empty")
    return encodable_text(value)


def policy_subject(value: str) -> str:
    """Read the owner of a policy: `tenant/namespace`, or a topic."""
    return namespace_name(value) if value.count("/") == 1 else topic_name(value)


def with_connection(function: Callable[..., None]) -> Callable[..., None]:
    """Give a command `--url` and `--output`; call it with `admin` (`AdminInterface`) and `output`.

    Without settings of one's own, the controller is that of a local run at work, if there is one.
    """

    @functools.wraps(function)
    def run(context: Context, **arguments: Any) -> None:
        settings = context.settings.controller
        token = credentials_of(context.settings)
        url = arguments.pop("url") or _local_run_url(context) or settings.url
        admin = AdminInterface(url, token, nodes=settings.nodes, tls=context.settings.url_context())
        for exposure in url_exposures(url, settings.nodes):
            click.echo(f"Warning: {printable(exposure)}", err=True)
        function(admin=admin, **arguments)

    output = click.option("--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
    url = click.option("--url", metavar="URL", help="Admin interface, instead of the settings' [controller] url.")
    passed: Callable[..., None] = click.pass_obj(run)
    return url(output(passed))


def _local_run_url(context: Context) -> str | None:
    if context.own or any(name.startswith("ANABRANCH_CONTROLLER") for name in os.environ):
        return None
    from anabranch.local.supervisor import lock_owner
    from schemas.settings.root import load_settings

    folder = context.settings.path(context.settings.local.folder)
    file = folder / "run.toml"
    if not file.is_file() or lock_owner(folder) is None:
        return None
    url = load_settings([file], context.home).controller.url
    click.echo(f"the local run's controller, {url}", err=True)
    return url


def print_result(output: str, text: str, value: Any) -> None:
    """Print a result: `text` for people, or `value` as JSON in one line."""
    click.echo(json.dumps(value) if output == "json" else text)
