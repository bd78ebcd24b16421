"""`anabranch lake state`: show the job's state of a topic; rebuild a lost checkpoint from the lake."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from functools import partial
from typing import Any

import click

from anabranch.cli.connection import topic_name
from anabranch.cli.context import Context
from anabranch.cli.exits import Unreachable, failing_on
from anabranch.query.wording import instant
from schemas.printable import printable

_CHECKPOINT = click.option(
    "--checkpoint", metavar="PLACE", help="Checkpoint of the job, a folder or URL, instead of [stream] checkpoint."
)


@click.group("state")
def state_command() -> None:
    """Show what the job knows of a topic, and rebuild a lost checkpoint from the lake."""


@state_command.command("show")
@click.argument("topic")
@_CHECKPOINT
@click.option("--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.pass_obj
def show_topic(context: Context, topic: str, checkpoint: str | None, output: str) -> None:
    """Show layout, loads, consumers, clocks, open decision and policy of TOPIC as the job has them.

    Reads the state store of the checkpoint, with or without a running job; takes some seconds. Exit code 1 when the
    job does not know the topic.
    """
    from engine.kernel.packed import StateError
    from streaming.checkpoint.stateview import stored_bucket, topic_view
    from streaming.checkpoint.storage import LocalFiles, checkpoint_of, files_of, is_local, spark_location
    from streaming.job.sources import buckets_of

    settings = context.settings
    name, location = topic_name(topic), checkpoint_of(settings, checkpoint)
    empty = f"{location} holds no state yet: no batch was committed there"
    if is_local(location) and not LocalFiles(location).numbers("commits"):
        raise click.ClickException(empty)
    with _session(context, "anabranch-state") as spark:
        if not files_of(spark, location).numbers("commits"):
            raise click.ClickException(empty)
        bucket = buckets_of(spark, [name], settings.stream.buckets)[name]
        stored = stored_bucket(spark, spark_location(location), bucket)
    with failing_on(StateError):
        view = topic_view(stored.packed, name)
    where = f"bucket {bucket} of {settings.stream.buckets}, batch {stored.batch_id}"
    if view is None:
        raise click.ClickException(f"the job does not know {printable(name)}; looked in {where} of {location}")
    view = {**view, "bucket": bucket, "batchId": stored.batch_id}
    click.echo(json.dumps(view) if output == "json" else _text(view, where, time.time_ns() // 1_000_000))


@state_command.command("rebuild")
@_CHECKPOINT
@click.pass_obj
def rebuild(context: Context, checkpoint: str | None) -> None:
    """Make a new checkpoint out of the lake and Kafka's offsets, for when the old one is lost or damaged.

    \b
    Stop the job and move the old one away first. The new one is made in its place, a folder or a URL. Accepted
    events and loads are replayed; decisions and holds are taken over, and refused when they do not fit. Not in the
    lake, so learnt again: when a suppressed sample was last seen. [stream] buckets may be another number than before.
    """
    from deltalake.exceptions import DeltaError

    from anabranch.history.rebuild import kafka_bounds, rebuild_checkpoint
    from engine.replay import RebuildError
    from lake.job_lease import Claim, NoLease, hold_lake
    from schemas.kafka.topics import BUNDLE_TOPICS, KAFKA_TOPICS
    from streaming.checkpoint.claim import CheckpointInUse, holder_name, lock_checkpoint
    from streaming.checkpoint.storage import checkpoint_of, files_of
    from streaming.job.policy import configured_policy, engine_settings, stored_policy
    from streaming.job.scratch import scratch_folder
    from streaming.job.sources import buckets_of

    settings = context.settings
    context.warn("stream")
    location = checkpoint_of(settings, checkpoint)
    engine, buckets = engine_settings(settings), settings.stream.buckets
    configured = stored_policy(configured_policy(settings))

    try:
        with lock_checkpoint(location, holder := holder_name()) as before:
            claim = Claim(holder, location, datetime.now(timezone.utc), gone=before)
            with (
                scratch_folder(settings.path(settings.local.folder) / "scratch") as scratch,
                hold_lake(settings.lake_path, claim),
                _session(context, "anabranch-rebuild") as spark,
            ):
                bounds = kafka_bounds(
                    settings.kafka_connection(), (*KAFKA_TOPICS, *(BUNDLE_TOPICS if engine.bundles else ()))
                )
                bucket_of = partial(buckets_of, spark, buckets=buckets)
                files = files_of(spark, location)
                rebuilt = rebuild_checkpoint(
                    settings.lake_path, files, engine, configured, buckets, bucket_of, bounds, scratch
                )
    except (CheckpointInUse, NoLease, RebuildError) as error:
        raise click.ClickException(str(error)) from error
    except (DeltaError, OSError) as error:
        raise Unreachable(f"{location} was not rebuilt: {error}") from error
    for line in rebuilt.gone:
        click.echo(f"warning: Kafka no longer has what came after the last record in the lake: {line}", err=True)
    clusters = f", {rebuilt.clusters} clusters with bundles" if engine.bundles else ""
    click.echo(
        f"{location}: {rebuilt.topics} topics{clusters}, {rebuilt.open_decisions} open decisions, "
        f"as of {instant(rebuilt.until)}\n"
        f"generation {rebuilt.generation}, rebuilt from {rebuilt.rebuilt_from}; start it with: anabranch serve stream"
    )


@contextmanager
def _session(context: Context, name: str) -> Iterator[Any]:
    from pyspark.errors import PySparkException

    from streaming.job.session import start_session

    spark = start_session(context.settings, {"spark.app.name": name, "spark.ui.enabled": "false"})
    try:
        spark.sparkContext.setLogLevel("ERROR")
        # Makes the coordinator of state stores, which the reader of a state store reports to and does not make.
        _ = spark.streams
        yield spark
    except PySparkException as error:
        line = str(error).strip().partition("\n")[0]
        raise click.ClickException(f"the state cannot be read: {line}") from error
    finally:
        spark.stop()


def _text(view: dict[str, Any], where: str, now: int) -> str:
    lines = [f"{printable(view['topic'])}  ({where})"]
    if (layout := view["layout"]) is None:
        lines.append("layout         not known yet")
    else:
        active = [segment for segment in layout["segments"].values() if segment["state"] == "ACTIVE"]
        lines.append(f"layout         epoch {layout['epoch']}, {len(active)} active segments")
        for segment in sorted(active, key=lambda segment: int(segment["hashRange"]["start"])):
            ends = segment["hashRange"]
            load = view["loads"].get(str(segment["segmentId"]))
            lines.append(
                f"  segment {segment['segmentId']:<5}0x{ends['start']:04x}..0x{ends['end']:04x}  {_load(load, now)}"
            )
    for name, subscription in view["consumers"].items():
        lines.append(f"consumers      {printable(name)}: {subscription['count']} {subscription['type']}")
    for label, acted_at in (("last split", view["lastSplitAt"]), ("last merge", view["lastMergeAt"])):
        lines.append(f"{label:<15}{'never' if acted_at is None else _format_instant(acted_at, now)}")
    if (decision := view["openDecision"]) is not None:
        applied = ", applied, its layout is not here yet" if decision["applied"] else ""
        lines.append(
            f"open decision  {decision['action']} {decision['decision_id']} on epoch {decision['epoch']}, "
            f"{_format_instant(decision['since'], now)}{applied}"
        )
    else:
        lines.append("open decision  none")
    if view["failures"]:
        lines.append(
            f"failures       {view['failures']} in a row, {view['failedAction'] or 'topic unknown to the cluster'}, "
            f"{_format_instant(view['failedAt'], now)}"
        )
    lines.append(
        f"hold           {view['hold'] or 'none'} ({view['decisions']} decisions, {view['holds']} holds so far)"
    )
    lines.append(f"policy         {view['policyDigest']}")
    lines += [f"  {name} = {json.dumps(value)}" for name, value in view["policy"].items()]
    return "\n".join(lines)


def _load(load: dict[str, Any] | None, now: int) -> str:
    if load is None:
        return "no load yet"
    rates = f"in {load['msg_rate_in']:.0f} msg/s {load['bytes_rate_in']:.0f} B/s, "
    rates += f"out {load['msg_rate_out']:.0f} msg/s {load['bytes_rate_out']:.0f} B/s"
    cold = "" if load["cold_since"] is None else f", cold for {_age(load['cold_since'], now)}"
    return f"{rates}, record {_age(load['modified_at'], now)} old, seen {_age(load['seen_at'], now)} ago{cold}"


def _format_instant(instant_ms: int, now: int) -> str:
    return f"{instant(instant_ms)}, {_age(instant_ms, now)} ago"


def _age(instant_ms: int, now: int) -> str:
    seconds = max(0, now - instant_ms) // 1000
    return f"{seconds} s" if seconds < 120 else f"{seconds // 60} min" if seconds < 7200 else f"{seconds // 3600} h"
