"""`anabranch topics`: scalable topics through the admin REST interface, ours or a Pulsar 5's.

Exit codes: 0 done, 1 refused by the server, 2 wrong usage, 3 no answer.
"""

import json
import sys
import time
from typing import Any

import click

from anabranch.cli.admin_client import AdminInterface, ClusterUnreachable, WatchUnsupported
from anabranch.cli.commands import namespaces
from anabranch.cli.commands.adopt import adopt_topic
from anabranch.cli.commands.topic_policy import topic_policy
from anabranch.cli.connection import (
    KNOWN_TOPIC,
    encodable_text,
    namespace_name,
    print_result,
    subscription_name,
    topic_name,
    with_connection,
)
from anabranch.cli.instants import DURATION
from decisions.topic.layout import SegmentLayout
from schemas.printable import printable

_SEGMENT = click.IntRange(min=0)


def _property(value: str) -> str:
    key, _, held = value.partition("=")
    if not key or not held:
        raise click.BadParameter(f"{value!r} is not of the form key=value")
    return encodable_text(value)


@click.group("topics")
def topics_command() -> None:
    """Create, look at, split, merge and delete scalable topics, and move their subscriptions.

    \b
    TOPIC is topic://tenant/namespace/name, or the same without topic://. Commands that neither create nor delete take
    the end of a name, as orders, if a single topic in the lake has it. A token comes from the environment:
    ANABRANCH_CONTROLLER_TOKEN. Exit codes: 0 done, 1 refused by the server, 2 wrong usage, 3 no answer.
    """


topics_command.add_command(topic_policy)
topics_command.add_command(adopt_topic)


@topics_command.command("create")
@click.argument("topic", type=topic_name, metavar="TOPIC")
@click.option("--segments", type=click.IntRange(min=1), default=1, show_default=True, help="Initial segments.")
@click.option(
    "--property",
    "-p",
    "properties",
    multiple=True,
    type=_property,
    metavar="KEY=VALUE",
    help="May be given several times.",
)
@with_connection
def create_topic(admin: AdminInterface, output: str, topic: str, segments: int, properties: tuple[str, ...]) -> None:
    """Create TOPIC with equal segments."""
    values = {key: value for key, _, value in (text.partition("=") for text in properties)}
    admin.expect(admin.topics.create_topic(topic, segments, values))
    parts = f"{segments} segment{'s' * (segments != 1)}"
    print_result(output, f"created {printable(topic)} with {parts}", {"created": topic, "segments": segments})


@topics_command.command("list")
@click.argument("namespace", type=namespace_name, metavar="NAMESPACE")
@click.option(
    "--property",
    "-p",
    "properties",
    multiple=True,
    type=_property,
    metavar="KEY=VALUE",
    help="Only topics that have all of them.",
)
@with_connection
def list_topics(admin: AdminInterface, output: str, namespace: str, properties: tuple[str, ...]) -> None:
    """List the topics of NAMESPACE, one a line."""
    names = admin.expect(admin.topics.list_topics(namespace, list(properties)))
    if output == "json" or names:
        print_result(output, "\n".join(map(printable, names)), names)


@topics_command.command("show")
@click.argument("topic", type=KNOWN_TOPIC, metavar="TOPIC")
@click.option(
    "--limit", type=click.IntRange(min=1), default=32, show_default=True, help="Segments and changes to list at most."
)
@with_connection
def show_topic(admin: AdminInterface, output: str, topic: str, limit: int) -> None:
    """Draw the key space of TOPIC, its segments to scale, and below it their history."""
    if output == "json":
        click.echo(json.dumps(admin.expect(admin.topics.layout_record(topic)), indent=2))
        return
    layout = admin.layout(topic)
    from rich.console import Console

    from anabranch.cli.drawing import draw_layout

    console = Console(highlight=False)
    console.print(draw_layout(topic, layout, console.width, limit))


@topics_command.command("stats")
@click.argument("topic", type=KNOWN_TOPIC, metavar="TOPIC")
@with_connection
def show_stats(admin: AdminInterface, output: str, topic: str) -> None:
    """Show what the server counts of TOPIC: segments and consumers."""
    counts = admin.expect(admin.topics.stats(topic))
    click.echo(json.dumps(counts, indent=2) if output == "json" else "\n".join(_outline(counts)))


