"""Every number of a configuration has its legal, finite range."""

import pytest
from torch import nn

from deepnets.config.build import build
from deepnets.config.compose import compose
from deepnets.errors import UserError
from deepnets.training.assembly import dataset_of


@pytest.mark.parametrize(
    ("option", "key", "value"),
    [
        *[("optimizer=sgd", "lr", value) for value in (0, -0.1, "nan", "inf", "null")],
        *[("optimizer=sgd", "momentum", value) for value in (-0.1, 1, 2, "nan")],
        *[("optimizer=sgd", "weight_decay", value) for value in (-1, "nan", "inf")],
        *[("optimizer=caffe_nesterov", "bias_lr_factor", value) for value in (-1, "inf")],
        *[("optimizer=adam", "betas", value) for value in ("[0.9]", "[0.9,1]", "[nan,0.9]")],
        ("optimizer=adam", "eps", 0),
        *[("schedule=step", "factor", value) for value in (-1, "nan", 1e300)],
        *[("schedule=step", "warmup_factor", value) for value in (-1, "nan", "inf")],
        ("schedule=step", "warmup_iterations", -1),
        ("schedule=step", "of", 0),
        *[("schedule=exponential", "final_factor", value) for value in (0, 100, "nan", "inf")],
        *[("schedule=plateau", key, 0) for key in ("window", "patience", "threshold")],
        ("schedule=plateau", "factor", 1.0),
    ],
)
def test_a_value_out_of_its_range_is_refused_by_name(option: str, key: str, value: object) -> None:
    node = option.partition("=")[0]
    config = compose([option, f"{node}.{key}={value}"]).config
    runtime = {"model": nn.Linear(1, 1)} if node == "optimizer" else {"total": 100}
    with pytest.raises(UserError, match=rf"{node}\.{key}(\[\d\])?: got"):
        build(node, getattr(config, node), **runtime)


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("dataset.root=", "dataset.root: got ''; must be a text of one line, and not empty"),
        ("dataset.pad=-1", "dataset.pad: got -1"),
        ("dataset.pad=1000", "pad=1000: larger than the images of 32 x 32 pixels"),
        ("dataset.validation=-1", "dataset.validation: got -1"),
        ("dataset.normalization=none", "normalization=none: choose one of channel"),
        ("dataset.source.classes=1", "dataset.source.classes: got 1"),
        ("dataset.source.size=0", "dataset.source.size: got 0"),
    ],
)
def test_data_out_of_range_are_refused_by_name(word: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        dataset_of(compose(["dataset=synthetic", word]).config)


@pytest.mark.parametrize("word", ["optimizer.lr=1e30", "optimizer.momentum=0", "optimizer.weight_decay=0"])
def test_the_ends_of_a_range_are_legal(word: str) -> None:
    build("optimizer", compose(["optimizer=sgd", word]).config.optimizer, model=nn.Linear(1, 1))
