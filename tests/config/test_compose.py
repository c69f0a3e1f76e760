"""The user's cache remembers what Hydra composed, as long as nothing changes on which it depends."""

import os
from pathlib import Path

import pytest
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from deepnets.config import compose as module
from deepnets.config.compose import compose
from deepnets.config.schema import Row, Search
from deepnets.errors import UserError
from deepnets.runs.naming import folder_of

SWEEP = ("sweep=he2016_table1", "model/shortcut=exclusive_gating_b1", "scale=deep", "seed=3")
OPTION = "# @package _global_\ndefaults:\n  - override /model: resnet20\nsweep: {rows: {seed: [0, 1]}}\nepochs: %s\n"


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's cache, empty at first."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    return folder / "deepnets"


def later(*words: str, places: tuple[Path, ...] = ()) -> Row:
    """Compose a row as a later process would."""
    for function in (module._base, module.composed, module.key_at_first):
        function.cache_clear()
    return compose(words, Search(tuple(f"file://{place}" for place in places)))


@pytest.mark.parametrize(
    "words", [(), SWEEP, ("sweep=digits_shortcuts",), ("sweep=he2016_table1", "scale=mini", "model.depth=20")]
)
def test_a_later_command_reads_what_hydra_composed(words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    first = later(*words)
    name = folder_of(first).path
    monkeypatch.setattr("hydra.compose", None)
    OmegaConf.clear_resolver("at_scale")  # a new process has not registered it
    module.register.cache_clear()
    second = later(*words)
    assert repr(second) == repr(first)
    assert folder_of(second).path == name


@pytest.mark.parametrize("damage", ["", "{", "{}", '{"config": 1}'])
def test_a_damaged_file_is_composed_again(damage: str, cache: Path) -> None:
    first = later(*SWEEP)
    (file,) = cache.glob("options-*")
    content = file.read_text()
    file.write_text(damage)
    assert later(*SWEEP) == first
    assert file.read_text() == content


def test_an_edited_option_is_composed_again(tmp_path: Path, cache: Path) -> None:
    file = tmp_path / "sweep" / "mine.yaml"
    file.parent.mkdir()
    for epochs in (3, 4, 3):
        file.write_text(OPTION % epochs)
        assert later("sweep=mine", places=(tmp_path,)).config.epochs == epochs
    assert len([*cache.glob("options-*")]) == 2


def test_a_process_that_knows_older_options_writes_nothing(tmp_path: Path, cache: Path) -> None:
    file = tmp_path / "optimizer" / "mine.yaml"
    file.parent.mkdir()
    search = Search((f"file://{tmp_path}",))
    for lr in (0.5, 0.25):
        file.write_text(f"_target_: torch.optim.SGD\n_partial_: true\nlr: {lr}\n")
        if lr == 0.5:
            later("optimizer=mine", places=(tmp_path,))
        compose(("optimizer=mine", "model.depth=14"), search)
        compose(("optimizer=mine", "protocol=he2015"), search)
    for words in ((), ("model.depth=14",), ("protocol=he2015",)):
        assert later("optimizer=mine", *words, places=(tmp_path,)).config.optimizer["lr"] == 0.25


def test_a_linked_folder_and_a_resolver_in_disguise_are_not_remembered(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "options").mkdir()
    (tmp_path / "options" / "sweep").symlink_to(tmp_path / "real")
    for epochs in (3, 4):
        (tmp_path / "real" / "mine.yaml").write_text(OPTION % epochs)
        assert later("sweep=mine", places=(tmp_path / "options",)).config.epochs == epochs
    hidden = tmp_path / "hidden" / "sweep" / "mine.yaml"
    hidden.parent.mkdir(parents=True)
    hidden.write_text(OPTION % r'"\x24{oc.decode:\x24{oc.env:EPOCHS}}"')
    for epochs in (3, 4):
        monkeypatch.setenv("EPOCHS", str(epochs))
        assert later("sweep=mine", places=(tmp_path / "hidden",)).config.epochs == epochs
    assert not [*cache.glob("options-*")]


def test_a_folder_whose_name_is_not_utf_8(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    folder.mkdir()
    monkeypatch.chdir(folder)
    assert later("output_root=here").config.output_root == str(folder / "here")


def test_another_working_directory_is_composed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    roots = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        roots.append(later("dataset=cifar10", "dataset.root='data${seed}'").config.dataset["root"])
    assert roots == [str(tmp_path / "a" / "data0"), str(tmp_path / "b" / "data0")]


def test_what_depends_on_the_environment_is_not_remembered(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "sweep" / "mine.yaml"
    file.parent.mkdir()
    file.write_text(OPTION % "${oc.decode:${oc.env:EPOCHS}}")
    for epochs in (3, 4):
        monkeypatch.setenv("EPOCHS", str(epochs))
        assert later("sweep=mine", places=(tmp_path,)).config.epochs == epochs
    images = tmp_path / "link"
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        images.unlink(missing_ok=True)
        images.symlink_to(name)
        assert later("dataset=image_folder", f"dataset.root={images}").config.dataset["source"]["name"] == name
    assert not [*cache.glob("options-*")]


def test_what_json_changes_is_not_remembered(cache: Path) -> None:
    """A claim of this sweep has whole numbers as keys."""
    for _ in range(2):
        slope = later("sweep=he2016_table3_cifar10").config.sweep.claims[4]["test"]["log_slope"]  # type: ignore[union-attr]
        assert [*slope] == [110, 164, 1001]
    assert not [*cache.glob("options-*")]


def test_options_that_make_no_run_are_not_remembered(cache: Path) -> None:
    for _ in range(2):
        with pytest.raises((UserError, OmegaConfBaseException), match="depth"):
            later("model=resnet")
    assert not [*cache.glob("options-*")]


def test_a_file_that_cannot_be_read_leaves_the_rest_as_it_is(tmp_path: Path, cache: Path) -> None:
    (tmp_path / ".#lock.yaml").symlink_to("nobody")
    assert later(*SWEEP, places=(tmp_path,)).config.seed == 3
    assert not [*cache.glob("options-*")]


def test_the_oldest_are_forgotten(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REMEMBERED", 2)
    files = []
    for model in ("resnet20", "resnet32", "resnet44"):
        later(f"model={model}")
        (new,) = {*cache.glob("options-*")} - {*files}
        os.utime(new, (len(files), len(files)))
        files.append(new)
    assert {*cache.glob("options-*")} == {*files[1:]}
