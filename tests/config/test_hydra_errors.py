"""An error of Hydra becomes one line: the word, what is wrong with it, and what is allowed."""

from pathlib import Path

import pytest
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from deepnets.config.compose import compose
from deepnets.config.hydra_errors import explain
from deepnets.config.schema import Search
from deepnets.config.trust import trusting
from deepnets.errors import UserError


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("model=resnet21", "model=resnet21: no such option; the nearest: resnet32, resnet20, resnet, resnet164"),
        ("launcher=foo", "launcher=foo: no such option; one of local, pool, slurm"),
        ("sweep=nope", "sweep=nope: no such option; --help lists all"),
        ("epoch=3", "epoch: no such key; the nearest: epochs"),
        ("model.shorcut.rate=0.5", "model.shorcut.rate: no such key; the nearest: shortcut"),
        ("sweep=fig8", "sweep=fig8: no such option; the nearest: huang2016_fig8_linear_decay, huang2016_fig8_uniform"),
        (
            "sweep=he2016_table3",
            "sweep=he2016_table3: no such option; the nearest: he2016_table3_cifar10, he2016_table3_cifar100",
        ),
        ("launcher.runs_per_device=2", "launcher.runs_per_device: no such key; launcher=pool has it"),
        ("seed=0-2", "seed=0-2: must be an integer; several seeds are -m 'seed=range(3)' or seed=0,1,2"),
        (
            "seeds=3",
            "seeds: no such key; several seeds are -m 'seed=range(3)' or seed=0,1,2, or in a sweep sweep.seeds=3",
        ),
        (
            "model.shortcut.bias=-2",
            "model.shortcut.bias: no such key; 16 options have it, such as model/shortcut=deep_delta",
        ),
        (
            "model.width=4",
            "model.width: no such key; the nearest: widths; 7 options have it, such as model=highway_fc10",
        ),
        ("optimizer.betas=[0.9,0.99]", "optimizer.betas: no such key; optimizer=adam, optimizer=adamw have it"),
        ("sweep=he2016_table1,he2016_table2", "sweep=he2016_table1,he2016_table2: a command trains one sweep"),
        ("depth=14", "depth: no such key; the nearest: model.depth"),
        ("shortcut=none", "shortcut: no such key; the nearest: model/shortcut"),
        ("help", "help: cannot be read: must be key=value"),
        ("dataset.root=/é", """dataset.root=/é: cannot be read: put its value in quotes: 'dataset.root="/é"'"""),
        ("epochs=abc", "epochs=abc: must be an integer"),
        ("clip_gradient_norm=abc", "clip_gradient_norm=abc: must be a number"),
        ("overwrite=maybe", "overwrite=maybe: must be true or false"),
        ("batch_size=null", "batch_size=null: needs a value"),
        ("precision=fp8", "precision=fp8: must be one of auto, fp32, bf16"),
        ("+epochs=3", "+epochs: it is there already; leave out the +"),
        (
            "+model=resnet20",
            "model: an option is chosen already; to choose another, write `override /model: NAME` in a list of defaults"
            ", or leave out the + in a command",
        ),
        ("~foo", "~foo: no such key"),
        ("seed=1,2", "seed=1,2: add -m to train a run with each value"),
        ("model.widths=4,8", "model.widths=4,8: add -m to train a run with each value, or [ ] around a list"),
        ("model.depth=[1", "model.depth=[1: cannot be read: a bracket is not closed, or not opened"),
        (
            "model/shortcut=glob(*_b[0-5])",
            "model/shortcut=glob(*_b[0-5]): cannot be read: put a pattern that has brackets in quotes, as in "
            """'model/shortcut=glob("*_b[0-5]")'""",
        ),
        (
            "model.widths=[16,",
            "model.widths=[16,: cannot be read: ends in a comma; leave out the space behind it, "
            "or put the word in quotes",
        ),
        ("model=resnet", "model.depth: needs a value"),
        ("dataset=image_folder", "dataset.root: needs a value"),
        ("device=${foo}", "device: Interpolation key 'foo' not found"),
    ],
)
def test_what_hydra_refuses_is_one_line(word: str, message: str) -> None:
    with pytest.raises((HydraException, OmegaConfBaseException)) as caught:
        compose([word])
    assert explain(caught.value) == message


def test_a_missing_file_of_defaults_is_named() -> None:
    with pytest.raises(HydraException) as caught:
        compose([], Search(defaults="lab.yaml"))
    assert explain(caught.value).startswith("lab.yaml: no such file of defaults")


