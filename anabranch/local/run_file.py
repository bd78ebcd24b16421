"""The settings file of a local run: where its parts find one another, and its state.

Laid over the run's other settings for its parts. Alone, with `--config`, it leads commands to the run's own lake.
"""

import json
from pathlib import Path

from anabranch.local.broker import free_ports
from schemas.settings.root import Settings

RUN_FILE = "run.toml"
# Broker and controller of a local run are its own and on loopback, whatever the settings say of others.
_PLAIN_KAFKA = (
    'security_protocol = "PLAINTEXT"\nusername = ""\npassword_file = ""\nca = ""\ncertificate = ""\nkey = ""\n'
)
_PLAIN_CONTROLLER = 'certificate = ""\nkey = ""\nclient_ca = ""\n'


def write_run_file(
    settings: Settings, bootstrap: str, port: int, page_port: int, *, pulsar: bool, shadow: bool
) -> Path:
    """Write the file into `[local] folder` and return its path. The page asks its parts at free ports."""
    from streaming.checkpoint.storage import checkpoint_of

    ports = free_ports(3)
    has_collector = pulsar or settings.traffic.load == "clients"
    file = settings.path(settings.local.folder) / RUN_FILE
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(
        "# Written by every local run: where its parts find one another, and its state.\n"
        f"[lake]\npath = {_quoted(settings.lake_path)}\n"
        f"[local]\nfolder = {_quoted(file.parent)}\n"
        f'[kafka]\nbootstrap = "{bootstrap}"\n{_PLAIN_KAFKA}'
        f'[controller]\nport = {port}\nurl = "http://127.0.0.1:{port}"\n{_PLAIN_CONTROLLER}'
        f"database = {_quoted(settings.path(settings.controller.database))}\n"
        f'[web]\nhost = "127.0.0.1"\nport = {page_port}\ncertificate = ""\nkey = ""\ntokens_file = ""\n'
        f'[executor]\nmode = "{"observe" if shadow else settings.executor.mode}"\n'
        f"metrics_port = {settings.executor.metrics_port or ports[2]}\n"
        f"[stream]\nmetrics_port = {settings.stream.metrics_port or ports[0]}\n"
        f"checkpoint = {_quoted(checkpoint_of(settings))}\n"
        f'[traffic]\nload = "{settings.traffic.load}"\n'
        f"[collect]\nfolder = {_quoted(settings.path(settings.collect.folder))}\n"
        # A single broker leads every topic: there is nothing to stand by for.
        + ('consumers = "registered"\n' if pulsar else "")
        + (f"metrics_port = {settings.collect.metrics_port or ports[1]}\n" if has_collector else ""),
        encoding="utf-8",
    )
    return file


def _quoted(value: str | Path) -> str:
    """Return a string of TOML."""
    return json.dumps(str(value), ensure_ascii=False)
