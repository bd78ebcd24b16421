"""`anabranch serve controller`: run the scalable-topic controller, or copy its metadata."""

import re

import click

from anabranch.cli.context import Context
from anabranch.cli.exits import failing_on

_PLACE = re.compile(r"sqlite|zks?://[^/\s]+(/[\w.-]+)*/?")


@click.group("controller", invoke_without_command=True)
@click.pass_context
def controller_command(ctx: click.Context) -> None:
    """Run the scalable-topic controller until SIGTERM or Ctrl-C.

    Prints one line with its URL when it answers requests.
    """
    if ctx.invoked_subcommand is not None:
        return
    from anabranch.controller.errors import StartError
    from anabranch.controller.server import serve

    context: Context = ctx.obj
    settings = context.settings
    context.start_logging("controller")
    with failing_on(StartError):
        serve(settings, lambda url: click.echo(f"controller ready at {url}"))


@controller_command.command("copy")
@click.option("--from", "source", metavar="PLACE", help="Instead of [controller] metadata of the settings.")
@click.option("--to", "target", metavar="PLACE", required=True)
@click.pass_obj
def copy(context: Context, source: str | None, target: str) -> None:
    """Copy all layouts, subscriptions, registrations, policies and announcements to another, empty place.

    \b
    PLACE is sqlite ([controller] database) or zk://host:port,host:port/root. No controller may run on either place; one
    that was killed counts as running until its session has ended. Everything is read back and compared. If a copy is
    interrupted, run the same command again: until then, controllers refuse to start on it. The source is not changed.
    """
    from anabranch.controller.errors import StartError
    from anabranch.controller.metadata.store_copy import copy_metadata

    source = source or context.settings.controller.metadata
    for store in (source, target):
        if not _PLACE.fullmatch(store):
            raise click.UsageError(f"{store!r} is neither sqlite nor zk://host:port[,host:port…][/root]")
    if source.rstrip("/") == target.rstrip("/"):
        raise click.UsageError(f"--from and --to are both {source}")
    for store in (source, target):
        chosen = context.settings.controller.model_copy(update={"metadata": store})
        context.warn("controller copy", context.settings.model_copy(update={"controller": chosen}))
    with failing_on(StartError):
        done = copy_metadata(context.settings, source, target, lambda line: click.echo(line, err=True))
    summary = f"{done.topics} topics ({done.nodes} nodes, {done.announcements} announcements that wait)"
    click.echo(
        f"{target} had all of {source} already: {summary}" if done.was_there else f"{summary} are in {target} now"
    )
