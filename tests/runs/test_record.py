from dataclasses import replace
from pathlib import Path
from zlib import crc32

import numpy as np
import pytest
import torch

from deepnets.data.dataset import CHECKED_IMAGES, Splits
from deepnets.data.normalization import fit
from deepnets.data.source import Split
from deepnets.runs.contents import Origin
from deepnets.runs.folder import RunFolder
from deepnets.runs.record import changes_since, differing, environment_of
from tests.command import row

IMAGES = torch.randint(256, (2 * CHECKED_IMAGES, 2, 2, 3), dtype=torch.uint8)
TRAIN, TEST = Split(IMAGES, torch.arange(len(IMAGES)) % 10), Split(IMAGES[:4], torch.tensor([3, 1, 2, 0]))
SPLITS = Splits(TRAIN, None, TEST, fit("unit_interval", IMAGES))


def changed(pixel: int = 0, label: int = 0) -> Splits:
    """The splits with another second training image, which the older checksum leaves out, or first label."""
    images, labels = IMAGES.clone(), TRAIN.labels.clone()
    images[1, 0, 0, 0] += pixel
    labels[0] += label
    return replace(SPLITS, train=Split(images, labels))


@pytest.mark.parametrize(
    ("other", "keys"), [(changed(pixel=1), {"content"}), (changed(label=1), {"content", "labels"})]
)
def test_every_pixel_and_label_counts(other: Splits, keys: set[str]) -> None:
    before, now = SPLITS.contents(), other.contents()
    assert {key for key in before if before[key] != now[key]} == keys


def test_a_label_may_not_move_from_one_split_to_another() -> None:
    swapped = replace(SPLITS, test=replace(TEST, labels=TEST.labels.flip(0)))
    assert swapped.contents()["content"] != SPLITS.contents()["content"]


def test_what_older_versions_noted_is_still_noted() -> None:
    labels = np.concatenate([TRAIN.labels.numpy(), TEST.labels.numpy()])
    images = np.concatenate([IMAGES.numpy()[::2], TEST.images.numpy()])
    old = {"train": len(TRAIN), "test": 4, "labels": crc32(labels.tobytes()), "images": crc32(images.tobytes())}
    assert differing(old, SPLITS.contents()) == ""
    assert differing({**old, "images": 0}, SPLITS.contents()).startswith("images 0 then")


def test_another_generation_of_a_processor_of_the_same_name_is_told_when_a_run_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, folder = row(tmp_path).config, RunFolder(tmp_path / "run")
    folder.freeze(config, Origin())
    cpu, line = torch.device("cpu"), "started with processor x86 model 1, resumes with x86 model 2"
    monkeypatch.setattr("deepnets.runs.record.processor_model", lambda: "x86 model 1")
    frozen = environment_of(config, cpu)
    assert not [remark for remark in changes_since(folder, config, frozen, cpu) if "processor" in remark]
    monkeypatch.setattr("deepnets.runs.record.processor_model", lambda: "x86 model 2")
    assert line in changes_since(folder, config, frozen, cpu)
    del frozen["processor"]  # as an older version began it
    assert line not in changes_since(folder, config, frozen, cpu)
