"""`anabranch topics namespaces`: namespaces through the admin REST interface, ours or a Pulsar 5's.

Exit codes as those of `anabranch topics`.
"""

import click

from anabranch.cli.admin_client import AdminInterface
from anabranch.cli.connection import namespace_name, print_result, tenant_name, with_connection
from schemas.printable import printable


@click.group("namespaces")
def namespaces_command() -> None:
    """Create, list and delete namespaces (tenant/namespace).

    At our own controller a namespace exists when it was created, is named in [controller] namespaces, or has a topic or
    a policy; a topic may be created in any.
    """


@namespaces_command.command("create")
@click.argument("namespace", type=namespace_name, metavar="NAMESPACE")
@with_connection
def create_namespace(admin: AdminInterface, output: str, namespace: str) -> None:
    """Create NAMESPACE, so that it can have a policy before it has topics."""
    admin.expect(admin.topics.create_namespace(namespace))
    print_result(output, f"created {printable(namespace)}", {"created": namespace})


@namespaces_command.command("list")
@click.argument("tenant", type=tenant_name, metavar="TENANT")
@with_connection
def list_namespaces(admin: AdminInterface, output: str, tenant: str) -> None:
    """List the namespaces of TENANT that the token may see, one a line."""
    names = admin.expect(admin.topics.list_namespaces(tenant))
    print_result(output, "\n".join(map(printable, names)), names)


@namespaces_command.command("delete")
@click.argument("namespace", type=namespace_name, metavar="NAMESPACE")
@with_connection
def delete_namespace(admin: AdminInterface, output: str, namespace: str) -> None:
    """Delete NAMESPACE with its policy; it must have no topics."""
    admin.expect(admin.topics.delete_namespace(namespace))
    print_result(output, f"deleted {printable(namespace)}", {"deleted": namespace})
