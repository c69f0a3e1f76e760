"""Pictures of what users look at: TensorBoard's pages over a sweep, and its report, in headless Chromium."""

import base64
import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from deepnets.errors import UserError
from deepnets.results.writing import writing

PAGES = ("timeseries", "scalars", "custom_scalars", "hparams", "images")
WINDOWS = {"desktop": (1400, 1600), "phone": (390, 844)}
NAMES = (("chromium", "chromium-browser", "google-chrome"), ("chromedriver", "chromium.chromedriver"))
SETTLE_SECONDS, LONGEST_SECONDS = 2.0, 60.0  # TensorBoard fetches in steps, and says nowhere when it is done


def take_screenshots(folder: Path, into: Path) -> int:
    """Write PNG files of TensorBoard over the sweep in `folder`, and of its report/report.html where there is one.

    Returns 0.

    Raises:
        UserError: no such folder; no chromium, chromedriver or selenium; or `into` cannot be written.
    """
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder; give one that scripts/train.py has written")
    with writing(into):
        into.mkdir(parents=True, exist_ok=True)
    with _tensorboard(folder) as address, _chromium(*WINDOWS["desktop"]) as browser:
        for page in PAGES:
            browser.get("about:blank")  # or a change behind the # alone would load nothing
            browser.get_log("performance")  # what the page before left behind
            browser.get(f"{address}#{page}")
            _wait_until_quiet(browser)
            _write(into / f"tensorboard_{page}.png", browser.get_screenshot_as_png())
    report = folder.resolve() / "report" / "report.html"
    for window, size in WINDOWS.items() if report.is_file() else ():
        for scheme in ("light", "dark"):
            with _chromium(*size, scheme) as browser:
                browser.get(report.as_uri())
                whole = browser.execute_cdp_cmd("Page.getLayoutMetrics", {})["cssContentSize"]
                clip = {"x": 0, "y": 0, "width": whole["width"], "height": whole["height"], "scale": 1}
                shot = {"captureBeyondViewport": True, "clip": clip}
                picture = browser.execute_cdp_cmd("Page.captureScreenshot", shot)["data"]
                _write(into / f"report_{window}_{scheme}.png", base64.b64decode(picture))
    return 0


@contextmanager
def _tensorboard(folder: Path) -> Iterator[str]:
    """TensorBoard over the folder, on a free port; its address."""
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(folder), "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        lines = []
        for line in process.stderr:
            lines.append(line)
            if address := re.search(r"at (http://\S+)", line):
                break
        else:
            raise UserError(f"TensorBoard ended before it was ready: {''.join(lines)}")
        yield address[1]
    finally:
        process.terminate()
        process.wait()


@contextmanager
def _chromium(width: int, height: int, scheme: str = "light") -> Iterator[Any]:
    """A browser with a window of that size in CSS pixels."""
    try:
        from selenium.webdriver import Chrome, ChromeOptions, ChromeService
    except ImportError as error:
        raise UserError("--screenshots needs selenium; pip install selenium") from error
    places = [next(filter(None, map(shutil.which, names)), None) for names in NAMES]
    if None in places:
        raise UserError("chromium and chromedriver must be on the PATH (Debian: apt install chromium chromium-driver)")
    options = ChromeOptions()
    options.binary_location = places[0]
    for argument in ("headless=new", "no-sandbox", "disable-dev-shm-usage", "disable-gpu", "hide-scrollbars"):
        options.add_argument(f"--{argument}")
    options.set_capability("goog:loggingPrefs", {"performance": "ALL"})
    browser = Chrome(options, ChromeService(places[1]))
    try:
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        yield browser
    finally:
        browser.quit()


def _wait_until_quiet(browser: Any) -> None:
    """Until nothing is being fetched and nothing has been for a while."""
    fetching: set[str] = set()
    quiet_since = begun = time.monotonic()
    while time.monotonic() - quiet_since < SETTLE_SECONDS and time.monotonic() - begun < LONGEST_SECONDS:
        for entry in browser.get_log("performance"):
            event = json.loads(entry["message"])["message"]
            if event["method"] == "Network.requestWillBeSent":
                fetching.add(event["params"]["requestId"])
            elif event["method"] in ("Network.loadingFinished", "Network.loadingFailed"):
                fetching.discard(event["params"]["requestId"])
            quiet_since = time.monotonic()
        if fetching:
            quiet_since = time.monotonic()
        time.sleep(SETTLE_SECONDS / 10)


def _write(file: Path, picture: bytes) -> None:
    file.write_bytes(picture)
    print(file)
