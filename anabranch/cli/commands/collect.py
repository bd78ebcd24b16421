"""`anabranch serve collector`: what a cluster does, from its interfaces into Kafka."""

from __future__ import annotations

from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, get_args

import click

from anabranch.cli.context import Context
from anabranch.cli.exits import failing_on
from schemas.bundles import Profile
from schemas.printable import printable

if TYPE_CHECKING:
    from anabranch.collectors.status import CollectorStatus


@click.group("collect")
def collect_command() -> None:
    """Read a cluster's load, layouts, consumers and policies into Kafka, where the job takes them."""


@collect_command.command("pulsar")
@click.option("--once", is_flag=True, help="Read everything once, send it, say what was seen, and end.")
@click.option("--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.pass_obj
def collect_topics(context: Context, once: bool, output: str) -> None:
    """Collect a Pulsar 5 cluster until told to stop (Ctrl-C, SIGTERM).

    \b
    Asks the brokers of the cluster at [controller] url, with the token of ANABRANCH_CONTROLLER_TOKEN if there is one,
    and writes to Kafka ([kafka] bootstrap). It may be killed and started again at any moment. What it reads, how often,
    and with which rights: docs/pulsar.md.

    \b
    With [collect] consumers = "attached", the default, it only reads, and consumers that wait without a segment are not
    seen. "registered" sees them, by …/stats of each topic's leader. In Pulsar 5.0.0-M1 that call can cost a topic its
    scaler's failover if another broker gets it: read "Consumers" in docs/pulsar.md before you choose it.
    """
    context.start_logging("collect")
    from anabranch.collectors.pulsar.process import collect_pulsar
    from runtime.telemetry.serving import MetricsError

    with failing_on(MetricsError):
        status = collect_pulsar(
            context.settings, lambda line: None if output == "json" else click.echo(line), once=once
        )
    _report_status(status, once, output)


@collect_command.command("kafka")
@click.option("--once", is_flag=True, help="Read everything until rates are known, send them, say what was seen, end.")
@click.option("--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.pass_obj
def collect_segments(context: Context, once: bool, output: str) -> None:
    """Collect the load of segments that are Kafka topics, until told to stop (Ctrl-C, SIGTERM).

    \b
    For our own controller with [controller] segments = "kafka". Reads offsets and group positions from the Kafka of
    [kafka], layouts from the controller at [controller] url (token: ANABRANCH_CONTROLLER_TOKEN, role read), and writes
    rates per segment to Kafka. It changes nothing and may be killed and started again at any moment. --once ends with
    exit code 1 if anything could not be read. Rates, and what is not seen: docs/clients.md.
    """
    context.start_logging("collect")
    from anabranch.collectors.kafka.process import collect_kafka
    from anabranch.collectors.kafka.segments import CACHED_GROUPS
    from anabranch.controller.segments.kafka_readings import SegmentReadings
    from runtime.telemetry.serving import MetricsError

    readings = SegmentReadings(context.settings.kafka_connection(), CACHED_GROUPS)
    with failing_on(MetricsError), closing(readings):
        status = collect_kafka(
            context.settings, readings, lambda line: None if output == "json" else click.echo(line), once=once
        )
    _report_status(status, once, output)
    if once and not status.is_delivered:
        raise click.exceptions.Exit(1)


def _report_status(status: CollectorStatus, once: bool, output: str) -> None:
    """Print what was seen, and fail if that is not all."""
    from anabranch.collectors.status import describe_status
    from anabranch.query.wording import quantity

    if once or output == "json":
        click.echo(status.to_json() if output == "json" else describe_status(status))
    if once and not status.topics_listed:
        raise click.ClickException(
            "no topic was found: is one there that the token may see, and in [collect] namespaces, if these are set?"
        )
    if once and (missing := status.waiting + status.lost):
        raise click.ClickException(
            f"{quantity(missing, 'record')} did not reach Kafka: see [kafka], and anabranch kafka check"
        )
    if once and not status.is_complete:
        raise click.exceptions.Exit(1)


@collect_command.command("bundles")
@click.option("--once", is_flag=True, help="Read everything once, send it, and end.")
@click.option(
    "--set",
    "chosen",
    multiple=True,
    metavar="NAME=VALUE",
    help="A setting of broker.conf to decide by, or profile=default.",
)
@click.pass_obj
def collect_cluster_bundles(context: Context, once: bool, chosen: tuple[str, ...]) -> None:
    """Collect a Pulsar cluster's bundles, once a minute, until told to stop (Ctrl-C, SIGTERM).

    \b
    For the family `bundles` of the job: brokers, their load, owners and policies, from the brokers' REST interface at
    [controller] url to Kafka. With [bundles] load_reports = "published" the load is what brokers publish, in the
    metadata store and the load-data topics. It changes nothing in the cluster: docs/bundles.md.
    """
    context.start_logging("collect")
    from anabranch.collectors.bundle_process import collect_bundles

    if wrong := [setting for setting in chosen if "=" not in setting]:
        raise click.UsageError(f"--set {wrong[0]}: NAME=VALUE is wanted")
    configuration = dict(setting.split("=", 1) for setting in chosen)
    if (profile := configuration.get("profile")) is not None and profile not in get_args(Profile):
        raise click.UsageError(f"--set profile={printable(profile)}: it is one of {', '.join(get_args(Profile))}")
    with ExitStack() as stack:
        published = None
        if context.settings.bundles.load_reports == "published":
            from anabranch.cli.published_loads import open_published_loads

            published = open_published_loads(context.settings, stack)
        was_read = collect_bundles(context.settings, configuration, click.echo, once=once, published=published)
    if not was_read:
        raise click.exceptions.Exit(1)