@pytest.mark.parametrize(
    ("group", "text", "message"),
    [
        ("sweep", "defaults:\n- override /dataset: mnist\n", "sweep/mine.yaml: no dataset to override here"),
        ("sweep", "epochs: 5\n", "sweep/mine.yaml: sweep.epochs: no such key here"),
        ("protocol", "epochs: 5\n", "protocol/mine.yaml: protocol: no such key here"),
    ],
)
def test_a_file_without_its_package_is_named(tmp_path: Path, group: str, text: str, message: str) -> None:
    (tmp_path / group).mkdir()
    (tmp_path / group / "mine.yaml").write_text(text)
    with pytest.raises(HydraException) as caught:
        compose([f"{group}=mine"], Search((f"file://{tmp_path}",)))
    explained = explain(caught.value)
    assert explained.startswith(f"{message}; ")
    assert explained.endswith("; a sweep, like a protocol, begins with the line # @package _global_")
    assert ("sweep has rows, seeds," in explained) is ("no such key" in message and group == "sweep")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("epoch: 5\n", "epoch: no such key; the nearest: epochs"),
        ("model: resnet20\n", "model: is chosen below `defaults:`, as `- override /model: resnet20`"),
    ],
)
def test_a_wrong_key_of_a_sweeps_file_is_named(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "sweep").mkdir()
    (tmp_path / "sweep" / "mine.yaml").write_text(f"# @package _global_\n{text}")
    with pytest.raises(HydraException) as caught:
        compose(["sweep=mine"], Search((f"file://{tmp_path}",)))
    assert explain(caught.value) == f"sweep/mine.yaml: {message}"


def test_a_key_that_the_class_takes_and_the_file_lacks_is_said(tmp_path: Path) -> None:
    (tmp_path / "schedule").mkdir()
    (tmp_path / "schedule" / "mine.yaml").write_text("{_target_: fractions.Fraction, numerator: 1}\n")
    search = Search((f"file://{tmp_path}",))
    said = []
    for trusted in ([], ["fractions.Fraction"]):
        with trusting(trusted), pytest.raises(HydraException) as caught:
            compose(["schedule=mine", "schedule.denominator=2"], search)
        with trusting(trusted):
            said.append(explain(caught.value))
    assert said[0] == "schedule.denominator: no such key; one of numerator"
    assert said[1].startswith("schedule.denominator: the option's file does not set it; add it there, or type +sch")


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("~epochs", "epochs: needs a value"),
        ("~output_root", "output_root: needs a value"),
        ("model=null", "model=null: model needs the name of an option; --help lists all"),
        ("scale=1e30", "scale=1e30: scale needs the name of an option; --help lists all"),
        ("optimizer=[sgd]", "optimizer=[sgd]: optimizer needs the name of an option; --help lists all"),
        ("=3", "=3: needs a key in front of the =, without a space"),
        ("model/shorcut=none", "model/shorcut: no such group of options; the nearest: model/shortcut"),
        ("nope/nope=none", "nope/nope: no such group of options; --help lists all"),
    ],
)
def test_what_hydra_lets_through_is_refused(word: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        compose([word])
    assert str(caught.value) == message


def test_a_part_that_the_model_lacks_is_named() -> None:
    with pytest.raises(UserError, match="model/block: the chosen model has no such part; leave it out"):
        compose(["model=vit_digits", "model/block=basic"])


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        ("model/deeper", "defaults: [digits_resnet, {ordering: full_preactivation}]", "model/ordering: an option is"),
        ("model/deeper", "defaults: [digits_resnet, {ordering: original}]", "model/ordering: an option is chosen"),
        (
            "sweep/deeper",
            "# @package _global_\ndefaults: [{model/ordering: full_preactivation}]\nsweep: {rows: {model.depth: [8]}}",
            "sweep/model/ordering=full_preactivation: no such option; a list of defaults names it as "
            "`override /model/ordering: full_preactivation`",
        ),
    ],
)
def test_a_list_of_defaults_without_override_is_one_line(tmp_path: Path, file: str, text: str, said: str) -> None:
    (tmp_path / file).parent.mkdir()
    (tmp_path / f"{file}.yaml").write_text(text)
    with pytest.raises(HydraException) as caught:
        compose([file.replace("/", "=")], Search((f"file://{tmp_path}",)))
    message = explain(caught.value)
    assert message.startswith(said)
    assert "`override /model/ordering: " in message
    assert "\n" not in message


def test_a_users_own_folder_of_options_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "conf/model/shortcut").mkdir(parents=True)
    (tmp_path / "conf/model/shortcut/rezero.yaml").touch()
    monkeypatch.chdir(tmp_path)
    with pytest.raises((HydraException, OmegaConfBaseException)) as refused:
        compose(["model/shortcut=rezero"])
    assert explain(refused.value).endswith("rezero: no such option; to use those in ./conf, add --config-dir conf")
    (tmp_path / "project.yaml").touch()  # which also makes the project's own classes trusted
    assert explain(refused.value).endswith("to use those in ./conf, add --project project.yaml")
