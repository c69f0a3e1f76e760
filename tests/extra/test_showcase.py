"""The showcase: what its page is made of, and its knobs in a real browser, by keyboard and by mouse."""

import csv
import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from selenium.webdriver import ActionChains, Chrome, Keys
from selenium.webdriver.support.select import Select

from deepnets.errors import UserError
from deepnets.extra.showcase import Bars, Design, Showcase, shortcuts_of, write_showcase
from tests.analyzing import analyze
from tests.browser import console_messages, missing_browser, open_browser, requested

COMMAND = "measure units={depth} ordering={ordering} {shortcut}"
DESIGNS = [
    Design("original", ["conv", "bn", "relu", "conv", "bn"], ["relu"], COMMAND),
    Design("full_preactivation", ["bn", "relu", "conv", "bn", "relu", "conv"], [], COMMAND),
]
DEPTHS, SCALES, BIASES = [10, 20], [0.5, 1.0], [0.0, -6.0]


def known() -> Showcase:
    """Unit l of L has the gradient (10 d + s) / l with d and s the numbers of design and shortcut."""
    bars = {}
    for number, design in enumerate(DESIGNS):
        for depth in DEPTHS:
            for which, shortcut in enumerate(shortcuts_of(SCALES, BIASES)):
                gradient = [(10 * (number + 1) + which) / unit for unit in range(1, depth + 1)]
                bars[design.name, depth, shortcut] = Bars(gradient, [-1.0 * number] * depth, [0.5] * depth, [2] * depth)
    return Showcase("Known </script> numbers.", DESIGNS, DEPTHS, SCALES, BIASES, bars)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("showcase") / "new" / "showcase.html"
    write_showcase(file, known())
    return file


@pytest.fixture(scope="module", params=[(1200, False), (390, True)], ids=["desktop-light", "phone-dark"])
def browser(page: Path, request: pytest.FixtureRequest) -> Iterator[Chrome]:
    if reason := missing_browser():
        pytest.skip(reason)
    width, dark = request.param
    with open_browser(width, 900, dark) as opened:
        opened.get(page.as_uri())
        yield opened


def ratios(browser: Chrome) -> list[str]:
    return [each.text for each in browser.find_elements("css selector", ".ratio b")]


def test_a_page_asks_for_nothing_and_holds_every_number(page: Path) -> None:
    text = page.read_text()
    assert not re.search(r"""(src|href)\s*=\s*(?!["']?data:)|@import|url\(|fetch\(|XMLHttp""", text)
    assert "Known &lt;/script&gt; numbers." in text
    data = json.loads(re.search(r'id="data">(.*?)</script>', text, re.DOTALL)[1])
    assert data["bars"][1][0][3][0][:3] == [23.0, 11.5, 7.67]
    assert [len(data["bars"][0][depth][0][0]) for depth in (0, 1)] == [10, 20]


@pytest.mark.slow
def test_the_page_starts_with_both_designs_and_no_complaint(browser: Chrome, page: Path) -> None:
    assert console_messages(browser) == []
    assert set(requested(browser)) <= {page.as_uri(), "data:,"}
    assert ratios(browser) == ["20", "20"]
    assert [
        len(chart.find_elements("css selector", ".bar")) for chart in browser.find_elements("class name", "gradient")
    ] == [20, 20]
    top, bottom = browser.find_elements("class name", "diagram")
    assert top.location["y"] < bottom.location["y"]
    assert top.get_attribute("aria-label").endswith("behind the addition ReLU")
    assert bottom.get_attribute("aria-label").endswith("behind the addition nothing")
    assert browser.execute_script("return document.documentElement.scrollWidth <= innerWidth"), "nothing is cut off"


@pytest.mark.slow
def test_knobs_turn_by_keyboard(browser: Chrome) -> None:
    depth, scale, gate = (browser.find_element("id", name) for name in ("depth", "scale", "gate"))
    depth.send_keys(Keys.ARROW_LEFT)
    assert ratios(browser) == ["10", "10"]
    scale.send_keys(Keys.HOME)
    first = browser.find_element("css selector", "#bottom .ratio .soft")
    assert first.text == "20 / 2"
    assert scale.get_attribute("aria-valuetext") == "0.5"
    gate.send_keys(Keys.END)
    assert first.text == "23 / 2.3"
    shown = browser.find_element("css selector", "#bottom .command").text
    assert shown == (
        "measure units=10 ordering=full_preactivation model/shortcut=exclusive_gating_b6 model.shortcut.bias=-6"
    )
    assert not scale.is_enabled(), "a gate is the scale"
    gate.send_keys(Keys.HOME)
    assert scale.is_enabled()
    scale.send_keys(Keys.END)
    depth.send_keys(Keys.END)
    assert ratios(browser) == ["20", "20"]
    assert console_messages(browser) == []


