"""The loop against the same training written out by hand."""

import copy
import io
import math
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from deepnets.config.schema import StepKind
from deepnets.data.batches import EvaluationBatches, TrainingBatches
from deepnets.data.normalization import Normalization
from deepnets.data.source import Split
from deepnets.distributed.world import ALONE, World
from deepnets.optimizer import sgd
from deepnets.schedule import Plateau, Step
from deepnets.training.assembly import prepare
from deepnets.training.fit import Sums, Training, fit
from tests.command import ROOT, row

CPU = torch.device("cpu")
IMAGES = torch.randint(0, 256, (10, 4, 4, 1), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(10) % 3


def small_net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 3))


def training(
    iterations: int,
    schedule: Callable[[int], float] | None = None,
    step: StepKind = StepKind.eager,
    clip: float | None = None,
) -> Training:
    """Batches of 4, 4 and 2 images; rate 0.5, without another schedule 0.05 from the middle on."""
    split = Split(IMAGES, LABELS)
    normalization = Normalization(torch.zeros(4, 4, 1), torch.full((4, 4, 1), 1 / 255))
    model = small_net()
    optimizer = sgd(model, lr=0.5, momentum=0.9, nesterov=True, weight_decay=0.01, decayed="all")
    halves = Step(iterations, milestones=[1], of=2, factor=0.1, warmup_iterations=0, warmup_factor=1.0)
    return Training(
        model=model,
        optimizer=optimizer,
        schedule=torch.optim.lr_scheduler.LambdaLR(optimizer, schedule or halves),
        batches=TrainingBatches(split, normalization, pad=0, flip=False, batch_size=4, seed=0),
        evaluated={"test": EvaluationBatches(split, normalization, batch_size=3)},
        iterations=iterations,
        device=CPU,
        precision=torch.float32,
        sums=Sums(CPU),
        step=step,
        clip_gradient_norm=clip,
    )


def by_hand(
    iterations: int, epochs: int, clip: float = math.inf
) -> tuple[nn.Sequential, list[tuple[float, float, float, float]]]:
    """Nesterov momentum written out, and (train loss, train error, test loss, test error) of each epoch."""
    model, batches = small_net(), training(iterations).batches
    velocity = [torch.zeros_like(parameter) for parameter in model.parameters()]
    done, numbers = 0, []
    for epoch in range(epochs):
        model.train()
        losses, wrong, seen = 0.0, 0, 0
        for x, y in batches.epoch(epoch):
            if done == iterations:
                break
            logits = model(x)
            loss = cross_entropy(logits, y)
            gradients = torch.autograd.grad(loss, list(model.parameters()))
            norm = math.sqrt(sum(gradient.square().sum().item() for gradient in gradients))
            gradients = [gradient * min(1, clip / norm) for gradient in gradients]
            rate = 0.5 if done < iterations // 2 else 0.05
            with torch.no_grad():
                for parameter, gradient, v in zip(model.parameters(), gradients, velocity, strict=True):
                    gradient = gradient + 0.01 * parameter
                    v.mul_(0.9).add_(gradient)
                    parameter.sub_(rate * (gradient + 0.9 * v))
            losses, seen = losses + loss.item() * len(y), seen + len(y)
            wrong += (logits.argmax(1) != y).sum().item()
            done += 1
        model.eval()
        with torch.no_grad():
            logits = model(IMAGES.permute(0, 3, 1, 2) / 255)
        test = (cross_entropy(logits, LABELS).item(), 100 * (logits.argmax(1) != LABELS).float().mean().item())
        numbers.append((losses / seen, 100 * wrong / seen, *test))
    return model, numbers


@pytest.mark.parametrize("clip", [None, 0.3])
def test_training_is_the_formula_with_short_batches_and_a_cut_epoch(clip: float | None) -> None:
    ours = training(iterations=8, clip=clip)
    numbers = [
        [value for split in ("train", "test") for value in (done[split].loss, done[split].error)]
        for state in fit(ours)
        if (done := state.completed)
    ]
    model, expected = by_hand(iterations=8, epochs=3, clip=clip or math.inf)
    assert ours.images == 10 + 10 + 8
    torch.testing.assert_close(torch.tensor(numbers), torch.tensor(expected), rtol=1e-4, atol=1e-5)
    for name, weight in model.state_dict().items():
        torch.testing.assert_close(ours.model.state_dict()[name], weight, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "changes",
    [
        ["model=resnet20"],
        pytest.param(["model=resnet20", "model/survival=linear_decay"], marks=pytest.mark.slow),
        pytest.param(
            ["model=resnet20", "memory=recompute_segments", "model.batchnorm_images=16"], marks=pytest.mark.slow
        ),
        ["model=highway_fc10", "optimizer=caffe_nesterov"],
    ],
    ids="+".join,
)
def test_training_is_a_plain_loop_to_the_last_bit(changes: list[str]) -> None:
    """Two epochs of 80 noise images, the last batch of each short."""
    noise = ["dataset=synthetic", "dataset.source.train=80", "dataset.source.test=8", "batch_size=32", "epochs=2"]

    def prepared() -> Training:
        return prepare(row(Path("unused"), *noise, *changes).config, CPU, torch.float32)

    ours = prepared()
    losses = [state.loss.item() for state in fit(ours) if state.model.training]
    plain, expected = prepared(), []
    for epoch in range(2):
        for x, y in plain.batches.epoch(epoch):
            loss = cross_entropy(plain.model(x), y, reduction="sum") / len(y)
            plain.optimizer.zero_grad()
            loss.backward()
            plain.optimizer.step()
            plain.schedule.step()
            expected.append(loss.item())
    assert losses == expected
    for name, weight in plain.model.state_dict().items():
        assert torch.equal(ours.model.state_dict()[name], weight), name


