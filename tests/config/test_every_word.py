"""No word of a command ends in anything but a run or two lines: every key and group, added, dropped, ill-typed."""

import random
import sys
from pathlib import Path

import pytest
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from deepnets.config.command_line import rows_of_command
from deepnets.config.compose import compose, composed
from deepnets.config.hydra_errors import explain
from deepnets.config.identity import flat
from deepnets.config.project import CONF
from deepnets.config.schema import Row
from deepnets.errors import UserError, shortened
from deepnets.runs.naming import folder_of
from deepnets.training.checks import check_settings
from tests.command import train

pytestmark = pytest.mark.attack

GROUPS = [str(folder.relative_to(CONF)) for folder in sorted(CONF.rglob("*")) if folder.is_dir()]
VALUES = [
    "", "null", "nope", "1e30", "-1", "nan", "[]", "[1,[2]]", "{}", "{a:1}", "true", "${seed}", "${nope}", "\\${seed}",
    "${oc.env:NOPE}", "???", "'", "a b", "a,b", "range(3)", "range(0,1e12)", "choice()", "é", "x" * 3000, "a/../b",
    "/", ".", "$(x)", "1_0",
]  # fmt: skip
FORMS = [
    "{}={}",
    "{}={}",
    "{}={}",
    "+{}={}",
    "++{}={}",
    "~{}",
    "~{}={}",
    "{}",
    "{}:={}",
    "{}@a={}",
    "{}.a={}",
    "{}/a={}",
    "--{}={}",
    "-{}",
]
SWEEPS = [[], [], [], ["sweep=digits_shortcuts"], ["-m", "seed=0,1"], ["scale=mini"]]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["sweep.zip=[]"], "sweep.zip=[]: no sweep is chosen; add sweep=NAME; `rows` and `zip` stand below `sweep:`"),
        (["zip=1"], "zip: no such key; add sweep=NAME; `rows` and `zip` stand below `sweep:` in its file"),
        (["sweep=digits_shortcuts", "iterations.a=1"], "iterations.a"),
        (["iterations=10"], "'epochs=164 iterations=null' or 'epochs=null iterations=10'"),
        (["--nope"], "unrecognized arguments: --nope; options are written as key=value"),
        (["--cfg", "nope"], "--cfg/-c: invalid choice: 'nope'"),
        (
            ["--multirun", "hydra.sweeper._target_=os.system"],
            "hydra/sweeper: deepnets expands the grid and launches its runs itself",
        ),
        (["+hydra.callbacks={a:{_target_:os.mkdir}}"], "hydra.callbacks"),
        (["hydra.searchpath=[file:///nowhere]"], "/nowhere: no such folder of options"),
        (["-m", "seed=range(0,1000000000)"], "seed=range(0,1000000000): a grid of more than 10,000 runs"),
        (["seed=float(range(0,nan))", "-m"], "a grid of more than 10,000 runs"),
        (["seed=range(0,1,1e-300)", "-m"], "a grid of more than 10,000 runs"),
        (["-m", "seed=range(0,200)", "epochs=range(1,52)"], "epochs=range(1,52): a grid of more than 10,000 runs"),
        (["-m", "seed=range(0)"], "seed=range(0): names no value"),
        (["model.depth.a=1"], "model.depth"),
        (["seed.a=1"], "seed"),
        (["-m", "model/shortcut=glob(nope*)"], "model/shortcut=glob(nope*): names no value"),
        (["-m", "seed=interval(0,1)"], "seed=interval(0,1): is no list of values"),
        (["-m", "hydra.mode=RUN,MULTIRUN"], "hydra.mode=RUN,MULTIRUN: Hydra's own settings have one value"),
        (["--experimental-rerun", "config.pickle"], "--experimental-rerun: to resume a run, give its command again"),
        (["sweep=digits_shortcuts", "epochs=range(1,1000000000)"], "a grid of more than 10,000 runs"),
        (["-m", "seed=0,1", "hydra.sweeper.params={epochs:5}"], "Hydra cannot compose this"),
        (["--trust", ""], "--trust '': names neither a file nor a class"),
        (["--trust", "a b.C"], "--trust 'a b.C': names neither a file nor a class"),
        (["--trust=ReZero"], "--trust ReZero: no such module; a class needs its module too"),
        (["-m", "seed=0,1", "--cfg", "job"], "-m --cfg job: --cfg prints one run; leave out -m"),
        (["--trust=fractions.Fractionn"], "fractions.py defines no Fractionn, but Fraction"),
        (["--trust=nowhere.py"], "--trust nowhere.py: no such file; to execute the copy that a run has of it"),
        (["--trust=tests/pacd.py"], "--trust tests/pacd.py: no such file; the nearest: paced.py"),
        (["threads=1000"], "threads: got 1000; must be at most 512"),
        (["hydra.run.dir=x"], "hydra.run.dir=x: changes nothing here"),
        (["-m", "seed=0,1", "hydra.sweep.dir=x"], "hydra.sweep.dir=x: changes nothing here"),
        (["+hydra.launcher.n_jobs=4"], "+hydra.launcher.n_jobs=4: changes nothing here"),
        (["hydra/launcher=basic"], "hydra/launcher=basic: changes nothing here"),
        (["hydra.modes=RUN"], "hydra.modes: no such key"),
        (["--project"], "--project: expected one argument; options are written as key=value"),
        (["epochs=1", "--config-dir"], "--config-dir/-cd: expected one argument"),
    ],
)
def test_a_word_that_is_refused_is_named(
    words: list[str], said: str, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    line = said_by(words, monkeypatch)
    assert said in (line or "")
    assert line.strip().count("\n") <= 1
    assert not recwarn.list


@pytest.mark.parametrize("word", ["hydra.job.name=mine", "hydra.verbose=true", "hydra.mode=RUN"])
def test_a_word_of_hydras_users_is_taken(word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(rows(monkeypatch, word)) == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("class ReZero(", "'(' was never closed"),
        ("import nope_nowhere\n\nclass ReZero:\n    pass", "No module named 'nope_nowhere'"),
    ],
)
def test_a_class_that_cannot_be_imported_is_one_line(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "broken_shortcuts.py").write_text(text)
    (tmp_path / "project.yaml").write_text("defaults: train")
    words = ["--project", str(tmp_path / "project.yaml"), "model.shortcut._target_=broken_shortcuts.ReZero"]
    done = train(*words, f"output_root={tmp_path}")
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("error: model.shortcut: broken_shortcuts.ReZero cannot be imported: ")
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_trusted_module_without_the_class_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    file = tmp_path / "misnamed_shortcuts.py"
    file.write_text("class Rezero:\n    pass\n")
    words = [f"--trust={file}", "model.shortcut._target_=misnamed_shortcuts.ReZero"]
    assert said_by(words, monkeypatch) == f"model.shortcut._target_: {file} defines no ReZero, but Rezero"


