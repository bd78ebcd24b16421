"""`python -m tests.harness.pictures`: pictures of the page for README and docs, from a short local run.

Stage: beside everything, for whoever changes the page. Needs the development packages and Chromium
(`tests.harness.browser`).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import click

from runtime.java_home import SetupError
from tests.harness.browser import ensure_browser

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "pictures"
SIZE = (1280, 860)
_STANDS = (
    "return document.readyState === 'complete' "
    "&& !/(Reading the record|Working it out) …|cannot be read now/.test(document.body.innerText)"
    "&& [...document.querySelectorAll('[data-chart]')].every("
    "chart => chart.closest('details:not([open])') || ['drawn', 'empty'].includes(chart.dataset.state))"
)
"""Whether a page has all that it asks for by itself."""
_LOADED_S, _STARTED_S = 60.0, 240.0


@click.command()
@click.option("--seconds", default=300, show_default=True, help="For how long the run goes before it is looked at.")
@click.option("--url", help="Of a page that is served already, instead of a run of its own.")
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False), default=FOLDER)
def main(seconds: int, url: str | None, folder: Path) -> None:
    """Take the pictures of the page, for README and docs."""
    try:
        ensure_browser(lambda line: click.echo(line, err=True))
    except SetupError as error:
        raise click.ClickException(str(error)) from error
    folder.mkdir(parents=True, exist_ok=True)
    if url is not None:
        _take(url, folder)
        return
    with tempfile.TemporaryDirectory(prefix="anabranch-pictures-") as home:
        own = Path(home) / "own.toml"
        own.write_text(
            f'[local]\nfolder = "{home}/var"\n[lake]\npath = "{home}/lake"\n[stream]\ncheckpoint = "{home}/cp"\n'
        )
        files = ("conf/demonstration.toml", "conf/story.toml", str(own))
        layers = [word for file in files for word in ("--config", file)]
        command = [sys.executable, "-m", "anabranch", *layers, "run", "--local"]
        with open(Path(home) / "out", "w+") as out:
            run = subprocess.Popen(command, stdout=out, stderr=out)
            try:
                address = _address(Path(home) / "out", run)
                click.echo(f"a local run serves {address}; looking at it in {seconds} s", err=True)
                time.sleep(seconds)
                _take(address, folder)
            finally:
                run.send_signal(signal.SIGINT)
                run.wait(60)


def _address(out: Path, run: subprocess.Popen[bytes]) -> str:
    end = time.monotonic() + _STARTED_S
    while time.monotonic() < end and run.poll() is None:
        for line in out.read_text().splitlines():
            if "to look at: " in line:
                return line.split("to look at: ")[1].strip()
        time.sleep(0.5)
    raise click.ClickException(f"the local run did not start: {out.read_text()[-1000:]}")


def _take(url: str, folder: Path) -> None:
    from selenium.webdriver import Chrome, ChromeOptions
    from selenium.webdriver.chrome.service import Service
    from selenium.webdriver.common.by import By

    browser = ensure_browser()
    options = ChromeOptions()
    options.binary_location = str(browser.chromium)
    for argument in ("--headless=new", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"):
        options.add_argument(argument)
    if os.geteuid() == 0:
        options.add_argument("--no-sandbox")
    driver = Chrome(options, Service(str(browser.driver)))
    try:
        width, height = SIZE
        driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False},
        )

        def picture(name: str, path: str) -> None:
            features = [{"name": "prefers-color-scheme", "value": "light"}]
            driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
            driver.get(path if path.startswith("http") else url + path)
            end = time.monotonic() + _LOADED_S
            while not driver.execute_script(_STANDS):
                if time.monotonic() > end:
                    raise click.ClickException(f"{name}: parts of the page are missing; is the machine too busy?")
                time.sleep(0.1)
            driver.save_screenshot(str(folder / f"{name}.png"))
            click.echo(f"{folder / f'{name}.png'}")

        def first(selector: str) -> str | None:
            found = driver.find_elements(By.CSS_SELECTOR, selector)
            return found[0].get_attribute("href") if found else None

        picture("fleet", "/?last=15m")
        topic, decision = first("tbody th a[href*='/topic']"), first("a[href*='/decision']")
        if topic is not None:
            picture("topic", f"{topic}&last=15m")
        if decision is not None:
            picture("decision", decision)
    finally:
        driver.quit()


if __name__ == "__main__":
    main()
