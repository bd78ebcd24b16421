"""The command line at a real controller, and at servers that answer what ours never would."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from click.testing import CliRunner, Result

from anabranch.cli.main import cli
from tests.controller.conftest import RunningController, run_controller


@pytest.fixture(scope="session")
def controller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningController]:
    """One controller for all tests here; each test takes a namespace of its own."""
    with run_controller(tmp_path_factory.mktemp("controller") / "layouts.db") as running:
        yield running


@pytest.fixture
def namespace(controller: RunningController) -> str:
    """A fresh `tenant/namespace`."""
    return controller.new_namespace()


def run(url: str, *arguments: str, environment: dict[str, str] | None = None, stdin: str | None = None) -> Result:
    """`anabranch topics ARGUMENTS` against `url`, in this process, in 100 columns."""
    return run_any(url, "topics", *arguments, environment=environment, stdin=stdin)


def run_any(url: str, *arguments: str, environment: dict[str, str] | None = None, stdin: str | None = None) -> Result:
    """`anabranch ARGUMENTS`, the same way."""
    given = {"ANABRANCH_CONTROLLER_URL": url, "ANABRANCH_CONTROLLER_TOKEN": None, "COLUMNS": "100", "FORCE_COLOR": None}
    return CliRunner().invoke(cli, list(arguments), input=stdin, env={**given, **(environment or {})})


class Topics:
    """The command at one controller."""

    def __init__(self, url: str) -> None:
        self.url = url

    def __call__(self, *arguments: str, **more: str) -> str:
        """What a command that succeeds prints."""
        done = run(self.url, *arguments, **more)
        assert (done.exit_code, done.stderr) == (0, ""), done.output
        return done.stdout

    def refused(self, *arguments: str) -> str:
        """What a command says that the server refuses."""
        done = run(self.url, *arguments)
        assert (done.exit_code, done.stdout) == (1, ""), done.output
        assert isinstance(done.exception, SystemExit)
        return done.stderr.strip()

    def misused(self, *arguments: str) -> str:
        """What a command says that is wrong usage."""
        done = run(self.url, *arguments)
        assert (done.exit_code, done.stdout) == (2, ""), done.output
        return done.stderr


@pytest.fixture
def topics(controller: RunningController) -> Topics:
    """The command at the controller of these tests."""
    return Topics(controller.url)


@dataclass
class Stranger:
    """A server that gives fixed answers in turn, repeats the last one, and keeps the requests."""

    url: str
    answers: list[tuple[int, dict[str, str], bytes] | None]
    """Status, headers and body; None closes the connection without an answer."""
    asked: list[tuple[str, str, str | None]] = field(default_factory=list)
    """Method, path and the header Authorization."""


@contextmanager
def stranger(*answers: tuple[int, dict[str, str], bytes] | None) -> Iterator[Stranger]:
    """A real HTTP server on a free port."""

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            one.asked.append((self.command, self.path, self.headers.get("Authorization")))
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if self.path.endswith("/watch"):
                self.send_error(404)  # it pushes nothing
                return
            found = one.answers.pop(0) if len(one.answers) > 1 else one.answers[0]
            if found is None:
                self.close_connection = True
                return
            status, headers, body = found
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_PUT = do_POST = do_DELETE = answer

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    one = Stranger(f"http://127.0.0.1:{server.server_port}", list(answers))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield one
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
