"""The page over a lake of a test, without a port: requests go to the app itself."""

from __future__ import annotations

import asyncio
import re
import xml.etree.ElementTree as ET
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any

import httpx
from starlette.applications import Starlette

from anabranch.auth.callers import Access
from anabranch.web.app import create_app
from runtime.listener.names import NodeNames
from tests.engine.buckets import CONFIGURED

HOST = "127.0.0.1"


@dataclass
class Page:
    """A browser without a window: keeps cookies, asks as a browser does."""

    app: Starlette
    cookies: dict[str, str] = field(default_factory=dict)

    def get(self, path: str, **headers: str) -> httpx.Response:
        return self._send("GET", path, headers)

    def post(self, path: str, fields: dict[str, str], **headers: str) -> httpx.Response:
        return self._send("POST", path, headers, fields)

    def proof(self, path: str = "/") -> str:
        """What the forms of a page carry."""
        found = re.search(r'name="proof" value="([0-9a-f]+)"', self.get(path).text)
        return found.group(1) if found else ""

    def _send(self, method: str, path: str, headers: dict[str, str], fields: Any = None) -> httpx.Response:
        asked = {"accept": "text/html", **{name.replace("_", "-"): value for name, value in headers.items()}}

        async def send() -> httpx.Response:
            transport = httpx.ASGITransport(self.app)
            async with httpx.AsyncClient(
                transport=transport, base_url=f"http://{HOST}", cookies=self.cookies
            ) as client:
                return await client.request(method, path, headers=asked, data=fields)

        answer = asyncio.run(send())
        self.cookies.update(answer.cookies)
        return answer


class _Cells(HTMLParser):
    """Texts of the cells of each table, row by row."""

    def __init__(self) -> None:
        super().__init__()
        self.tables: list[list[list[str]]] = []
        self._is_in_cell = False

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("th", "td"):
            self.tables[-1][-1].append("")
            self._is_in_cell = True

    def handle_endtag(self, tag: str) -> None:
        self._is_in_cell = self._is_in_cell and tag not in ("th", "td")

    def handle_data(self, data: str) -> None:
        if self._is_in_cell:
            self.tables[-1][-1][-1] += data


def table_of(text: str, *headings: str) -> list[dict[str, str]]:
    """Rows of the one table of a page that has these headings: text of a cell by its heading."""
    cells = _Cells()
    cells.feed(text)
    [[names, *rows]] = [
        table for table in cells.tables if set(headings) <= {" ".join(name.split()) for name in table[0]}
    ]
    return [{" ".join(n.split()): " ".join(c.split()) for n, c in zip(names, row, strict=True)} for row in rows]


def page(lake: str, access: Access | None = None, **more: Any) -> Page:
    """The page after one look at the lake; it looks again when a test says so."""
    app = create_app(str(lake), access or Access(), NodeNames(HOST, called="web"), lambda: CONFIGURED, **more)
    app.state.fleet.look()
    return Page(app)


def pictures(text: str) -> list[ET.Element]:
    """Every `svg` of a page, as XML."""
    return [ET.fromstring(found) for found in re.findall(r"<svg.*?</svg>", text, re.DOTALL)]