@pytest.mark.slow
def test_knobs_turn_by_mouse(browser: Chrome) -> None:
    gate = browser.find_element("id", "gate")
    browser.execute_script("scrollTo(0, 0)")
    ActionChains(browser).move_to_element_with_offset(gate, gate.size["width"] // 2 - 4, 0).click().perform()
    assert browser.find_element("css selector", "#top .ratio .soft").text == "13 / 0.65"
    ActionChains(browser).move_to_element_with_offset(gate, 4 - gate.size["width"] // 2, 0).click().perform()
    assert browser.find_element("css selector", "#top .ratio .soft").text == "11 / 0.55"
    Select(browser.find_element("id", "top-ordering")).select_by_index(1)
    assert browser.find_element("css selector", "#top .ratio .soft").text == "21 / 1.05"
    Select(browser.find_element("id", "top-ordering")).select_by_index(0)
    heights = [bar.size["height"] for bar in browser.find_elements("css selector", "#top .bar")]
    assert heights[0] / heights[1] == pytest.approx(2, rel=0.02)
    browser.find_element("id", "log").click()
    heights = [bar.size["height"] for bar in browser.find_elements("css selector", "#top .bar")]
    assert heights[0] / heights[1] < 1.5
    browser.find_element("id", "log").click()
    assert console_messages(browser) == []


@pytest.mark.slow
def test_a_network_that_diverged_is_called_so_and_the_others_are_shown(tmp_path: Path) -> None:
    showcase, nan = known(), float("nan")
    bars = {
        **showcase.bars,
        ("original", 20, (1.0, None)): Bars([nan] * 20, [nan] * 20, [float("inf")] * 20, [1.0] * 20),
    }
    file = tmp_path / "showcase.html"
    write_showcase(file, replace(showcase, bars=bars))
    data = json.loads(re.search(r'id="data">(.*?)</script>', file.read_text(), re.DOTALL)[1])
    assert [values[0] for values in data["bars"][0][1][1]] == [None, None, None, 1.0]
    if reason := missing_browser():
        pytest.skip(reason)
    with open_browser(1200, 900, False) as opened:
        opened.get(file.as_uri())
        assert ratios(opened) == ["", "20"]
        assert opened.find_element("css selector", "#top .ratio .soft").text == "diverged"
        assert opened.find_element("css selector", "#top .gradient").text == "diverged"
        assert not opened.find_elements("css selector", "#top .bar")
        opened.find_element("id", "depth").send_keys(Keys.ARROW_LEFT)
        assert ratios(opened) == ["10", "10"]
        assert console_messages(opened) == []


@pytest.mark.slow
def test_every_number_is_what_the_named_command_measures(tmp_path: Path) -> None:
    assert analyze("showcase", "--depths", 2, "--images", 8, "--draws", 1, "--output", tmp_path) == 0
    text = (tmp_path / "showcase.html").read_text()
    data = json.loads(re.search(r'id="data">(.*?)</script>', text, re.DOTALL)[1])
    assert [len(data["bars"]), len(data["bars"][0]), len(data["bars"][0][0])] == [7, 1, 9]
    assert data["scales"][1] == 0.5
    for design, shortcut in ((4, 1), (0, 8), (5, 3), (6, 8)):
        named = {"depth": "2", "ordering": data["designs"][design]["name"], "shortcut": data["shortcuts"][shortcut]}
        python, script, *words = shlex.split(data["designs"][design]["command"].format(**named))
        assert (python, script) == ("python", "scripts/analyze.py")
        assert analyze(*words, "--test-images", 8, "--output", tmp_path / "again") == 0
        with (tmp_path / "again" / "gradients_units.csv").open() as file:
            rows = list(csv.DictReader(file))
        for column, found in zip(
            ("gradient_norm", "signal_low", "signal_mean", "signal_high"),
            data["bars"][design][0][shortcut],
            strict=True,
        ):
            np.testing.assert_allclose(found, [float(row[column]) for row in rows], rtol=6e-3, atol=1e-6)
    assert [(design["branch"], design["after"]) for design in data["designs"][5:]] == [
        (["sublayer"], ["ln"]),
        (["ln", "sublayer"], []),
    ]


def test_an_odd_number_of_units_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--depths 3: must be even"):
        analyze("showcase", "--depths", "2,3", "--output", tmp_path)
