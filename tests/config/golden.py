"""What commands compose, as digests in `golden.json`: no change to how words become rows may change a row unseen.

`python -m tests.config.golden` writes the file anew, which is right only where a change of a row is meant.
"""

import hashlib
import json
import os
import shlex
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from enum import Enum
from pathlib import Path
from typing import Any

from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from deepnets.config.command_line import rows_of_command
from deepnets.config.identity import identity_hash
from deepnets.config.project import CONF, home
from deepnets.config.schema import Row
from deepnets.config.trust import trusted, trusting
from deepnets.errors import UserError
from deepnets.runs.naming import folder_of

REFUSED = "refused"
# Keys and groups that came after the digests were written.
LATER = (
    "batchnorm_kernel",
    "code",
    "reuse",
    "name",
    "loss",
    "weights",
    "until",
    "hours",
    "keep_checkpoints",
    "weights_hash",
    "dataset/augmentation",
    "augmentation",
    "runs_per_task",
    "setup",
    "report",
)
FILE = Path(__file__).with_name("golden.json")
PROJECT = {
    "deepnets.yaml": "options: options\ndefaults: mine\n",
    "options/mine.yaml": "defaults:\n  - train\n  - override model: resnet20\n  - _self_\nepochs: 2\n",
    "options/model/wide.yaml": "defaults:\n  - resnet20\nwidths: [32, 64, 128]\n",
    "options/optimizer/slow.yaml": "defaults:\n  - sgd\nlr: 0.01\n",
    "options/sweep/paired.yaml": """# @package _global_
sweep:
  axes: [model.depth, epochs, model/shortcut]
  zip: [[model.depth, epochs]]
  exclude: [{model.depth: 14, model/shortcut: none}]
hydra:
  mode: MULTIRUN
  sweeper:
    params:
      model.depth: 8,14
      epochs: 3,5
      model/shortcut: identity,none
""",
    "options/sweep/joined.yaml": """# @package _global_
sweep:
  axes: [model, optimizer.lr]
  union:
    - {model: "plain20,resnet20", optimizer.lr: [0.1, 0.01]}
    - {model: wide, optimizer.lr: 0.05}
hydra:
  mode: MULTIRUN
  sweeper: {params: {seed: "${at_scale:\\"range(2)\\",\\"0\\"}"}}
""",
    "options/sweep/one.yaml": "# @package _global_\nsweep: {axes: [model]}\nepochs: 3\n",
    "more/dataset/few.yaml": "defaults:\n  - digits\nevery_class: 5\n",
}
COMMANDS = (
    """

seed=3 model.depth=14 optimizer.lr=0.05
model=resnet20 dataset=cifar10 dataset.root=/data
model=resnet56 protocol=he2015 dataset.root=/data
model=resnet110 model/ordering=full_preactivation model.depth=38 epochs=10
model=resnet20 model/shortcut=none model/block=bottleneck
-m model=plain20,resnet20 seed=0,1,2
-m seed=range(12)
seed=range(1,9,3) -m epochs=1
-m 'seed=range(stop=2)' epochs=choice(1,2)
-m 'seed=sort(3,1,2)' 'log_iterations=shuffle(range(1,2))'
-m 'model/shortcut=glob(id*)' model=resnet20
-m 'model/shortcut=glob([i*,n*],exclude=in*)'
-m model.widths=[4,8,16],[8,16,32] model.depth=8,14
-m 'model.widths=[4,8,16]' 'seed=interval(0,1)' seed=1
-m +model.batchnorm_images=32,64
-m ++model.batchnorm_images=32 ++seed=4,5
-m optimizer=sgd,nesterov optimizer.lr=0.1,0.2
-m optimizer=sgd,adam precision=fp32,bf16 device=cpu
-m scale=full,mini
-m scale=mini seed=0,1 protocol=he2016 model=resnet20
-m protocol=he2015,huang2016 model=resnet20
-m threads=1,null iterations=10 epochs=null
-m epochs=null iterations=5,6
-m overwrite=true,false
-m seed=0,1 hydra.job.name=mine
hydra.mode=MULTIRUN seed=0,1
-m 'hydra.sweeper.params={seed: "0,1"}' epochs=4,5
-m seed=0,1 seed=2,3
-m setting=null seed=1
epochs=1e1
epochs=07
optimizer.lr=1e-2
dataset.source.name=a_name
dataset.validation=10 selection=best_validation
~model.batchnorm_images model=resnet20
~schedule.warmup_iterations schedule=cosine
+model.batchnorm_images=16
++optimizer.momentum=0.8
'dataset.root="/a b/c"'
'dataset.root=~/data' dataset=cifar10
-m schedule=cosine,step schedule.milestones=[1,2] seed=0
launcher=pool launcher.runs_per_device=2 -m seed=0,1
launcher=slurm launcher.partition=gpu -m seed=0,1
devices=2 batch_size=64
step=compiled memory=recompute_units deterministic=true
clip_gradient_norm=1 log_iterations=5
model/initialization=orthogonal
model/survival=linear_decay
model.units=2
-m model=wrn16_8,densenet40_12,vit_cifar dataset=cifar10
sweep=he2016_table1 model/shortcut=identity,none seed=0 dataset.root=/data
sweep=he2016_table1 model/shortcut=identity seed=7,8,9 epochs=10 iterations=null
sweep=he2016_table1 scale=deep model/shortcut=none threads=1
sweep=he2016_table1 model.depth=20,32 model/shortcut=identity
sweep=he2016_table1 model=resnet56 model.depth=56 model/shortcut=identity seed=0
sweep=he2016_table1 +model/shortcut=identity seed=0
sweep=he2015_table6 model=resnet20,resnet32 seed=0 schedule=cosine ~schedule.warmup_iterations
-m seed=0,1 model=resnet20 protocol=he2015 schedule=cosine ~schedule.warmup_iterations
sweep=srivastava2015_table1 seed=0 optimizer=adam optimizer.lr=0.01
sweep=srivastava2015_fig1_plain setting=0,3,7
sweep=srivastava2015_fig1_plain setting=0,3 optimizer.lr=0.5
sweep=digits_shortcuts -m seed=0
sweep=digits_shortcuts seed=range(40) model.depth=8
sweep=digits_shortcuts seed=0 launcher=pool output_root=/elsewhere
sweep=digits_shortcuts hydra.mode=RUN hydra.sweeper.params=null
--project deepnets.yaml
--project deepnets.yaml -m model=wide,resnet20 optimizer=slow
--project deepnets.yaml sweep=paired
--project deepnets.yaml sweep=paired model.depth=14 seed=2
--project deepnets.yaml sweep=paired model.depth=26,32 epochs=7,8 batch_size=16,32
--project deepnets.yaml sweep=joined
--project deepnets.yaml sweep=joined scale=mini
--project deepnets.yaml sweep=joined model=wide seed=range(3) threads=1
--project deepnets.yaml sweep=joined optimizer=slow
--project deepnets.yaml sweep=one seed=4
--project deepnets.yaml sweep=one -m seed=4,5
--config-dir options sweep=paired seed=1
--config-dir options sweep=joined model=plain20 seed=0,1
--config-dir options --config-name mine seed=3
-cd options -cn mine -m model=wide,plain20 seed=3
'hydra.searchpath=[file://PLACE/more]' dataset=few
'hydra.searchpath=[file://PLACE/more]' -m dataset=few,digits
--config-dir options 'hydra.searchpath=[file://PLACE/more]' model=wide dataset=few
'hydra.searchpath=[file://PLACE/options]' sweep=paired seed=1,2
""".removeprefix("\n")
    .removesuffix("\n")
    .split("\n")
)
DEEP = ("he2015_fig6", "he2016_table1", "he2016_table2", "identity_start", "he2015_table2")


