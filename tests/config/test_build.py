"""Nodes are checked against signatures and the allowlist before anything is called."""

import operator
from pathlib import Path

import pytest
from torch import nn

from deepnets.config.build import TARGETS, build, check_node
from deepnets.config.compose import compose
from deepnets.config.trust import is_trusted, to_trust, trust, trusting
from deepnets.errors import UserError
from deepnets.models.resize import ShortcutShape
from deepnets.schedule import Step

STEP = {
    "_target_": "deepnets.schedule.Step", "milestones": [81, 122], "of": 164, "factor": 0.1,
    "warmup_iterations": 0, "warmup_factor": 0.1,
}  # fmt: skip


def test_a_good_node_becomes_its_object() -> None:
    schedule = build("schedule", STEP, total=164)
    assert isinstance(schedule, Step)
    assert schedule.milestones == [81, 122]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"factor": "abc"}, r"schedule\.factor: got 'abc'"),
        ({"warmup_iterations": 1.5}, r"schedule\.warmup_iterations: got 1\.5"),
        ({"milestones": [81, "x"]}, r"schedule\.milestones\[1\]: got 'x'"),
        ({"milestones": 81}, r"schedule\.milestones: got 81; must be a list, as in \[1,2\]"),
        ({"milestone": [1]}, r"unknown key 'milestone'.*milestones, of, factor"),
        ({"total": 5}, r"unknown key 'total'"),
        ({"milestones": [9, 8]}, r"schedule: milestones \[9, 8\] of 164: must rise"),
        ({"_args_": [1]}, r"unknown key '_args_'"),
    ],
)
def test_a_wrong_argument_is_named(change: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        build("schedule", STEP | change, total=164)


def test_a_missing_argument_is_named() -> None:
    with pytest.raises(UserError, match="missing: factor;"):
        build("schedule", {key: value for key, value in STEP.items() if key != "factor"}, total=164)


@pytest.mark.parametrize(
    "target",
    [
        "builtins.eval",
        "os.system",
        "torch.hub.load",
        "torch.optim.optimizer.torch.hub.load",
        "deepnets.schedule.bisect_right",
        None,
        ["deepnets.schedule.Step"],
    ],
)
def test_a_target_off_the_list_is_refused_before_it_is_imported(target: str | None) -> None:
    with pytest.raises(UserError, match="not one of the classes"):
        build("schedule", {"_target_": target, "cmd": "true"})


def test_a_nested_target_is_checked_too() -> None:
    node = {"_target_": "deepnets.data.dataset.Dataset", "source": {"_target_": "os.system", "command": "true"}}
    with pytest.raises(UserError, match=r"dataset\.source\._target_: 'os\.system'"):
        build("dataset", node)


def test_a_partial_node_leaves_one_argument_open() -> None:
    source = {"_target_": "deepnets.data.sources.synthetic", "_partial_": True}
    node = {"_target_": "deepnets.data.dataset.Dataset", "root": ".", "validation": 0, "pad": 0, "flip": False}
    node |= {"normalization": "channel", "source": source}
    with pytest.raises(UserError, match=r"dataset\.source: missing: root, classes, channels, size, train, test"):
        build("dataset", node)
    with pytest.raises(UserError, match=r"schedule\._partial_: only a nested node"):
        build("schedule", STEP | {"_partial_": True}, total=164)


class Gate(nn.Module):
    """A shortcut of one's own."""

    def __init__(self, *, start: float, ends: ShortcutShape) -> None:
        super().__init__()


def test_a_shortcut_that_is_not_partial_is_told_the_line_that_it_lacks() -> None:
    trust(gate := f"{__name__}.Gate")
    model = compose([]).config.model
    model["shortcut"] = {"_target_": gate, "start": 0.0}
    with pytest.raises(UserError) as refused:
        check_node("model", model, ["shape", "classes"])
    assert str(refused.value).startswith("model.shortcut: missing: ends; add `_partial_: true`, with which")
    check_node("model", model | {"shortcut": model["shortcut"] | {"_partial_": True}}, ["shape", "classes"])


def test_an_error_in_a_trusted_target_is_a_line_and_one_of_ours_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    trust("fractions.Fraction")
    with pytest.raises(UserError, match=r"^schedule: ZeroDivisionError: Fraction\(1, 0\)$"):
        build("schedule", {"_target_": "fractions.Fraction", "numerator": 1, "denominator": 0})
    monkeypatch.setattr("deepnets.config.build._built", operator.truediv)  # two dictionaries
    with pytest.raises(TypeError):
        build("schedule", STEP, total=164)


def no_network(lr: float) -> None:
    """An optimiser that forgets the network."""


def no_folder() -> None:
    """A source that forgets the data folder."""


def any_words(model: nn.Module, **words: float) -> dict[str, float]:
    """An optimiser that takes whatever it gets."""
    return words


def test_a_target_must_take_what_deepnets_passes() -> None:
    trust([f"{__name__}.no_network", f"{__name__}.no_folder", f"{__name__}.any_words"])
    with pytest.raises(UserError, match=r"no_network must take model, which deepnets passes; it takes lr$"):
        check_node("optimizer", {"_target_": f"{__name__}.no_network", "lr": 0.1}, ["model"])
    node = compose([]).config.dataset | {"source": {"_target_": f"{__name__}.no_folder", "_partial_": True}}
    with pytest.raises(UserError, match=r"dataset\.source: \S+no_folder must take one more argument, which deepnets"):
        check_node("dataset", node, [])
    built = build("optimizer", {"_target_": f"{__name__}.any_words", "lr": 0.1}, model=nn.Linear(1, 1))
    assert built == {"lr": 0.1}


def test_a_trusted_target_is_called() -> None:
    trust("fractions.Fraction")
    assert build("schedule", {"_target_": "fractions.Fraction", "numerator": 3}) == 3


class Started:
    def __init__(self, start: float, count: int, either: int | float, values: list[float]) -> None:
        self.all = start, count, either, values


def test_an_integer_becomes_a_float_where_a_class_of_the_users_own_says_so() -> None:
    trust(f"{__name__}.Started")
    node = {"_target_": f"{__name__}.Started", "start": 1, "count": 2, "either": 3, "values": [4]}
    assert list(map(type, build("schedule", node).all)) == [float, int, int, list]


def test_a_class_is_trusted_by_its_file_where_that_lies_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert to_trust("own_gates.Gate") == "own_gates.Gate"
    (tmp_path / "own_gates.py").write_text("class Gate: ...")
    (tmp_path / "own_package").mkdir()
    (tmp_path / "own_package" / "gates.py").write_text("class Gate: ...")
    for target, named in (("own_gates.Gate", "own_gates.py"), ("own_package.gates.Gate", "own_package.gates.Gate")):
        assert to_trust(target) == named
        with trusting(named):
            assert is_trusted(target)


def test_a_trusted_target_that_is_not_there_is_told() -> None:
    trust("no.such.module")
    with pytest.raises(UserError, match=r"schedule: no\.such\.module cannot be imported"):
        build("schedule", {"_target_": "no.such.module"})


def test_every_target_on_the_list_exists() -> None:
    import hydra

    assert all(callable(hydra.utils.get_object(target)) for target in TARGETS)


class Loose:
    """A user's class whose annotations tell nothing."""

    def __init__(self, parts, more=None) -> None:  # noqa: ANN001
        self.parts, self.more = parts, more


@pytest.mark.parametrize(
    "arguments",
    [
        {"parts": [{"_target_": "os.getpid"}]},
        {"parts": 1, "more": {"a": {"_target_": "os.getpid"}}},
        {"parts": [[{"deep": [{"_target_": "os.getpid"}]}]]},
    ],
)
def test_a_target_off_the_list_is_refused_however_deep_it_lies(arguments: dict) -> None:
    trust(loose := f"{__name__}.Loose")
    with pytest.raises(UserError, match=r"_target_: 'os\.getpid' is not one of the classes"):
        build("model", {"_target_": loose, **arguments})
