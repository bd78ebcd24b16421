"""The five minutes of docs/clients.md and its examples, word for word but for addresses."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from anabranch.local.broker import EmbeddedBroker, free_ports
from tests.docs.guides import HOME, blocks

pytestmark = [pytest.mark.broker, pytest.mark.process]


class EndOfExample(Exception):
    """The consumer's example has no end of its own."""


def run_example(text: str, most: int) -> list[tuple[Any, ...]]:
    """Run Python until it prints `most` times, or to its end; return what it prints."""
    printed: list[tuple[Any, ...]] = []

    def record(*values: Any) -> None:
        printed.append(values)
        if len(printed) == most:
            raise EndOfExample

    with suppress(EndOfExample):
        exec(text, {"print": record})
    return printed


def test_five_minutes_end_with_split_topic(broker: EmbeddedBroker, tmp_path: Path) -> None:
    serve, create, split = (" && ".join(block.commands) for block in blocks("docs/clients.md"))
    url = f"http://localhost:{free_ports(1)[0]}"
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "ANABRANCH_CONTROLLER__PORT": url.rpartition(":")[2],
        "ANABRANCH_CONTROLLER__URL": url,
        "ANABRANCH_CONTROLLER__DATABASE": str(tmp_path / "layouts.db"),
    }

    def addressed(text: str) -> str:
        return text.replace("localhost:9092", broker.bootstrap).replace("http://localhost:8080", url)

    def run(commands: str) -> None:
        subprocess.run(["bash", "-c", commands], env=environment, cwd=tmp_path, check=True)

    text = (HOME / "docs" / "clients.md").read_text()
    producing, consuming = map(addressed, re.findall(r"```python\n(.*?)```", text, re.DOTALL))
    server = subprocess.Popen(
        ["bash", "-c", addressed(serve)],
        env=environment,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert server.stdout is not None
        assert server.stdout.readline().startswith("controller ready")
        run(create)
        ((error, position),) = run_example(producing, 2)
        assert (error, position.segment, position.offset) == (None, 0, 0)
        assert run_example(consuming, 1) == [(b"customer-17", b"3 pieces")]
        run(split)
        ((error, position),) = run_example(producing, 2)
        assert (error, position.segment > 0, position.offset) == (None, True, 0)
        # The first message was not acknowledged, so it comes again, before that of the child.
        assert run_example(consuming, 2) == [(b"customer-17", b"3 pieces")] * 2
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.communicate()
