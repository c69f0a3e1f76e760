"""Networks as a user gets them: composed from conf/, checked, then instantiated."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from torch import nn

from deepnets.config.build import build as build_node
from deepnets.config.compose import register

CONF = Path(__file__).parents[2] / "conf"

FAMILIES = ("exclusive_gating", "shortcut_only_gating", "highway", "per_unit")  # shortcuts that leave a number open
GROWING = ("concatenation",)  # a shortcut that changes the size of all that follows
FURTHER = (
    "conv_relu",
    "conv_crelu",
    "relu_conv",
    "fixup",
    "pre_norm",
    "post_norm",
)  # orderings beside the five of He et al. 2016

Network = Callable[..., nn.Module]


@pytest.fixture(scope="session")
def network() -> Network:
    """network("model=resnet20", "model/shortcut=none", shape=..., classes=...) -> nn.Module."""

    def build(model: str, *overrides: str, shape: tuple[int, int, int] = (3, 32, 32), classes: int = 10) -> nn.Module:
        register()
        with initialize_config_dir(str(CONF), version_base="1.3"):
            config = compose(overrides=[f"+model={model}", "+scale=full", *overrides])
        return build_node("model", OmegaConf.to_object(config)["model"], shape=shape, classes=classes)

    return build


def options(group: str) -> list[str]:
    """The committed options of a config group, by name."""
    return sorted(path.name.removesuffix(".yaml") for path in (CONF / group).glob("*.yaml"))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that asks for one of these arguments runs once per committed option."""
    for argument in ("ordering", "block", "shortcut"):
        if argument in metafunc.fixturenames:
            names = options(f"model/{argument}")
            metafunc.parametrize(argument, [name for name in names if name not in (*FAMILIES, *GROWING, *FURTHER)])
