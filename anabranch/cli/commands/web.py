"""`anabranch serve web`: the page that operators keep open."""

import click

from anabranch.cli.context import Context
from anabranch.cli.exits import failing_on


@click.command("web")
@click.option("--port", type=click.IntRange(0, 65_535), help="Instead of [web] port of the settings; 0 = a free one.")
@click.pass_obj
def web_command(context: Context, port: int | None) -> None:
    """Serve the page that operators keep open, until SIGTERM or Ctrl-C.

    \b
    The fleet, each topic as a river, each decision with its reasons, and what brakes the executors; live. Reads the
    lake at [lake] path, and writes to it approvals and brakes only. Prints its address when it answers. Without [web]
    tokens_file it is for this machine alone.
    """
    from anabranch.web.server import PageStartError, serve
    from streaming.job.policy import configured_policy, stored_policy

    context.start_logging("web")
    settings = context.settings
    if port is not None:
        settings = settings.model_copy(update={"web": settings.web.model_copy(update={"port": port})})
    with failing_on(PageStartError):
        serve(
            settings, lambda: stored_policy(configured_policy(settings)), lambda url: click.echo(f"web ready at {url}")
        )
