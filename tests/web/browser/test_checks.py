"""The browser finds what it is to find: each fault, on a page that has it."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.web.browser.chromium import AXE, PHONE, Look

pytestmark = pytest.mark.browser

SOUND = (
    "<!doctype html><html lang=en><head><title>t</title><link rel=icon href=data:,>"
    "<meta name=viewport content='width=device-width'></head>"
    "<body><main><h1>t</h1>{}</main></body></html>"
)


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """A folder that is served, and its address."""
    folder = tmp_path_factory.mktemp("pages")
    quiet = type("Quiet", (SimpleHTTPRequestHandler,), {"log_message": lambda *_: None})
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(quiet, directory=str(folder))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield folder, f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def opened(browser, pages, body, **how):
    folder, base = pages
    # A name of its own: what was loaded before is not asked for again.
    name = f"{hashlib.sha256(body.encode()).hexdigest()}.html"
    (folder / name).write_text(SOUND.format(body))
    look = Look(browser, base)
    look.open(f"/{name}", **how)
    return look


def test_a_sound_page_has_no_fault(browser, pages):
    look = opened(browser, pages, "<a href=/>home</a><button>go</button>", size=PHONE)
    assert (look.said(), look.faults(), look.overflow()) == ([], [], 0)
    assert look.reachable() == look.clickable() == {"0", "1"}


def test_what_a_script_says_is_found(browser, pages):
    look = opened(browser, pages, "<script>nothing.at.all</script><img src=/none.png alt=none>")
    said = "\n".join(look.said())
    assert "nothing is not defined" in said
    assert "none.png" in said


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        ("<img src=data:,>", "image-alt"),
        ("<p style='color:#ddd;background:#fff'>pale</p>", "color-contrast"),
        ("<button></button>", "button-name"),
        ("<input>", "label"),
    ],
)
def test_what_shuts_people_out_is_found(browser, pages, body, fault):
    assert any(one.startswith(fault) for one in opened(browser, pages, body).faults())


def test_a_page_that_is_too_wide_for_a_phone_is_found(browser, pages):
    assert opened(browser, pages, "<p style='width:900px'>wide</p>", size=PHONE).overflow() > 0


def test_a_button_that_the_keyboard_skips_is_found(browser, pages):
    look = opened(browser, pages, "<button>one</button><div inert><button>two</button></div>")
    assert look.reachable() == {"0"} != look.clickable()


def test_axe_is_the_one_that_was_published():
    digest = hashlib.sha256(AXE.read_bytes()).hexdigest()
    assert digest == "29348999450cdf2849a8e70b7912fc2da85a849da39c0d0d5394f51d4a9ed95c", "axe-core 4.14.1, axe.min.js"