@topics_command.command("sealed")
@click.argument("topic", type=KNOWN_TOPIC, metavar="TOPIC")
@with_connection
def list_sealed(admin: AdminInterface, output: str, topic: str) -> None:
    """List the sealed segments of TOPIC and why each is still kept."""
    segments = admin.expect(admin.topics.sealed(topic))
    if output == "json":
        click.echo(json.dumps(segments, indent=2))
        return
    for segment in segments:
        click.echo(f"segment {segment['segment']}: {segment['keptBecause']}")


@topics_command.command("split")
@click.argument("topic", type=KNOWN_TOPIC, metavar="TOPIC")
@click.argument("segment", type=_SEGMENT, metavar="SEGMENT")
@with_connection
def split_segment(admin: AdminInterface, output: str, topic: str, segment: int) -> None:
    """Split the active SEGMENT of TOPIC at the middle of its hash range."""
    admin.expect(admin.topics.split_segment(topic, segment))
    print_result(output, f"split segment {segment} of {printable(topic)}", {"topic": topic, "split": segment})


@topics_command.command("merge")
@click.argument("topic", type=KNOWN_TOPIC, metavar="TOPIC")
@click.argument("first", type=_SEGMENT, metavar="FIRST")
@click.argument("second", type=_SEGMENT, metavar="SECOND")
@with_connection
def merge_segments(admin: AdminInterface, output: str, topic: str, first: int, second: int) -> None:
    """Merge FIRST and SECOND, two adjacent active segments of TOPIC."""
    admin.expect(admin.topics.merge_segments(topic, first, second))
    text = f"merged segments {first} and {second} of {printable(topic)}"
    print_result(output, text, {"topic": topic, "merged": [first, second]})


@topics_command.command("rebucket")
@click.argument("topic", type=KNOWN_TOPIC, metavar="TOPIC")
@click.argument("segment", type=_SEGMENT, metavar="SEGMENT")
@click.argument("buckets", type=click.IntRange(1, 65_536), metavar="BUCKETS")
@with_connection
def rebucket_segment(admin: AdminInterface, output: str, topic: str, segment: int, buckets: int) -> None:
    """Replace the active SEGMENT of TOPIC by one of its range with so many entry BUCKETS, of equal width."""
    admin.expect(admin.topics.rebucket_segment(topic, segment, buckets))
    text = f"gave segment {segment} of {printable(topic)} {buckets} entry buckets"
    print_result(output, text, {"topic": topic, "rebucketed": segment, "bucketCount": buckets})


@topics_command.command("seek")
@click.argument("topic", type=KNOWN_TOPIC, metavar="TOPIC")
@click.argument("subscription", type=subscription_name, metavar="SUBSCRIPTION")
@click.option("--timestamp", type=click.IntRange(min=0), metavar="MS", help="Milliseconds since 1970-01-01T00:00:00Z.")
@click.option("--ago", type=DURATION, help="Instead: this long before now, by this machine's clock; 90s, 2h, 7d.")
@with_connection
def move_subscription(
    admin: AdminInterface, output: str, topic: str, subscription: str, timestamp: int | None, ago: float | None
) -> None:
    """Move SUBSCRIPTION of TOPIC to the first messages of a time or later, on every segment.

    It can move forward or back.

    If no message is that late, it moves to the end. Close consumers that read from the segments first.
    """
    if timestamp is None and ago is not None:
        timestamp = max(int((time.time() - ago) * 1000), 0)
    elif timestamp is None or ago is not None:
        raise click.UsageError("say where to: either --timestamp MS or --ago DURATION")
    admin.expect(admin.topics.seek_subscription(topic, subscription, timestamp))
    text = f"moved {printable(subscription)} of {printable(topic)} to {timestamp}"
    print_result(output, text, {"topic": topic, "subscription": subscription, "timestamp": timestamp})


