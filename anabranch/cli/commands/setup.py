"""`anabranch local setup`: the jars, fetched once and checked."""

from __future__ import annotations

import click

from anabranch.cli.context import Context


@click.command("setup")
@click.option("--quiet", is_flag=True, help="Say nothing when there is nothing to do.")
@click.option(
    "--pulsar",
    is_flag=True,
    help="Also those of a real Pulsar 5 (220 MB), which nothing else fetches before it is asked for.",
)
@click.pass_obj
def command(context: Context, quiet: bool, pulsar: bool) -> None:
    """Fetch the jars of conf/jars/ (once, by the Ivy inside pyspark) and check each against its SHA-256.

    Then archive the classes of Spark's JVM, so that it starts more quickly (once, and after an update of Java).
    """
    from anabranch.local.archive import ensure_archive
    from anabranch.local.setup import ensure_jars, ensure_pulsar
    from runtime.java_home import SetupError

    def say(line: str) -> None:
        click.echo(line, err=True)

    try:
        jars = ensure_jars(context.settings, say)
        if pulsar:
            ensure_pulsar(context.settings, say)
        ensure_archive(context.settings, say)
    except SetupError as error:
        raise click.ClickException(str(error)) from error
    if not quiet:
        click.echo(f"jars are in {jars.spark.parent}")
