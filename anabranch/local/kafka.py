"""`python -m anabranch.local.kafka [FOLDER]`: a Kafka of one node with all topics, until Ctrl-C."""

import threading
from pathlib import Path

import click
from confluent_kafka import KafkaException

from anabranch.local.broker import EmbeddedBroker, create_topics
from anabranch.local.setup import ensure_jars
from runtime.java_home import SetupError
from runtime.telemetry.health import call_on_signals
from schemas.kafka.topics import BUNDLE_TOPICS, KAFKA_TOPICS
from schemas.settings.root import load_settings


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False), required=False)
@click.option("--port", default=9092, show_default=True, help="Of the broker; 0: a free one.")
def main(folder: Path | None, port: int) -> None:
    """A Kafka broker on loopback, with the topics that collector, job and executor use.

    Its data is in FOLDER, else in var/kafka-alone of the home: never that of a local run.
    """
    ended = threading.Event()
    call_on_signals(ended.set)
    try:
        settings = load_settings()
        jars = ensure_jars(settings, lambda line: click.echo(line, err=True))
        broker = EmbeddedBroker(folder or settings.path("var/kafka-alone"), jars.kafka, port=port)
        broker.start()
    except SetupError as error:
        raise click.ClickException(str(error)) from error
    try:
        create_topics(broker.connection, (*KAFKA_TOPICS, *BUNDLE_TOPICS))
        click.echo(f"export ANABRANCH_KAFKA_BOOTSTRAP={broker.bootstrap}")
        click.echo(f"log: {broker.log}; Ctrl-C ends it", err=True)
        while not ended.wait(1):
            if broker.process is None or broker.process.poll() is not None:
                raise click.ClickException(f"Kafka has ended; see {broker.log}")
    except KafkaException as error:
        raise click.ClickException(f"the topics cannot be made: {error}; see {broker.log}") from error
    finally:
        broker.stop()


if __name__ == "__main__":
    main()
