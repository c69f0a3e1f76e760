"""Folders are named by what a run is."""

from dataclasses import replace
from pathlib import Path

import pytest

from deepnets.config.compose import compose
from deepnets.config.schema import Search
from deepnets.errors import UserError
from deepnets.launch.reuse import beside_other_settings
from deepnets.runs.contents import Origin
from deepnets.runs.folder import OtherSettings, RunFolder
from deepnets.runs.naming import folder_of, folders_of
from tests.command import row


@pytest.mark.parametrize(
    ("overrides", "name"),
    [
        ([], "runs/digits_resnet,digits/seed0"),
        (["seed=3"], "runs/digits_resnet,digits/seed3"),
        (["epochs=5", "device=cpu", "threads=1", "overwrite=true"], "runs/digits_resnet,digits,epochs=5/seed0"),
        (["model=resnet20", "dataset=synthetic"], "runs/resnet20,synthetic/seed0"),
        (
            ["optimizer.lr=0.05", "model/ordering=full_preactivation"],
            "runs/digits_resnet,digits,model.ordering=full_preactivation,optimizer.lr=0.05/seed0",
        ),
        (["epochs=null", "iterations=50"], "runs/digits_resnet,digits,iterations=50/seed0"),
        (["precision=fp32"], "runs/digits_resnet,digits,precision=fp32/seed0"),
        (["schedule.milestones=[1,2]"], "runs/digits_resnet,digits,schedule.milestones=1,2/seed0"),
    ],
)
def test_the_name_is_a_function_of_the_run(tmp_path: Path, overrides: list[str], name: str) -> None:
    assert folder_of(row(tmp_path, *overrides)).path == tmp_path / name


def test_the_order_of_overrides_does_not_matter(tmp_path: Path) -> None:
    one, other = row(tmp_path, "epochs=5", "batch_size=64"), row(tmp_path, "batch_size=64", "epochs=5")
    assert folder_of(one).path == folder_of(other).path


@pytest.mark.parametrize("sweep", [[], ["sweep=digits_shortcuts"]])
def test_a_run_stays_in_its_folder_where_the_settings_of_its_file_are_typed(tmp_path: Path, sweep: list[str]) -> None:
    """As after an edit of YAML, when the old value is typed: what the folder's name leaves out was not typed then."""
    typed = [*sweep, "batch_size=64"]
    folder = folder_of(row(tmp_path, *typed))
    old = row(tmp_path, *typed, "optimizer.lr=0.2")
    named = folder_of(old)
    assert named.path != folder.path
    folder.freeze(old.config, Origin())
    assert folder_of(old).path == folder.path
    others = [row(tmp_path, *typed), row(tmp_path, *typed, "optimizer.lr=0.3"), row(tmp_path, *sweep)]
    assert folder.path not in [folder_of(other).path for other in others[1:]]
    assert folder_of(others[0]).path == folder.path  # where the check names the difference
    named.freeze(old.config, Origin())
    assert folder_of(old).path == named.path
    (folder.path / "config.yaml").write_text("model: [")
    (named.path / "config.yaml").unlink()
    assert folder_of(old).path == named.path


def test_a_new_row_joins_the_runs_whose_settings_are_typed_after_an_edit(tmp_path: Path) -> None:
    """It does so whatever else the command names, unless a folder named with these settings is there."""
    words = ["sweep=digits_shortcuts", "epochs=3"]  # as if the file had set 3 before its edit
    first, second = (row(tmp_path, *words, f"model/shortcut={name}") for name in ("identity", "none"))
    named = folder_of(second).grid
    assert named == tmp_path / "digits_shortcuts+epochs=3"
    edited = RunFolder(tmp_path / "digits_shortcuts" / "identity" / "seed0")
    origin = Origin(overrides=[words[0], "model/shortcut=identity", "seed=0"])
    edited.freeze(first.config, origin)
    assert folder_of(second).path == tmp_path / "digits_shortcuts" / "none" / "seed0"
    assert folder_of(row(tmp_path, *words, "model/shortcut=none", "seed=7")).grid == edited.grid
    for others in (["epochs=4"], ["epochs=3", "batch_size=64"]):
        assert folder_of(row(tmp_path, words[0], *others)).grid.name == "+".join(["digits_shortcuts", *sorted(others)])
    # If it differs in a second setting too, its own folder is found, and the check names both.
    twice = folder_of(row(tmp_path, *words, "model/shortcut=identity", "batch_size=64"))
    assert twice.grid.name == "digits_shortcuts+batch_size=64+epochs=3"
    changed = replace(first.config, batch_size=64)
    edited.freeze(replace(changed, overwrite=True), origin)
    assert folder_of(first).path == edited.path
    with pytest.raises(OtherSettings, match="batch_size: 64 there, 128 here"):
        folder_of(first).check(first.config)
    edited.freeze(replace(first.config, overwrite=True), origin)
    (edited.path / "config.yaml").write_text("model: [")
    (edited.grid / "other").mkdir()  # so the folder has changed
    assert folder_of(second).grid == named
    edited.freeze(replace(first.config, overwrite=True), origin)
    named.mkdir()
    assert folder_of(second).grid == named