@topics_command.command("clear-backlog")
@click.argument("topic", type=topic_name, metavar="TOPIC")
@click.argument("subscription", type=subscription_name, metavar="SUBSCRIPTION")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation; needed without a terminal.")
@with_connection
def clear_backlog(admin: AdminInterface, output: str, topic: str, subscription: str, yes: bool) -> None:
    """Move SUBSCRIPTION of TOPIC behind the last message of every segment.

    It skips everything that is there now.

    Close consumers that read from the segments first.
    """
    if not yes:
        _confirm(f"Skip everything that {printable(subscription)} has not read of {printable(topic)}?", "to skip it")
    admin.expect(admin.topics.clear_backlog(topic, subscription))
    text = f"{printable(subscription)} of {printable(topic)} is at the end"
    print_result(output, text, {"topic": topic, "subscription": subscription, "cleared": True})


@topics_command.command("delete")
@click.argument("topic", type=topic_name, metavar="TOPIC")
@click.option("--force", is_flag=True, help="Also when producers or consumers are connected.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation; needed without a terminal.")
@with_connection
def delete_topic(admin: AdminInterface, output: str, topic: str, force: bool, yes: bool) -> None:
    """Delete TOPIC with its segments and subscriptions. This cannot be undone."""
    if not yes:
        _confirm(f"Delete {printable(topic)} with all its messages?", "to delete")
    admin.expect(admin.topics.delete_topic(topic, force))
    print_result(output, f"deleted {printable(topic)}", {"deleted": topic})


@topics_command.command("watch")
@click.argument("topic", type=KNOWN_TOPIC, metavar="TOPIC")
@click.option(
    "--every",
    type=DURATION,
    default="1s",
    show_default=True,
    help="Time between two looks, if the server does not push or does not answer.",
)
@with_connection
def watch_layout(admin: AdminInterface, output: str, topic: str, every: float) -> None:
    """Print the layout of TOPIC, and every new one, until Ctrl-C or until the topic is deleted.

    JSON has one record a line.

    Our own controller pushes them; other servers are asked again and again. If the server stops answering, this is said
    once and the command keeps asking; the first look has to succeed.
    """
    from rich.console import Console

    from anabranch.cli.drawing import draw_change

    console = Console(highlight=False)
    shown: SegmentLayout | None = None
    silent, pushes = False, True

    def show(layout: SegmentLayout) -> None:
        nonlocal shown
        # The segments too: a topic that was deleted and made again can be at the same epoch.
        if shown is None or (layout.epoch, layout.segments) != (shown.epoch, shown.segments):
            if output == "json":
                click.echo(layout.to_metadata().to_json())
            else:
                console.print(draw_change(topic, layout, console.width))
            sys.stdout.flush()
        shown = layout

    while True:
        try:
            looked = admin.layout(topic)
            silent = False
            show(looked)
            if pushes:
                for layout in admin.watch(topic, looked.epoch):
                    show(layout)
        except WatchUnsupported:
            pushes = False
        except ClusterUnreachable as error:
            if shown is None:
                raise
            if not silent:
                click.echo(f"{error.message}; looking again every {every:g} s", err=True)
            silent = True
        time.sleep(every)


def _confirm(question: str, what_for: str) -> None:
    if not sys.stdin.isatty():
        raise click.UsageError(f"standard input is no terminal, so there is no way to ask: add --yes {what_for}")
    click.confirm(question, abort=True, err=True)


def _outline(value: Any, indent: str = "") -> list[str]:
    """JSON as indented lines: servers differ in what they count, so nothing is left out."""
    if not isinstance(value, (dict, list)):
        return [f"{indent}{_plain(value)}"]
    lines = []
    for key, held in value.items() if isinstance(value, dict) else enumerate(value):
        start = f"{indent}{printable(str(key))}:"
        if not isinstance(held, (dict, list)):
            lines.append(f"{start} {_plain(held)}")
        elif not held:
            lines.append(f"{start} none")
        elif indent and isinstance(held, dict) and not any(isinstance(inner, (dict, list)) for inner in held.values()):
            lines.append(f"{start} " + ", ".join(f"{printable(name)} {_plain(inner)}" for name, inner in held.items()))
        else:
            lines += [start, *_outline(held, indent + "  ")]
    return lines


def _plain(value: Any) -> str:
    return printable(value) if isinstance(value, str) else json.dumps(value)


topics_command.add_command(namespaces.namespaces_command)