def test_an_iteration_crosses_few_files() -> None:
    """Outside of the networks' own."""
    config = row(Path("unused"), "model=resnet20", "dataset=synthetic", "batch_size=8", "precision=fp32").config
    states = fit(prepare(config, CPU, torch.float32))
    next(states)
    files = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            files.add(Path(frame.f_code.co_filename))

    before = sys.gettrace()
    sys.settrace(note)
    try:
        next(states)
    finally:
        sys.settrace(before)
    ours = {file for file in files if file.is_relative_to(ROOT / "deepnets")}
    crossed = {file for file in ours if not file.is_relative_to(ROOT / "deepnets" / "models")}
    assert {file.name for file in crossed} >= {"fit.py", "batches.py"}
    assert len(crossed) <= 6


def test_a_state_taken_anywhere_continues_to_the_same_weights() -> None:
    whole = training(iterations=8)
    files = [as_file(state.state_dict()) for state in fit(whole)]
    assert len(files) == 8 + 3 * 4 + 3  # iterations, evaluated batches, epochs
    for file in files:
        resumed = training(iterations=8)
        resumed.load_state_dict(torch.load(file, weights_only=True))
        for _ in fit(resumed):
            pass
        for name, weight in whole.model.state_dict().items():
            assert torch.equal(resumed.model.state_dict()[name], weight), name


def test_an_own_network_may_call_a_module_generator() -> None:
    t = training(iterations=1)
    t.model.generator = nn.Linear(2, 2)
    assert t.state_dict()["survival"] is None
    t.load_state_dict(t.state_dict())


def test_a_schedule_that_observes_the_loss_continues_anywhere() -> None:
    def plateau() -> Plateau:
        return Plateau(18, window=1, patience=2, threshold=0.99, factor=0.5)  # every epoch is slow

    whole, states = training(18, plateau()), []
    for state in fit(whole):
        states.append((as_file(state.state_dict()), state.learning_rate, state.optimizer.param_groups[0]["lr"]))
    by_iteration = {
        3: (0.5, 0.5),
        9: (0.5, 0.5),
        10: (0.5, 0.25),
        11: (0.25, 0.25),
        15: (0.25, 0.25),
        18: (0.125, 0.125),
    }
    ends = {torch.load(file, weights_only=True)["iteration"]: rates for file, *rates in states}
    assert {iteration: tuple(ends[iteration]) for iteration in by_iteration} == by_iteration
    for file, *_ in states:
        resumed = training(18, plateau())
        file.seek(0)
        resumed.load_state_dict(torch.load(file, weights_only=True))
        rates = [state.learning_rate for state in fit(resumed)]
        assert rates == [rate for _, rate, _ in states][len(states) - len(rates) :]
        for name, weight in whole.model.state_dict().items():
            assert torch.equal(resumed.model.state_dict()[name], weight), name


def as_file(state: dict) -> io.BytesIO:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return file


@pytest.mark.parametrize("option", ["cutout", "mixup"])
def test_training_with_operations_resumes_within_an_epoch_to_the_last_bit(option: str) -> None:
    def prepared() -> Training:
        words = ["model=highway_fc10", "model.depth=3", "batch_size=500", "epochs=2", f"dataset/augmentation={option}"]
        return prepare(row(Path("unused"), *words).config, CPU, torch.float32)

    whole, resumed = prepared(), prepared()
    states = fit(whole)
    while (whole.epoch, whole.batch) != (1, 2):
        next(states)
    state = copy.deepcopy(whole.state_dict())
    for _ in states:
        pass
    resumed.load_state_dict(state)
    means = next(dict(state.completed) for state in fit(resumed) if state.completed)
    assert math.isfinite(means["train"].loss)
    for name, weight in whole.model.state_dict().items():
        assert torch.equal(resumed.model.state_dict()[name], weight), name


def test_each_process_resumes_with_its_own_random_numbers() -> None:
    state = training(3).state_dict()
    first, second = (torch.Generator().manual_seed(seed).get_state() for seed in (1, 2))
    state |= {"random": torch.stack([first, second]), "sums": state["sums"].repeat(2, 1)}
    resumed = training(3)
    for world, own in ((World(rank=1, size=2), second), (ALONE, first)):
        resumed.world = world
        resumed.load_state_dict(state)
        assert torch.equal(torch.get_rng_state(), own)
