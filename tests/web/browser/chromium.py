"""One Chromium for all tests, driven by selenium: opened pages are looked at as people with and without eyes do."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from selenium.webdriver import Chrome, ChromeOptions, Keys
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement

from tests.harness.browser import ensure_browser
from tests.waiting import wait_until

AXE = Path(__file__).with_name("axe.min.js")
PATIENCE_S = 60
DESK, PHONE = (1280, 900), (390, 844)
Scheme = Literal["light", "dark"]


class Look:
    """A page in a window."""

    def __init__(self, driver: Chrome, base: str) -> None:
        self.driver, self.base, self._width = driver, base, DESK[0]

    def open(self, path: str, scheme: Scheme = "light", size: tuple[int, int] = DESK) -> None:
        """Loads a page and waits until it stands; what the console said before is forgotten."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        width, height = size
        self._width = width
        self.driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": size == PHONE},
        )
        self.driver.get_log("browser")
        self.driver.get(self.base + path)
        wait_until(lambda: self.driver.execute_script("return document.readyState") == "complete", PATIENCE_S)

    def said(self) -> list[str]:
        """Errors on the console, and what the policy of the page has blocked.

        A page of the test before may still ask its server, which is gone, while it is being left: not of this page.
        """
        entries = [entry for entry in self.driver.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]
        messages = [entry["message"] for entry in entries]
        return [one for one in messages if one.startswith(self.base) or not one.startswith("http://127.0.0.1:")]

    def faults(self) -> list[str]:
        """What axe-core finds against those who do not see, or not well."""
        self.driver.execute_script(AXE.read_text())
        found = self.driver.execute_async_script(
            "const done = arguments[arguments.length - 1];"
            "axe.run(document, {resultTypes: ['violations']}).then(found => done(found.violations))"
        )
        return [f"{one['id']}: {one['help']}: {node['html'][:200]}" for one in found for node in one["nodes"]]

    def overflow(self) -> int:
        """Pixels by which the page is wider than its window."""
        pixels: int = self.driver.execute_script("return document.documentElement.scrollWidth")
        return max(pixels - self._width, 0)

    def broken_words(self, longest: int = 9) -> list[str]:
        """Short words in tables that do not stand on one line; names from outside may break anywhere."""
        words: list[str] = self.driver.execute_script(
            """
            const broken = [], longest = arguments[0];
            for (const cell of document.querySelectorAll("td, th")) {
              const texts = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
              for (let text = texts.nextNode(); text; text = texts.nextNode()) {
                if (text.parentElement.closest("bdi, .code, .unseen")) continue;
                for (const word of text.data.matchAll(/[a-z0-9,.]+/gi)) {
                  const range = document.createRange();
                  range.setStart(text, word.index);
                  range.setEnd(text, word.index + word[0].length);
                  const lines = new Set([...range.getClientRects()].map(one => Math.round(one.top)));
                  if (word[0].length <= longest && lines.size > 1) broken.push(word[0]);
                }
              }
            }
            return broken;
            """,
            longest,
        )
        return words

    def reachable(self, most: int = 200) -> set[str]:
        """What the Tab key comes to: the element's own mark in the page, by the order of all that can be clicked."""
        self.driver.execute_script(
            "document.querySelectorAll('a[href],button,input,select,textarea,summary').forEach("
            "(one, number) => one.dataset.place = number)"
        )
        found: set[str] = set()
        body = self.driver.find_element(By.TAG_NAME, "body")
        body.send_keys(Keys.HOME)
        for _ in range(most):
            self.driver.switch_to.active_element.send_keys(Keys.TAB)
            place = self.driver.execute_script("return document.activeElement.dataset.place || ''")
            if place in found or not place:
                if place:
                    break
                continue
            found.add(place)
        return found

    def clickable(self) -> set[str]:
        """The same marks of all that a mouse can click and that is seen."""
        return set(
            self.driver.execute_script(
                "return [...document.querySelectorAll('[data-place]')].filter(one => one.checkVisibility() "
                "&& !one.disabled && one.tabIndex >= 0).map(one => one.dataset.place)"
            )
        )

    def find(self, selector: str) -> WebElement:
        """The first element of a CSS selector."""
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def all(self, selector: str) -> list[WebElement]:
        """All of them."""
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def text(self, selector: str = "body") -> str:
        """What is read there."""
        return self.find(selector).text

    def until(self, text: str, selector: str = "body") -> None:
        """Waits until a text is read there, with the page as it is: nothing is loaded again."""

        def read() -> str:
            script = "const one = document.querySelector(arguments[0]); return one ? one.innerText : ''"
            said: str = self.driver.execute_script(script, selector)
            return said

        try:
            wait_until(lambda: text in read(), PATIENCE_S)
        except AssertionError:
            raise AssertionError(f"{text!r} is not on the page:\n{read()[:2000]}\n{self.said()}") from None

    def picture(self, file: Path) -> None:
        """The window as a PNG."""
        self.driver.save_screenshot(str(file))


@contextmanager
def chromium(folder: Path) -> Iterator[Chrome]:
    """A Chromium without a window, with a profile of its own in a folder."""
    browser = ensure_browser(print)
    options = ChromeOptions()
    options.binary_location = str(browser.chromium)
    for argument in (
        "--headless=new",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        f"--user-data-dir={folder / 'profile'}",
    ):
        options.add_argument(argument)
    if os.geteuid() == 0:
        # Chromium's sandbox refuses root; the pages are our own.
        options.add_argument("--no-sandbox")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = Chrome(options, Service(str(browser.driver), log_output=str(folder / "driver.log")))
    try:
        driver.set_page_load_timeout(PATIENCE_S)
        yield driver
    finally:
        driver.quit()
