"""`anabranch serve stream`: runs the Spark job in the foreground."""

import logging
import os
import sys
import threading

import click

from anabranch.cli.context import Context
from anabranch.cli.exits import PERSON_NEEDED
from runtime.telemetry.health import call_on_signals


class PersonNeededError(click.ClickException):
    """The job fails until a person has done what the message says."""

    exit_code = PERSON_NEEDED


@click.command("stream")
@click.option("--new-checkpoint", is_flag=True, help="Start over, on a lake with rows of a lost checkpoint.")
@click.pass_obj
def stream_command(context: Context, new_checkpoint: bool) -> None:
    """Run the Spark job until it is told to stop (Ctrl-C, SIGTERM: it ends between two batches).

    \b
    Needs Kafka ([kafka] bootstrap) with the three topics, and writes the Delta tables of [lake] path.
    Under spark-submit the master and any --conf given there win over conf/spark.conf.
    Exit codes: 0 told to stop; 1 failed, start it again; 2 wrong settings; 4 failed, and will again until a person
    has done what the last line says.
    """
    context.start_logging("stream")
    settings = context.settings
    log_format = settings.log.model_copy(update={"format": context.log_format or settings.log.format})
    settings = settings.model_copy(update={"log": log_format})
    from lake.job_lease import NoLease
    from runtime.telemetry.serving import MetricsError
    from streaming.checkpoint.claim import CheckpointInUse
    from streaming.job.failures import JobFailed, JvmLost, PersonNeeded
    from streaming.job.job import run_job

    stop = threading.Event()
    call_on_signals(stop.set)
    try:
        run_job(settings, stop, new_checkpoint)
    except PersonNeeded as error:
        raise PersonNeededError(str(error)) from error
    except JvmLost as error:
        click.ClickException(str(error)).show()
        # The thread that writes the batch may be in native code, where an interpreter that ends around it crashes.
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)
    except (CheckpointInUse, NoLease, JobFailed, MetricsError) as error:
        if isinstance(error, NoLease) and stop.is_set():
            return
        raise click.ClickException(str(error)) from error
