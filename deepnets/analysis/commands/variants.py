"""Fresh networks that differ from a configuration in their ordering, their number of units or their shortcut."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from omegaconf import OmegaConf
from torch import nn

from deepnets.config.compose import compose
from deepnets.config.project import CONF
from deepnets.config.schema import Config
from deepnets.errors import UserError
from deepnets.training.assembly import dataset_of, model_of


def chosen(group: str, name: str) -> dict[str, Any]:
    """What the option `name` of conf/model/<group>/ sets in a model's node.

    Raises:
        UserError: there is no such option.
    """
    folder = CONF / "model" / group
    names = sorted(file.stem for file in folder.glob("*.yaml"))
    if name not in names:
        raise UserError(f"model/{group}={name}: no such option; choose from {', '.join(names)}")
    keys: set[Any] = set(OmegaConf.load(folder / f"{name}.yaml")) - {"defaults"}
    model = compose(["model=resnet20", f"model/{group}={name}"]).config.model
    return {key: value for key, value in model.items() if key in keys}


def fresh(config: Config, changes: Mapping[str, Any], seed: int) -> nn.Module:
    """The network of `config` with these entries of its model's node changed, as a run with this seed starts.

    Raises:
        UserError: this network has no such entries, or they do not go together.
    """
    if unknown := sorted(set(changes) - set(config.model)):
        raise UserError(
            f"{config.model['_target_']} has no {', '.join(unknown)}: this works for networks of model=resnet"
        )
    dataset = dataset_of(config)
    torch.manual_seed(seed)
    return model_of(replace(config, model=config.model | dict(changes)), dataset.shape, dataset.classes).eval()
