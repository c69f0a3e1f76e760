"""Each ImageNet option steps once in each protocol, as does each row of a sweep, as deep and wide as published.

Crops are of 64 pixels, of VGG-19 of 224, in batches of 4, of a tree of four classes.
"""

import itertools
import math
from pathlib import Path

import pytest
import torch
import yaml

from deepnets.analysis.walk import recalibrate_batchnorm
from deepnets.config.compose import compose
from deepnets.config.project import CONF
from deepnets.training.assembly import prepare
from deepnets.training.fit import Sums, evaluate, fit
from tests.photographs import photograph_tree

pytestmark = pytest.mark.nightly

SMALL = ["dataset.size=64", "dataset.classes=4", "dataset.workers=0", "batch_size=4", "evaluation_batch_size=4"]
OPTIONS = sorted(file.stem for file in (CONF / "model").glob("imagenet_*.yaml"))
PROTOCOLS = sorted(file.stem for file in (CONF / "protocol").glob("*_imagenet.yaml"))
ABSENT = {
    "imagenet_densenet121": {"strided_kernel"},
    "imagenet_vgg19": {"strided_kernel"},
    "imagenet_vit_b16": {"batchnorm_images", "strided_kernel"},
}
SWEEPS = [file for file in sorted((CONF / "sweep").glob("*.yaml")) if "_imagenet\n" in file.read_text()]


def rows() -> list[list[str]]:
    """The words of each row of each sweep of an ImageNet protocol, with one seed."""
    found = []
    for file in SWEEPS:
        rows = yaml.safe_load(file.read_text())["sweep"]["rows"]
        axes = [[f"{key}={value}" for value in values] for key, values in rows.items()]
        found += [[f"sweep={file.stem}", *words, "seed=0"] for words in itertools.product(*axes)]
    return found


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return photograph_tree(tmp_path_factory.mktemp("tree"), classes=4, train=1, val=1)


def step_once(tree: Path, *words: str) -> None:
    config = compose([*SMALL, *words, f"dataset.root={tree}", "device=cpu"]).config
    training = prepare(config, torch.device("cpu"), torch.float32)
    before = [parameter.detach().clone() for parameter in training.model.parameters()]
    states = fit(training)
    while training.iteration == 0:
        next(states)
    changed = [not torch.equal(*pair) for pair in zip(before, training.model.parameters(), strict=True)]
    assert sum(changed) > len(changed) / 2
    assert all(parameter.isfinite().all() for parameter in training.model.parameters())
    # After an iteration the running statistics lie between those of the images and 1, with which the activations of a
    # hundred layers overflow.
    recalibrate_batchnorm(training.model.eval(), training.evaluated["test"].some(4))
    for batches in training.evaluated.values():
        sums = Sums(torch.device("cpu"), top=batches.top)
        for _ in evaluate(training.model, batches, sums, torch.float32):
            pass
        assert sums.values[2] == 4  # images
        assert math.isfinite(sums.mean().loss)


@pytest.mark.parametrize("model", OPTIONS)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_an_option_steps_in_a_protocol(tree: Path, protocol: str, model: str) -> None:
    set_here = {"batchnorm_images", *(["strided_kernel"] if protocol == "fb_imagenet" else [])}
    without = [f"~model.{key}" for key in set_here & ABSENT.get(model, set())]
    if "vit" in model:  # its positions are those of one size of image
        without.append("dataset.view=center")
    larger = ["dataset.size=224"] * ("vgg" in model)
    step_once(tree, f"protocol={protocol}", f"model={model}", *without, *larger)


def test_there_are_rows() -> None:
    assert {words[0] for words in rows()} >= {"sweep=he2015_table2", "sweep=he2016_table5", "sweep=huang2016_imagenet"}


@pytest.mark.parametrize("words", rows(), ids=",".join)
def test_a_row_of_a_sweep_steps(tree: Path, words: list[str]) -> None:
    step_once(tree, *words)