def test_a_new_seed_of_a_single_run_joins_the_seeds_whose_settings_are_typed_after_an_edit(tmp_path: Path) -> None:
    words = ["model.depth=14", "batch_size=64"]  # as if 64 had been the value of a file before its edit
    first, more = (row(tmp_path, *words, f"seed={seed}") for seed in range(2))
    named = folder_of(more)
    assert named.path.parent.name == "digits_resnet,digits,batch_size=64,model.depth=14"
    edited = RunFolder(tmp_path / "runs" / "digits_resnet,digits,model.depth=14" / "seed0")
    edited.freeze(first.config, Origin(overrides=[words[0], "seed=0"]))
    assert folder_of(more).path == edited.path.with_name("seed1")
    assert folder_of(row(tmp_path, *words, "epochs=3", "seed=1")).path.parent.name.count("=") == 3
    today = row(tmp_path, words[0], "seed=1")
    assert folder_of(today).path == edited.path.with_name("seed1")
    assert beside_other_settings([(more, folder_of(more))]) is None
    line = beside_other_settings([(today, folder_of(today))])
    assert line == (
        f"no other seed has today's settings in {edited.path.parent.name} (other settings: batch_size 64 there, 128 "
        "here). To train in another folder, add name=NAME; for seeds with the old settings, add batch_size=64, and "
        "overwrite=true too if they have a checkpoint"
    )
    new = row(tmp_path, words[0], "seed=2")
    both = [(each, folder_of(each)) for each in (today, new)]
    assert beside_other_settings(both) == line
    redone = row(tmp_path, words[0], "seed=0", "overwrite=true")
    assert beside_other_settings([(redone, edited)]) is None  # since nothing is left beside it
    folder_of(today).freeze(today.config, Origin())
    assert beside_other_settings([(new, folder_of(new))]) is None
    # The place of a seed with today's settings is taken, unless it is overwritten.
    assert folder_of(more).path == named.path
    assert folder_of(row(tmp_path, *words, "seed=1", "overwrite=true")).path == edited.path.with_name("seed1")


def test_a_new_row_joins_no_run_whose_file_has_its_values(tmp_path: Path) -> None:
    """The protocol gives 110 layers the warm-up that is typed here for 20."""
    words = ["sweep=he2015_table6", "model=resnet110"]
    deepest = row(tmp_path, *words)
    folder = folder_of(deepest)
    folder.freeze(deepest.config, Origin(overrides=[*words, "seed=0"]))
    typed = row(tmp_path, words[0], "model=resnet20", "schedule.warmup_iterations=400")
    assert folder_of(typed).grid.name == "he2015_table6+schedule.warmup_iterations=400"
    # Nor does it take the folder of a run with other settings.
    words = ["sweep=digits_shortcuts", "model/shortcut=identity", "seed=0"]
    for seed, epochs in enumerate((10, 3)):
        other = row(tmp_path, *words[:2], f"seed={seed}", f"epochs={epochs}")
        RunFolder(folder_of(row(tmp_path, *words[:2], f"seed={seed}")).path).freeze(
            other.config, Origin(overrides=words)
        )
    assert folder_of(row(tmp_path, *words, "epochs=3")).grid.name == "digits_shortcuts+epochs=3"
    assert folder_of(row(tmp_path, *words[:2], "seed=2", "epochs=3")).grid.name == "digits_shortcuts"


def test_a_long_name_is_cut_but_stays_its_own(tmp_path: Path) -> None:
    def long(last: int) -> Path:
        return folder_of(row(tmp_path, f"schedule.milestones=[{','.join(str(i) for i in range(1, 81))},{last}]")).path

    assert len(long(90).parent.name) <= 160
    assert long(90) != long(91)


