"""A report's page in real, headless Chromium, driven by selenium over its DevTools protocol.

Both are looked for and never fetched: where one is missing `missing` says which.
"""

from __future__ import annotations

import base64
import contextlib
import importlib.util
import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
          "--disable-background-networking", "--window-size=1440,1000")  # fmt: skip
_PATIENCE_S = 30.0


def missing() -> str | None:
    """What a browser lacks here, if anything."""
    if importlib.util.find_spec("selenium") is None:
        return "selenium is not installed: pip install -e '.[browser]'"
    for program in ("chromium", "chromedriver"):
        if shutil.which(program) is None:
            return f"{program} is not installed (Debian: chromium, chromium-driver)"
    return None


@contextlib.contextmanager
def opened(page: Path) -> Iterator[Browser]:
    """A browser that shows the page, its viewer ready."""
    browser = Browser(page)
    try:
        browser.again()
        yield browser
    finally:
        browser.driver.quit()


class Browser:
    """One page in one browser; nothing is kept between two of them."""

    def __init__(self, page: Path) -> None:
        """Start it; `again` opens the page."""
        from selenium import webdriver
        from selenium.webdriver.chrome.options import Options
        from selenium.webdriver.chrome.service import Service

        options = Options()
        options.binary_location = str(shutil.which("chromium"))
        for flag in _FLAGS:
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        self.page = page.resolve().as_uri()
        service = Service(str(shutil.which("chromedriver")))
        self.driver: Any = webdriver.Chrome(options=options, service=service)
        self.send("Network.enable")

    def again(self) -> None:
        """Open the page anew and wait for its viewer."""
        self.driver.get(self.page)
        self.wait("return 'ready' in document.documentElement.dataset")

    def send(self, command: str, **values: Any) -> Any:
        """A command of the DevTools protocol."""
        return self.driver.execute_cdp_cmd(command, values)

    def ask(self, script: str, *arguments: Any) -> Any:
        """What a script returns."""
        return self.driver.execute_script(script, *arguments)

    def wait(self, script: str) -> Any:
        """What a script returns as soon as that is true; an error after half a minute."""
        until = time.monotonic() + _PATIENCE_S
        while not (answer := self.ask(script)):
            assert time.monotonic() < until, f"never true: {script}"
            time.sleep(0.02)
        return answer

    def ready_ms(self) -> float:
        """Milliseconds from the beginning of the page's loading to the viewer's standing."""
        return float(self.ask("return performance.getEntriesByName('ready')[0].startTime"))

    def one(self, selector: str) -> Any:
        """The first node that fits."""
        return self.driver.find_element("css selector", selector)

    def text(self, selector: str) -> str:
        """What a node holds, shown or not."""
        return str(self.ask("return document.querySelector(arguments[0]).textContent", selector))

    def press(self, *keys: str) -> None:
        """Keys, to the viewer."""
        self.ask("document.getElementById('stage').focus()")
        self.one("#stage").send_keys(*keys)

    def select(self, selector: str, value: str) -> None:
        """Choose an option by its value."""
        script = (
            "arguments[0].value = arguments[1]; arguments[0].dispatchEvent(new Event('change'))"
        )
        self.ask(script, self.one(selector), value)

    def errors(self) -> list[str]:
        """What the console says, warnings included."""
        return [str(line["message"]) for line in self.driver.get_log("browser")]

    def requests(self) -> list[str]:
        """Addresses that were asked for since this was last called, data in the page left out."""
        sent = [
            json.loads(line["message"])["message"] for line in self.driver.get_log("performance")
        ]
        urls = [
            m["params"]["request"]["url"]
            for m in sent
            if m["method"] == "Network.requestWillBeSent"
        ]
        return [url for url in urls if not url.startswith(("data:", "blob:"))]

    def look(self, width: int, scheme: str) -> None:
        """Be so wide, in a colour scheme."""
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=1000, deviceScaleFactor=1, mobile=width < 600,
        )  # fmt: skip
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.send("Emulation.setEmulatedMedia", features=features)

    def screenshot(self, file: Path) -> None:
        """The whole page as it stands."""
        size = self.ask(
            "const b = document.documentElement; return [b.scrollWidth, b.scrollHeight]"
        )
        clip = {"x": 0, "y": 0, "width": size[0], "height": size[1], "scale": 1}
        data = self.send("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)["data"]
        file.write_bytes(base64.b64decode(data))
