"""Takes pictures of TensorBoard's pages for a sweep, and of the sweep's report, in headless Chromium."""

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from PIL import Image, ImageChops

from deepnets.errors import UserError, printable
from deepnets.system.files import writing

PAGES = ("timeseries", "scalars", "custom_scalars", "hparams", "images")
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
WINDOW = (1400, 1600)  # CSS pixels
REPORTS = {"desktop": (1400, 12000), "phone": (390, 24000)}  # longer than any page; the rest is cropped
SCHEMES = {"light": 1, "dark": 0}
FETCH_MILLISECONDS = 20000  # on the page's own clock, which stands still while the page fetches something
LONGEST_SECONDS = 120


def take_screenshots(folder: Path, into: Path) -> int:
    """Write PNG files of TensorBoard for the sweep in `folder`, and of its report/report.html, if there is one.

    Returns 0.

    Raises:
        UserError: there is no such folder or no Chromium, `into` cannot be written, or TensorBoard or Chromium fails.
    """
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder; use one that scripts/train.py has written")
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        raise UserError(f"none of {', '.join(BROWSERS)} is on the PATH; install one (Debian: apt install chromium)")
    with writing(into):
        into.mkdir(parents=True, exist_ok=True)
    with _tensorboard(folder) as address:
        for page in PAGES:
            print(_shot(browser, f"{address}#{page}", into / f"tensorboard_{page}.png", WINDOW, "light"))
    report = folder.resolve() / "report" / "report.html"
    for window, size in REPORTS.items() if report.is_file() else ():
        for scheme in SCHEMES:
            file = _shot(browser, report.as_uri(), into / f"report_{window}_{scheme}.png", size, scheme)
            _crop(file)
            print(printable(str(file)))
    return 0


@contextmanager
def _tensorboard(folder: Path) -> Iterator[str]:
    """Start TensorBoard for the folder, on a free port, and yield its address."""
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(folder), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        try:
            lines = []
            for line in process.stderr or ():
                lines.append(line)
                if address := re.search(r"at (http://\S+)", line):
                    break
            else:
                raise UserError(f"TensorBoard ended before it was ready: {''.join(lines)}")
            yield address[1]
        finally:
            process.terminate()


def _shot(browser: str, address: str, file: Path, window: tuple[int, int], scheme: str) -> Path:
    options = ["headless", "no-sandbox", "disable-dev-shm-usage", "disable-gpu", "hide-scrollbars"]
    options += [f"window-size={window[0]},{window[1]}", f"blink-settings=preferredColorScheme={SCHEMES[scheme]}"]
    options += [f"virtual-time-budget={FETCH_MILLISECONDS}", f"screenshot={file.resolve()}"]
    command = [browser, *(f"--{option}" for option in options), address]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST_SECONDS, check=False)
    if done.returncode or not file.is_file():
        raise UserError(f"{browser}: no picture of {address} ({done.stderr.strip()})")
    return file


def _crop(file: Path) -> None:
    """Cut off the empty part below the page."""
    image = Image.open(file).convert("RGB")
    empty = Image.new("RGB", image.size, image.getpixel((0, image.height - 1)))
    _, margin, _, bottom = ImageChops.difference(image, empty).getbbox() or (0, 0, *image.size)
    image.crop((0, 0, image.width, min(bottom + margin, image.height))).save(file)