@pytest.mark.parametrize(
    "overrides",
    [
        ["epochs=164"],
        ["optimizer.lr=1e-1"],
        ["optimizer=nesterov", "model/ordering=original"],
        ["model=digits_resnet", "dataset=digits", "scale=full"],
        ["model.widths=[16,32,64]"],
    ],
)
def test_what_is_so_anyway_does_not_change_the_name(tmp_path: Path, overrides: list[str]) -> None:
    assert folder_of(row(tmp_path, *overrides)).path == folder_of(row(tmp_path)).path


def test_equal_values_have_equal_names(tmp_path: Path) -> None:
    names = {folder_of(row(tmp_path, f"optimizer.lr={rate}")).path for rate in ("0.05", "5e-2", "5.0e-02")}
    assert len(names) == 1


def test_rows_that_would_share_a_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="several rows would share the folder"):
        folders_of([row(tmp_path, "epochs=164"), row(tmp_path)])


def test_a_row_of_a_table_is_named_by_its_axes(tmp_path: Path) -> None:
    overrides = ["sweep=digits_shortcuts", "model/shortcut=none", "seed=1"]
    assert folder_of(row(tmp_path, *overrides)).path == tmp_path / "digits_shortcuts" / "none" / "seed1"
    changed = folder_of(row(tmp_path, *overrides, "epochs=3", "optimizer=adam", "batch_size=128"))
    assert changed.path == tmp_path / "digits_shortcuts+epochs=3+optimizer=adam" / "none" / "seed1"


@pytest.mark.parametrize(
    ("overrides", "changes"),
    [
        (["epochs=10"], ""),  # as the table says
        (["epochs=164"], "+epochs=164"),  # as conf/train.yaml says, and the table does not
        (["optimizer=nesterov", "dataset=digits"], ""),
        (["model.batchnorm_images=32"], "+model.batchnorm_images=32"),
    ],
)
def test_a_change_of_a_table_is_what_differs_from_the_table(tmp_path: Path, overrides: list[str], changes: str) -> None:
    folder = folder_of(row(tmp_path, "sweep=digits_shortcuts", "model/shortcut=none", *overrides))
    assert folder.path == tmp_path / f"digits_shortcuts{changes}" / "none" / "seed0"


@pytest.mark.parametrize(
    ("overrides", "changes"),
    [
        (["iterations=64000", "optimizer=sgd", "schedule=he_warmup", "dataset=cifar10", "scale=full"], ""),
        (["dataset=digits"], "+dataset=digits"),
        (["optimizer=nesterov"], "+optimizer=nesterov"),
        (["epochs=164", "iterations=null"], "+epochs=164"),
        (["dataset.normalization=channel"], "+dataset.normalization=channel"),
        (["model.batchnorm_images=null"], "+model.batchnorm_images=null"),
        (["scale=mini", "model.depth=20"], "+scale=mini"),
    ],
)
def test_no_other_protocol_lies_in_the_folder_of_a_published_one(
    tmp_path: Path, overrides: list[str], changes: str
) -> None:
    folder = folder_of(row(tmp_path, "sweep=he2016_table1", "model/shortcut=identity", *overrides))
    assert folder.path == tmp_path / f"he2016_table1{changes}" / "identity" / "seed0"


def test_a_value_that_a_search_would_draw_is_named_beside_the_draw(tmp_path: Path) -> None:
    folder = folder_of(row(tmp_path, "sweep=srivastava2015_fig1_plain", "setting=3", "optimizer.lr=0.1"))
    assert folder.path.parent.parent.name == "srivastava2015_fig1_plain+optimizer.lr=0.1"


def test_a_part_that_is_left_out_is_named(tmp_path: Path) -> None:
    assert folder_of(row(tmp_path, "model=imagenet_resnet18", "model.stem=null")).path != (
        folder_of(row(tmp_path, "model=imagenet_resnet18")).path
    )


@pytest.mark.parametrize(
    "override", ["hydra.run.dir=/elsewhere", "hydra.job.name=other", "hydra.verbose=true", "hydra.output_subdir=x"]
)
def test_where_hydra_writes_is_no_part_of_the_name(tmp_path: Path, override: str) -> None:
    for overrides in (["epochs=5"], ["sweep=digits_shortcuts", "model/shortcut=none", "epochs=5"]):
        assert folder_of(row(tmp_path, *overrides, override)).path == folder_of(row(tmp_path, *overrides)).path


