"""Opens a real browser without a display: Chromium, if it is installed."""

import base64
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from selenium.webdriver import Chrome, ChromeOptions, ChromeService

NAMES = {
    "browser": ("chromium", "chromium-browser", "google-chrome"),
    "driver": ("chromedriver", "chromium.chromedriver"),
}


def missing_browser() -> str | None:
    """Name what is not installed, as the reason to skip a test; None if nothing is missing."""
    missing = [names[0] for names in NAMES.values() if not _found(names)]
    return f"not installed: {', '.join(missing)} (Debian: apt install chromium chromium-driver)" if missing else None


@contextmanager
def open_browser(width: int = 1400, height: int = 1000, dark: bool = False) -> Iterator[Chrome]:
    """Open Chromium with a window of this size in CSS pixels; it tells pages that the user prefers dark or light."""
    options = ChromeOptions()
    options.binary_location = _found(NAMES["browser"])
    for argument in ("headless=new", "no-sandbox", "disable-dev-shm-usage", "disable-gpu", "hide-scrollbars"):
        options.add_argument(f"--{argument}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    browser = Chrome(options, ChromeService(_found(NAMES["driver"])))
    try:
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)  # a window is never under 500 pixels wide
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
        yield browser
    finally:
        browser.quit()


def console_messages(browser: Chrome) -> list[str]:
    """Return the lines that pages have written to the console since the last call, with errors of loading."""
    return [f"{entry['level']}: {entry['message']}" for entry in browser.get_log("browser")]


def requested(browser: Chrome) -> list[str]:
    """Return the addresses that pages have requested since the last call, with their own."""
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    return [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]


def screenshot(browser: Chrome, file: Path) -> None:
    """Write the whole page as a PNG, with its parts outside of the window."""
    size = browser.execute_cdp_cmd("Page.getLayoutMetrics", {})["cssContentSize"]
    clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
    picture = browser.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True, "clip": clip})
    file.write_bytes(base64.b64decode(picture["data"]))


def _found(names: tuple[str, ...]) -> str | None:
    return next(filter(None, map(shutil.which, names)), None)
