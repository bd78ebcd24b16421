"""`python -m tests.harness.pulsar [FOLDER]`: a standalone Pulsar 5 until Ctrl-C; keeps its data."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

import click

from anabranch.local.pulsar.standalone import StandalonePulsar
from anabranch.local.setup import ensure_pulsar
from runtime.java_home import SetupError
from schemas.settings.root import load_settings
from tests.harness.pulsar.secured import SecuredPulsar


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False), default=Path("var/pulsar"))
@click.option("--port", default=8080, show_default=True, help="Of the admin interface; 0: a free one.")
@click.option("--tokens", is_flag=True, help="Ask every client for a token, and print one that may do everything.")
@click.option("--set", "lines", multiple=True, metavar="NAME=VALUE", help="A setting of broker.conf; may be repeated.")
def main(folder: Path, port: int, tokens: bool, lines: tuple[str, ...]) -> None:
    """Run a standalone Pulsar 5 on loopback.

    Its own auto-scaler is off (--set scalableTopicAutoScaleEnabled=true).
    """
    wrong = [line for line in lines if "=" not in line]
    if wrong:
        raise click.UsageError(f"--set {wrong[0]}: say NAME=VALUE")
    ended = threading.Event()
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, lambda *_: ended.set())
    try:
        jars = ensure_pulsar(load_settings(), lambda line: click.echo(line, err=True))
        given = dict(line.split("=", 1) for line in lines)
        kind = SecuredPulsar if tokens else StandalonePulsar
        pulsar = kind(folder, jars, web_port=port, settings=given)
        pulsar.start()
    except SetupError as error:
        raise click.ClickException(str(error)) from error
    try:
        click.echo(f"export ANABRANCH_CONTROLLER_URL={pulsar.admin_url}")
        if isinstance(pulsar, SecuredPulsar):
            click.echo(f"export ANABRANCH_CONTROLLER_TOKEN={pulsar.token()}")
        click.echo(f"export PULSAR_SERVICE_URL={pulsar.service_url}")
        click.echo(f"log: {pulsar.log}; Ctrl-C ends it", err=True)
        while not ended.wait(1):
            if pulsar.process is None or pulsar.process.poll() is not None:
                raise click.ClickException(f"Pulsar has ended; see {pulsar.log}")
    finally:
        pulsar.stop()


if __name__ == "__main__":
    main()