@pytest.mark.parametrize(
    ("overrides", "name"),
    [
        (["protocol=he2016", "model=resnet110"], "runs/resnet110,cifar10,protocol=he2016"),
        (["protocol=he2016", "optimizer=sgd", "iterations=64000"], "runs/digits_resnet,cifar10,protocol=he2016"),
        (["protocol=he2016", "optimizer=adam"], "runs/digits_resnet,cifar10,optimizer=adam,protocol=he2016"),
        (["sweep=he2016_table1", "model/shortcut=none", "protocol=he2016"], "he2016_table1/none"),
        (["sweep=he2016_table1", "model/shortcut=none", "protocol=he2015"], "he2016_table1+protocol=he2015/none"),
    ],
)
def test_a_protocol_is_named_where_it_is_another_one(tmp_path: Path, overrides: list[str], name: str) -> None:
    assert folder_of(row(tmp_path, *overrides)).path == tmp_path / name / "seed0"


def test_a_users_images_are_named_as_they_are_called(tmp_path: Path) -> None:
    images = ["dataset=image_folder", "dataset.root=/data/cats-and-dogs"]
    assert folder_of(row(tmp_path, *images)).path.parent.name == "digits_resnet,cats-and-dogs"
    assert folder_of(row(tmp_path, *images, "dataset.source.name=pets")).path.parent.name == "digits_resnet,pets"


def test_a_sweep_on_images_of_ones_own_is_named_by_their_folder(tmp_path: Path) -> None:
    sweep = ["sweep=digits_shortcuts", "model/shortcut=none", "dataset=image_folder"]
    folders = [folder_of(row(tmp_path, *sweep, f"dataset.root=/data/{name}")).path for name in ("cats", "dogs")]
    names = [f"digits_shortcuts+dataset.source.name={name}+dataset=image_folder" for name in ("cats", "dogs")]
    assert folders == [tmp_path / name / "none" / "seed0" for name in names]


@pytest.mark.parametrize("name", ["cifar10", "digits", "ci far10"])
def test_images_called_as_a_data_set_are_not_taken_for_it(tmp_path: Path, name: str) -> None:
    images = ["dataset=image_folder", f"dataset.root='/data/{name}'"]
    folder = folder_of(row(tmp_path, *images))
    assert folder.path.parent.name == f"digits_resnet,image_folder={name.replace(' ', '')}"
    assert folder.path != folder_of(row(tmp_path, f"dataset={name.replace(' ', '')}")).path


LAB = """
defaults: [train, {override optimizer: adam}, {override model/shortcut: none}, _self_]
epochs: 2
model: {depth: 14}
"""
OF_LAB = "epochs=2,model.depth=14,model.shortcut=none,optimizer=adam"


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ([], f"runs/digits_resnet,digits,{OF_LAB}"),
        (["epochs=3", "device=cpu"], f"runs/digits_resnet,digits,{OF_LAB.replace('=2', '=3', 1)}"),
        (["model=resnet20", "optimizer=nesterov"], "runs/resnet20,digits,epochs=2,model.depth=14,model.shortcut=none"),
        (["epochs=164", "optimizer=nesterov", "model/shortcut=identity", "model.depth=8"], "runs/digits_resnet,digits"),
        (["sweep=digits_shortcuts"], "digits_shortcuts+epochs=2+model.depth=14+optimizer=adam/none"),
        (["sweep=mine"], "mine/none"),  # to which the defaults beside it belong
    ],
)
def test_values_of_a_file_of_ones_own_are_named_as_if_they_were_typed(
    tmp_path: Path, words: list[str], name: str
) -> None:
    (tmp_path / "sweep").mkdir()
    (tmp_path / "lab.yaml").write_text(LAB)
    (tmp_path / "sweep" / "mine.yaml").write_text("# @package _global_\nsweep: {rows: {model/shortcut: [none]}}\n")
    table = ["model/shortcut=none"] if words and words[0].startswith("sweep=") else []
    run = compose([*words, *table, f"output_root={tmp_path}"], Search((f"file://{tmp_path}",), "lab"))
    assert folder_of(run).path == tmp_path / name / "seed0"


@pytest.mark.parametrize(
    ("overrides", "name"),
    [
        (["epochs=5"], "mine/digits_resnet,digits,epochs=5/seed0"),
        (["sweep=digits_shortcuts", "model/shortcut=none"], "mine/none/seed0"),
        (["sweep=digits_shortcuts", "model/shortcut=none", "scale=mini"], "mine+scale=mini/none/seed0"),
    ],
)
def test_a_name_stands_in_place_of_the_sweeps(tmp_path: Path, overrides: list[str], name: str) -> None:
    assert folder_of(row(tmp_path, *overrides, "name=mine")).path == tmp_path / name


def test_axes_that_name_no_row_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"sweep\.axes: nope is neither a group of options nor a key of the config"):
        folder_of(row(tmp_path, "sweep=digits_shortcuts", "sweep.axes=[nope]"))
