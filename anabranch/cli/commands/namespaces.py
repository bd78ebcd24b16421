"""`anabranch topics namespaces`: namespaces through the admin REST interface, ours or a Pulsar 5's.

Exit codes as those of `anabranch topics`.
"""

from __future__ import annotations

import click

from anabranch.cli.admin_client import AdminInterface
from anabranch.cli.connection import connected, namespace_name, say, tenant_name
from schemas.printable import printable


@click.group("namespaces")
def command() -> None:
    """Create, list and delete namespaces (tenant/namespace).

    At our own controller a namespace exists when it was created, is named in [controller] namespaces, or has a topic or
    a policy; a topic may be created in any.
    """


@command.command("create")
@click.argument("namespace", type=namespace_name, metavar="NAMESPACE")
@connected
def create(admin: AdminInterface, output: str, namespace: str) -> None:
    """Create NAMESPACE, so that it can have a policy before it has topics."""
    admin.expect(admin.topics.create_namespace(namespace))
    say(output, f"created {printable(namespace)}", {"created": namespace})


@command.command("list")
@click.argument("tenant", type=tenant_name, metavar="TENANT")
@connected
def list_namespaces(admin: AdminInterface, output: str, tenant: str) -> None:
    """List the namespaces of TENANT that the token may see, one a line."""
    names = admin.expect(admin.topics.list_namespaces(tenant))
    say(output, "\n".join(map(printable, names)), names)


@command.command("delete")
@click.argument("namespace", type=namespace_name, metavar="NAMESPACE")
@connected
def delete(admin: AdminInterface, output: str, namespace: str) -> None:
    """Delete NAMESPACE with its policy; it must have no topics."""
    admin.expect(admin.topics.delete_namespace(namespace))
    say(output, f"deleted {printable(namespace)}", {"deleted": namespace})
