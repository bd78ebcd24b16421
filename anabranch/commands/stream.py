"""`anabranch stream`: runs the Spark job in the foreground."""

from __future__ import annotations

import signal
import threading

import click

from anabranch.context import Context


@click.command("stream")
@click.pass_obj
def command(context: Context) -> None:
    """Run the Spark job until it is told to stop (Ctrl-C, SIGTERM: it ends between two batches).

    \b
    Needs Kafka ([kafka] bootstrap) with the three topics, and writes the Delta tables of [lake] path.
    Under spark-submit the master and any --conf given there win over conf/spark.conf.
    """
    context.start_logging("stream")
    settings = context.settings
    from streaming.checkpoint import CheckpointInUse
    from streaming.job import JobFailed, run_job
    from streaming.meter import MetricsError

    stop = threading.Event()
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, lambda *_: stop.set())
    try:
        run_job(settings, stop)
    except (CheckpointInUse, JobFailed, MetricsError) as error:
        raise click.ClickException(str(error)) from error
