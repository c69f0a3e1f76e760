"""The learning-rate factor at exact iterations."""

import math

import pytest
import torch

from deepnets.schedule import Cosine, ErrorPlateau, Exponential, Plateau, Step, WarmupCosine


def step(total: int, **changes: object) -> Step:
    settings = {
        "milestones": [32000, 48000], "of": 64000, "factor": 0.1, "warmup_iterations": 0, "warmup_factor": 0.1
    }  # fmt: skip
    return Step(total, **(settings | changes))


def test_step_falls_at_the_published_iterations() -> None:
    schedule = step(64000)
    assert [schedule(i) for i in (0, 31999)] == [1, 1]
    assert [schedule(i) for i in (32000, 47999)] == pytest.approx([0.1, 0.1])
    assert [schedule(i) for i in (48000, 63999)] == pytest.approx([0.01, 0.01])


def test_milestones_in_epochs_scale_to_the_iterations_of_fb_resnet_torch() -> None:
    schedule = step(164 * 391, milestones=[80, 121], of=164)
    assert schedule.milestones == [31280, 47311]


def test_milestones_scale_in_whole_iterations_with_a_shortened_budget() -> None:
    assert step(1001).milestones == [500, 750]


def test_warmup_jumps_to_the_full_rate_and_leaves_the_milestones_alone() -> None:
    schedule = step(64000, warmup_iterations=400)
    assert schedule(399) == pytest.approx(0.1)
    assert schedule(400) == 1
    assert schedule.milestones == [32000, 48000]


@pytest.mark.parametrize(
    ("schedule", "description"),
    [
        (step(1000), "learning rate x 0.1 at iterations 500 and 750"),
        (step(1000, warmup_iterations=20), "learning rate x 0.1 for 20 iterations, x 0.1 at iterations 500 and 750"),
        (step(1000, milestones=[]), "learning rate constant"),
        (Exponential(100, 0.01), "learning rate falling exponentially to x 0.01"),
    ],
)
def test_a_schedule_tells_what_it_does_within_the_budget(schedule: object, description: str) -> None:
    assert str(schedule) == description


def test_cosine_passes_its_half_at_half_time() -> None:
    schedule = Cosine(100)
    assert schedule(0) == 1
    assert schedule(50) == pytest.approx(0.5)
    assert schedule(25) == pytest.approx(0.5 + math.sqrt(2) / 4)
    assert schedule(100) == pytest.approx(0)


def test_exponential_leaves_the_final_factor() -> None:
    schedule = Exponential(100, final_factor=0.01)
    assert schedule(50) == pytest.approx(0.1)
    assert schedule(100) == pytest.approx(0.01)


@pytest.mark.parametrize(
    "changes",
    [{"milestones": [2, 1]}, {"milestones": [1, 1]}, {"milestones": [70000]}],
)
def test_impossible_steps_are_refused(changes: dict) -> None:
    with pytest.raises(ValueError, match="must"):
        step(64000, **changes)


def test_state_survives_a_restart_in_mid_schedule() -> None:
    def scheduler() -> tuple[torch.optim.SGD, torch.optim.lr_scheduler.LambdaLR]:
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.5)
        return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, step(20, warmup_iterations=3))

    optimizer, whole = scheduler()
    rates = []
    for iteration in range(20):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        whole.step()
        if iteration == 11:
            state = (optimizer.state_dict(), whole.state_dict())
    optimizer, resumed = scheduler()
    optimizer.load_state_dict(state[0])
    resumed.load_state_dict(state[1])
    again = []
    for _ in range(12, 20):
        again.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        resumed.step()
    assert again == rates[12:]
    assert rates == pytest.approx([0.05] * 3 + [0.5] * 7 + [0.05] * 5 + [0.005] * 5)


def plateau(**changes: object) -> Plateau:
    return Plateau(1000, **({"window": 2, "patience": 2, "threshold": 0.1, "factor": 0.5} | changes))


def test_plateau_falls_after_slow_epochs_in_a_row_and_counts_anew() -> None:
    schedule = plateau()
    losses = [1.0, 0.9, 0.8, 0.79, 0.73, 0.72, 0.71, 0.70, 0.69]
    # From the third loss on they fall over 2 epochs by 20, 12, 9, 9, 3, 3, 3 percent: slow from 0.73 on.
    factors = []
    for epoch, loss in enumerate(losses, start=1):
        schedule.observe(10 * epoch, loss)
        factors.append(schedule(10 * epoch + 1))
    assert factors == [1, 1, 1, 1, 1, 0.5, 0.5, 0.25, 0.25]
    assert [schedule(60), schedule(61)] == [1, 0.5]  # the rate of iteration 60 was set before epoch 6 ended


def test_plateau_forgives_when_a_quick_epoch_lies_between() -> None:
    schedule = plateau()
    for epoch, loss in enumerate([1.0, 1.0, 1.0, 0.5, 0.5, 0.5, 0.1], start=1):
        schedule.observe(epoch, loss)
    assert schedule(8) == 1


def test_error_plateau_falls_when_an_error_reaches_no_new_low() -> None:
    schedule = ErrorPlateau(100, watched="test", patience=2, threshold=0.1, factor=0.1)
    for epoch, error in enumerate([50.0, 40.0, 39.0, 36.5, 36.0, 30.0, 29.0, 28.0], 1):
        schedule.observe_errors(10 * epoch, {"train": 0.0, "test": error})
    # A new low is more than a tenth below the last: 39, 36.5 and 36 are not, after 40; 30 is; 29 and 28 are not.
    assert schedule.falls == [40, 80]
    assert [schedule(i) for i in (40, 41, 80, 81)] == pytest.approx([1, 0.1, 0.1, 0.01])


def test_a_warmup_rises_in_equal_steps_and_falls_in_half_a_cosine() -> None:
    schedule = WarmupCosine(400, warmup=10, of=200, final_factor=0.02)
    assert schedule.warmup_iterations == 20
    assert [schedule(0), schedule(9), schedule(19), schedule(20)] == [0.05, 0.5, 1, 1]
    assert schedule(210) == pytest.approx(0.51)
    assert schedule(400) == pytest.approx(0.02)
    assert WarmupCosine(400, warmup=0, of=200, final_factor=0.0)(0) == 1
    assert str(schedule) == "learning rate rising for 20 iterations, then falling to x 0.02 in half a cosine"
    with pytest.raises(ValueError, match="warmup 200 of 200: must be shorter than the budget"):
        WarmupCosine(400, warmup=200, of=200, final_factor=0.0)