def commands() -> list[str]:
    """The words of every command, as a shell reads them; of a random search two settings."""
    of_files = []
    for file in sorted((CONF / "sweep").glob("*.yaml")):
        few = " setting=0,1" if "setting: range" in file.read_text() else ""
        of_files += [f"sweep={file.stem} {scale}{few}" for scale in ("", "scale=mini")]
    return [*COMMANDS, *of_files, *(f"sweep={name} scale=deep" for name in DEEP)]


@contextmanager
def project() -> Iterator[Path]:
    """A folder with options of a user's own as the working directory."""
    before = os.getcwd()
    with tempfile.TemporaryDirectory() as folder:
        for name, text in PROJECT.items():
            (Path(folder) / name).parent.mkdir(parents=True, exist_ok=True)
            (Path(folder) / name).write_text(text)
        os.chdir(folder)
        try:
            yield Path(folder).resolve()
        finally:
            os.chdir(before)


def composed(command: str, place: Path) -> list[str]:
    """A line for each row: its folder, its identity, and a digest of configuration, choices and overrides."""
    sys.argv = ["scripts/train.py", *shlex.split(command.replace("PLACE", str(place)))]
    with trusting([]):
        return [_line(row, place) for row in rows_of_command()]


def digest(lines: list[str]) -> str:
    return f"{len(lines)} {hashlib.sha256(chr(10).join(lines).encode()).hexdigest()[:16]}"


def _line(row: Row, place: Path) -> str:
    config = {key: value for key, value in asdict(row.config).items() if key not in ("sweep", *LATER)}
    for node in ("dataset", "launcher"):
        config[node] = {key: value for key, value in config[node].items() if key not in LATER}
    if not config["launcher"]["_target_"].endswith("Slurm"):  # the others got it later
        del config["launcher"]["retry"]
    config["trusted_targets"] = [*trusted()]  # where trust stood when the digests were written
    sweep = row.config.sweep and {"axes": row.config.sweep.axes, "deep": row.config.sweep.deep}
    choices = {group: option for group, option in row.choices.items() if group not in LATER}
    text = json.dumps([config, sweep, choices, row.overrides], sort_keys=True, default=_said)
    for path, name in (
        (str(place), "PLACE"),
        (str(Path.cwd()), "PLACE"),
        (str(home()), "HOME"),
        (str(Path.home()), "~"),
    ):
        text = text.replace(path, name)
    folder = folder_of(row).path.relative_to(row.config.output_root)
    return f"{folder} {identity_hash(row.config)} {hashlib.sha256(text.encode()).hexdigest()[:12]}"


def _said(value: Any) -> str:
    return value.name if isinstance(value, Enum) else str(value)


def write() -> None:
    with project() as place:
        written = {}
        for command in commands():
            try:
                written[command] = digest(composed(command, place))
            except (UserError, HydraException, OmegaConfBaseException):
                written[command] = REFUSED
    FILE.write_text(json.dumps(written, indent=0) + "\n")


if __name__ == "__main__":
    write()