@pytest.mark.parametrize("text", ["epochs: &a [*a]", "sweep: {axes: [seed], claims: &a [{claim: *a}]}"])
def test_options_that_repeat_themselves_are_refused(tmp_path: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sweep").mkdir()
    (tmp_path / "sweep" / "mine.yaml").write_text(f"# @package _global_\n{text}\n")
    said = said_by(["--config-dir", str(tmp_path), "sweep=mine"], monkeypatch)
    assert (
        said
        == f"{tmp_path}/sweep/mine.yaml: cannot be read as options: line 2: the alias *a repeats itself without end"
    )


def test_a_draft_that_is_no_yaml_disturbs_only_who_chooses_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "draft.yaml").write_text("a: [1,\nb: c: d\n")
    assert said_by(["--config-dir", str(tmp_path), "epochs=1"], monkeypatch) is None
    said = said_by(["--config-dir", str(tmp_path), "model=draft"], monkeypatch)
    assert said.startswith("model=draft: Hydra cannot compose this: ")
    assert f"{tmp_path}/model/draft.yaml" in said


def test_a_flag_may_stand_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["scripts/train.py", "epochs=1", "-m", "seed=0,1", "model.depth=8"])
    assert [row.config.seed for row in rows_of_command()] == [0, 1]


def rows(monkeypatch: pytest.MonkeyPatch, *words: str) -> list[Row]:
    monkeypatch.setattr(sys, "argv", ["scripts/train.py", *words])
    return rows_of_command()


def test_a_value_may_be_read_from_another_key(monkeypatch: pytest.MonkeyPatch) -> None:
    (row,) = rows(monkeypatch, "model.depth=${epochs}", "epochs=14")
    assert row.config.model["depth"] == 14
    assert row.overrides == ("model.depth=${epochs}", "epochs=14")
    depths = [row.config.model["depth"] for row in rows(monkeypatch, "-m", "epochs=14,20", "model.depth=${epochs}")]
    assert depths == [14, 20]


def test_a_rule_of_a_sweep_can_be_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    left = rows(monkeypatch, "sweep=digits_shortcuts", "sweep.exclude=[{seed:1}]")
    assert {row.config.seed for row in left} == {0}


@pytest.mark.slow
def test_each_choice_of_options_is_composed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the number of seeds: composing takes a tenth of a second, and a table has hundreds of runs."""
    composed.cache_clear()
    table = rows(monkeypatch, "sweep=he2016_table1", "seed=range(20)", "dataset.root=/data")
    assert len(table) == 16 * 20
    assert composed.cache_info().currsize <= 16 + 2


def test_no_run_shares_what_another_may_change(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = rows(monkeypatch, "-m", "seed=0,1")
    first.config.model["depth"] = 5
    assert second.config.model["depth"] != 5


def said_by(words: list[str], monkeypatch: pytest.MonkeyPatch) -> str | None:
    """What the command says where it does not train these words."""
    monkeypatch.setattr(sys, "argv", ["scripts/train.py", *words])
    try:
        for row in rows_of_command()[:1]:
            folder_of(row)
            check_settings(row.config)
    except UserError as error:
        return shortened(str(error))
    except (HydraException, OmegaConfBaseException) as error:
        return shortened(explain(error))
    return None


def attack(attempts: int, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(seed)
    keys = [*flat(vars(compose([]).config)), *composed(()).config, "hydra", *GROUPS, "launcher", "nope", ""]
    for _ in range(attempts):
        word = draw.choice(FORMS).format(draw.choice(keys), draw.choice(VALUES))
        said = said_by([*draw.choice(SWEEPS), word], monkeypatch)
        assert said is None or said.strip().count("\n") <= 1, (word, said)
        assert said is None or len(said) < 1500, (word, said)


@pytest.mark.slow
def test_words_are_refused_in_two_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    attack(12, 0, monkeypatch)


@pytest.mark.nightly
@pytest.mark.parametrize("part", range(8))
def test_many_words_are_refused_in_two_lines(monkeypatch: pytest.MonkeyPatch, part: int) -> None:
    attack(100, 1 + part, monkeypatch)
