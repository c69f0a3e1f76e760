"""No value of any key of a configuration ends in anything but a run or a line that names what is wrong."""

import math
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import yaml
from hydra.errors import HydraException
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from deepnets.config.build import build
from deepnets.config.compose import compose, composed
from deepnets.config.identity import flat
from deepnets.config.project import CONF
from deepnets.errors import UserError, shortened
from deepnets.runs.contents import Origin
from deepnets.runs.folder import RunFolder
from deepnets.runs.naming import folder_of
from deepnets.training.checks import check_settings
from tests.command import row

pytestmark = pytest.mark.attack

HOSTILE: list[Any] = [
    math.nan, math.inf, -math.inf, -1, 0, 1, 2, 3, 0.5, -0.5, 1e300, 1e-300, 10**30, -(10**30), 2**63, 10**5, 10**12,
    "", "word", "a\nb", "x" * 5000, "\0", "a/../../b", "nan", "${oc.env:HOME}", None, True,
    [], {}, [math.nan], [-1], [[]], ["a"], {"a": 1}, {"_target_": "os.abort"},
]  # fmt: skip
# What an option needs to be a run by itself; None of those that only others build upon.
NEEDS: dict[str, list[str] | None] = {
    "model=densenet": None, "model=resnet": None, "model=vit": None, "model=wide_resnet": None,
    "model=imagenet_vgg19": ["dataset.source.size=224"],
    "model/shortcut=per_unit": None, "dataset=image_folder": ["dataset.root=/nowhere"],
    "model/block=bottleneck": ["model.depth=11"], "model/survival=random_subset": ["model.survival.size=2"],
    "model/initialization=deepnorm": ["model=vit_digits"],
    "model/ordering=post_norm": ["model=vit_digits"], "model/ordering=pre_norm": ["model=vit_digits"],
    "model/shortcut=exclusive_gating": ["model.shortcut.bias=-1"],
    "model/shortcut=shortcut_only_gating": ["model.shortcut.bias=-1"],
    "model/shortcut=highway": ["model.shortcut.bias=-1"],
}  # fmt: skip
OPTIONS = [
    f"{file.parent.relative_to(CONF)}={file.stem}"
    for file in sorted(CONF.glob("*/**/*.yaml"))
    if file.relative_to(CONF).parts[0] not in ("sweep", "protocol")
]
BASES = [
    [option, *(NEEDS.get(option) or []), *([] if option.startswith("dataset=") else ["dataset=synthetic"])]
    + (["dataset.source.size=64"] if option.startswith("model=imagenet_") and option not in NEEDS else [])
    for option in OPTIONS
    if NEEDS.get(option, []) is not None
]
QUICK = ["model=digits_resnet", "model=highway_fc10", "model=vit_digits", "optimizer=adam", "schedule=plateau"]
PARTS = 10  # of the bases, as composing all takes two minutes


@cache
def text_of(base: int) -> str:
    """The configuration as it is frozen."""
    with TemporaryDirectory() as place:
        folder = RunFolder(place)
        folder.freeze(row(folder.path, *BASES[base]).config, Origin())
        return (folder.path / "config.yaml").read_text()


def places(node: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to each value, the inner ones included."""
    children = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, child in children:
        yield (*above, key)
        yield from places(child, (*above, key))


def attack(bases: Sequence[int], folder: Path, data: st.DataObject) -> None:
    """Change one value, however deep it lies, and do with the folder what comes before its training."""
    base = data.draw(st.sampled_from(bases))
    config = yaml.safe_load(text_of(base))
    of_data = BASES[base][0].startswith("dataset=")  # is built only: looking for its images may mean a download
    ways = [way for way in places(config) if not of_data or way[0] == "dataset"]
    *path, last = way = data.draw(st.sampled_from(ways))
    node = config
    for name in path:
        node = node[name]
    node[last] = value = data.draw(st.sampled_from(HOSTILE))
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    try:
        read = RunFolder(folder).config
        if of_data:
            build("dataset", read.dataset)
        else:
            check_settings(read)
            build("launcher", read.launcher).check(read)
    except UserError as error:
        message = shortened(str(error))
        assert message.count("\n") <= 1
        assert len(message) < 1000
        named = (*way, value, "training set", "sbatch", "DictConfig", "GiB")
        assert any(str(name) in message for name in named), (way, value, message)
    else:
        is_word = way in (("scale", "name"), ("output_root",), ("name",), ("weights",), ("weights_hash",))  # nan is one
        assert is_word or not (isinstance(value, float) and not math.isfinite(value)), way


@pytest.mark.slow
@settings(max_examples=40, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_hostile_value_is_refused_in_a_line(tmp_path: Path, data: st.DataObject) -> None:
    attack([index for index, base in enumerate(BASES) if base[0] in QUICK], tmp_path, data)


@pytest.mark.nightly
@pytest.mark.parametrize("part", range(PARTS))
def test_many_hostile_values_are_refused_in_a_line(tmp_path: Path, part: int) -> None:
    @seed(part)
    @settings(max_examples=500, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(data=st.data())
    def attacked(data: st.DataObject) -> None:
        attack(range(part, len(BASES), PARTS), tmp_path, data)

    attacked()


def hydra_overrides() -> list[str]:
    """Another value for each of Hydra's own keys."""
    plain = OmegaConf.to_container(composed(()).hydra, resolve=False)
    words = []
    for key, value in flat(plain, "hydra").items():
        if isinstance(value, bool):
            words.append(f"{key}={str(not value).lower()}")
        elif isinstance(value, int):
            words.append(f"{key}={value + 1}")
        elif value is None or isinstance(value, str):
            words.append(f"{key}=other")
    return [*words, "hydra.verbose=true", "hydra.verbose=[a]", "+hydra.job.env_set.A=b", "++hydra.run.dir=/x/${seed}"]


def check_name(words: list[str]) -> None:
    before = folder_of(compose(["epochs=2"])).path
    for word in words:
        try:
            assert folder_of(compose([word, "epochs=2"])).path == before, word
        except (HydraException, OmegaConfBaseException):  # refused
            continue


def test_hydras_own_keys_are_no_part_of_a_runs_name() -> None:
    words = [
        "hydra.run.dir=/x",
        "hydra.job.name=a",
        "hydra.verbose=true",
        "hydra.sweep.dir=a",
        "+hydra.job.env_set.A=b",
    ]
    check_name(words)


@pytest.mark.slow
def test_no_key_of_hydras_is_part_of_a_runs_name() -> None:
    assert len(hydra_overrides()) > 50
    check_name(hydra_overrides())
