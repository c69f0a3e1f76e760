"""Write a small project of your own: a shortcut, a data set, a sweep with a claim, a test and a README."""

import argparse
import shutil
from collections.abc import Sequence
from pathlib import Path

from deepnets.config.places import SCHEMAS
from deepnets.errors import UserError

FILES = {
    "README.md": """# NAME

A shortcut, a data set and a sweep of its own, trained by deepnets.

```sh
deepnets train --project project.yaml sweep=NAME plan=true
deepnets train --project project.yaml sweep=NAME
deepnets report --project project.yaml outputs/NAME
deepnets analyze lesion outputs/NAME/learned_mix/seed0 --project project.yaml
deepnets export outputs/NAME/learned_mix/seed0 --to weights --project project.yaml
python -m pytest
```

* `project.yaml` says where the options are, and which classes a configuration may name. It counts only where a command
  names it: `--project project.yaml`.
* `NAME_shortcuts.py` and `NAME_data.py` are the shortcut and the data set; `conf/model/shortcut/learned_mix.yaml` and
  `conf/dataset/stripes.yaml` make them options.
* `conf/sweep/NAME.yaml` is the sweep: its rows, what is expected of them, and their protocol.
* `conf/schema/` holds the schemas by which an editor with a YAML language server checks and completes these files.
* `test_NAME.py` tests the shortcut, and that the sweep's network is built.
""",
    "project.yaml": """options: conf
trusted:
  - NAME_shortcuts.LearnedMix
  - NAME_data.stripes
""",
    "NAME_shortcuts.py": '''"""How the branch joins x in the networks of this project."""

import torch
from deepnets.models.resize import ShortcutShape
from torch import Tensor, nn


class LearnedMix(nn.Module):
    """y = (1 - a) x + a r with a learned a."""

    def __init__(self, *, start: float, ends: ShortcutShape) -> None:
        super().__init__()
        self.resize, self.a = ends.resized(), nn.Parameter(torch.tensor(start))

    def forward(self, x: Tensor, r: Tensor) -> Tensor:
        return torch.lerp(self.resize(x), r, self.a)
''',
    "NAME_data.py": '''"""Noisy stripes: four classes by direction."""

from pathlib import Path

import torch
from deepnets.data.source import DataFiles, Source, Split

SIZES = 512, 128  # images for training and for testing


def stripes(root: Path) -> Source:
    """Images (N, 8, 8, 1) uint8 and labels (N,); they are computed, so that nothing is read from `root`."""

    def read() -> tuple[Split, Split]:
        random = torch.Generator().manual_seed(0)
        labels = torch.arange(sum(SIZES)) % 4
        y, x = torch.meshgrid(torch.arange(8), torch.arange(8), indexing="ij")
        lines = torch.stack([x, y, x + y, x - y]) % 4 < 2
        noise = torch.randint(0, 256, (len(labels), 8, 8), generator=random)
        images = (lines[labels] * 100 + noise * 155 // 255).to(torch.uint8)[..., None]
        train, test = (Split(*part) for part in zip(images.split(SIZES), labels.split(SIZES)))
        return train, test

    return Source("stripes", (1, 8, 8), ("|", "-", "/", "\\\\"), lambda: DataFiles(SIZES, read))
''',
    "conf/model/shortcut/learned_mix.yaml": """# @package model
# yaml-language-server: $schema=../../schema/model.json
shortcut:
  _target_: NAME_shortcuts.LearnedMix
  _partial_: true
  start: 0.5
""",
    "conf/dataset/stripes.yaml": """# yaml-language-server: $schema=../schema/dataset.json
defaults: [digits]
source:
  _target_: NAME_data.stripes
""",
    "conf/sweep/NAME.yaml": """# @package _global_
# yaml-language-server: $schema=../schema/train.json
# Does a network that learns how much of each branch it takes learn stripes?
defaults:
  - override /dataset: stripes
sweep:
  axes: [model/shortcut]
  reported: {}            # the published number of each row, where there is one
  claims:
    - {claim: "learned_mix is lower than none", place: README}
epochs: 4
hydra:
  mode: MULTIRUN
  sweeper:
    params:
      model/shortcut: identity,none,learned_mix
      seed: 0,1,2
""",
    "test_NAME.py": '''"""The shortcut mixes as it says, and the network that the sweep trains can be built."""

from pathlib import Path

import torch
from deepnets.run import build_model

PROJECT = Path(__file__).parent / "project.yaml"


def test_the_shortcut_mixes_x_and_its_branch() -> None:
    model = build_model(["dataset=stripes", "model/shortcut=learned_mix"], project=PROJECT)
    shortcut = model.units[0].shortcut
    x, r = torch.rand(2, 16, 8, 8), torch.rand(2, 16, 8, 8)
    torch.testing.assert_close(shortcut(x, r), (x + r) / 2)
    assert model.eval()(torch.rand(2, 1, 8, 8)).shape == (2, 4)
''',
}


def main(words: Sequence[str] | None = None) -> int:
    """Write the project that the command line names, or `words`.

    Raises:
        UserError: the folder is there, or its name is none that Python can import.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="a new folder; its name is the project's")
    folder = parser.parse_args(words).folder
    if not folder.name.isidentifier():
        raise UserError(f"{folder}: the name must be one that Python can import, as my_project")
    if folder.exists():
        raise UserError(f"{folder}: is there already; choose another name")
    for name, text in FILES.items():
        file = folder / name.replace("NAME", folder.name)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text.replace("NAME", folder.name))
    shutil.copytree(SCHEMAS, folder / "conf" / SCHEMAS.name)
    print(f"project      {folder}; {folder}/README.md has its commands")
    return 0
