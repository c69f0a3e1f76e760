"""Stochastic depth: which branches survive, what a unit without its branch computes, and that it still decays."""

from collections.abc import Callable
from itertools import product
from math import prod

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from deepnets.errors import UserError
from deepnets.models.resnet import ResNet
from deepnets.models.survival import LinearDecay, RandomSubset, Uniform

SMALL = ("stochastic_depth110", "model.depth=14", "model.widths=[4,6,8]")


def test_linear_decay_ends_at_its_last_probability() -> None:
    expected = LinearDecay(last=0.5).expected(54)
    assert expected[0] == pytest.approx(1 - 0.5 / 54)
    assert expected[26] == pytest.approx(0.75)
    assert expected[53] == 0.5
    assert sum(expected) == pytest.approx(40.25)  # (3 L - 1) / 4


@pytest.mark.parametrize(
    ("survival", "expected"),
    [
        (LinearDecay(last=0.2), [0.8, 0.6, 0.4, 0.2]),
        (Uniform(probability=0.7), [0.7] * 4),
        (RandomSubset(size=3), [0.75] * 4),
    ],
)
def test_units_survive_as_often_as_expected(
    survival: LinearDecay | Uniform | RandomSubset, expected: list[float]
) -> None:
    torch.manual_seed(0)
    draws = torch.tensor([survival.drawn(4) for _ in range(2000)])
    assert set(draws.unique().tolist()) == {0.0, 1.0}
    assert survival.expected(4) == pytest.approx(expected)
    assert draws.mean(0).tolist() == pytest.approx(expected, abs=0.05)  # 4.5 standard errors


def test_a_random_subset_has_its_size_and_changes() -> None:
    torch.manual_seed(0)
    draws = [tuple(RandomSubset(size=23).drawn(54)) for _ in range(50)]
    assert {sum(draw) for draw in draws} == {23}
    assert len(set(draws)) == 50


def test_draws_follow_the_seed_and_take_no_other_device() -> None:
    draws = []
    for device in ("cpu", "meta"):
        torch.manual_seed(3)
        with torch.device(device):
            draws.append(LinearDecay(last=0.5).drawn(54) + RandomSubset(size=23).drawn(54))
    assert draws[0] == draws[1]


