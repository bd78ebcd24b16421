"""An identity provider for OAuth2's client credentials: checks the secret, gives numbered tokens, by TLS if wanted."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs

from tests.admin.server import CERTIFICATE

CLIENT = {"type": "client_credentials", "client_id": "anabranch", "client_secret": "s3cr3t-of-the-client"}


@dataclass
class Provider:
    """What it was asked, and what it gives."""

    url: str = ""
    tokens: list[str] = field(default_factory=lambda: [f"token-{number}" for number in range(100)])
    """Given in turn."""
    seconds: Any = 3600
    asked: list[dict[str, str]] = field(default_factory=list)
    """The forms of the requests for a token."""

    def key(self, **more: str) -> str:
        """The text of a key file for it."""
        return json.dumps({**CLIENT, "issuer_url": self.url, **more})

    def answer(self, form: dict[str, str]) -> tuple[int, dict[str, Any]]:
        """What a request for a token is answered with."""
        self.asked.append(form)
        if form.get("client_secret") != CLIENT["client_secret"]:
            return 401, {"error": "invalid_client", "error_description": "nobody of that name and secret"}
        return 200, {"access_token": self.tokens.pop(0), "token_type": "Bearer", "expires_in": self.seconds}


@contextmanager
def providing(tls: bool = False) -> Iterator[Provider]:
    """A provider on loopback."""
    provider = Provider()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = self.path == "/realm/.well-known/openid-configuration"
            self._say(200 if found else 404, {"token_endpoint": f"{provider.url}/token"})

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            self._say(*provider.answer({name: values[0] for name, values in parse_qs(body).items()}))

        def _say(self, status: int, body: dict[str, Any]) -> None:
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if tls:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(CERTIFICATE)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    provider.url = f"{'https://localhost' if tls else 'http://127.0.0.1'}:{server.server_port}/realm"
    thread = threading.Thread(target=server.serve_forever, args=[0.02], daemon=True)
    thread.start()
    try:
        yield provider
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
