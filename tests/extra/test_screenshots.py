"""`report.py --screenshots`, with a TensorBoard and a browser of its own."""

import shutil
from pathlib import Path

import pytest
from PIL import Image

from deepnets.errors import UserError
from deepnets.extra.screenshots import BROWSERS, PAGES, take_screenshots
from deepnets.results.report import report
from tests.trained import train_table


@pytest.mark.nightly
@pytest.mark.skipif(not any(map(shutil.which, BROWSERS)), reason="chromium is not installed")
def test_pictures_of_tensorboard_and_of_the_report(tmp_path: Path) -> None:
    trained, sweep = train_table(tmp_path / "outputs"), tmp_path / "sweep"
    for row in ("identity", "none"):
        shutil.copytree(trained.path / row, sweep / row)
    report([sweep], None, {}, False)
    assert take_screenshots(sweep, tmp_path / "pictures") == 0
    pictures = {file.stem: Image.open(file) for file in (tmp_path / "pictures").iterdir()}
    reports = {f"report_{window}_{scheme}" for window in ("desktop", "phone") for scheme in ("light", "dark")}
    assert pictures.keys() == {f"tensorboard_{page}" for page in PAGES} | reports
    for page in PAGES:
        colours = pictures[f"tensorboard_{page}"].convert("RGB").getcolors(1 << 24)
        assert len(colours) > 100, f"{page} is empty"
    light, dark = (pictures[f"report_phone_{scheme}"].convert("L") for scheme in ("light", "dark"))
    assert light.width == dark.width == 390
    assert light.height == dark.height < 24000
    assert light.getpixel((1, 1)) > 200 > 50 > dark.getpixel((1, 1))


def test_what_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="no such folder"):
        take_screenshots(tmp_path / "nowhere", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="install one"):
        take_screenshots(tmp_path, tmp_path)
