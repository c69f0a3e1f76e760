"""Take pictures of what users look at: `python scripts/screenshots.py outputs/<sweep> --into DIR`.

Shows TensorBoard's pages over the sweep, started on a free port, and the sweep's report/report.html where there is one,
to headless Chromium. Needs chromium, its chromedriver and `pip install selenium`.
"""

import argparse
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

from selenium.webdriver import Chrome, ChromeOptions, ChromeService

from deepnets.command import run_command
from deepnets.errors import UserError

PAGES = ("timeseries", "scalars", "custom_scalars", "hparams", "images")
WINDOWS = {"desktop": (1400, 1600), "phone": (390, 844)}
NAMES = (("chromium", "chromium-browser", "google-chrome"), ("chromedriver", "chromium.chromedriver"))
SETTLE_SECONDS, LONGEST_SECONDS = 2.0, 60.0  # TensorBoard fetches in steps, and says nowhere when it is done


@contextmanager
def tensorboard(folder: Path) -> Iterator[str]:
    """TensorBoard over the folder; its address."""
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(folder), "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        told = []
        for line in process.stderr:
            told.append(line)
            if address := re.search(r"at (http://\S+)", line):
                break
        else:
            raise UserError(f"TensorBoard ended before it was ready: {''.join(told)}")
        yield address[1]
    finally:
        process.terminate()
        process.wait()


@contextmanager
def chromium(width: int, height: int, dark: bool = False) -> Iterator[Chrome]:
    """A browser with a window of that size in CSS pixels."""
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
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
        yield browser
    finally:
        browser.quit()


def whole_page(browser: Chrome) -> bytes:
    """A PNG of the page, beyond the window too."""
    size = browser.execute_cdp_cmd("Page.getLayoutMetrics", {})["cssContentSize"]
    clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
    return base64.b64decode(
        browser.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True, "clip": clip})["data"]
    )


def main() -> int:
    """Take the pictures and say where they are."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="a sweep's folder")
    parser.add_argument("--into", type=Path, required=True, help="where the PNG files go")
    arguments = parser.parse_args()
    if not arguments.folder.is_dir():
        raise UserError(f"{arguments.folder}: no such folder; give one that scripts/train.py has written")
    arguments.into.mkdir(parents=True, exist_ok=True)
    with tensorboard(arguments.folder) as address, chromium(*WINDOWS["desktop"]) as browser:
        for page in PAGES:
            browser.get("about:blank")  # or a change behind the # alone would load nothing
            browser.get_log("performance")  # what the page before left behind
            browser.get(f"{address}#{page}")
            _wait_until_quiet(browser)
            _write(arguments.into / f"tensorboard_{page}.png", browser.get_screenshot_as_png())
    report = arguments.folder.resolve() / "report" / "report.html"
    for window, size in WINDOWS.items() if report.is_file() else ():
        for scheme in ("light", "dark"):
            with chromium(*size, dark=scheme == "dark") as browser:
                browser.get(report.as_uri())
                _write(arguments.into / f"report_{window}_{scheme}.png", whole_page(browser))
    return 0


def _wait_until_quiet(browser: Chrome) -> None:
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


if __name__ == "__main__":
    run_command(main)