@pytest.mark.parametrize(
    "kind",
    [
        "identity",
        "scaled_0.5_0.5",
        "exclusive_gating_b0",
        "shortcut_only_gating_b0",
        "projection",
        "dropout",
        "highway_b1",
    ],
)
@pytest.mark.parametrize("rotation", ["original", "full_preactivation"])
def test_a_dropped_branch_leaves_the_shortcut_alone(network: Callable[..., ResNet], kind: str, rotation: str) -> None:
    torch.manual_seed(0)
    chosen = [f"model/shortcut={kind}", f"model/ordering={rotation}"]
    model = network("resnet20", *chosen, "model.depth=8", "model.widths=[4,6,8]")
    for unit in model.units:
        unit.branch.register_forward_hook(lambda *_: pytest.fail("a dropped branch must not be computed"))
        x = torch.randn(2, unit.branch.get_parameter(_first_conv(unit)).shape[1], 8, 8)
        state = torch.get_rng_state()
        y = unit(x, 0.0)
        torch.set_rng_state(state)
        x = unit.before(x)
        stride = 1 if unit is model.units[0] else 2
        zero = torch.zeros(2, y.shape[1], 8 // stride, 8 // stride)
        torch.testing.assert_close(y, unit.after(unit.shortcut(x, zero)))


def _first_conv(unit: nn.Module) -> str:
    return next(name for name, parameter in unit.branch.named_parameters() if parameter.dim() == 4)


def test_at_test_a_unit_scales_its_branch_by_its_probability(network: Callable[..., ResNet]) -> None:
    torch.manual_seed(0)
    model = network(*SMALL).eval()
    x = images = torch.randn(2, 3, 8, 8)
    x = model.stem(x)
    for index, unit in enumerate(model.units, start=1):
        r = (1 - index / 6 * 0.5) * unit.branch(x)
        h = x
        if x.shape != r.shape:
            h = torch.zeros_like(r)
            h[:, : x.shape[1]] = x.unfold(2, 2, 2).unfold(3, 2, 2).mean((4, 5))
        x = torch.relu(h + r)
    torch.testing.assert_close(model(images), model.head(x.mean((2, 3))))


def test_in_the_linear_case_the_mean_over_all_draws_is_the_output_at_test(network: Callable[..., ResNet]) -> None:
    torch.manual_seed(0)
    linear = ("model.layer=[conv]", "model.after=[]", "model.conv_bias=false")
    model = network("stochastic_depth110", "model.depth=20", "model.widths=[3,4,5]", *linear).double().eval()
    images = torch.randn(2, 3, 8, 8, dtype=torch.float64)
    probabilities = [1 - unit / 9 * 0.5 for unit in range(1, 10)]
    mean = torch.zeros(2, 10, dtype=torch.float64)
    with torch.inference_mode():
        for draw in product((0, 1), repeat=9):
            x = model.stem(images)
            for unit, b in zip(model.units, draw, strict=True):
                x = unit(x, float(b))
            weight = prod(p if b else 1 - p for p, b in zip(probabilities, draw, strict=True))
            mean += weight * model.head(x.mean((2, 3)))
        torch.testing.assert_close(model(images), mean)


def test_momentum_and_decay_act_on_dropped_branches_and_statistics_stay(network: Callable[..., ResNet]) -> None:
    torch.manual_seed(0)
    model = network(*SMALL).to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
    computed: set[nn.Module] = set()
    for unit in model.units:
        unit.branch.register_forward_hook(lambda branch, *_: computed.add(branch))
    dropped_twice = 0
    before: set[nn.Module] = set()
    for _ in range(8):
        computed.clear()
        state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        velocity = {
            p: optimizer.state[p].get("momentum_buffer", torch.zeros_like(p)).clone() for p in model.parameters()
        }
        optimizer.zero_grad()
        cross_entropy(model(torch.randn(4, 3, 8, 8)), torch.arange(4)).backward()
        optimizer.step()
        for index, unit in enumerate(model.units):
            name = f"stages.{index // 2}.{index % 2}.branch"
            if unit.branch in computed:
                assert not torch.equal(state[f"{name}.1.running_mean"], unit.branch[1].running_mean)
                continue
            for key, p in unit.branch.named_parameters():
                assert torch.count_nonzero(p.grad) == 0
                old = state[f"{name}.{key}"]
                torch.testing.assert_close(p.data, old - 0.1 * (0.9 * velocity[p] + 0.01 * old))
            for key, buffer in unit.branch.named_buffers():
                assert torch.equal(buffer, state[f"{name}.{key}"])
            dropped_twice += unit.branch in before
        before = computed.copy()
    assert dropped_twice >= 3, "the case under test did not occur"


def test_a_run_with_all_units_is_the_net_of_constant_depth(network: Callable[..., ResNet]) -> None:
    torch.manual_seed(0)
    model = network(*SMALL, "model/survival=uniform", "model.survival.probability=1.0")
    constant = network(*SMALL, "model/survival=none")
    constant.load_state_dict(model.state_dict())
    images = torch.randn(2, 3, 8, 8)
    assert torch.equal(model(images), constant(images))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["model/survival=linear_decay", "model.survival.last=0.0"], "last: got 0.0; must be above 0"),
        (["model/survival=uniform", "model.survival.probability=1.5"], "probability: got 1.5; must be at most 1"),
        (["model/survival=random_subset"], "size is 23; of 9 units, 1 to 9 can survive"),
        (["model/survival=uniform", "model/shortcut=none"], "a plain unit computes nothing without its branch"),
        (["model/survival=uniform", "model/shortcut=deep_delta"], r"deep_delta reads the direction of F\(x\) alone"),
    ],
)
def test_an_impossible_survival_is_refused(network: Callable[..., ResNet], overrides: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        network("resnet20", *overrides)
