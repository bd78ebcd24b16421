"""`anabranch topics adopt`: a plain Kafka topic becomes the beginning of a scalable topic.

Every step can be repeated: inspect, seal, inspect again, create the scalable topic. The last one carries the positions
of the consumer groups and is atomic at the controller, so a command that was killed is simply run again.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from anabranch.admin.answers import Refused
from anabranch.cli.admin_client import AdminInterface
from anabranch.cli.connection import print_result, topic_name, with_connection
from anabranch.cli.context import Context
from anabranch.cli.exits import FOUND, Unreachable
from schemas.printable import printable

if TYPE_CHECKING:
    from anabranch.controller.segments.kafka_adoption import PlainTopic


@click.command("adopt")
@click.argument("kafka_topic", metavar="KAFKA_TOPIC")
@click.argument("topic", type=topic_name, metavar="TOPIC")
@click.option("--segments", type=click.IntRange(min=1), default=1, show_default=True, help="Active segments of TOPIC.")
@click.option("--dry-run", is_flag=True, help="Only say what would happen, and what stands in the way.")
@with_connection
def adopt_topic(admin: AdminInterface, output: str, kafka_topic: str, topic: str, segments: int, dry_run: bool) -> None:
    """Create TOPIC with the partitions of KAFKA_TOPIC, at [kafka] bootstrap, as its sealed first segments.

    KAFKA_TOPIC takes no messages from then on, and keeps those that it has. Its consumer groups become subscriptions of
    TOPIC, at their positions. Stop producers and consumers first. If it was interrupted, run it again. Exit code 1:
    something stands in the way, nothing was created.
    """
    from anabranch.controller.segments.base import SegmentStoreError
    from anabranch.controller.segments.kafka_adoption import TopicAdoption

    context: Context = click.get_current_context().obj
    context.warn("stream")
    adoption = TopicAdoption(context.settings.kafka_connection(), kafka_topic)
    if _is_adopted(admin, kafka_topic, topic):
        print_result(output, f"{printable(topic)} has adopted {printable(kafka_topic)} already", {"adopted": topic})
        return
    try:
        plain = adoption.inspect()
        result = _request(plain, segments)
        if not dry_run:
            adoption.seal(len(plain.ends))
            # A producer or consumer may have come between.
            plain = adoption.inspect()
            result = _request(plain, segments)
    except SegmentStoreError as error:
        raise Unreachable(str(error)) from None
    if not dry_run:
        admin.expect(admin.topics.adopt_topic(topic, result))
    messages = sum(plain.ends) - sum(plain.firsts)
    text = (
        f"{'would adopt' if dry_run else 'adopted'} {len(plain.ends)} partitions with {messages} messages as "
        f"{printable(topic)}; subscriptions: {', '.join(map(printable, plain.positions)) or 'none'}"
    )
    print_result(output, text, {**result, "dryRun": dry_run})


def _is_adopted(admin: AdminInterface, kafka_topic: str, topic: str) -> bool:
    """Return whether TOPIC was made from KAFKA_TOPIC. Raises `ClickException` if it has no partition of it."""
    reply = admin.topics.layout(topic)
    if isinstance(reply, Refused) and reply.status == 404:
        return False
    prefix = f"kafka://{kafka_topic}/"
    names = [segment.legacy_topic_name or "" for segment in admin.expect(reply).segments.values()]
    if not any(name.startswith(prefix) for name in names):
        raise click.ClickException(f"{printable(topic)} exists already, without partitions of {printable(kafka_topic)}")
    return True


def _request(plain: PlainTopic, segments: int) -> dict[str, Any]:
    """Return the request to the controller; with anything in the way, print that and end."""
    from anabranch.controller.operations.adoption import Adoption

    request = {
        "kafkaTopic": plain.name,
        "partitions": len(plain.ends),
        "segments": segments,
        "subscriptions": plain.positions,
    }
    problems = plain.problems or Adoption.faults_of(json.dumps(request))
    for problem in problems:
        click.echo(printable(problem), err=True)
    if problems:
        raise click.exceptions.Exit(FOUND)
    return request
