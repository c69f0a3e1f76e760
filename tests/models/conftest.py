"""Networks as a user gets them: composed from conf/, then instantiated."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from torch import nn

CONF = Path(__file__).parents[2] / "conf"

Network = Callable[..., nn.Module]


@pytest.fixture(scope="session")
def network() -> Network:
    """network("model=resnet20", "model/shortcut=none", shape=..., classes=...) -> nn.Module."""

    def build(model: str, *overrides: str, shape: tuple[int, int, int] = (3, 32, 32), classes: int = 10) -> nn.Module:
        with initialize_config_dir(str(CONF), version_base="1.3"):
            config = compose(overrides=[f"+model={model}", *overrides])
        return instantiate(config.model, shape=shape, classes=classes)

    return build


def options(group: str) -> list[str]:
    """The committed options of a config group, by name."""
    return sorted(path.name.removesuffix(".yaml") for path in (CONF / group).glob("*.yaml"))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that asks for one of these arguments runs once per committed option."""
    for argument in ("ordering", "block", "shortcut"):
        if argument in metafunc.fixturenames:
            metafunc.parametrize(argument, options(f"model/{argument}"))
    if "option" in metafunc.fixturenames:
        metafunc.parametrize("option", [name for name in options("model") if name != "resnet"])
